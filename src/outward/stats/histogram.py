"""Histograms with fixed bins: parts merge by adding, exactly, in whatever order."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

BINS = 128
Kind = Literal["cosine", "share", "nats", "weight", "ratio", "signed", "count"]
Cells = NDArray[np.float64]

# Equal bins from, to. An even spread over T keys has ln T nats: 16 are nine million keys.
EQUAL = {"cosine": (-1.0, 1.0), "share": (0.0, 1.0), "nats": (0.0, 16.0)}
# Bins of numbers that span orders of magnitude are cut by the leading bits of a float32: STEPS equal
# ones between each power of two and the next. Cheap, and the edges are exact.
STEPS_BITS = 3
STEPS = 2**STEPS_BITS
# The power of two at which the first bin ends; it holds all below. The last holds all above.
LOWEST = {"weight": -15, "ratio": -7, "signed": -6, "count": 0}


def edges(kind: Kind) -> Cells:
    """The BINS + 1 edges of a kind of quantity.

    cosine: [-1, 1], share: [0, 1], nats: [0, 16]: equal bins. weight: to 1, ratio: to 256,
    count: to 65536: by leading bits. signed: the same for either sign, to 3.75, with 2^-6 on both sides
    of 0 in bins of their own.
    """
    if kind in EQUAL:
        return np.linspace(*EQUAL[kind], BINS + 1)
    if kind == "signed":
        half = np.concatenate(([0.0], _by_bits(LOWEST[kind], BINS // 2)))
        return np.concatenate((-half[:0:-1], half))
    return np.concatenate(([0.0], _by_bits(LOWEST[kind], BINS)))


def _by_bits(lowest: int, many: int) -> Cells:
    n = np.arange(many)
    return 2.0 ** (lowest + n // STEPS) * (1 + (n % STEPS) / STEPS)


Counts = NDArray[np.unsignedinteger[Any]]


def narrow(counts: NDArray[np.integer[Any]]) -> Counts:
    """In the least bytes that hold the largest: a model has a million bins, most of them near 0."""
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts per cell and bin, (*cells, BINS), as `narrow` as they go."""

    counts: Counts

    @staticmethod
    def empty(shape: tuple[int, ...]) -> "Histogram":
        """Of nothing."""
        return Histogram(np.zeros((*shape, BINS), np.uint8))

    @staticmethod
    def of(values: Cells, kind: Kind) -> "Histogram":
        """Of numbers (*cells, many); NaN is left out. The specification: the probe is faster."""
        places = np.searchsorted(edges(kind)[1:-1], values, side="right")
        cells = np.arange(values[..., 0].size).reshape(*values.shape[:-1], 1)
        index = (cells * BINS + places)[~np.isnan(values)]
        counts = np.bincount(index, minlength=cells.size * BINS)
        return Histogram(narrow(counts.reshape(*values.shape[:-1], BINS)))

    def merge(self, other: "Histogram") -> "Histogram":
        """Of both together."""
        a, b = self.counts, other.counts
        most = int(a.max(initial=0)) + int(b.max(initial=0))
        return Histogram(np.add(a, b, dtype=np.result_type(a, b, np.min_scalar_type(most))))

    def over(self, axis: int) -> "Histogram":
        """The cells along an axis together."""
        return Histogram(narrow(self.counts.sum(axis=axis)))

    def value(self, kind: Kind, quantile: float, low: Cells, high: Cells) -> Cells:
        """A quantile per cell, linear within its bin, and never beyond the least and the greatest."""
        bounds = edges(kind)
        total = self.counts.sum(axis=-1)
        cumulative = self.counts.cumsum(axis=-1)
        wanted = quantile * total
        at = (cumulative < wanted[..., None]).sum(axis=-1).clip(0, BINS - 1)
        here = np.take_along_axis(self.counts, at[..., None], -1)[..., 0]
        before = np.take_along_axis(cumulative, at[..., None], -1)[..., 0] - here
        part = (wanted - before) / np.maximum(here, 1)
        first, last = bounds[at], bounds[at + 1]  # the bins at the ends hold all beyond them, too
        first = np.where(at == 0, np.fmin(first, low), first)
        last = np.where(at == BINS - 1, np.fmax(last, high), last)
        found = first + part * (last - first)
        return np.where(total > 0, np.clip(found, low, high), np.nan)
