"""The forms of attention, one function each, all with the options of `standard_attention`.

    standard            y_i = sum_j P_ij v_j
    exclusive           z_i = y_i - (y_i·v̂_i) v̂_i                    (exclusive.py)
    gated exclusive     z_i = y_i - α (y_i·v̂_i) v̂_i
    gated               z_i = y_i ⊙ σ(g_i)
    no self             standard, with bias_ii = -inf
    random direction    z_i = y_i - (y_i·r̂) r̂                        a placebo
    mean direction      z_i = y_i - (y_i·m̂_i) m̂_i                    a placebo

No form lets a token see more than the mask shows it: a mean is the mean of the visible values.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from outward.attention.exclusive import exclude_self
from outward.attention.inputs import (
    Keys,
    Mask,
    Output,
    Queries,
    SelfKey,
    Values,
    check_mask,
    check_own_values,
    check_qkv,
    is_visible,
    own_keys,
    own_values,
    shapes,
)
from outward.attention.masks import itself_mask
from outward.attention.projection import Impl, widen
from outward.attention.standard import (
    additive,
    flash_attention,
    for_flash,
    has_flash,
    needs_gradient,
    restrict,
    softmax_attention,
    standard_attention,
)


def gated_exclusive_attention(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    strength: Float[Tensor, "..."] | float | int,
    causal: bool = False,
    mask: Mask | None = None,
    scale: float | None = None,
    self_key: SelfKey | None = None,
    dropout: float = 0.0,
    impl: Impl = "eager",
) -> Output:
    """z_i = y_i - α (y_i·v̂_i) v̂_i: exclusive attention at a strength that may be learned.

    strength: α, a number, (head,), or (batch, head, query). 0 is standard attention, bit for bit; 1
        is exclusive. `Strength` in modules.py makes one from a parameter, by tanh, sigmoid or raw.
    """
    check_qkv(q, k, v, dropout)
    check_own_values(v)
    mask = check_mask(mask, q, k)
    self_key = own_keys(q, k, causal=causal, mask=mask, self_key=self_key)
    y = softmax_attention(q, k, v, causal, mask, scale, self_key, dropout)
    return exclude_self(y, own_values(v, self_key).to(y.dtype), strength=strength, impl=impl)


def gated_attention(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    gate: Float[Tensor, "batch head query #value_dim"],
    causal: bool = False,
    mask: Mask | None = None,
    scale: float | None = None,
    self_key: SelfKey | None = None,
    dropout: float = 0.0,
) -> Output:
    """z_i = y_i ⊙ σ(g_i): a sigmoid gate on the output of each head (arXiv 2505.06708).

    gate: the logits g, of the shape of the output for a gate per element, or with a last axis of 1
        for a gate per head. In the paper they are a linear map of the input of the attention layer.
    """
    y = standard_attention(
        q, k, v, causal=causal, mask=mask, scale=scale, self_key=self_key, dropout=dropout
    )
    if gate.shape[:3] != y.shape[:3] or (gate.shape[3:] != y.shape[3:] and gate.shape[3:] != (1,)):
        raise ValueError(
            f"{shapes(gate=gate)}: it must have the shape of the output, {tuple(y.shape)}, or a last "
            "axis of 1 for one gate per head and token."
        )
    return y * torch.sigmoid(gate).to(y.dtype)


def random_direction_attention(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    direction: Float[Tensor, "head value_dim"],
    causal: bool = False,
    mask: Mask | None = None,
    scale: float | None = None,
    self_key: SelfKey | None = None,
    dropout: float = 0.0,
) -> Output:
    """z_i = y_i - (y_i·r̂) r̂: takes out one fixed direction per head. A placebo.

    It costs what exclusion costs and removes as many dimensions, none of them the token's own.
    """
    y = standard_attention(
        q, k, v, causal=causal, mask=mask, scale=scale, self_key=self_key, dropout=dropout
    )
    if direction.shape != (y.shape[1], y.shape[3]):
        raise ValueError(
            f"{shapes(direction=direction)}: it must be (head, dim) = {(y.shape[1], y.shape[3])}."
        )
    return exclude_self(y, direction.to(y.dtype)[None, :, None, :].expand_as(y))


def mean_direction_attention(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    causal: bool = False,
    mask: Mask | None = None,
    scale: float | None = None,
    self_key: SelfKey | None = None,
    dropout: float = 0.0,
) -> Output:
    """z_i = y_i - (y_i·m̂_i) m̂_i, with m_i the mean of the values that token i sees. A placebo.

    It takes out what the values have in common, and of the token's own only that.
    """
    check_qkv(q, k, v, dropout)
    check_own_values(v)
    mask = check_mask(mask, q, k)
    if causal:
        self_key = own_keys(q, k, causal=True, mask=mask, self_key=self_key)
    y = softmax_attention(q, k, v, causal, mask, scale, self_key, dropout)
    m = visible_mean(q, k, v, causal=causal, mask=mask, self_key=self_key)
    return exclude_self(y, m.to(y.dtype))


def visible_mean(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    causal: bool,
    mask: Mask | None,
    self_key: SelfKey | None,
) -> Float[Tensor, "batch mean_head query value_dim"]:
    """m_i: the mean of the values that query i sees; 0 where it sees none.

    Running sums for plain causal attention; otherwise the mask times the values.
    """
    wide = widen(v)
    if causal and mask is None and self_key is None:
        count = torch.arange(1, v.shape[2] + 1, device=v.device, dtype=wide.dtype)
        return wide.cumsum(dim=2) / count[:, None]
    if causal:
        mask = restrict(mask, self_key, q, k)
    if mask is None:
        return wide.mean(dim=2, keepdim=True).expand(-1, -1, q.shape[2], -1)
    visible = is_visible(mask).to(wide.dtype).expand(-1, -1, q.shape[2], -1)
    if visible.shape[1] > 1:
        wide = wide.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    return visible @ wide / visible.sum(dim=-1, keepdim=True).clamp_min(1)


def no_self_attention(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    causal: bool = False,
    mask: Mask | None = None,
    scale: float | None = None,
    self_key: SelfKey | None = None,
    dropout: float = 0.0,
) -> Output:
    """Standard attention in which no token sees itself; a token that sees nobody else gets 0.

    The own key is masked. Where no gradient is asked for and the flash kernel of the CPU applies,
    the same comes from standard attention and its log-sum-exp, at no mask of T x T: see
    `without_self`.
    """
    check_qkv(q, k, v, dropout)
    mask = check_mask(mask, q, k)
    self_key = own_keys(q, k, causal=causal, mask=mask, self_key=self_key)
    by_identity = self_key is None and not torch.compiler.is_compiling()
    if by_identity and not needs_gradient(q, k, v, mask) and has_flash(q, k, v, mask, dropout):
        return _no_self_by_identity(*for_flash(q, k, v), mask, causal, scale)
    others = hide_self(q, k, causal=causal, mask=mask, self_key=self_key)
    return softmax_attention(q, k, v, False, others, scale, None, dropout)


def hide_self(
    q: Tensor, k: Tensor, *, causal: bool, mask: Mask | None, self_key: SelfKey | None
) -> Mask:
    """The mask of all that a query sees beside its own key."""
    if causal:
        mask = restrict(mask, self_key, q, k)
    if self_key is None:
        self_key = torch.arange(q.shape[2], device=q.device)
    itself = itself_mask(self_key, k.shape[2])
    if mask is None:
        return ~itself
    return mask & ~itself if mask.dtype == torch.bool else mask.masked_fill(itself, -torch.inf)


def without_self(
    y: Float[Tensor, "batch head token dim"],
    v: Float[Tensor, "batch kv_head token dim"],
    self_weight: Float[Tensor, "batch head token"],
) -> Float[Tensor, "batch head token dim"]:
    """(y_i - P_ii v_i) / (1 - P_ii): what attention returns without the token itself.

    Exact on paper, but the division lets the rounding of y and P_ii grow by 1/(1 - P_ii): use it
    only in rows that `keeps_half` says. Not for training: the log-sum-exp that P_ii comes from
    carries no gradient.
    """
    own = v.repeat_interleave(y.shape[1] // v.shape[1], dim=1)
    weight = self_weight[..., None]
    return ((widen(y) - weight * widen(own)) / (1 - weight)).to(y.dtype)


def keeps_half(
    z: Float[Tensor, "batch head token dim"],
    y: Float[Tensor, "batch head token dim"],
    v: Float[Tensor, "batch kv_head token dim"],
    score: Float[Tensor, "batch head token"],
    lse: Float[Tensor, "batch head token"],
) -> Bool[Tensor, "batch head token"]:
    """The rows in which z = `without_self` keeps half of its digits, relative to its largest entry.

    y comes rounded to eps of its type, of itself and of the part P_ii v_i that is to go; and
    P_ii = exp(s - lse) has a relative error of eps of the arithmetic times (|s| + |lse|), plus some
    eps for exp and the sums. Divided by 1 - P_ii, that shall stay below sqrt(eps) |z_i|: a large
    v_i, that drowns the others, fails it as a large P_ii does.
    """
    eps, inner = torch.finfo(y.dtype).eps, torch.finfo(score.dtype).eps
    weight = (score - lse).exp()
    own = weight * _largest(v).repeat_interleave(y.shape[1] // v.shape[1], dim=1)
    size = (score.abs() + lse.abs()).nan_to_num(0, posinf=0)  # a hidden own key: P_ii = 0
    error = 2 * eps * (_largest(y) + own) + inner * (2 * size + 8) * own
    return error <= eps**0.5 * (1 - weight) * _largest(z)


def _largest(x: Tensor) -> Tensor:
    return widen(x.abs().amax(dim=-1))


def _no_self_by_identity(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, causal: bool, scale: float | None
) -> Tensor:
    """`no_self_attention` by the identity; the rows where that is not safe once more by the mask."""
    scale = q.shape[3] ** -0.5 if scale is None else scale
    y, lse = flash_attention(q, k, v, mask, causal, scale)
    own_key = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    score = scale * (widen(q) * widen(own_key)).sum(dim=-1)
    if mask is not None:
        own_mask = mask.expand(-1, -1, q.shape[2], -1).diagonal(dim1=2, dim2=3)
        score = torch.where(is_visible(own_mask), score + additive(own_mask, score), -torch.inf)
    z = without_self(y, v, (score - lse).exp())
    unsafe = ~keeps_half(z, y, v, score, lse)
    tokens = unsafe.flatten(0, 1).any(dim=0).nonzero()[:, 0]
    if len(tokens) > 0:
        rows = mask if mask is None or mask.shape[2] == 1 else mask[:, :, tokens]
        queries = q[:, :, tokens]
        others = hide_self(queries, k, causal=causal, mask=rows, self_key=tokens)
        z[:, :, tokens] = softmax_attention(queries, k, v, False, others, scale, None, 0.0)
    return z
