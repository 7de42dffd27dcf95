"""Runs side by side: means, differences from the first, and curves over relative depth.

Runs of the same documents are compared in pairs: in each draw both get the same ones, and what a text
does to both drops out. Other runs are drawn apart. Depth is relative, from 0 (first
layer) to 1 (last), so that models of different sizes lie over each other; between layers the numbers
are joined by straight lines.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outward.glossary import MEASURES
from outward.report.frames import Shown
from outward.report.summary import by_window
from outward.report.terminal import COLUMNS
from outward.results import ResultError
from outward.stats.bootstrap import Interval, Values, intervals, redrawn

DEPTHS = tuple(n / 10 for n in range(11))
SHORT = {title: name for name, title in COLUMNS.items()}
"""Names as tables have them."""
Row = dict[str, Any]
Statistic = Callable[[Values], Values]
"""Means over samples, (draw, layer), to numbers, (draw, number)."""


def comparison(
    runs: Sequence[Shown], measures: Sequence[str] = (), *, series: str = "main"
) -> dict[str, Any]:
    """The document that `outward compare --json` prints."""
    measures = [SHORT.get(m, m) for m in measures]
    _refuse(runs, measures, series)
    chosen = list(measures) or [m for m in COLUMNS if all(m in r.measures for r in runs)]
    of = {m: [_measured(r, m, series) for r in runs] for m in chosen}
    return {
        "series": series,
        "runs": [_about(r, series) for r in runs],
        "paired": [_paired(each[0], x) for each in list(of.values())[:1] for x in each],
        "measures": [
            {"measure": m, "runs": _transposed(_beside(each, _whole), 1)[0]} for m, each in of.items()
        ],
        "depth": [_by_depth(m, each) for m, each in of.items()],
        "layers": _by_layer(of, runs),
        "warnings": warnings(runs, series),
    }


def _refuse(runs: Sequence[Shown], measures: Sequence[str], series: str) -> None:
    if len(runs) < 2:
        raise ResultError("compare takes two runs or more: name another one.")
    for run in runs:
        there = list(run.result.manifest["windows"])
        if series not in there:
            raise ResultError(f"{run.name} has no series {series}; it has {', '.join(there)}.")
        missing = [m for m in measures if m not in run.measures]
        if missing:
            again = f" Measure it again with --measures {missing[0]}." if missing[0] in MEASURES else ""
            raise ResultError(
                f"{run.name} has no measure {missing[0]}; it has {', '.join(run.measures)}.{again}"
            )


@dataclass(frozen=True, eq=False)
class _Measured:
    """One measure of one run by window and layer, and the documents of the windows."""

    values: Values
    documents: NDArray[np.int64]
    names: list[str]
    data: Any

    def draws(self, seed: int) -> Values | None:
        """Means over documents drawn again; None where there are no two."""
        return redrawn(self.values, self.documents, seed=seed) if len(self.values) else None


def _measured(run: Shown, measure: str, series: str) -> _Measured:
    samples = run.windows(series)
    values, documents, _ = by_window(samples, measure)
    names = samples["document"].cat.categories[np.unique(documents)]
    return _Measured(values, documents, list(names), _data_of(run))


def _paired(a: _Measured, b: _Measured) -> bool:
    """Whether they are of the same documents: a draw of the one is then a draw of the other."""
    return a.data == b.data and a.names == b.names


def _beside(each: list[_Measured], statistic: Statistic) -> list[list[Row]]:
    """By run and number of the statistic: it, its interval, and how far it is from the first run's."""
    first = each[0]
    drawn = [x.draws(0 if _paired(first, x) else n) for n, x in enumerate(each)]
    found = []
    for n, (one, draws) in enumerate(zip(each, drawn, strict=True)):
        rows = [_shown(x) for x in _intervals(statistic, [one], [draws])]
        apart: list[Row | None] = [None] * len(rows)
        if n and len(first.values) and rows:
            both = _intervals(statistic, [one, first], [draws, drawn[0]])
            apart = [_shown(x) for x in both]
        found.append([row | {"difference": x} for row, x in zip(rows, apart, strict=True)])
    return found


def _intervals(
    statistic: Statistic, each: list[_Measured], drawn: list[Values | None]
) -> list[Interval]:
    """Of a statistic of one run, or of the difference of two; none where nothing was measured."""
    if not all(len(x.values) for x in each):
        return []
    value = _minus([statistic(x.values.mean(axis=0)[None])[0] for x in each])
    draws = [x for x in drawn if x is not None]
    if len(draws) < len(each):
        return [Interval(float(x), None, None) for x in value]
    return intervals(value, _minus([statistic(x) for x in draws]))


def _minus(of: list[Values]) -> Values:
    return of[0] if len(of) == 1 else of[0] - of[1]


def _whole(values: Values) -> Values:
    return values.mean(axis=1, keepdims=True)


def _at_depths(values: Values) -> Values:
    """(draw, layer) -> (draw, DEPTHS)."""
    places = np.linspace(0, 1, values.shape[1])
    return np.stack([np.interp(DEPTHS, places, x) for x in values])


def _shown(x: Interval) -> Row:
    return {"value": x.value, "low": x.low, "high": x.high}


def _transposed(columns: list[list[Row]], many: int) -> list[list[Row | None]]:
    """By number, then by run; null where a run has none."""
    return [[c[i] if c else None for c in columns] for i in range(many)]


def _by_depth(measure: str, each: list[_Measured]) -> Row:
    rows = _transposed(_beside(each, _at_depths), len(DEPTHS))
    return {
        "measure": measure,
        "rows": [{"depth": d, "runs": r} for d, r in zip(DEPTHS, rows, strict=True)],
    }


def _by_layer(of: dict[str, list[_Measured]], runs: Sequence[Shown]) -> list[Row]:
    """Each layer, where all runs have the same ones and something is known of all."""
    numbers = [[x["layer"] for x in r.result.manifest["layers"]] for r in runs]
    if any(n != numbers[0] for n in numbers):
        return []
    return [
        {"measure": measure, "layer": layer, "runs": row}
        for measure, each in of.items()
        if all(x.values.shape[1:] == (len(numbers[0]),) for x in each)
        for layer, row in zip(
            numbers[0], _transposed(_beside(each, lambda x: x), len(numbers[0])), strict=True
        )
    ]


def _about(run: Shown, series: str) -> Row:
    manifest = run.result.manifest
    model, data = manifest.get("model") or {}, manifest.get("data") or {}
    return {
        "name": run.name,
        "model": model.get("id"),
        "data": data.get("data"),
        "layers": len(manifest["layers"]),
        "windows": manifest["windows"][series],
        "documents": manifest["documents"][series],
    }


def _data_of(run: Shown) -> Any:
    return (run.result.manifest.get("data") or {}).get("sha256")


def warnings(runs: Sequence[Shown], series: str) -> list[str]:
    """What makes the runs hard to compare."""
    first, *others = runs
    found = []
    models = {(r.result.manifest.get("model") or {}).get("id") for r in runs}
    if len(models) > 1:
        found.append(
            "different models: compare the excess; the raw cosine also says how alike all values are."
        )
    for run in others:
        if _data_of(run) != _data_of(first):
            found.append(f"{run.name} was measured on other data than {first.name}.")
        lengths = [_tokens(r, series) for r in (first, run)]
        if lengths[0] != lengths[1]:
            found.append(
                f"{run.name} has {lengths[1]} tokens in a window at most, {first.name} {lengths[0]}: "
                "the raw cosine depends on it; compare the excess."
            )
    if any(r.result.manifest["documents"][series] < 2 for r in runs):
        found.append("a run of one document has no intervals.")
    return found


def _tokens(run: Shown, series: str) -> int:
    """The tokens that count in the longest windows, as a power of two: the last place's bucket."""
    places = run.profile[(run.profile["series"] == series) & run.profile["place"].notna()]["place"]
    return int(places.max()) * 2 if len(places) else 0


def rows(document: dict[str, Any]) -> list[Row]:
    """The same as a tidy table: a row for each measure, depth or layer, and run."""
    names = [r["name"] for r in document["runs"]]
    found = [_tidy(x["measure"], "all", None, x["runs"], names) for x in document["measures"]]
    for x in document["depth"]:
        found += [_tidy(x["measure"], "depth", r["depth"], r["runs"], names) for r in x["rows"]]
    found += [_tidy(x["measure"], "layer", x["layer"], x["runs"], names) for x in document["layers"]]
    return [row for part in found for row in part]


def _tidy(measure: str, along: str, at: Any, each: list[Row | None], names: list[str]) -> list[Row]:
    made = []
    for name, one in zip(names, each, strict=True):
        known = one or {"value": None, "low": None, "high": None, "difference": None}
        apart = known["difference"] or {"value": None, "low": None, "high": None}
        made.append(
            {"run": name, "measure": measure, "along": along, "at": at}
            | {k: known[k] for k in ("value", "low", "high")}
            | {f"difference_{k}" if k != "value" else "difference": x for k, x in apart.items()}
        )
    return made
