"""Histograms with fixed bins: parts merge by adding, exactly, in whatever order."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BINS = 128
Kind = Literal["cosine", "share", "weight", "ratio", "signed"]
Cells = NDArray[np.float64]

# log-spaced kinds reach from the first to the second number; what lies beyond goes to the last bin.
_LOG_RANGE = {"weight": (1e-7, 1.0), "ratio": (1e-4, 1e4)}
# signed: linear up to about this size, logarithmic beyond, up to the second.
_SIGNED = (0.02, 20.0)


def edges(kind: Kind) -> Cells:
    """The BINS + 1 edges of a kind of quantity.

    cosine: [-1, 1], linear. share: [0, 1], linear. weight, ratio: logarithmic; the first bin holds all
    below. signed: of either sign and any size, fine around 0.
    """
    t = np.linspace(0.0, 1.0, BINS + 1)
    if kind == "cosine":
        return 2 * t - 1
    if kind == "share":
        return t
    if kind == "signed":
        small, large = _SIGNED
        return small * np.sinh((2 * t - 1) * np.arcsinh(large / small))
    low, high = np.log(_LOG_RANGE[kind])
    inner = np.exp(low + (high - low) * t)
    inner[0] = 0.0
    return inner


def unit_places(x: Tensor, kind: Kind, *, out: Tensor) -> None:
    """Where numbers lie in the bins of their kind, from 0 to 1: `edges`, the other way round."""
    if kind == "cosine":
        torch.add(x, 1, out=out).mul_(0.5)
    elif kind == "share":
        out.copy_(x)
    elif kind == "signed":
        small, large = _SIGNED
        torch.asinh(x / small, out=out).mul_(0.5 / np.arcsinh(large / small)).add_(0.5)
    else:
        low, high = np.log(_LOG_RANGE[kind])
        torch.log(x, out=out).sub_(low).div_(high - low)


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts per cell and bin, (*cells, BINS)."""

    counts: NDArray[np.int64]

    @staticmethod
    def empty(shape: tuple[int, ...]) -> "Histogram":
        """Of nothing."""
        return Histogram(np.zeros((*shape, BINS), np.int64))

    @staticmethod
    def of(values: Cells, kind: Kind) -> "Histogram":
        """Of numbers (*cells, many); NaN is left out. The specification: the probe is faster."""
        places = np.searchsorted(edges(kind)[1:-1], values, side="right")
        counts = np.stack([(places == b).sum(-1) for b in range(BINS)], axis=-1)
        counts[..., -1] -= np.isnan(values).sum(-1)  # searchsorted puts NaN last
        return Histogram(counts.astype(np.int64))

    def merge(self, other: "Histogram") -> "Histogram":
        """Of both together."""
        return Histogram(self.counts + other.counts)

    def over(self, axis: int) -> "Histogram":
        """The cells along an axis together."""
        return Histogram(self.counts.sum(axis=axis))

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
        found = bounds[at] + part * (bounds[at + 1] - bounds[at])
        return np.where(total > 0, np.clip(found, low, high), np.nan)
