"""Context similarity: how alike what a head returns is at different tokens (arXiv 2512.21956).

For one head and one text of T tokens: H has the outputs y_i as rows, and C = H·Hᵀ with nothing on its
diagonal. `similarity` says which C: of the outputs as they are (dot, the paper's), of their directions
(cosine), or of the outputs less their mean (centred). Pairs are i < j of valid tokens.

    high pairs           those with C_ij ≥ τ max C, where the maximum is positive
    mask                 the tokens j with c_j ≥ θ max c, where c_j is the mean of P_ij over the queries
                         that see j: if all see all, as good as the sums of columns that the paper takes

Per head and text:

    mask_size, separator_share    tokens in the mask; the share of them that separate or are special
    high_pairs, high_mass         their number; Σ of their C over Σ |C| of all pairs
    mean_distance                 of |i-j| over high pairs
    same_sentence_share           of high pairs; its chance: of all pairs at the same distances
    equal_share                   of high pairs, those of equal tokens; its chance: of all pairs
    local_share                   of high pairs, those with |i-j| ≤ 2; its chance: of all pairs
    focal_share                   of the ends of high pairs, those at the focal token: the token, by its
                                  id, that most ends are at; of several, the one that comes first
    gini                          of the number of ends at each token: 0 is even, 1 all at one
    diagonal_share                Σ |y_i|² over Σ |C| with the diagonal
    common_share                  |mean y|² over the mean of |y|²
    rank_correlation              Spearman's, of C_ij with P_ij + P_ji over pairs; where it is asked for
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outward.attention.call import AttentionCall, log_sum_exp, scores
from outward.attention.visible import Visible, visible
from outward.measures.blocks import parts

Similarity = Literal["dot", "cosine", "centred"]
SIMILARITIES: tuple[Similarity, ...] = ("dot", "cosine", "centred")
PAIR = (
    "high_pairs",
    "high_mass",
    "mean_distance",
    "same_sentence_share",
    "same_sentence_chance",
    "equal_share",
    "equal_chance",
    "local_share",
    "local_chance",
    "focal_share",
    "gini",
)
MASK = ("mask_size", "separator_share")
WHOLE = ("diagonal_share", "common_share")
LOCAL = 2


@dataclass(frozen=True, eq=False)
class Text:
    """What is known of the tokens of each row: ids, which are separators or special, which sentence."""

    ids: Int[Tensor, "batch token"]
    separator: Bool[Tensor, "batch token"]
    sentence: Int[Tensor, "batch token"]
    valid: Bool[Tensor, "batch token"]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Of all pairs of tokens of each row, what does not depend on the head. Only i < j count.

    weights: allowed, distance, same sentence, chance of that at the same distance, equal, local.
    """

    allowed: Bool[Tensor, "batch token token"]
    weights: Float[Tensor, "batch pair weight"]
    equal: Float[Tensor, "batch token token"]
    distance: Int[Tensor, " pair"]


@dataclass(frozen=True, eq=False)
class Context:
    """One call: numbers by name, (batch, head) each, and what is summed over texts.

    focal, tied: the focal token's id (-1 without high pairs), and whether another had as many ends.
    distances: high pairs by |i-j|. repetition: pairs by (high, equal). matrices: Σ over texts of each
    kind of C. Names of numbers carry @τ or @θ where several thresholds were asked for.
    """

    numbers: dict[str, Float[Tensor, "batch head"]]
    focal: Int[Tensor, "batch head"]
    tied: Bool[Tensor, "batch head"]
    distances: Int[Tensor, "head token"]
    repetition: Int[Tensor, "head 2 2"]
    matrices: dict[str, Float[Tensor, "head token token"]]


def pairs_of(text: Text) -> Pairs:
    """Read off the tokens once, for all heads of all layers."""
    T = text.ids.shape[1]
    place = torch.arange(T, device=text.ids.device)
    later = place[:, None] < place
    allowed = later & text.valid[:, :, None] & text.valid[:, None]
    distance = (place - place[:, None]).abs()
    same = text.sentence[:, :, None] == text.sentence[:, None]
    equal = text.ids[:, :, None] == text.ids[:, None]
    flat = [
        torch.ones_like(allowed),
        distance.expand_as(allowed),
        same,
        _at_same_distance(same, allowed, distance),
        equal,
        (distance <= LOCAL).expand_as(allowed),
    ]
    weights = torch.stack([(x * allowed).float().flatten(1) for x in flat], dim=2)
    both = (equal & text.valid[:, :, None] & text.valid[:, None]).float()
    return Pairs(allowed, weights, both, distance.flatten())


def _at_same_distance(same: Tensor, allowed: Tensor, distance: Tensor) -> Tensor:
    """For each pair, the share of all allowed pairs at its distance that are in one sentence."""
    index = distance.flatten().expand(len(same), -1)
    empty = torch.zeros(len(same), distance.shape[0], device=same.device)
    there = empty.scatter_add(1, index, allowed.float().flatten(1))
    found = empty.scatter_add(1, index, (same & allowed).float().flatten(1))
    return (found / there.clamp_min(1)).gather(1, index).view_as(same)


@dataclass(frozen=True, eq=False)
class Options:
    """similarity: which C. Of thresholds, the first are those of focal tokens and distances.

    ranked: also the rank correlation with attention, of the first text of each call: sorting is dear.
    """

    similarity: Similarity = "dot"
    similarity_thresholds: tuple[float, ...] = (0.8,)
    mask_thresholds: tuple[float, ...] = (0.3,)
    ranked: bool = False


def context(
    call: AttentionCall,
    text: Text,
    pairs: Pairs,
    see: Visible | None = None,
    *,
    options: Options = Options(),
) -> Context:
    """Everything of one call, in parts that stay in the cache."""
    see = visible(call) if see is None else see
    found: dict[int, list[Context]] = {}
    for part in parts(call, see):
        rows = part.rows
        some = _rows_of(text, pairs, rows)
        found.setdefault(rows.start, []).append(
            _of_part(part.call, *some, part.see, options, rows.start)
        )
    return _sum_of_rows([_beside(each) for each in found.values()])


def _rows_of(text: Text, pairs: Pairs, rows: slice) -> tuple[Text, Pairs]:
    some = Text(text.ids[rows], text.separator[rows], text.sentence[rows], text.valid[rows])
    return some, Pairs(pairs.allowed[rows], pairs.weights[rows], pairs.equal[rows], pairs.distance)


def _of_part(
    call: AttentionCall, text: Text, pairs: Pairs, see: Visible, options: Options, row: int
) -> Context:
    y = call.y.to(torch.promote_types(call.y.dtype, torch.float32))
    y = y.masked_fill(~text.valid[:, None, :, None], 0)
    outputs = {name: _outputs(y, text.valid, name) for name in SIMILARITIES}
    o = outputs[options.similarity]
    C = o @ o.mT
    P = weights_of(call)
    numbers = _whole(C, y, text.valid) | _masks(P, text, see, options.mask_thresholds)
    first: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for threshold in options.similarity_thresholds:
        at = f"@{threshold:g}" if len(options.similarity_thresholds) > 1 else ""
        high = _high(C, pairs.allowed, threshold)
        found, focal, tied, counted = _of_pairs(C, high, text, pairs)
        numbers |= {f"{name}{at}": x for name, x in found.items()}
        first = first or [(focal, tied, _distances(high, pairs), counted)]
    if options.ranked:
        numbers["rank_correlation"] = _ranked(C, P, pairs.allowed, row)
    return Context(numbers, *first[0], {n: _summed(x) for n, x in outputs.items()})


def _outputs(
    y: Float[Tensor, "batch head token dim"], valid: Bool[Tensor, "batch token"], similarity: str
) -> Float[Tensor, "batch head token dim"]:
    """Those whose products are C; of padding, 0."""
    if similarity == "dot":
        return y
    if similarity == "cosine":
        size = (y * y).sum(dim=-1, keepdim=True).sqrt()
        return y / size.masked_fill(size == 0, torch.inf)
    count = valid.sum(dim=1).clamp_min(1)[:, None, None, None]
    mean = y.sum(dim=2, keepdim=True) / count
    return (y - mean).masked_fill(~valid[:, None, :, None], 0)


def _summed(o: Float[Tensor, "batch head token dim"]) -> Float[Tensor, "head token token"]:
    """Σ over texts of o·oᵀ, in float64, without the diagonal."""
    found = torch.einsum("bhtd,bhsd->hts", o, o).double()
    return found - torch.diag_embed(found.diagonal(dim1=1, dim2=2))


def _high(C: Tensor, allowed: Tensor, threshold: float) -> Bool[Tensor, "batch head token token"]:
    top = C.masked_fill(~allowed[:, None], -torch.inf).amax(dim=(2, 3), keepdim=True)
    return allowed[:, None] & (threshold * top <= C) & (top > 0)


def _of_pairs(
    C: Float[Tensor, "batch head token token"],
    high: Bool[Tensor, "batch head token token"],
    text: Text,
    pairs: Pairs,
) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
    """The numbers of PAIR, the focal token, whether it is tied, and pairs by (high, equal)."""
    flat, weights = high.flatten(2).to(C.dtype), pairs.weights.to(C.dtype)
    n, distance, same, chance, equal, local = (flat @ weights).unbind(-1)
    whole = weights.sum(dim=1)[:, None]  # of all pairs, the same for every head
    size = C.abs().masked_fill(~pairs.allowed[:, None], 0).sum(dim=(2, 3))
    ends = (high.sum(dim=2) + high.sum(dim=3)).to(C.dtype)
    by_token = ends @ pairs.equal.to(C.dtype)
    most, at = by_token.max(dim=2)
    focal = text.ids.gather(1, at)
    rival = (by_token == most[..., None]) & (text.ids[:, None] != focal[..., None])
    tied = (rival & text.valid[:, None]).any(dim=2) & (n > 0)
    numbers = {
        "high_pairs": n,
        "high_mass": _over((C * high).sum(dim=(2, 3)), size),
        "mean_distance": _over(distance, n),
        "same_sentence_share": _over(same, n),
        "same_sentence_chance": _over(chance, n),
        "equal_share": _over(equal, n),
        "equal_chance": _over(whole[..., 4], whole[..., 0]).expand_as(n),
        "local_share": _over(local, n),
        "local_chance": _over(whole[..., 5], whole[..., 0]).expand_as(n),
        "focal_share": _over(most, 2 * n),
        "gini": _gini(ends, text.valid),
    }
    low_equal, low = whole[..., 4] - equal, whole[..., 0] - n
    counted = torch.stack((low - low_equal, low_equal, n - equal, equal), dim=-1)
    repetition = counted.sum(dim=0).round().long().unflatten(1, (2, 2))
    return numbers, torch.where(n > 0, focal, -1), tied, repetition


def _over(a: Tensor, b: Tensor) -> Tensor:
    """a / b; NaN of nothing."""
    return torch.where(b > 0, a / b, torch.nan)


def _gini(ends: Float[Tensor, "batch head token"], valid: Bool[Tensor, "batch token"]) -> Tensor:
    """Of valid tokens. Padding has no ends, and so comes first in order: its ranks are left out."""
    T = ends.shape[2]
    m = valid.sum(dim=1)[:, None].to(ends.dtype)
    rank = torch.arange(1, T + 1, device=ends.device) - (T - m)[..., None]
    ordered = ends.sort(dim=2).values
    return 2 * _over((rank * ordered).sum(dim=2), m * ends.sum(dim=2)) - (m + 1) / m


def _distances(high: Tensor, pairs: Pairs) -> Int[Tensor, "head token"]:
    counts = high.sum(dim=0).flatten(1)
    empty = torch.zeros(high.shape[1], high.shape[2], dtype=counts.dtype, device=high.device)
    return empty.index_add(1, pairs.distance, counts)


def _masks(
    P: Float[Tensor, "batch head query key"], text: Text, see: Visible, thresholds: tuple[float, ...]
) -> dict[str, Tensor]:
    """Of each threshold, how many tokens are attended to so much, and which share of them separates."""
    valid = text.valid[:, None]
    c = P.masked_fill(~valid[..., None], 0).sum(dim=2) / _watchers(see, text.valid).clamp_min(1)
    c = c.masked_fill(~valid, 0)
    height = c / c.amax(dim=2, keepdim=True).clamp_min(torch.finfo(c.dtype).tiny)
    found = {}
    for threshold in thresholds:
        at = f"@{threshold:g}" if len(thresholds) > 1 else ""
        mask = (height >= threshold) & valid
        size = mask.sum(dim=2).to(c.dtype)
        found[f"mask_size{at}"] = size
        found[f"separator_share{at}"] = _over((mask & text.separator[:, None]).sum(dim=2), size)
    return found


def _watchers(see: Visible, valid: Bool[Tensor, "batch token"]) -> Int[Tensor, "batch 1 token"]:
    """How many valid queries see each key."""
    keys = torch.arange(valid.shape[1], device=valid.device)
    seen = (see.first[..., None] <= keys) & (keys < see.end[..., None])
    if see.mask is not None:
        seen = seen & see.mask[:, 0]
    return (seen & valid[..., None]).sum(dim=1)[:, None]


def weights_of(call: AttentionCall) -> Float[Tensor, "batch head query key"]:
    """P, made again where the model did not make it."""
    dtype = torch.promote_types(call.y.dtype, torch.float32)
    if call.weights is not None:
        return call.weights.to(dtype)
    s = scores(call, slice(None), dtype)
    return (s - log_sum_exp(s, call.sinks)[..., None]).exp()


def _whole(C: Tensor, y: Tensor, valid: Tensor) -> dict[str, Tensor]:
    own = (y * y).sum(dim=(2, 3))
    mean = y.sum(dim=2) / valid.sum(dim=1).clamp_min(1)[:, None, None]
    middle = own / valid.sum(dim=1).clamp_min(1)[:, None]
    diagonal = C.diagonal(dim1=2, dim2=3).sum(dim=2)
    return {
        "diagonal_share": _over(diagonal, C.abs().sum(dim=(2, 3))),
        "common_share": _over((mean * mean).sum(dim=2), middle),
    }


def _ranked(C: Tensor, P: Tensor, allowed: Tensor, row: int) -> Float[Tensor, "batch head"]:
    """Of the first row of the call; NaN of others."""
    found = torch.full(C.shape[:2], torch.nan, dtype=C.dtype, device=C.device)
    if row == 0:
        attention = (P + P.mT)[0][:, allowed[0]]
        found[0] = _spearman(C[0][:, allowed[0]], attention)
    return found


def _spearman(a: Float[Tensor, "head pair"], b: Float[Tensor, "head pair"]) -> Float[Tensor, " head"]:
    x, y = (_ranks(t) - (t.shape[1] - 1) / 2 for t in (a, b))
    return _over((x * y).sum(dim=1), ((x * x).sum(dim=1) * (y * y).sum(dim=1)).sqrt())


def _ranks(x: Float[Tensor, "head pair"]) -> Float[Tensor, "head pair"]:
    """Equal numbers share the mean of their ranks."""
    found = []
    for line in x:
        _, place, many = line.unique(return_inverse=True, return_counts=True)
        last = many.cumsum(0).double()
        found.append((last - (many + 1) / 2)[place])
    return torch.stack(found)


# ---- parts together


def _beside(each: list[Context]) -> Context:
    """Heads after heads."""
    return Context(
        {name: torch.cat([x.numbers[name] for x in each], dim=1) for name in each[0].numbers},
        torch.cat([x.focal for x in each], dim=1),
        torch.cat([x.tied for x in each], dim=1),
        torch.cat([x.distances for x in each]),
        torch.cat([x.repetition for x in each]),
        {name: torch.cat([x.matrices[name] for x in each]) for name in each[0].matrices},
    )


def _sum_of_rows(each: list[Context]) -> Context:
    """Texts after texts; what is summed over texts is summed."""
    return Context(
        {name: torch.cat([x.numbers[name] for x in each]) for name in each[0].numbers},
        torch.cat([x.focal for x in each]),
        torch.cat([x.tied for x in each]),
        torch.stack([x.distances for x in each]).sum(dim=0),
        torch.stack([x.repetition for x in each]).sum(dim=0),
        {n: torch.stack([x.matrices[n] for x in each]).sum(dim=0) for n in each[0].matrices},
    )
