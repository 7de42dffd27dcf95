"""How much attention hands each token back to itself, and why: every quantity per head and token.

For one head: y_i what attention returned at token i, v_j the values, P_ij the weights, n_i how many
keys token i sees, S_i the sum of the visible v_j, m_i = S_i / n_i their mean, and m⁻_i the mean of the
*other* visible values.

    self_weight          P_ii
    self_weight_ratio    P_ii n_i: over the uniform weight of what is visible
    self_similarity      cos(y_i, v_i): the bias
    null_similarity      the mean over visible j≠i of cos(y_i, v_j): what any visible token would score
    excess_similarity    self - null: the part that is about this token
    self_part            P_ii |v_i| / |y_i|                          \\
    common_part          (1 - P_ii) m⁻_i·v̂_i / |y_i|                 | sum to self_similarity, exactly
    selective_part       the rest                                    /
    context_part         common + selective: what the other tokens brought along v_i
    centred_similarity   cos(y_i - m_i, v_i - m_i): without what all visible values share
    removed_energy       cos²(y_i, v_i): the share of |y|² that the exclusive form takes out
    sink_weight          P of the first token of the document
    previous_weight      P_{i,i-1}

and per head, over pairs of tokens of one document,

    value_similarity     the mean over i≠j of cos(v_i, v_j) = (|Σ v̂|² - T) / (T (T - 1)); with fewer
                         than T values that have a direction, their number in place of the first T

Nothing is said of tokens that see only themselves: there y = v. They are counted apart.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from outward.attention.call import AttentionCall
from outward.attention.visible import Visible, sums_of_visible, visible
from outward.measures import bias_native
from outward.measures.blocks import parts
from outward.measures.weights import row_lse, weights_at

Kernel = Literal["torch", "native"]

PER_TOKEN = (
    "self_weight",
    "self_weight_ratio",
    "self_similarity",
    "null_similarity",
    "excess_similarity",
    "self_part",
    "common_part",
    "selective_part",
    "context_part",
    "centred_similarity",
    "removed_energy",
    "sink_weight",
    "previous_weight",
)
PER_PAIR = ("value_similarity",)
DEFAULT = (*PER_PAIR, *PER_TOKEN)

# cos(y - m, v - m) divides by |y - m|, which is known to about eps |y|: below this share of |y|,
# float32 leaves fewer than three digits of it, and nothing is said.
CENTRED_FLOOR = 2.0**-13


@dataclass(frozen=True, eq=False)
class Bias:
    """The default measures of one call.

    tokens: PER_TOKEN, in that order; centred_similarity is NaN where it is ill-conditioned.
    kept: the tokens that count. Of centred_similarity, those that see three keys or more.
    pairs: value_similarity of each document of each row, (document number in row, or one), NaN where
        a document has fewer than two tokens.
    """

    tokens: Float[Tensor, "measure batch head query"]
    kept: Bool[Tensor, "rows query"]
    pairs: Float[Tensor, "batch head document"]
    see: Visible


def bias(call: AttentionCall, see: Visible | None = None, *, kernel: Kernel = "torch") -> Bias:
    """Every default measure of a call. `see` may be handed in where calls share a mask.

    kernel: "native" computes the same by native.cpp, where that knows the kind of call.
    """
    see = visible(call) if see is None else see
    if kernel == "native" and bias_native.fits(call, see):
        weights = None if bias_native.reads_weights(call) else _weights(call, see)
        tokens, pairs = bias_native.token_values(call, see, weights, len(PER_TOKEN), CENTRED_FLOOR)
        return Bias(tokens, see.has_others, pairs.repeat_interleave(call.group, dim=1), see)
    batch, heads, queries, _ = call.y.shape
    wide = torch.promote_types(call.y.dtype, torch.float32)
    tokens = call.y.new_empty(len(PER_TOKEN), batch, heads, queries, dtype=wide)
    pairs = call.y.new_empty(batch, call.v.shape[1], see.documents, dtype=wide)
    for part in parts(call, see):
        at = _values(part.call, part.see)
        tokens[:, part.rows, part.heads] = _tokens(part.call, at, part.see)
        pairs[part.rows, part.kv_heads] = _value_similarity(at.own_direction, see.documents, part.see)
    return Bias(tokens, see.has_others, pairs.repeat_interleave(call.group, dim=1), see)


@dataclass(frozen=True, eq=False)
class _Values:
    """In float32 or wider: v_j and v̂_j of the keys; v_i, |v_i| and v̂_i of each query's own."""

    all: Float[Tensor, "batch kv_head key dim"]
    direction: Float[Tensor, "batch kv_head key dim"]
    own: Float[Tensor, "batch kv_head query dim"]
    own_size: Float[Tensor, "batch kv_head query"]
    own_direction: Float[Tensor, "batch kv_head query dim"]


def _values(call: AttentionCall, see: Visible) -> _Values:
    v = call.v.to(torch.promote_types(call.v.dtype, torch.float32))
    size = _size(v)
    direction = _divide(v, size[..., None])
    if call.self_key is None:
        return _Values(v, direction, v, size, direction)
    index = see.own[:, None, :, None].expand(len(v), v.shape[1], -1, v.shape[3])
    own_size = size.gather(2, index[..., 0])
    return _Values(v, direction, v.gather(2, index), own_size, direction.gather(2, index))


def _tokens(
    call: AttentionCall, values: _Values, see: Visible
) -> Float[Tensor, "measure batch head query"]:
    P, sink, previous = _weights(call, see)
    shape = (call.v.shape[1], call.group)
    core = _of_heads(call.y.unflatten(1, shape), values, P.unflatten(1, shape), see)
    return torch.cat((core.flatten(2, 3), sink[None], previous[None]))


def _weights(call: AttentionCall, see: Visible) -> tuple[Tensor, Tensor, Tensor]:
    lse = None if call.weights is not None else row_lse(call)
    previous = torch.where(see.own > see.start, see.own - 1, -1)
    return (
        weights_at(call, see, see.own, lse),
        weights_at(call, see, see.start, lse),
        weights_at(call, see, previous, lse),
    )


def _of_heads(
    y: Float[Tensor, "batch kv_head group query dim"],
    values: _Values,
    P: Float[Tensor, "batch kv_head group query"],
    see: Visible,
) -> Float[Tensor, "measure batch kv_head group query"]:
    """All but the last two measures."""
    wide = torch.promote_types(y.dtype, torch.float32)
    y, own_v = y.to(wide), values.own[:, :, None]
    n = see.count[:, None, None].to(wide)
    itself = see.sees_itself[:, None, None].to(wide)
    others = (n - itself).clamp_min(1)

    v_size, y_size = values.own_size[:, :, None], _size(y)
    S = sums_of_visible(values.all, see)[:, :, None]
    directions = sums_of_visible(values.direction, see)[:, :, None]

    cosine = _divide(_dot(y, own_v), y_size * v_size)
    null = (_divide(_dot(y, directions), y_size) - itself * cosine) / others
    self_part = _divide(P * v_size, y_size)
    common = _dot(S, own_v) - itself * v_size.square()
    common_part = (1 - P) * _divide(common / others, v_size * y_size)
    context_part = cosine - self_part

    share = -1 / n.clamp_min(1)[..., None]
    y_m, v_m = torch.addcmul(y, S, share), torch.addcmul(own_v, S, share)
    y_m_size = _size(y_m)
    centred = _dot(y_m, v_m) / (y_m_size * _size(v_m))
    unsure = (y_m_size < CENTRED_FLOOR * y_size) | (n < 3)
    return torch.stack(
        (
            P,
            P * n,
            cosine,
            null,
            cosine - null,
            self_part,
            common_part,
            context_part - common_part,
            context_part,
            centred.masked_fill(unsure, torch.nan),
            cosine.square(),
        )
    )


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=-1)


def _size(x: Tensor) -> Tensor:
    """|x|: several times faster than torch's norm, which does no more against overflow."""
    return _dot(x, x).sqrt()


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0: a vector of no length has no direction."""
    return a / b.masked_fill(b == 0, torch.inf)


def _value_similarity(
    v_hat: Float[Tensor, "batch kv_head query dim"], documents: int, see: Visible
) -> Float[Tensor, "batch kv_head document"]:
    """Per document of each row, over all its valid tokens."""
    counted = F.one_hot(see.document, documents).to(v_hat.dtype) * see.valid[..., None]
    T = counted.sum(dim=1)
    whole = documents == 1 and bool(see.valid.all())
    sums = v_hat.sum(dim=2, keepdim=True) if whole else counted.mT[:, None] @ v_hat
    square = sums.square().sum(dim=-1)
    directed = (v_hat.square().sum(dim=-1) > 0).to(v_hat.dtype)  # v = 0 has no cosine with itself
    itself = (counted.mT[:, None] @ directed[..., None])[..., 0]
    similarity = (square - itself) / (T * (T - 1))[:, None]
    return similarity.masked_fill((T < 2)[:, None], torch.nan)
