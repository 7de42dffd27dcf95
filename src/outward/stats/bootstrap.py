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


@dataclass(frozen=True, eq=False)
class Samples:
    """Means of single windows, (window, number), of which document each is, and how much each weighs.

    What is NaN weighs nothing. Whole documents are drawn, never windows of one text: those resemble
    each other. A document weighs as much as its windows do, in the mean and in every draw: so a mean
    over all tokens is what the draws scatter around.
    """

    means: Values
    documents: NDArray[np.int64]
    weights: Values

    @staticmethod
    def of(means: Values, documents: NDArray[np.int64], weights: Values | None = None) -> "Samples":
        """Unless weights are said, all windows weigh the same."""
        known = ~np.isnan(means)
        return Samples(means, documents, known * (1.0 if weights is None else weights))

    def mean(self) -> Values:
        """Over all windows, (1, number)."""
        return _ratio(*(x.sum(axis=0)[None] for x in self._weighed()))

    def redrawn(self, *, seed: int) -> Values | None:
        """The mean, DRAWS times, over documents drawn again, (draw, number); None of one document."""
        _, number = np.unique(self.documents, return_inverse=True)
        n = int(number.max(initial=-1)) + 1
        if n < 2:
            return None
        totals, counts = (_by_document(x, number, n) for x in self._weighed())
        random = np.random.default_rng(seed)
        step = max(1, WEIGHTS // n)
        sizes = [min(step, DRAWS - i) for i in range(0, DRAWS, step)]
        drawn = (random.multinomial(n, np.full(n, 1 / n), size=size) for size in sizes)
        return np.concatenate([_ratio(x @ totals, x @ counts) for x in drawn])

    def _weighed(self) -> tuple[Values, Values]:
        return np.where(self.weights > 0, self.means, 0) * self.weights, self.weights


def _ratio(totals: Values, counts: Values) -> Values:
    return np.where(counts > 0, totals / np.where(counts > 0, counts, 1), np.nan)


def _by_document(x: Values, number: NDArray[np.int64], n: int) -> Values:
    total = np.zeros((n, *x.shape[1:]))
    np.add.at(total, number, x)
    return total


def bootstrap(samples: Samples, statistic: Callable[[Values], Values], *, seed: int) -> list[Interval]:
    """Intervals of statistics of the mean; `statistic` takes (draw, number) to (draw, statistic)."""
    value = statistic(samples.mean())[0]
    drawn = samples.redrawn(seed=seed)
    if drawn is None:
        return [Interval(float(x), None, None) for x in value]
    return intervals(value, statistic(drawn))


def intervals(value: Values, drawn: Values) -> list[Interval]:
    """Of numbers (statistic) and what the draws made of each, (draw, statistic)."""
    return [_interval(float(x), draws) for x, draws in zip(value, drawn.T, strict=True)]


def _interval(value: float, draws: Values) -> Interval:
    known = draws[~np.isnan(draws)]
    if np.isnan(value) or not len(known):
        return Interval(value, None, None)
    low, high = np.quantile(known, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(value, float(low), float(high))


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
    found = np.stack((change, _spearman(profile), lowest, curvature), axis=1)
    return np.where(np.isnan(profile).any(axis=1, keepdims=True), np.nan, found)


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
