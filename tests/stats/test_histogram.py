"""Histograms: counted right, merged exactly, and what quantiles they know."""

from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from outward.stats.binning import bins_of
from outward.stats.histogram import BINS, Histogram, Kind, edges

KINDS: tuple[Kind, ...] = get_args(Kind)
RANDOM = np.random.default_rng(4)


def values(kind: Kind, many: int = 4000) -> NDArray[np.float64]:
    """Spread over the bins of a kind and a little beyond, in float32 as measures have them."""
    if kind == "cosine":
        x = RANDOM.uniform(-1, 1, many)
    elif kind == "share":
        x = RANDOM.uniform(0, 1, many)
    elif kind == "signed":
        x = RANDOM.normal(0, 1.5, many)
    else:
        top = edges(kind)[-1]
        x = top * 10 ** RANDOM.uniform(-6, 0.1 if kind == "ratio" else 0, many)
    return x.astype(np.float32).astype(np.float64)


def by_hand(x: NDArray[np.float64], kind: Kind) -> list[int]:
    bounds, counts = edges(kind), [0] * BINS
    for number in x[~np.isnan(x)]:
        b = 0
        while b < BINS - 1 and number >= bounds[b + 1]:
            b += 1
        counts[b] += 1
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_edges_rise(kind: Kind) -> None:
    assert edges(kind).shape == (BINS + 1,)
    assert (np.diff(edges(kind)) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_counts_as_one_does_by_hand(kind: Kind) -> None:
    x = np.append(values(kind, 300), [np.nan, *edges(kind)[[0, 1, BINS // 2, -1]]])
    assert Histogram.of(x, kind).counts.tolist() == by_hand(x, kind)
    assert Histogram.of(x, kind).counts.tolist() != by_hand(x + edges(kind)[-1] / 8, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fast_bins_are_those_of_the_edges(kind: Kind) -> None:
    """But within a rounding of an edge, where either side is right."""
    x = values(kind)
    fast = bins_of(torch.tensor(x, dtype=torch.float32), kind).numpy()
    slow = np.searchsorted(edges(kind)[1:-1], x, side="right")
    assert_bins_agree(x, fast, slow, kind)
    assert len(np.unique(fast)) > BINS / 4
    with pytest.raises(AssertionError, match="away from an edge"):
        assert_bins_agree(x, np.where(fast == fast[7], fast + 1, fast), slow, kind)


def assert_bins_agree(
    x: NDArray[np.float64], fast: NDArray[np.int32], slow: NDArray[np.int64], kind: Kind
) -> None:
    gap = np.abs(x[:, None] - edges(kind)[1:-1]).min(1)
    at_edge = gap <= 4 * np.finfo(np.float32).eps * np.maximum(1, np.abs(x))
    assert (fast == slow)[~at_edge].all(), "another bin, away from an edge"
    assert (np.abs(fast - slow) <= 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_out_of_range_goes_to_the_ends(kind: Kind) -> None:
    ends = torch.tensor([-torch.inf, torch.inf])
    if kind != "signed" and kind != "cosine":
        ends[0] = 0.0
    assert bins_of(ends, kind).tolist() == [0, BINS - 1]
    assert Histogram.of(ends.double().numpy(), kind).counts[[0, -1]].tolist() == [1, 1]


def test_parts_merge_exactly_in_any_order() -> None:
    x = values("cosine")
    parts = [Histogram.of(x[a:b], "cosine") for a, b in ((0, 1), (1, 8), (8, 500), (500, 4000))]
    forth = parts[0].merge(parts[1]).merge(parts[2]).merge(parts[3])
    back = parts[3].merge(parts[2].merge(parts[1].merge(parts[0])))
    whole = Histogram.of(x, "cosine").counts
    assert np.array_equal(forth.counts, whole)
    assert np.array_equal(back.counts, whole)
    assert np.array_equal(Histogram.empty(()).merge(forth).counts, whole)
    assert not np.array_equal(parts[3].counts, whole)


def test_counts_are_as_narrow_as_they_go_and_never_overflow() -> None:
    one = Histogram.of(np.zeros(200), "cosine")
    two = one.merge(one)
    assert one.counts.dtype == np.uint8
    assert two.counts.dtype == np.uint16
    assert two.counts.max() == 400
    assert (one.counts + one.counts).max() == 400 - 256  # what would have happened
    many = two
    for _ in range(8):
        many = many.merge(many)
    assert int(many.counts.max()) == 400 * 2**8
    cells = Histogram.of(np.zeros((3, 100)), "cosine")
    assert cells.counts.dtype == np.uint8
    assert int(cells.over(0).counts.max()) == 300


@pytest.mark.parametrize("quantile", [0.0, 0.05, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_quantiles_are_right_within_a_bin(kind: Kind, quantile: float) -> None:
    x = np.clip(values(kind, 20_001), edges(kind)[0], edges(kind)[-1])
    ends = np.asarray(x.min()), np.asarray(x.max())
    found = float(Histogram.of(x, kind).value(kind, quantile, *ends))
    assert_within_a_bin(found, x, quantile, kind)
    width = np.diff(edges(kind)).max() * 2
    with pytest.raises(AssertionError):
        assert_within_a_bin(found + width, x, quantile, kind)


def assert_within_a_bin(found: float, x: NDArray[np.float64], quantile: float, kind: Kind) -> None:
    exact = np.quantile(x, quantile)
    here, there = np.searchsorted(edges(kind)[1:-1], (found, exact), side="right")
    assert abs(int(here) - int(there)) <= 1
    assert abs(found - exact) <= max(np.diff(edges(kind))[[here, there]])


def test_quantiles_stay_within_what_was_seen() -> None:
    """All numbers in one bin: without bounds, a quantile would be somewhere in that bin."""
    x = np.full(9, 0.301)
    low, high = np.array(0.3005), np.array(0.3012)
    for quantile in (0.0, 0.5, 1.0):
        assert low <= Histogram.of(x, "cosine").value("cosine", quantile, low, high) <= high
    wide = Histogram.of(x, "cosine").value("cosine", 1.0, np.array(-1.0), np.array(1.0))
    assert wide > high
    assert np.isnan(Histogram.empty(()).value("cosine", 0.5, low, high))


def test_quantiles_of_what_lies_beyond_the_bins_reach_to_the_extremes() -> None:
    x = np.concatenate((np.linspace(-0.5, 0.5, 90), np.linspace(4, 12, 110)))
    found = Histogram.of(x, "signed")
    ends = np.array(x.min()), np.array(x.max())
    low, middle, high = (float(found.value("signed", q, *ends)) for q in (0.05, 0.7, 0.95))
    assert low == pytest.approx(np.quantile(x, 0.05), abs=0.1)
    assert 3.75 < middle < high <= 12
    assert high == pytest.approx(np.quantile(x, 0.95), abs=0.5)
    mirrored = Histogram.of(-x, "signed").value("signed", 0.05, np.array(-x.max()), np.array(-x.min()))
    assert float(mirrored) == pytest.approx(-high, abs=0.5)
