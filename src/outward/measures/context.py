"""Context similarity: how alike what a head returns is at different tokens (arXiv 2512.21956).

For one head and one text of T tokens: H has the outputs y_i as rows, and C = H·Hᵀ with nothing on its
diagonal. `similarity` says which C: of the outputs as they are (dot, the paper's), of their directions
(cosine), or of the outputs less their mean (centred). Pairs are i < j of valid tokens.

    high pairs           those with C_ij ≥ τ max C, where the maximum is positive
    mask                 the tokens j with c_j ≥ θ max c, where c_j is the mean of P_ij over the queries
                         that see j: if all see all, as good as the sums of columns that the paper takes

Per head and text:

    mask_size, separator_share    tokens in the mask; the share of them that separate or are special;
                                  its chance: of all tokens
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
    focal_expected                how many different focal tokens all heads together would have, if each
                                  chose by itself, as often as ends of high pairs of any head are there
    rank_correlation              Spearman's, of C_ij with P_ij + P_ji over pairs; where it is asked for
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
MASK = ("mask_size", "separator_share", "separator_chance")
WHOLE = ("diagonal_share", "common_share", "focal_expected")
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

    many, equal, local: how many pairs there are, of equal tokens, and of tokens at most 2 apart.
    chance: of the pairs at each distance, the share in one sentence. alike: which tokens are equal.
    """

    many: Float[Tensor, " batch"]
    equal: Float[Tensor, " batch"]
    local: Float[Tensor, " batch"]
    chance: Float[Tensor, "batch token"]
    alike: Float[Tensor, "batch token token"]


@dataclass(frozen=True, eq=False)
class Context:
    """One call: numbers by name, (batch, head) each, and what is summed over texts.

    focal, tied: the focal token's id (-1 without high pairs), and whether another had as many ends.
    distances: high pairs by |i-j|. repetition: pairs by (high, equal). matrices: Σ over texts of each
    kind of C, and over heads. ends: of high pairs, at each token. Of several thresholds, all but the
    first are in the names of their numbers, behind an @.
    """

    numbers: dict[str, Float[Tensor, "batch head"]]
    focal: Int[Tensor, "batch head"]
    tied: Bool[Tensor, "batch head"]
    distances: Int[Tensor, "head token"]
    repetition: Int[Tensor, "head 2 2"]
    matrices: dict[str, Float[Tensor, "token token"]]
    ends: Float[Tensor, "batch head token"]


def pairs_of(text: Text) -> Pairs:
    """Read off the tokens once, for all heads of all layers."""
    rows, T = text.ids.shape
    place = torch.arange(T, device=text.ids.device)
    both = text.valid[:, :, None] & text.valid[:, None]
    pairs = both & (place[:, None] < place)
    apart = (place - place[:, None]).abs()
    alike = (text.ids[:, :, None] == text.ids[:, None]) & both
    same = (text.sentence[:, :, None] == text.sentence[:, None]) & pairs
    index = apart.flatten().expand(rows, -1)
    none = torch.zeros(rows, T, dtype=torch.float64, device=text.ids.device)
    there, found = (none.scatter_add(1, index, x.double().flatten(1)) for x in (pairs, same))
    many, equal, local = (
        x.double().sum(dim=(1, 2)) for x in (pairs, pairs & alike, pairs & (apart <= LOCAL))
    )
    return Pairs(many, equal, local, found / there.clamp_min(1), alike.float())


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
    whole = _sum_of_rows([_beside(each) for each in found.values()])
    expected = _expected(whole.ends, pairs)
    return replace(whole, numbers=whole.numbers | {"focal_expected": expected})


def _expected(ends: Float[Tensor, "batch head token"], pairs: Pairs) -> Float[Tensor, "batch head"]:
    """If heads chose independently: Σ over kinds of tokens of 1 - (1 - p)^heads."""
    heads = ends.shape[1]
    share = _over(ends, ends.sum(dim=2, keepdim=True)).nanmean(dim=1)
    alike = pairs.alike.to(ends.dtype)
    p = (share[:, None] @ alike)[:, 0].clamp(0, 1)
    each = (1 - (1 - p) ** heads) / alike.sum(dim=1).clamp_min(1)  # of a kind, at each of its tokens
    return each.sum(dim=1)[:, None].expand(-1, heads)


def _rows_of(text: Text, pairs: Pairs, rows: slice) -> tuple[Text, Pairs]:
    some = Text(text.ids[rows], text.separator[rows], text.sentence[rows], text.valid[rows])
    counts = (pairs.many[rows], pairs.equal[rows], pairs.local[rows])
    return some, Pairs(*counts, pairs.chance[rows], pairs.alike[rows])


def _of_part(
    call: AttentionCall, text: Text, pairs: Pairs, see: Visible, options: Options, row: int
) -> Context:
    y = call.y.to(torch.promote_types(call.y.dtype, torch.float32))
    if not text.valid.all():
        y = y.masked_fill(~text.valid[:, None, :, None], 0)
    o = _outputs(y, text.valid, options.similarity)
    C, P = o @ o.mT, weights_of(call)
    matrices = _summed(y, C, text.valid, options.similarity)
    total, own = C.abs().sum(dim=(2, 3)), C.diagonal(dim1=2, dim2=3).sum(dim=2)
    numbers = _whole(y, text.valid) | {"diagonal_share": _over(own, total)}
    numbers |= _masks(P, text, see, options.mask_thresholds)
    if options.ranked:
        numbers["rank_correlation"] = _ranked(C, P, text.valid, row)
    C.diagonal(dim1=2, dim2=3).fill_(-torch.inf)
    top = C.amax(dim=(2, 3), keepdim=True)
    first: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for threshold, at in _named(options.similarity_thresholds):
        high = High.of(C, (threshold * top <= C) & (top > 0))
        found, ends = _of_pairs(high, text, pairs, (total - own) / 2)
        numbers |= {f"{name}{at}": x for name, x in found.items()}
        if not first:
            counted = _repetition(found, pairs)
            first, kept = [(*_focal(ends, text, pairs), _distances(high), counted)], ends
    return Context(numbers, *first[0], matrices, kept)


def _named(thresholds: tuple[float, ...]) -> Iterator[tuple[float, str]]:
    """Each with what its numbers' names carry: the first nothing."""
    for n, threshold in enumerate(thresholds):
        yield threshold, f"@{threshold:g}" if n else ""


@dataclass(frozen=True, eq=False)
class High:
    """High pairs, i < j: the text and head of each, and its C. There are few: they are listed."""

    shape: tuple[int, int, int]
    b: Int[Tensor, " pair"]
    h: Int[Tensor, " pair"]
    i: Int[Tensor, " pair"]
    j: Int[Tensor, " pair"]
    C: Float[Tensor, " pair"]

    @staticmethod
    def of(C: Float[Tensor, "batch head token token"], is_high: Tensor) -> "High":
        """From both halves of a symmetric matrix, one."""
        b, h, i, j = is_high.nonzero(as_tuple=True)
        upper = i < j
        b, h, i, j = (x[upper] for x in (b, h, i, j))
        return High((C.shape[0], C.shape[1], C.shape[2]), b, h, i, j, C[b, h, i, j])

    def sum(self, x: Tensor) -> Float[Tensor, "batch head"]:
        """Of a number of each pair."""
        rows, heads, _ = self.shape
        found = torch.bincount(self.b * heads + self.h, x.double(), rows * heads)
        return found.view(rows, heads).to(self.C.dtype)

    def at(self, places: Tensor) -> Float[Tensor, "batch head token"]:
        """How many pairs are at each token."""
        rows, heads, T = self.shape
        index = (self.b * heads + self.h) * T + places
        return torch.bincount(index, minlength=rows * heads * T).view(self.shape).to(self.C.dtype)


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


def _summed(
    y: Float[Tensor, "batch head token dim"],
    C: Float[Tensor, "batch head token token"],
    valid: Bool[Tensor, "batch token"],
    similarity: str,
) -> dict[str, Float[Tensor, "token token"]]:
    """Σ over texts and heads of each kind of C, in float64, without the diagonal."""
    dot = C.sum(dim=1) if similarity == "dot" else _side_by_side(y)
    each = {"dot": dot, "centred": _centred(dot, valid)}
    each["cosine"] = (
        C.sum(dim=1) if similarity == "cosine" else _side_by_side(_outputs(y, valid, "cosine"))
    )
    found: dict[str, Tensor] = {}
    for name in SIMILARITIES:
        total = each[name].double().sum(dim=0)
        found[name] = total - torch.diag(total.diagonal())
    return found


def _side_by_side(o: Float[Tensor, "batch head token dim"]) -> Float[Tensor, "batch token token"]:
    """Σ over heads of o·oᵀ: the products of all heads' outputs in a row."""
    row = o.transpose(1, 2).flatten(2)
    return row @ row.mT


def _centred(
    C: Float[Tensor, "batch token token"], valid: Bool[Tensor, "batch token"]
) -> Float[Tensor, "batch token token"]:
    """What the products are once the mean output is taken out of each."""
    C = C.double()
    many = valid.sum(dim=1).clamp_min(1)[:, None, None]
    mean = C.sum(dim=2, keepdim=True) / many
    centred = C - mean - mean.mT + mean.sum(dim=1, keepdim=True) / many
    return centred * (valid[:, :, None] & valid[:, None])


def _of_pairs(
    high: High, text: Text, pairs: Pairs, size: Float[Tensor, "batch head"]
) -> tuple[dict[str, Tensor], Tensor]:
    """The numbers of PAIR, and how many ends are at each token. size: Σ |C| of all pairs."""
    b, i, j = high.b, high.i, high.j
    one = torch.ones_like(high.C)
    n = high.sum(one)
    ends = high.at(i) + high.at(j)
    most = (ends @ pairs.alike.to(ends.dtype)).amax(dim=2)
    numbers = {
        "high_pairs": n,
        "high_mass": _over(high.sum(high.C), size),
        "mean_distance": _over(high.sum(j - i), n),
        "same_sentence_share": _over(high.sum(text.sentence[b, i] == text.sentence[b, j]), n),
        "same_sentence_chance": _over(high.sum(pairs.chance[b, j - i]), n),
        "equal_share": _over(high.sum(text.ids[b, i] == text.ids[b, j]), n),
        "equal_chance": _of_rows(pairs.equal / pairs.many, n),
        "local_share": _over(high.sum(j - i <= LOCAL), n),
        "local_chance": _of_rows(pairs.local / pairs.many, n),
        "focal_share": _over(most, 2 * n),
        "gini": _gini(ends, text.valid),
    }
    return numbers, ends


def _of_rows(x: Float[Tensor, " batch"], like: Float[Tensor, "batch head"]) -> Tensor:
    """The same for every head."""
    return x.to(like.dtype)[:, None].expand_as(like)


def _focal(
    ends: Float[Tensor, "batch head token"], text: Text, pairs: Pairs
) -> tuple[Int[Tensor, "batch head"], Bool[Tensor, "batch head"]]:
    by_token = ends @ pairs.alike.to(ends.dtype)
    most, at = by_token.max(dim=2)
    focal = text.ids.gather(1, at)
    rival = (by_token == most[..., None]) & (text.ids[:, None] != focal[..., None])
    tied = (rival & text.valid[:, None]).any(dim=2) & (most > 0)
    return torch.where(most > 0, focal, -1), tied


def _repetition(numbers: dict[str, Tensor], pairs: Pairs) -> Int[Tensor, "head 2 2"]:
    """Pairs by (high, equal), over texts."""
    n = numbers["high_pairs"].double()
    equal = (numbers["equal_share"].double() * n).nan_to_num(0)
    low, low_equal = pairs.many[:, None] - n, pairs.equal[:, None] - equal
    counted = torch.stack((low - low_equal, low_equal, n - equal, equal), dim=-1)
    return counted.sum(dim=0).round().long().unflatten(1, (2, 2))


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


def _distances(high: High) -> Int[Tensor, "head token"]:
    _, heads, T = high.shape
    return torch.bincount(high.h * T + high.j - high.i, minlength=heads * T).view(heads, T)


def _masks(
    P: Float[Tensor, "batch head query key"], text: Text, see: Visible, thresholds: tuple[float, ...]
) -> dict[str, Tensor]:
    """Of each threshold, how many tokens are attended to so much, and which share of them separates."""
    valid = text.valid[:, None]
    seen = P if text.valid.all() else P.masked_fill(~valid[..., None], 0)
    c = (seen.sum(dim=2) / _watchers(see, text.valid).clamp_min(1)).masked_fill(~valid, 0)
    height = c / c.amax(dim=2, keepdim=True).clamp_min(torch.finfo(c.dtype).tiny)
    separators = text.separator[:, None] & valid
    everywhere = _over(separators.sum(dim=2).to(c.dtype), valid.sum(dim=2))
    found = {"separator_chance": everywhere.expand(c.shape[:2])}
    for threshold, at in _named(thresholds):
        mask = (height >= threshold) & valid
        size = mask.sum(dim=2).to(c.dtype)
        found[f"mask_size{at}"] = size
        found[f"separator_share{at}"] = _over((mask & separators).sum(dim=2), size)
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
    lse = log_sum_exp(s, call.sinks) if call.lse is None else call.lse
    return s.sub_(lse[..., None].to(dtype)).exp_()


def _whole(y: Tensor, valid: Tensor) -> dict[str, Tensor]:
    many = valid.sum(dim=1).clamp_min(1)[:, None]
    mean = y.sum(dim=2) / many[..., None]
    middle = (y * y).sum(dim=(2, 3)) / many
    return {"common_share": _over((mean * mean).sum(dim=2), middle)}


def _ranked(C: Tensor, P: Tensor, valid: Tensor, row: int) -> Float[Tensor, "batch head"]:
    """Of the first row of the call; NaN of others."""
    found = torch.full(C.shape[:2], torch.nan, dtype=C.dtype, device=C.device)
    if row == 0:
        allowed = (valid[0][:, None] & valid[0]).triu(1)
        found[0] = _spearman(C[0][:, allowed], (P + P.mT)[0][:, allowed])
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
        _added([x.matrices for x in each]),
        torch.cat([x.ends for x in each], dim=1),
    )


def _sum_of_rows(each: list[Context]) -> Context:
    """Texts after texts; what is summed over texts is summed."""
    return Context(
        {name: torch.cat([x.numbers[name] for x in each]) for name in each[0].numbers},
        torch.cat([x.focal for x in each]),
        torch.cat([x.tied for x in each]),
        torch.stack([x.distances for x in each]).sum(dim=0),
        torch.stack([x.repetition for x in each]).sum(dim=0),
        _added([x.matrices for x in each]),
        torch.cat([x.ends for x in each]),
    )


def _added(each: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([x[name] for x in each]).sum(dim=0) for name in each[0]}
