"""Runs side by side: differences as one computes them by hand, in pairs where documents are shared."""

from typing import Any

import numpy as np
import pytest

from outward.report.compare import DEPTHS, comparison, rows
from outward.report.frames import Shown
from outward.results import ResultError, as_json
from report.made import made

# What a document does is the same in both runs, and far larger than what the runs do.
A = {"p": [0.1, 0.3], "q": [0.5, 0.9], "r": [0.2, 0.2], "s": [0.7, 0.4]}
B = {k: [x + 0.05, y + 0.05 + 0.001 * n] for n, (k, (x, y)) in enumerate(A.items())}


def compared(*values: dict[str, list[float]], **how: Any) -> dict[str, Any]:
    shown = [Shown(f"run{n}", made(v, sha256=how.pop(f"sha{n}", "d1"))) for n, v in enumerate(values)]
    return comparison(shown, **how)


def of(document: dict[str, Any], measure: str) -> list[dict[str, Any]]:
    (found,) = (x["runs"] for x in document["measures"] if x["measure"] == measure)
    return found


def test_means_and_differences_are_those_by_hand() -> None:
    first, second = of(compared(A, B), "self_similarity")
    assert first["difference"] is None
    assert first["value"] == pytest.approx(np.mean(list(A.values())))
    assert second["value"] == pytest.approx(np.mean(list(B.values())))
    assert second["difference"]["value"] == pytest.approx(second["value"] - first["value"])
    low, high = second["difference"]["low"], second["difference"]["high"]
    assert low <= second["difference"]["value"] <= high


def test_shared_documents_are_drawn_in_pairs() -> None:
    """Apart, the interval is as wide as documents differ; in pairs, as what the runs make of each."""
    pairs = compared(A, B)
    apart = compared(A, B, sha1="d2")
    assert pairs["paired"] == [True, True]
    assert apart["paired"] == [True, False]
    widths = [
        x["high"] - x["low"]
        for d in (pairs, apart)
        for x in [of(d, "self_similarity")[1]["difference"]]
    ]
    assert widths[0] < 0.002
    assert widths[1] > 0.2


def test_a_run_is_no_different_from_itself() -> None:
    second = of(compared(A, dict(A)), "excess_similarity")[1]["difference"]
    assert (second["value"], second["low"], second["high"]) == (0, 0, 0)


def test_other_documents_are_no_pair() -> None:
    renamed = {f"{k}2": v for k, v in A.items()}
    assert compared(A, renamed)["paired"] == [True, False]


def test_models_of_different_depth_lie_over_each_other() -> None:
    deep = {k: [x, (x + y) / 2, y] for k, (x, y) in A.items()}  # the same straight lines
    document = compared(A, deep)
    (curve,) = (x for x in document["depth"] if x["measure"] == "self_similarity")
    assert [r["depth"] for r in curve["rows"]] == list(DEPTHS)
    for row in curve["rows"]:
        assert row["runs"][1]["difference"]["value"] == pytest.approx(0, abs=1e-12)
    assert document["layers"] == []  # they have different ones


def test_equal_layers_are_compared_one_by_one() -> None:
    layers = [x for x in compared(A, B)["layers"] if x["measure"] == "self_similarity"]
    assert [x["layer"] for x in layers] == [0, 1]
    assert layers[0]["runs"][1]["difference"]["value"] == pytest.approx(0.05)
    assert layers[1]["runs"][1]["difference"]["value"] == pytest.approx(0.0515)


def test_one_document_has_no_interval() -> None:
    one = {"p": [0.1, 0.3]}
    document = compared(one, {"p": [0.2, 0.3]})
    second = of(document, "self_similarity")[1]
    assert second["low"] is None
    assert second["difference"] == {"value": pytest.approx(0.05), "low": None, "high": None}
    assert any("no intervals" in w for w in document["warnings"])


def test_other_data_and_other_lengths_are_warned_of() -> None:
    shown = [Shown("a", made(A)), Shown("b", made(A, sha256="d2", places=(None, 0, 1)))]
    found = comparison(shown)["warnings"]
    assert found[0] == "b was measured on other data than a."
    assert "b has 2 tokens in a window at most, a 8" in found[1]
    assert comparison([shown[0], Shown("c", made(A))])["warnings"] == []
    other = Shown("d", made(A, model={"id": "large"}))
    assert comparison([shown[0], other])["warnings"][0].startswith(
        "different models: compare the excess"
    )


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"series": "length=8"}, "run0 has no series length=8; it has main"),
        ({"measures": ["entropy"]}, "run0 has no measure entropy; it has value_similarity"),
    ],
)
def test_what_is_not_there_is_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ResultError, match=message):
        compared(A, B, **how)


def test_one_run_alone_is_refused() -> None:
    with pytest.raises(ResultError, match="two runs or more"):
        compared(A)


def test_measures_can_be_chosen_also_by_the_names_of_tables() -> None:
    found = compared(A, B, measures=["sink_weight", "excess"])
    assert [x["measure"] for x in found["measures"]] == ["sink_weight", "excess_similarity"]


def test_only_what_can_be_measured_is_said_to_be_measured_again() -> None:
    for name, again in (("entropy", True), ("nonsense", False)):
        with pytest.raises(ResultError) as refused:
            compared(A, B, measures=[name])
        assert ("Measure it again" in str(refused.value)) == again


def test_rows_are_tidy() -> None:
    document = compared(A, B)
    found = rows(document)
    keys = {(r["run"], r["measure"], r["along"], r["at"]) for r in found}
    assert len(keys) == len(found)
    many = len(document["measures"])
    assert len(found) == 2 * many * (1 + len(DEPTHS) + 2)
    assert all(r["difference"] is None for r in found if r["run"] == "run0")
    as_json(document)  # no NaN in it


def test_an_unknown_layer_shifts_no_curve() -> None:
    """Two runs of the same numbers, one without its first layer: nothing differs that is known."""
    values = {k: [0.1 * n + x[0] for n in range(5)] for k, x in A.items()}
    gap = {k: [float("nan"), *x[1:]] for k, x in values.items()}
    document = compared(values, gap, measures=["self_similarity"])
    for row in document["depth"][0]["rows"]:
        apart = row["runs"][1]["difference"]["value"]
        assert apart is None if row["depth"] < 0.25 else abs(apart) < 1e-12
    assert document["layers"] == []
    assert any("run1 has no self_similarity in layer 0" in w for w in document["warnings"])


def test_a_window_without_a_layer_still_counts_in_the_others() -> None:
    half = {k: [float("nan") if n % 2 else x, y] for n, (k, (x, y)) in enumerate(A.items())}
    (one,) = of(compared(half, A), "self_similarity")[:1]
    known = [x for x, _ in half.values() if x == x]
    expected = (np.mean(known) + np.mean([y for _, y in half.values()])) / 2
    assert one["value"] == pytest.approx(expected)


def test_runs_of_unknown_data_are_no_pairs() -> None:
    shown = [Shown(n, made(A, sha256=None)) for n in "ab"]
    found = comparison(shown)
    assert found["paired"] == [True, False]
    assert any("data are not known" in w for w in found["warnings"])
    noted = [Shown(n, made(A, sha256=None, note="the same text")) for n in "ab"]
    assert comparison(noted)["paired"] == [True, True]


def test_nothing_in_common_is_refused() -> None:
    shown = [Shown("a", made(A, measures=("self_weight",))), Shown("b", made(A, measures=("entropy",)))]
    with pytest.raises(ResultError, match="no measure in common"):
        comparison(shown)


def test_a_run_has_the_interval_that_it_has_alone() -> None:
    alone = Shown("b", made(B, sha256="d2")).document["overall"]["self_similarity"]
    beside = of(compared(A, B, sha1="d2"), "self_similarity")[1]
    assert {k: beside[k] for k in alone} == alone
