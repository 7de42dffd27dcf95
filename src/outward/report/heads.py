"""One head of a run, as a document: what the explorer and notebooks show."""

from typing import Any

import pandas as pd

from outward.glossary import MEASURES
from outward.results import Result, ResultError
from outward.stats.histogram import edges

NUMBERS = ("n", "mean", "std", "min", "max", "q05", "q50", "q95")
BY_PLACE = ("n", "mean", "q05", "q50", "q95")
Row = dict[Any, Any]


def head_document(
    result: Result,
    layer: int,
    head: int,
    *,
    series: str = "main",
    profile: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """Its measures, by place in the text, and their histograms.

    profile: the rows of this head, where whoever asks has found them already.
    """
    chosen = _rows(result, layer, head, series) if profile is None else profile
    if not len(chosen):
        where = "" if series == "main" else f" in {series[:60]!r}"
        raise ResultError(f"the run has no layer {layer} with a head {head}{where}.")
    rows = chosen.to_dict("records")
    return {
        "layer": layer,
        "head": head,
        "module": str(rows[0]["module"]),
        "measures": {r["measure"]: _counted(r, NUMBERS) for r in rows if _is_whole(r)},
        "places": _places(rows),
        "histograms": _histograms(result, layer, head, series),
    }


def _rows(result: Result, layer: int, head: int, series: str) -> pd.DataFrame:
    profile = result.tables["profile"].to_pandas()
    at = (profile["layer"] == layer) & (profile["head"] == head) & (profile["series"] == series)
    return profile[at]


def _is_whole(row: Row) -> bool:
    """Whether it is of all places together: there the place is null, NaN in a DataFrame."""
    return bool(pd.isna(row["place"]))


def _places(rows: list[Row]) -> dict[str, Any]:
    """By measure, in the order of the places."""
    found: dict[str, Any] = {str(row["measure"]): [] for row in rows}
    for row in sorted((r for r in rows if not _is_whole(r)), key=lambda r: r["place"]):
        found[row["measure"]].append({"place": int(row["place"]), **_counted(row, BY_PLACE)})
    return found


def _counted(row: Row, names: tuple[str, ...]) -> Row:
    """Numbers of a row; those that are unknown are None."""
    known = {name: None if pd.isna(row[name]) else row[name] for name in names}
    return known | {"n": int(row["n"])}


def _histograms(result: Result, layer: int, head: int, series: str) -> dict[str, Any]:
    counts = result.arrays.get(f"{series}.layer{layer}.histogram")
    if counts is None:  # of the earlier steps of a training only the tables are kept
        return {}
    return {
        name: {
            "counts": counts[i, head].tolist(),
            "edges": edges(MEASURES[name].kind).tolist(),  # type: ignore[arg-type]
        }
        for i, name in enumerate(result.manifest["measures"])
        if name in MEASURES
    }
