"""From the numbers of every token to what a run keeps: the accumulators of one chunk, per layer.

Tokens are sorted into buckets by their place in the document (0, 1, 2-3, 4-7, ...), because what is
the token's own depends on how many others it sees.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from outward.measures import bias_native
from outward.measures.bias import DEFAULT, PER_TOKEN, Bias, Kernel
from outward.stats.histogram import BINS, Histogram, Kind, bins_of
from outward.stats.moments import Moments

KINDS: dict[str, Kind] = {
    "value_similarity": "cosine",
    "self_weight": "weight",
    "self_weight_ratio": "ratio",
    "self_similarity": "cosine",
    "null_similarity": "cosine",
    "excess_similarity": "signed",
    "self_part": "signed",
    "common_part": "signed",
    "selective_part": "signed",
    "context_part": "signed",
    "centred_similarity": "cosine",
    "removed_energy": "share",
    "sink_weight": "weight",
    "previous_weight": "weight",
}


@dataclass(frozen=True, eq=False)
class LayerTally:
    """What is kept of one layer; of cells (measure, head, bucket), the measures being PER_TOKEN.

    pairs: of value_similarity, cells (head,). means: of every window, (window, measure, head), the
    measures being DEFAULT; NaN where a window has no token that counts. alone: how many tokens saw
    only themselves and were left out.
    """

    layer: int
    module: str
    tokens: Moments
    histogram: Histogram
    pairs: Moments
    pair_histogram: Histogram
    means: NDArray[np.float64]
    alone: int

    def merge(self, other: "LayerTally") -> "LayerTally":
        """Of both, in order."""
        buckets = max(self.tokens.count.shape[2], other.tokens.count.shape[2])
        a, b = self._grown(buckets), other._grown(buckets)
        return LayerTally(
            self.layer,
            self.module,
            a.tokens.merge(b.tokens),
            a.histogram.merge(b.histogram),
            a.pairs.merge(b.pairs),
            a.pair_histogram.merge(b.pair_histogram),
            np.concatenate((a.means, b.means)),
            a.alone + b.alone,
        )

    def _grown(self, buckets: int) -> "LayerTally":
        """With more buckets, empty ones: longer windows have more."""
        more = buckets - self.tokens.count.shape[2]
        if more == 0:
            return self
        empty = Moments.empty((*self.tokens.count.shape[:2], more))
        added = Histogram.empty((*self.tokens.count.shape[:2], more))
        return LayerTally(
            self.layer,
            self.module,
            self.tokens.beside(empty),
            Histogram(np.concatenate((self.histogram.counts, added.counts), axis=2)),
            self.pairs,
            self.pair_histogram,
            self.means,
            self.alone,
        )


@dataclass(frozen=True, eq=False)
class Chunk:
    """The tallies of some consecutive batches, and what was left out of them."""

    layers: list[LayerTally]
    documents: list[str]
    windows: list[int]
    skipped: list[str] = field(default_factory=list)

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


def bucket_start(bucket: int) -> int:
    """The first place of a bucket: 0, 1, 2, 4, 8, ..."""
    return 0 if bucket == 0 else 2 ** (bucket - 1)


def tally(
    layer: int, module: str, measured: Bias, windows: int, *, kernel: Kernel = "torch"
) -> LayerTally:
    """One call of one layer. Its batch axis holds `windows` windows, or as many parts of each."""
    see, x = measured.see, measured.tokens
    bucket = torch.frexp(see.place.to(torch.float64)).exponent.long()
    buckets = int(bucket.max()) + 1
    if kernel == "native" and x.device.type == "cpu" and x.dtype == torch.float32:
        kinds = [KINDS[name] for name in PER_TOKEN]
        cells, (low, high), counts = bias_native.sums(x, measured.kept, bucket, buckets, kinds)
        histogram = Histogram(counts)
    else:
        defined = x.isfinite()
        cells = _sums(x, defined, measured.kept, bucket, buckets)
        low, high = _extremes(x, defined, bucket, measured.kept, buckets)
        histogram = _histogram(x, defined, bucket, measured.kept, buckets)
    count, total, squares = cells
    return LayerTally(
        layer,
        module,
        Moments.of(count.sum(axis=1), total.sum(axis=1), squares.sum(axis=1), low, high),
        histogram,
        *_of_pairs(measured.pairs),
        _means(total, count, measured.pairs, windows),
        int((see.is_alone.expand(x.shape[1], -1)).sum()),
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


def _histogram(x: Tensor, defined: Tensor, bucket: Tensor, kept: Tensor, buckets: int) -> Histogram:
    measures, _, heads, _ = x.shape
    bins = torch.stack([bins_of(x[n], KINDS[name]) for n, name in enumerate(PER_TOKEN)])
    cell = torch.arange(measures * heads, device=x.device, dtype=torch.int32).view(
        measures, 1, heads, 1
    )
    index = (cell * buckets + bucket[None, :, None].int()) * BINS + bins
    size = measures * heads * buckets * BINS
    counted = defined & kept[None, :, None]
    index = torch.where(counted, index, size)
    counts = torch.bincount(index.flatten(), minlength=size + 1)[:size]
    return Histogram(counts.view(measures, heads, buckets, BINS).cpu().numpy())


def _of_pairs(pairs: Float[Tensor, "batch head document"]) -> tuple[Moments, Histogram]:
    """Of value_similarity: each document is one number."""
    x = pairs.double().permute(1, 0, 2).flatten(1).cpu().numpy()
    known = ~np.isnan(x)
    y = np.where(known, x, 0)
    count = known.sum(axis=1).astype(np.float64)
    low, high = np.where(known, x, np.inf).min(axis=1), np.where(known, x, -np.inf).max(axis=1)
    moments = Moments.of(count, y.sum(axis=1), (y * y).sum(axis=1), low, high)
    return moments, Histogram.of(x, KINDS["value_similarity"])


def _means(
    total: NDArray[np.float64],
    count: NDArray[np.float64],
    pairs: Float[Tensor, "batch head document"],
    windows: int,
) -> NDArray[np.float64]:
    """(window, measure, head) in the order of DEFAULT; NaN where nothing counts."""
    measures, batch, heads, _ = total.shape
    windows = windows if batch % windows == 0 else batch
    shape = (measures, windows, batch // windows, heads)
    sums, counts = (x.sum(axis=-1).reshape(shape).sum(axis=2) for x in (total, count))
    tokens = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    parts = pairs.double().unflatten(0, (windows, -1)).permute(0, 2, 1, 3).flatten(2)
    similarity = parts.nanmean(dim=-1).cpu().numpy()
    together = np.concatenate((similarity[None], tokens))
    assert len(together) == len(DEFAULT)
    return together.transpose(1, 0, 2)
