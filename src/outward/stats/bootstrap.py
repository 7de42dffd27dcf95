"""Intervals: what a mean, or a trend over layers, would have been with other documents."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
DRAWS = 2000
LEVEL = 0.95
WEIGHTS = 2**22
"""Of documents, at a time: 32 MiB."""


@dataclass(frozen=True)
class Interval:
    """A number and the middle LEVEL of its bootstrap distribution; None where there is none."""

    value: float
    low: float | None
    high: float | None


def bootstrap(
    samples: Values, documents: NDArray[np.int64], statistic: Callable[[Values], Values], *, seed: int
) -> list[Interval]:
    """Intervals of statistics of the mean over samples.

    samples: (sample, ...), means of single windows; documents: the number of each one's document.
    Whole documents are drawn, never windows of one text: those resemble each other. A document weighs
    as much as it has windows, in the mean and in every draw. `statistic` takes means (draw, ...) to
    numbers (draw, statistics).
    """
    value = statistic(samples.mean(axis=0)[None])[0]
    drawn = redrawn(samples, documents, seed=seed)
    if drawn is None:
        return [Interval(float(x), None, None) for x in value]
    return intervals(value, statistic(drawn))


def redrawn(samples: Values, documents: NDArray[np.int64], *, seed: int) -> Values | None:
    """The mean over samples, DRAWS times, over documents drawn again; None of one document."""
    totals, counts = _by_document(samples, documents)
    return None if len(counts) < 2 else _redrawn(totals, counts, seed)


def intervals(value: Values, drawn: Values) -> list[Interval]:
    """Of numbers (statistic) and what the draws made of each, (draw, statistic)."""
    return [_interval(float(x), draws) for x, draws in zip(value, drawn.T, strict=True)]


def _redrawn(totals: Values, counts: Values, seed: int) -> Values:
    """The mean over samples, DRAWS times over documents drawn with replacement."""
    n = len(counts)
    random = np.random.default_rng(seed)
    step = max(1, WEIGHTS // n)
    sizes = [min(step, DRAWS - i) for i in range(0, DRAWS, step)]
    drawn = (random.multinomial(n, np.full(n, 1 / n), size=size) for size in sizes)
    return np.concatenate([_weighted(weights, totals, counts) for weights in drawn])


def _weighted(weights: NDArray[np.int64], totals: Values, counts: Values) -> Values:
    many = (weights @ counts).reshape(-1, *(1,) * (totals.ndim - 1))
    return np.tensordot(weights, totals, axes=1) / many


def _interval(value: float, draws: Values) -> Interval:
    known = draws[~np.isnan(draws)]
    if np.isnan(value) or not len(known):
        return Interval(value, None, None)
    low, high = np.quantile(known, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(value, float(low), float(high))


def _by_document(samples: Values, documents: NDArray[np.int64]) -> tuple[Values, Values]:
    """(sums, counts) of the samples of each document."""
    _, number = np.unique(documents, return_inverse=True)
    totals = np.zeros((number.max() + 1, *samples.shape[1:]))
    np.add.at(totals, number, samples)
    return totals, np.bincount(number).astype(np.float64)


TREND = ("last_minus_first", "spearman", "depth_of_minimum", "curvature")


def trend(profile: Values) -> Values:
    """Of a quantity over layers, (draw, layer): the four numbers of TREND, (draw, 4).

    last_minus_first; Spearman's correlation with depth, NaN where all layers are equal; where the least
    is, from 0 (first layer) to 1 (last); the curvature c of the best a + b x + c x², with depth x from
    -1 to 1: positive for a U, NaN of fewer than three layers.
    """
    layers = profile.shape[1]
    if layers < 2:
        return np.full((len(profile), len(TREND)), np.nan)
    depth = np.linspace(-1, 1, layers)
    lowest = profile.argmin(axis=1) / (layers - 1)
    curvature = np.full(len(profile), np.nan)
    if layers > 2:
        curvature = np.polynomial.polynomial.polyfit(depth, profile.T, 2)[2]
    change = profile[:, -1] - profile[:, 0]
    return np.stack((change, _spearman(profile), lowest, curvature), axis=1)


def _spearman(profile: Values) -> Values:
    """The correlation of ranks, equal numbers sharing the mean of theirs, with 0, 1, 2, ..."""
    layers = profile.shape[1]
    middle = (layers - 1) / 2
    columns = [profile[:, [n]] for n in range(layers)]
    below = np.stack([(profile < x).sum(axis=1) for x in columns], axis=1)
    equal = np.stack([(profile == x).sum(axis=1) for x in columns], axis=1)
    rank = below + (equal - 1) / 2 - middle
    depth = np.arange(layers) - middle
    size = np.sqrt((rank * rank).sum(axis=1) * (depth @ depth))
    return np.where(size > 0, rank @ depth / np.where(size > 0, size, 1), np.nan)
