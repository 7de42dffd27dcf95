"""Intervals: what a mean, or a trend over layers, would have been with other documents."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
DRAWS = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A number and the middle LEVEL of its bootstrap distribution; None without two documents."""

    value: float
    low: float | None
    high: float | None


def bootstrap(
    samples: Values, documents: NDArray[np.int64], statistic: Callable[[Values], Values], *, seed: int
) -> list[Interval]:
    """Intervals of statistics of the mean over documents.

    samples: (sample, ...), means of single windows; documents: the number of each one's document.
    Whole documents are drawn, never windows of one text: those resemble each other. `statistic` takes
    means (draw, ...) to numbers (draw, statistics).
    """
    per_document = _document_means(samples, documents)
    value = statistic(per_document.mean(axis=0)[None])[0]
    n = len(per_document)
    if n < 2:
        return [Interval(float(x), None, None) for x in value]
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=DRAWS) / n
    drawn = statistic(np.tensordot(weights, per_document, axes=1))
    tail = (1 - LEVEL) / 2
    low, high = np.nanquantile(drawn, (tail, 1 - tail), axis=0)
    return [Interval(float(x), float(a), float(b)) for x, a, b in zip(value, low, high, strict=True)]


def _document_means(samples: Values, documents: NDArray[np.int64]) -> Values:
    _, number = np.unique(documents, return_inverse=True)
    total = np.zeros((number.max() + 1, *samples.shape[1:]))
    np.add.at(total, number, samples)
    count = np.bincount(number).reshape(-1, *(1,) * (samples.ndim - 1))
    return total / count


TREND = ("last_minus_first", "spearman", "depth_of_minimum", "curvature")


def trend(profile: Values) -> Values:
    """Of a quantity over layers, (draw, layer): the four numbers of TREND, (draw, 4).

    last_minus_first; Spearman's correlation with depth; where the least is, from 0 (first layer) to 1
    (last); the curvature c of the best a + b x + c x², with depth x from -1 to 1: positive for a U.
    """
    layers = profile.shape[1]
    if layers < 2:
        return np.full((len(profile), len(TREND)), np.nan)
    depth = np.linspace(-1, 1, layers)
    ranks = profile.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable") + 0.0
    centre = (layers - 1) / 2
    spearman = ((ranks - centre) @ (np.arange(layers) - centre)) / (layers * (layers**2 - 1) / 12)
    lowest = profile.argmin(axis=1) / (layers - 1)
    curvature = np.full(len(profile), np.nan)
    if layers > 2:
        curvature = np.polynomial.polynomial.polyfit(depth, profile.T, 2)[2]
    return np.stack((profile[:, -1] - profile[:, 0], spearman, lowest, curvature), axis=1)
