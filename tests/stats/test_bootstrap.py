"""Intervals that hold what they promise, and trends of profiles whose trend is known."""

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from outward.stats import bootstrap as room
from outward.stats.bootstrap import TREND, Interval, Samples, bootstrap, trend

Values = NDArray[np.float64]
DOCUMENTS, WINDOWS, TRIALS = 24, 8, 200


def as_it_is(x: Values) -> Values:
    return x


def corpus(random: np.random.Generator) -> tuple[Values, NDArray[np.int64]]:
    """Windows of one document resemble each other: what differs is mostly between documents."""
    of_document = random.normal(0, 1, DOCUMENTS)
    windows = of_document[:, None] + random.normal(0, 0.3, (DOCUMENTS, WINDOWS))
    documents = np.repeat(np.arange(DOCUMENTS), WINDOWS)
    return windows.reshape(-1, 1), documents


def as_independent(x: Values, documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """The wrong way: each window counts as a document."""
    return np.arange(len(x))


def coverage(grouping: Callable[..., NDArray[np.int64]], monkeypatch: pytest.MonkeyPatch) -> float:
    """How often the interval holds the true mean, which is 0."""
    monkeypatch.setattr(room, "DRAWS", 300)
    random = np.random.default_rng(5)
    held = 0
    for trial in range(TRIALS):
        x, documents = corpus(random)
        (found,) = bootstrap(Samples.of(x, grouping(x, documents)), as_it_is, seed=trial)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0 <= found.high
    return held / TRIALS


# The bootstrap of n documents is too narrow by about sqrt((n - 1) / n), 2 % at 24, so 95 % is 94 %;
# of 200 trials, four standard deviations of that share are 7 %.
LEAST = 0.94 - 4 * math.sqrt(0.94 * 0.06 / TRIALS)


def test_an_interval_over_documents_holds_what_it_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    assert coverage(lambda x, documents: documents, monkeypatch) > LEAST


def test_an_interval_over_windows_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert coverage(as_independent, monkeypatch) < LEAST


def test_one_document_gives_no_interval() -> None:
    x = np.array([[1.0, 5.0], [3.0, 7.0]])
    assert bootstrap(Samples.of(x, np.array([4, 4])), as_it_is, seed=0) == [
        Interval(2.0, None, None),
        Interval(6.0, None, None),
    ]
    assert all(i.low is not None for i in bootstrap(Samples.of(x, np.array([4, 5])), as_it_is, seed=0))


def test_documents_weigh_as_much_as_they_have_windows() -> None:
    """Else the number in a table, a mean over tokens, could lie outside of its own interval."""
    x = np.array([[0.0]] * 30 + [[1.0]])
    documents = np.array([n // 10 for n in range(30)] + [3])
    (found,) = bootstrap(Samples.of(x, documents), as_it_is, seed=0)
    assert found.value == x.mean()
    assert found.value != 0.25  # documents alike
    assert found.low == 0
    assert found.high is not None
    assert 0.1 < found.high <= 3 / 13  # three times the short one, and once a long one


def test_windows_weigh_as_much_as_they_have_tokens_and_what_is_unknown_nothing() -> None:
    x = np.array([[1.0, np.nan], [4.0, 8.0], [2.0, 6.0]])
    tokens = np.array([[30.0, 0.0], [10.0, 10.0], [20.0, 30.0]])
    samples = Samples.of(x, np.array([0, 1, 2]), tokens)
    assert samples.mean().tolist() == [[110 / 60, 260 / 40]]
    first, second = bootstrap(samples, as_it_is, seed=0)
    assert first.low is not None
    assert first.low <= first.value <= (first.high or 0)
    assert (second.low, second.high) == (6.0, 8.0)  # of the draws without either, nothing is known
    assert Samples.of(x, np.array([0, 1, 2])).mean().tolist() == [[7 / 3, 7.0]]


def test_the_same_seed_gives_the_same_interval_in_blocks_of_any_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, documents = corpus(np.random.default_rng(1))
    (whole,) = bootstrap(Samples.of(x, documents), as_it_is, seed=3)
    monkeypatch.setattr(room, "WEIGHTS", 7 * DOCUMENTS)
    (blocks,) = bootstrap(Samples.of(x, documents), as_it_is, seed=3)
    (other,) = bootstrap(Samples.of(x, documents), as_it_is, seed=4)
    assert whole.low == pytest.approx(blocks.low, rel=1e-12)
    assert whole.high == pytest.approx(blocks.high, rel=1e-12)
    assert whole.low != pytest.approx(other.low, rel=1e-12)


def trend_of(*profile: float) -> dict[str, float]:
    return dict(zip(TREND, trend(np.array([profile])).tolist()[0], strict=True))


def test_a_line_has_no_curvature() -> None:
    found = trend_of(0.1, 0.2, 0.3, 0.4, 0.5)
    assert found["last_minus_first"] == pytest.approx(0.4)
    assert found["spearman"] == pytest.approx(1)
    assert found["depth_of_minimum"] == 0
    assert found["curvature"] == pytest.approx(0, abs=1e-15)
    assert trend_of(0.5, 0.4, 0.3)["spearman"] == pytest.approx(-1)


def test_a_parabola_has_the_curvature_that_it_was_made_with() -> None:
    x = np.linspace(-1, 1, 5)
    found = trend_of(*(0.2 + 0.7 * x**2))
    assert found["last_minus_first"] == pytest.approx(0)
    assert found["spearman"] == pytest.approx(0)
    assert found["depth_of_minimum"] == 0.5
    assert found["curvature"] == pytest.approx(0.7)
    assert trend_of(*(0.2 - 0.7 * x**2))["curvature"] == pytest.approx(-0.7)


def test_of_equal_layers_there_is_no_rank_correlation() -> None:
    found = trend_of(0.3, 0.3, 0.3, 0.3)
    assert math.isnan(found["spearman"])
    assert found["last_minus_first"] == 0
    assert found["curvature"] == pytest.approx(0, abs=1e-15)


def test_of_two_layers_there_is_no_curvature_and_of_one_nothing() -> None:
    assert math.isnan(trend_of(0.1, 0.3)["curvature"])
    assert trend_of(0.1, 0.3)["last_minus_first"] == pytest.approx(0.2)
    assert all(math.isnan(x) for x in trend_of(0.1).values())


def spearman(profile: Values) -> float:
    """Pearson's correlation of ranks, equal numbers sharing the mean of theirs."""
    order = np.sort(profile)
    ranks = [np.flatnonzero(order == x).mean() for x in profile]
    return float(np.corrcoef(ranks, np.arange(len(profile)))[0, 1])


@pytest.mark.parametrize("digits", [1, 15])
def test_spearman_is_the_correlation_of_ranks_with_ties_and_without(digits: int) -> None:
    profiles = np.random.default_rng(6).uniform(0, 1, (50, 9)).round(digits)
    ties = [len(set(p)) < 9 for p in profiles]
    assert any(ties) == (digits == 1)
    found = trend(profiles)[:, TREND.index("spearman")]
    assert found == pytest.approx([spearman(p) for p in profiles], abs=1e-12)


def test_ranks_that_break_ties_by_order_are_noticed() -> None:
    profile = np.array([0.3, 0.3, 0.1, 0.1, 0.2])
    broken = profile.argsort(kind="stable").argsort()
    wrong = float(np.corrcoef(broken, np.arange(5))[0, 1])
    assert trend_of(*profile)["spearman"] == pytest.approx(spearman(profile))
    assert trend_of(*profile)["spearman"] != pytest.approx(wrong)


def test_what_is_unknown_in_every_draw_has_no_interval_and_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = bootstrap(
            Samples.of(np.array([[0.1, 0.2], [0.2, 0.4]]), np.array([0, 1])), trend, seed=0
        )
    curvature = found[TREND.index("curvature")]
    assert math.isnan(curvature.value)
    assert curvature.low is None
    assert found[0].low is not None
