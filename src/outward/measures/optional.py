"""What is asked for by name, at a price. Two requests, and the measures that each brings.

`entropy`, per head and token, in nats: a second pass over queries and keys.

    entropy                   H_i = -Σ_j P_ij ln P_ij = lse_i Σ_j P_ij - Σ_j P_ij s_ij

Its sum is over keys. A sink counts in the normalisation of P and nowhere else: it takes weight from
the keys, and is no term of the sum, as no value belongs to it. Then Σ_j P_ij is below 1, and H_i is
short of the entropy of the whole row by -P ln P of the sink.

`orthogonal_similarity`, per head, over pairs of tokens of one document: whether values are alike only
for what all of them share. For n values v_j, and Π_u = I - û ûᵀ, what is at right angles to u:

    orthogonal_similarity     mean over references i and over j≠k, both ≠ i, of cos(Π_vi v_j, Π_vi v_k):
                              REFERENCES of the tokens, evenly spaced, or all where there are fewer
    mean_removed_similarity   mean over j≠k of cos(Π_m v_j, Π_m v_k), with m the mean of the values
    exclusive_similarity      mean over j≠k of cos(z_j, z_k), with z_j = Π_vj y_j, the exclusive form
    equicorrelated_similarity ρ / (1 + ρ), with ρ the value_similarity: what orthogonal_similarity
                              would be if every two values had the cosine ρ

Each is (|Σ û|² - m) / (n (n - 1)), with û the n vectors at length 1, of which m have a direction: no
matrix of pairs is made. What has no length, or less than FLOOR of it left after the projection, has
no direction: its cosines are 0, and its pairs stay counted. So it is with the z of a token that sees
only itself, which is 0. Of documents of fewer than three tokens nothing is said.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outward.attention.call import AttentionCall, log_sum_exp, scores
from outward.attention.exclusive import exclude_self
from outward.attention.inputs import own_values
from outward.attention.standard import flash_attention, for_flash, has_flash
from outward.attention.visible import Visible
from outward.measures.bias import CENTRED_FLOOR, Bias
from outward.measures.weights import BLOCK

REQUESTS = {
    "entropy": ("entropy",),
    "orthogonal_similarity": (
        "orthogonal_similarity",
        "mean_removed_similarity",
        "exclusive_similarity",
        "equicorrelated_similarity",
    ),
}
OPTIONAL = tuple(name for names in REQUESTS.values() for name in names)
REFERENCES = 16
# As of y - m: what is left of a float32 vector below this share of it has fewer than three digits.
FLOOR = CENTRED_FLOOR


@dataclass(frozen=True, eq=False)
class Extra:
    """Optional measures of one call, by name; of the tokens and documents that `Bias` speaks of."""

    tokens: dict[str, Float[Tensor, "batch head query"]] = field(default_factory=dict)
    pairs: dict[str, Float[Tensor, "batch head document"]] = field(default_factory=dict)


def requests_for(names: Iterable[str]) -> tuple[str, ...]:
    """The requests that bring the optional ones among these measures, sorted."""
    asked = set(names)
    return tuple(sorted(request for request, brings in REQUESTS.items() if asked & set(brings)))


def extra(call: AttentionCall, measured: Bias, requests: tuple[str, ...]) -> Extra:
    """What is asked for, of a call whose default measures are known."""
    return Extra(
        {"entropy": entropy(call)} if "entropy" in requests else {},
        orthogonal(call, measured) if "orthogonal_similarity" in requests else {},
    )


# ---- entropy


def entropy(call: AttentionCall) -> Float[Tensor, "batch head query"]:
    """H_i, in nats; 0 for a query that sees no key."""
    H = _by_flash(call) if _is_plain(call) else _by_blocks(call)
    return H.clamp_min(0)  # below 0 there is only rounding


def _is_plain(call: AttentionCall) -> bool:
    """Whether the fused kernel of the CPU computes the very scores of the call."""
    if call.q is None or call.k is None or call.weights is not None:
        return False
    aligned = not call.causal or call.self_key is None
    known = call.mask is None or call.mask.dtype == torch.bool
    bounded = call.softcap is not None or call.sinks is not None
    return aligned and known and not bounded and has_flash(call.q, call.k, call.k, call.mask, 0.0)


def _by_flash(call: AttentionCall) -> Float[Tensor, "batch head query"]:
    """With keys for values, attention returns Σ_j P_ij k_j: scale q_i times that is Σ_j P_ij s_ij."""
    assert call.q is not None
    assert call.k is not None
    wide = torch.promote_types(call.q.dtype, torch.float32)
    q, k, _ = for_flash(call.q.to(wide), call.k.to(wide), call.k.to(wide))
    mean_key, lse = flash_attention(q, k, k, call.mask, call.causal, call.scale)
    return lse - call.scale * (q * mean_key).sum(dim=-1)


def _by_blocks(call: AttentionCall) -> Float[Tensor, "batch head query"]:
    """From the weights themselves, of some queries at a time."""
    queries, keys = call.y.shape[2], call.v.shape[2]
    step = max(1, BLOCK // max(1, call.y.shape[0] * call.y.shape[1] * keys))
    rows = [slice(i, min(i + step, queries)) for i in range(0, queries, step)]
    return torch.cat([torch.special.entr(_weights(call, r)).sum(dim=-1) for r in rows], dim=2)


def _weights(call: AttentionCall, rows: slice) -> Float[Tensor, "batch head rows key"]:
    wide = torch.promote_types(call.y.dtype, torch.float32)
    if call.weights is not None:
        return call.weights[:, :, rows].to(wide)
    s = scores(call, rows, wide)
    lse = log_sum_exp(s, call.sinks) if call.lse is None else call.lse[:, :, rows]
    return s.sub_(lse[..., None]).exp_()


# ---- similarity without a direction


def orthogonal(call: AttentionCall, measured: Bias) -> dict[str, Float[Tensor, "batch head document"]]:
    """The four measures of pairs; NaN where a document has fewer than three tokens."""
    own_v = own_values(call.v, call.self_key)
    found = measured.pairs.new_full((3, *measured.pairs.shape), torch.nan, dtype=torch.float64)
    for b, document, tokens in _documents(measured.see, len(call.y)):
        if len(tokens) >= 3:
            v, y = own_v[b][:, tokens], call.y[b][:, tokens]
            alone = measured.see.is_alone.expand(len(call.y), -1)[b, tokens]
            found[:2, b, :, document] = _of_values(v.double()).repeat_interleave(call.group, dim=1)
            found[2, b, :, document] = _of_outputs(y, v, alone)
    rho = measured.pairs.double().where(found[0].isfinite(), torch.nan)
    every = (*found, rho / (1 + rho))
    return dict(zip(REQUESTS["orthogonal_similarity"], every, strict=True))


def _documents(see: Visible, batch: int) -> Iterator[tuple[int, int, Int[Tensor, " token"]]]:
    """(row, number of the document, its valid tokens)."""
    valid, number = see.valid.expand(batch, -1), see.document.expand(batch, -1)
    for b in range(batch):
        tokens = valid[b].nonzero()[:, 0]
        numbers, counts = number[b, tokens].unique_consecutive(return_counts=True)
        yield from zip([b] * len(counts), numbers.tolist(), tokens.split(counts.tolist()), strict=True)


def _of_values(v: Float[Tensor, "kv_head token dim"]) -> Float[Tensor, "2 kv_head"]:
    """orthogonal_similarity and mean_removed_similarity of one document."""
    v_hat = _directions(v)
    tokens = torch.arange(v.shape[1], device=v.device)
    chosen = references(v.shape[1]).to(v.device)
    others = tokens != chosen[:, None]
    orthogonal = _similarity_without(v_hat, v_hat[:, chosen], others).mean(dim=1)
    mean = _directions(v.mean(dim=1, keepdim=True))
    return torch.stack((orthogonal, _similarity_without(v_hat, mean, tokens[None] >= 0)[:, 0]))


def references(tokens: int) -> Int[Tensor, " reference"]:
    """The tokens that are taken out, one after the other: evenly spaced, the same every time."""
    many = min(REFERENCES, tokens)
    return (2 * torch.arange(many) + 1) * tokens // (2 * many)


def _similarity_without(
    v_hat: Float[Tensor, "kv_head token dim"],
    u_hat: Float[Tensor, "kv_head reference dim"],
    counted: Bool[Tensor, "reference token"],
) -> Float[Tensor, "kv_head reference"]:
    """The mean cosine of Π_u v_j and Π_u v_k over pairs of tokens that count, for each u.

    Π_u v̂_j = v̂_j - c_j û has length sqrt(1 - c_j²): the sum of the directions is two products.
    """
    c = u_hat @ v_hat.mT
    left = 1 - c.square()
    some = counted & (left > FLOOR**2) & v_hat.any(dim=-1)[:, None]
    share = torch.where(some, left.rsqrt(), 0)
    total = share @ v_hat - (share * c).sum(dim=-1, keepdim=True) * u_hat
    return _mean_over_pairs(total, some.sum(dim=-1), counted.sum(dim=-1))


def _of_outputs(
    y: Float[Tensor, "head token dim"], v: Float[Tensor, "kv_head token dim"], alone: Tensor
) -> Float[Tensor, " head"]:
    """exclusive_similarity of one document."""
    wide = torch.promote_types(y.dtype, torch.float32)
    y, v = y.to(wide), v.to(wide)
    z = exclude_self(y[None], v[None])[0]
    gone = alone | (z.norm(dim=-1) <= FLOOR * y.norm(dim=-1))
    z_hat = _directions(z.masked_fill(gone[..., None], 0))
    total = z_hat.sum(dim=1, dtype=torch.float64)
    return _mean_over_pairs(total, (~gone).sum(dim=-1), torch.full_like(gone[:, 0].long(), y.shape[1]))


def _directions(x: Float[Tensor, "*any dim"]) -> Float[Tensor, "*any dim"]:
    """Each at length 1; of no length, 0."""
    size = x.norm(dim=-1, keepdim=True)
    return x / size.masked_fill(size == 0, torch.inf)


def _mean_over_pairs(
    total: Float[Tensor, "*cell dim"], directed: Tensor, counted: Tensor
) -> Float[Tensor, "*cell"]:
    """From the sum of directions, how many vectors have one, and how many there are."""
    return (total.square().sum(dim=-1) - directed) / (counted * (counted - 1))
