"""From the numbers of every token to what a run keeps: the accumulators of one chunk, per layer.

Tokens are sorted into buckets by their place in the document (0, 1, 2-3, 4-7, ...), because what is
the token's own depends on how many others it sees.
"""

from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from outward.glossary import CONTEXT, MEASURES
from outward.measures import bias_native
from outward.measures.bias import PER_PAIR, PER_TOKEN, Bias, Kernel
from outward.measures.optional import Extra
from outward.stats.binning import bins_of
from outward.stats.histogram import BINS, Histogram, Kind, narrow
from outward.stats.moments import Moments

KINDS: dict[str, Kind] = {n: cast(Kind, x.kind) for n, x in (MEASURES | CONTEXT).items()}
NOTHING = Extra()


@dataclass(frozen=True, eq=False)
class LayerTally:
    """What is kept of one layer.

    per_pair, per_token: the names of its measures. tokens: cells (measure, head, bucket) of per_token.
    pairs: cells (measure, head) of per_pair. means: of every window, (window, measure, head) of
    `measures`; NaN where a window has no token that counts. counts: of how many numbers each is.
    alone: how many tokens saw only themselves and were left out. sums: arrays that add up over windows,
    larger for longer ones. rows: arrays with a row for each window.
    """

    layer: int
    module: str
    per_pair: tuple[str, ...]
    per_token: tuple[str, ...]
    tokens: Moments
    histogram: Histogram
    pairs: Moments
    pair_histogram: Histogram
    means: NDArray[np.float64]
    counts: NDArray[np.int64]
    alone: int
    sums: dict[str, NDArray[Any]] = field(default_factory=dict)
    rows: dict[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def measures(self) -> tuple[str, ...]:
        """All of them, those of pairs first."""
        return (*self.per_pair, *self.per_token)

    def merge(self, other: "LayerTally") -> "LayerTally":
        """Of both, in order."""
        if self.measures != other.measures:
            odd = ", ".join(sorted(set(self.measures) ^ set(other.measures)))
            raise ValueError(
                f"{self.module}: only one of two parts holds {odd}; parts of one run hold the same "
                "measures, so measure both with the same ones."
            )
        buckets = max(self.tokens.count.shape[2], other.tokens.count.shape[2])
        a, b = self._grown(buckets), other._grown(buckets)
        return replace(
            a,
            tokens=a.tokens.merge(b.tokens),
            histogram=a.histogram.merge(b.histogram),
            pairs=a.pairs.merge(b.pairs),
            pair_histogram=a.pair_histogram.merge(b.pair_histogram),
            means=np.concatenate((a.means, b.means)),
            counts=np.concatenate((a.counts, b.counts)),
            alone=a.alone + b.alone,
            sums={name: added(x, b.sums[name]) for name, x in a.sums.items()},
            rows={name: np.concatenate((x, b.rows[name])) for name, x in a.rows.items()},
        )

    def _grown(self, buckets: int) -> "LayerTally":
        """With more buckets, empty ones: longer windows have more."""
        more = buckets - self.tokens.count.shape[2]
        if more == 0:
            return self
        empty = Moments.empty((*self.tokens.count.shape[:2], more))
        added = Histogram.empty((*self.tokens.count.shape[:2], more))
        return replace(
            self,
            tokens=self.tokens.beside(empty),
            histogram=Histogram(np.concatenate((self.histogram.counts, added.counts), axis=2)),
        )


@dataclass(frozen=True, eq=False)
class Chunk:
    """The tallies of some consecutive batches, and what was left out of them."""

    layers: list[LayerTally]
    documents: list[str]
    windows: list[int]
    skipped: list[str] = field(default_factory=list)

    @property
    def measures(self) -> tuple[str, ...]:
        """What its layers hold."""
        return self.layers[0].measures if self.layers else ()

    def merge(self, other: "Chunk") -> "Chunk":
        """Of both, in order."""
        skipped = self.skipped + other.skipped
        if not self.documents or not other.documents:
            whole = self if self.documents else other
            return Chunk(whole.layers, whole.documents, whole.windows, skipped)
        if [x.module for x in self.layers] != [x.module for x in other.layers]:
            raise ValueError("the parts are of different models: their attention layers differ")
        return Chunk(
            [a.merge(b) for a, b in zip(self.layers, other.layers, strict=True)],
            self.documents + other.documents,
            self.windows + other.windows,
            skipped,
        )


EMPTY = Chunk([], [], [])


def added(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """The sum of two arrays, each as if it went on with zeros to the size of the other."""
    if a.shape == b.shape:
        return a + b
    total = np.zeros(np.maximum(a.shape, b.shape), np.result_type(a, b))
    for x in (a, b):
        total[tuple(map(slice, x.shape))] += x
    return total


def bucket_start(bucket: int) -> int:
    """The first place of a bucket: 0, 1, 2, 4, 8, ..."""
    return 0 if bucket == 0 else 2 ** (bucket - 1)


def tally(
    layer: int,
    module: str,
    measured: Bias,
    windows: int,
    *,
    extra: Extra = NOTHING,
    kernel: Kernel = "torch",
) -> LayerTally:
    """One call of one layer. Its batch axis holds `windows` windows, or as many parts of each."""
    see = measured.see
    bucket = torch.frexp(see.place.to(torch.float64)).exponent.long()
    place = Places(measured.kept, bucket, int(bucket.max()) + 1)
    cells = _of_tokens(measured.tokens, PER_TOKEN, place, kernel)
    if extra.tokens:
        more = _of_tokens(torch.stack(list(extra.tokens.values())), tuple(extra.tokens), place, "torch")
        cells = tuple(np.concatenate(both) for both in zip(cells, more, strict=True))
    count, total, squares, low, high, counts = cells
    pairs = torch.stack([x.double() for x in (measured.pairs, *extra.pairs.values())])
    per_pair = (*PER_PAIR, *extra.pairs)
    return LayerTally(
        layer,
        module,
        per_pair,
        (*PER_TOKEN, *extra.tokens),
        Moments.of(count.sum(axis=1), total.sum(axis=1), squares.sum(axis=1), low, high),
        Histogram(narrow(counts)),
        *of_pairs(pairs, per_pair),
        *_means(total, count, pairs, windows),
        int((see.is_alone.expand(len(measured.tokens[0]), -1)).sum()),
    )


@dataclass(frozen=True, eq=False)
class Places:
    """Which tokens count, and the bucket of each, of so many."""

    kept: Bool[Tensor, "rows query"]
    bucket: Int[Tensor, "rows query"]
    buckets: int


Cells = tuple[NDArray[Any], ...]
"""count, total, squares: (measure, batch, head, bucket). low, high: (measure, head, bucket). Counts of
the histogram: (measure, head, bucket, bin)."""


def _of_tokens(
    x: Float[Tensor, "measure batch head query"], names: tuple[str, ...], at: Places, kernel: Kernel
) -> Cells:
    if kernel == "native" and x.device.type == "cpu" and x.dtype == torch.float32:
        kinds = [KINDS[name] for name in names]
        sums, extremes, counts = bias_native.sums(x, at.kept, at.bucket, at.buckets, kinds)
        return (*sums, *extremes, counts)
    defined = x.isfinite()
    given = at.bucket, at.kept, at.buckets
    return (
        *_sums(x, defined, at.kept, at.bucket, at.buckets),
        *_extremes(x, defined, *given),
        _histogram(x, names, defined, *given),
    )


def _sums(
    x: Float[Tensor, "measure batch head query"],
    defined: Bool[Tensor, "measure batch head query"],
    kept: Bool[Tensor, "rows query"],
    bucket: Int[Tensor, "rows query"],
    buckets: int,
) -> bias_native.Sums:
    """Counts, sums and sums of squares, each (measure, batch, head, bucket), in float64."""
    inside = torch.nn.functional.one_hot(bucket, buckets) * kept[..., None]
    weight = inside.to(torch.float64)
    wide = torch.where(defined, x, 0).to(torch.float64)
    if defined.all():
        count = weight.sum(dim=1)[None, :, None].expand(*x.shape[:3], -1)
    else:
        count = defined.to(torch.float64) @ weight
    total, squares = wide @ weight, wide.square() @ weight
    return count.cpu().numpy(), total.cpu().numpy(), squares.cpu().numpy()


def _extremes(
    x: Tensor, defined: Tensor, bucket: Tensor, kept: Tensor, buckets: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least and greatest of each cell."""
    index = torch.where(kept, bucket, buckets).expand(x.shape[1], -1)
    found = []
    for sign in (1.0, -1.0):
        y = torch.where(defined, sign * x, torch.inf)
        cells = torch.full((*x.shape[:3], buckets + 1), torch.inf, dtype=x.dtype, device=x.device)
        cells.scatter_reduce_(3, index[None, :, None].expand_as(y), y, "amin")
        found.append(sign * cells[..., :-1].amin(dim=1).double().cpu().numpy())
    return found[0], found[1]


def _histogram(
    x: Tensor, names: tuple[str, ...], defined: Tensor, bucket: Tensor, kept: Tensor, buckets: int
) -> NDArray[np.int64]:
    measures, _, heads, _ = x.shape
    bins = torch.stack([bins_of(x[n], KINDS[name]) for n, name in enumerate(names)])
    cell = torch.arange(measures * heads, device=x.device, dtype=torch.int32).view(
        measures, 1, heads, 1
    )
    index = (cell * buckets + bucket[None, :, None].int()) * BINS + bins
    size = measures * heads * buckets * BINS
    counted = defined & kept[None, :, None]
    index = torch.where(counted, index, size)
    counts = torch.bincount(index.flatten(), minlength=size + 1)[:size]
    return counts.view(measures, heads, buckets, BINS).cpu().numpy()


def kind_of(measure: str) -> Kind:
    """Of which kind its numbers are; what follows an @ is a threshold."""
    return KINDS[measure.partition("@")[0]]


def of_pairs(
    pairs: Float[Tensor, "measure batch head document"], names: tuple[str, ...]
) -> tuple[Moments, Histogram]:
    """Cells (measure, head): each document is one number."""
    x = pairs.permute(0, 2, 1, 3).flatten(2).cpu().numpy()
    known = ~np.isnan(x)
    y = np.where(known, x, 0)
    count = known.sum(axis=-1).astype(np.float64)
    low, high = np.where(known, x, np.inf).min(axis=-1), np.where(known, x, -np.inf).max(axis=-1)
    moments = Moments.of(count, y.sum(axis=-1), (y * y).sum(axis=-1), low, high)
    counts = [Histogram.of(x[n], kind_of(name)).counts for n, name in enumerate(names)]
    return moments, Histogram(np.stack(counts))


def _means(
    total: NDArray[np.float64],
    count: NDArray[np.float64],
    pairs: Float[Tensor, "measure batch head document"],
    windows: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(window, measure, head), pairs first: means, NaN where nothing counts; of how many numbers."""
    measures, batch, heads, _ = total.shape
    windows = windows if batch % windows == 0 else batch
    shape = (measures, windows, batch // windows, heads)
    sums, counts = (x.sum(axis=-1).reshape(shape).sum(axis=2) for x in (total, count))
    tokens = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    parts = pairs.unflatten(1, (windows, -1)).permute(0, 1, 3, 2, 4).flatten(3)
    known = (~parts.isnan()).sum(dim=-1).cpu().numpy()
    means = np.concatenate((parts.nanmean(dim=-1).cpu().numpy(), tokens))
    many = np.concatenate((known, counts.astype(np.int64)))
    return means.transpose(1, 0, 2), many.transpose(1, 0, 2)
