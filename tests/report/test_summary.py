"""The document of a run: means over heads, intervals over documents, what a reader should know."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from outward.report.summary import by_window, summary
from outward.results import Result

HEADS, LAYERS = 3, 2
VALUES = {"a": (0.25, 0.5), "b": (0.75, 0.0)}  # by document: the bias of each layer


def sampled(
    values: dict[str, tuple[float, ...]], *, windows: int = 1, series: str = "main"
) -> list[dict[str, Any]]:
    """Rows of every window, layer and head: heads are an eighth apart, and the value is their mean."""
    return [
        {
            "series": series,
            "document": name,
            "window": w,
            "layer": n,
            "head": h,
            "measure": "self_similarity",
            "mean": x + (h - 1) / 8,
        }
        for name, layers in values.items()
        for w in range(windows)
        for n, x in enumerate(layers)
        for h in range(HEADS)
    ]


def profiled(
    measure: str, means: list[list[float | None]], *, series: str = "main"
) -> list[dict[str, Any]]:
    """Rows by layer and head, and for each one of a place bucket, which a summary leaves out."""
    return [
        {
            "series": series,
            "layer": n,
            "module": f"layers.{n}",
            "head": h,
            "measure": measure,
            "place": place,
            "mean": x if place is None else 7.0,
        }
        for n, heads in enumerate(means)
        for h, x in enumerate(heads)
        for place in (None, 1)
    ]


BIAS = profiled("self_similarity", [[0.25, 0.5, 0.75], [0.0, 0.25, 0.125]])
MANIFEST: dict[str, Any] = {
    "coverage": [{"module": "layers.0", "status": "captured", "reason": None}],
    "checks": {"identical": True},
    "documents": {"main": 12},
    "windows": {"main": 17, "length=8": 17},
    "layers": [{"layer": 0, "module": "layers.0", "alone": 0}],
    "skipped": [],
    "failed": [],
    "note": None,
}


def result(
    profile: list[dict[str, Any]] = BIAS, samples: list[dict[str, Any]] | None = None, **manifest: Any
) -> Result:
    frames = {"profile": profile, "samples": sampled(VALUES) if samples is None else samples}
    tables = {}
    for name, rows in frames.items():
        frame = pd.DataFrame(rows)
        named = [c for c in ("series", "module", "measure", "document") if c in frame]
        if "place" in frame:
            frame["place"] = frame["place"].astype("Int64")
        tables[name] = pa.Table.from_pandas(frame.astype(dict.fromkeys(named, "category")))
    return Result(MANIFEST | manifest, tables)


# ---- numbers


def test_a_layer_is_the_mean_of_its_heads() -> None:
    found = summary(result())
    assert [(x["layer"], x["module"], x["self_similarity"]) for x in found["layers"]] == [
        (0, "layers.0", 0.5),
        (1, "layers.1", 0.125),
    ]
    assert [(x["layer"], x["head"], x["self_similarity"]) for x in found["heads"]] == [
        (0, 0, 0.25),
        (0, 1, 0.5),
        (0, 2, 0.75),
        (1, 0, 0.0),
        (1, 1, 0.25),
        (1, 2, 0.125),
    ]


def test_what_is_unknown_is_null() -> None:
    unknown = profiled("centred_similarity", [[None] * HEADS] * LAYERS)
    half = profiled("self_weight", [[None, 0.25, 0.75], [0.5] * 3])
    found = summary(result(BIAS + unknown + half))
    assert [x["centred_similarity"] for x in found["layers"]] == [None, None]
    assert [x["self_weight"] for x in found["layers"]] == [0.5, 0.5]
    assert found["heads"][0]["self_weight"] is None


def test_other_series_stand_apart() -> None:
    def other(series: str, x: float) -> list[dict[str, Any]]:
        return profiled("self_similarity", [[x] * HEADS] * LAYERS, series=series)

    series = {"random-weights": 0.5, "length=8": 0.25, "length=64": 0.75, "step=100": 1.0}
    rows = [row for name, x in series.items() for row in other(name, x)]
    more = sampled({"c": (9.0, 9.0)}, series="length=8")
    found = summary(result(BIAS + rows, sampled(VALUES) + more))
    assert {k: v[1]["self_similarity"] for k, v in found["baselines"].items()} == {
        "random-weights": 0.5
    }
    assert {k: v[0]["self_similarity"] for k, v in found["lengths"].items()} == {"8": 0.25, "64": 0.75}
    assert {k: v[0]["self_similarity"] for k, v in found["steps"].items()} == {"100": 1.0}
    assert found["layers"] == summary(result())["layers"]
    assert found["trend"] == summary(result())["trend"]


# ---- intervals


@pytest.mark.parametrize("windows", [1, 5])
def test_intervals_are_over_documents_not_windows(windows: int) -> None:
    """Of two documents a mean is a, b, or between, in a quarter, a quarter and half of the draws."""
    found = summary(result(samples=sampled(VALUES, windows=windows)))
    assert [x["self_similarity_interval"] for x in found["layers"]] == [[0.25, 0.75], [0.0, 0.5]]
    change = found["trend"]["self_similarity"]["last_minus_first"]
    assert change == {"value": -0.25, "low": -0.75, "high": 0.25}


def test_one_document_has_no_interval() -> None:
    found = summary(result(samples=sampled({"a": VALUES["a"]}, windows=5)))
    assert [x["self_similarity_interval"] for x in found["layers"]] == [None, None]
    change = found["trend"]["self_similarity"]["last_minus_first"]
    assert change == {"value": 0.25, "low": None, "high": None}


def test_one_layer_has_no_trend() -> None:
    found = summary(result(samples=sampled({"a": (0.5,), "b": (0.25,)})))
    assert found["trend"] == {}


def test_windows_are_means_over_heads() -> None:
    samples = result(samples=sampled(VALUES, windows=2)).tables["samples"].to_pandas()
    windows, layers = by_window(samples, "self_similarity")
    values, documents = windows.means, windows.documents
    np.testing.assert_array_equal(values, [VALUES["a"], VALUES["a"], VALUES["b"], VALUES["b"]])
    assert documents.tolist() == [0, 0, 1, 1]
    assert layers == [0, 1]


# ---- warnings

PAIRS = profiled("value_similarity", [[0.5, 0.5, 0.25], [0.5, 0.5, 0.5]])


def test_nothing_is_warned_of_without_cause() -> None:
    assert summary(result())["warnings"] == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"documents": {"main": 9}}, "9 documents (17 windows): the intervals are rough."),
        (
            {"documents": {"main": 1}, "windows": {"main": 1, "length=8": 1}},
            "1 document (1 window): no intervals can be given.",
        ),
        (
            {"windows": {"main": 17, "random-weights": 17}},
            "one length: the bias depends on how much a token sees; --lengths compares.",
        ),
        (
            {"layers": [{"layer": 0, "module": "layers.0", "alone": 5}]},
            "tokens that see only themselves (the first of each text) are left out: there y = v.",
        ),
        (
            {"profile": BIAS + PAIRS},
            "heads share values (grouped-query attention): value_similarity is the group's.",
        ),
        (
            {"coverage": [{"status": "refused", "reason": "cross-attention (X)"}]},
            "not measured: 1 attention module (cross-attention (X)).",
        ),
        ({"skipped": ["a.txt is empty.", "b.txt"]}, "2 left out, the first: a.txt is empty."),
        ({"failed": ["main.000002: no memory"]}, "1 chunk failed, the first: main.000002: no memory"),
        ({"failed": ["one", "two"]}, "2 chunks failed, the first: one"),
        ({"note": "generated pictures"}, "measured on generated pictures."),
    ],
)
def test_what_a_reader_should_know(change: dict[str, Any], said: str) -> None:
    assert summary(result(**change))["warnings"] == [said]


def test_heads_with_values_of_their_own_share_none() -> None:
    own = profiled("value_similarity", [[0.5, 0.25, 0.125], [0.5, 0.5, 0.5]])
    assert summary(result(BIAS + own))["warnings"] == []


def test_a_mean_over_tokens_lies_in_its_own_interval() -> None:
    """Long windows weigh more: by windows alike, the mean would be 0.5, and the interval around it."""
    samples = sampled({"a": (0.2, 0.2), "b": (0.2, 0.2), "c": (0.8, 0.8), "d": (0.8, 0.8)})
    tokens = {"a": 90, "b": 90, "c": 10, "d": 10}
    weighed = [row | {"n": tokens[row["document"]]} for row in samples]
    found = summary(result(BIAS, weighed))["overall"]["self_similarity"]
    assert found["value"] == pytest.approx(0.26)
    alike = summary(result(BIAS, samples))["overall"]["self_similarity"]
    assert alike["value"] == pytest.approx(0.5)
    assert found["low"] <= found["value"] <= found["high"]


def test_the_length_of_windows_is_what_was_asked_for_or_what_they_have() -> None:
    rows = [r | {"n": 34} for r in profiled("self_weight", [[0.5] * HEADS] * LAYERS)]
    known = {
        "layers": [{"layer": 0, "module": "layers.0", "alone": 17}]
    }  # of 17 windows, the first each
    assert summary(result(BIAS + rows, **known))["tokens"] == 3
    asked = {"plan": {"length": 8.0}, "takes": "text"}
    assert summary(result(BIAS + rows, **known, **asked))["tokens"] == 8
    assert summary(result())["tokens"] is None
