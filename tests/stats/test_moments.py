"""Moments in parts are moments of the whole."""

from collections.abc import Callable
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from outward.stats.moments import Moments

OFFSET = 1e4
SPLITS = (1, 7, 492, 500)  # of a thousand numbers: a single one, few, and two that are alike
EPS = np.finfo(np.float64).eps
X = np.random.default_rng(3).normal(OFFSET, 1, size=(2, sum(SPLITS)))  # two cells

# A sum of n numbers of size s is off by n eps s at most. The squared deviations are the difference of
# two such sums, of squares: n eps s² each; merging adds a few roundings of the result.
MEAN_TOLERANCE = X.shape[1] * EPS * OFFSET
M2_TOLERANCE = 4 * X.shape[1] * EPS * OFFSET**2

Merge = Callable[[Moments, Moments], Moments]


def of(x: NDArray[np.float64]) -> Moments:
    count = np.full(len(x), float(x.shape[1]))
    return Moments.of(count, x.sum(1), (x * x).sum(1), x.min(1), x.max(1))


def parts() -> list[Moments]:
    bounds = np.cumsum((0, *SPLITS))
    return [of(X[:, a:b]) for a, b in pairwise(bounds)]


def assert_is_whole(found: Moments) -> None:
    assert np.array_equal(found.count, [X.shape[1]] * 2)
    assert np.abs(found.mean - X.mean(1)).max() <= MEAN_TOLERANCE
    spread = ((X - X.mean(1, keepdims=True)) ** 2).sum(1)
    assert np.abs(found.m2 - spread).max() <= M2_TOLERANCE
    assert np.array_equal(found.low, X.min(1))
    assert np.array_equal(found.high, X.max(1))


def forgets_the_step(a: Moments, b: Moments) -> Moments:
    """As if both had the same mean: the spread between the parts is lost."""
    merged = a.merge(b)
    return Moments(merged.count, merged.mean, a.m2 + b.m2, merged.low, merged.high)


def forgets_the_counts(a: Moments, b: Moments) -> Moments:
    """The mean of the means."""
    merged = a.merge(b)
    return Moments(merged.count, (a.mean + b.mean) / 2, merged.m2, merged.low, merged.high)


def test_parts_make_the_whole_from_the_left_and_from_the_right() -> None:
    assert_is_whole(reduce(Moments.merge, parts()))
    assert_is_whole(reduce(lambda a, b: b.merge(a), reversed(parts())))
    a, b, c, d = parts()
    assert_is_whole(a.merge(b).merge(c.merge(d)))
    assert_is_whole(of(X))


@pytest.mark.parametrize("wrong", [forgets_the_step, forgets_the_counts])
def test_the_comparison_bites(wrong: Merge) -> None:
    with pytest.raises(AssertionError):
        assert_is_whole(reduce(wrong, parts()))


def assert_same_bits(a: Moments, b: Moments) -> None:
    for name in ("count", "mean", "m2", "low", "high"):
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes(), name


def test_empty_is_the_identity_bit_for_bit() -> None:
    some, empty = of(X), Moments.empty((2,))
    assert_same_bits(some.merge(empty), some)
    assert_same_bits(empty.merge(some), some)
    with pytest.raises(AssertionError, match="count"):
        assert_same_bits(some.merge(of(X[:, :1])), some)


def test_cells_of_nothing_are_nan_and_count_nothing() -> None:
    value = Moments.empty((3,)).value()
    assert not value["n"].any()
    assert all(np.isnan(value[name]).all() for name in ("mean", "std", "min", "max"))
    assert not np.isnan(of(X).value()["mean"]).any()


def test_over_is_merging_along_an_axis() -> None:
    def stacked(name: str) -> NDArray[np.float64]:
        return np.stack([getattr(p, name) for p in parts()], axis=1)

    cells = Moments(*(stacked(name) for name in ("count", "mean", "m2", "low", "high")))
    assert_same_bits(cells.over(1), reduce(Moments.merge, parts(), Moments.empty((2,))))
    with pytest.raises(AssertionError):
        assert_same_bits(cells.at((slice(None), slice(1, None))).over(1), of(X))


def test_std_is_of_a_population() -> None:
    value = of(X).value()
    # std = sqrt(m2 / n), so its error is that of m2, over 2 n std
    tolerance = M2_TOLERANCE / (2 * X.shape[1] * X.std(1).min())
    assert np.abs(value["std"] - X.std(1)).max() <= tolerance
    assert np.abs(value["std"] - X.std(1, ddof=1)).max() > tolerance
