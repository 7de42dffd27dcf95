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

from outward.glossary import MEASURES
from outward.report.frames import Shown
from outward.report.summary import SEED, by_window, over_layers
from outward.report.terminal import COLUMNS
from outward.results import ResultError
from outward.stats.bootstrap import Interval, Samples, Values, intervals

DEPTHS = tuple(n / 10 for n in range(11))
SHORT = {title: name for name, title in COLUMNS.items()}
"""Names as tables have them."""
Row = dict[str, Any]
Statistic = Callable[["_Measured", Values], Values]
"""Of one measure of a run: means, (draw, layer), to numbers, (draw, number)."""


def comparison(
    runs: Sequence[Shown], measures: Sequence[str] = (), *, series: str = "main"
) -> dict[str, Any]:
    """The document that `outward compare --json` prints."""
    measures = [SHORT.get(m, m) for m in measures]
    _refuse(runs, measures, series)
    chosen = list(measures) or [m for m in COLUMNS if all(m in r.measures for r in runs)]
    if not chosen:
        raise ResultError("these runs have no measure in common: measure with the same --measures.")
    of = {m: [_measured(r, m, series) for r in runs] for m in chosen}
    return {
        "series": series,
        "runs": [_about(r, series) for r in runs],
        "paired": [all(_paired(x[0], x[n]) for x in of.values()) for n in range(len(runs))],
        "measures": [
            {"measure": m, "runs": _transposed(_beside(each, _whole), 1)[0]} for m, each in of.items()
        ],
        "depth": [_by_depth(m, each) for m, each in of.items()],
        "layers": _by_layer(of, runs),
        "warnings": warnings(runs, series) + _gaps(runs, of),
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
    """One measure of one run by window and layer: what layers, at which depths, of which documents."""

    windows: Samples
    layers: list[int]
    depths: list[float]
    names: list[str]
    data: Any


def _measured(run: Shown, measure: str, series: str) -> _Measured:
    samples = run.windows(series)
    windows, layers = by_window(samples, measure)
    all_layers = [x["layer"] for x in run.result.manifest["layers"]]
    last = max(1, len(all_layers) - 1)
    depths = [all_layers.index(n) / last for n in layers]
    names = samples["document"].cat.categories[np.unique(windows.documents)]
    return _Measured(windows, layers, depths, list(names), _data_of(run))


def _paired(a: _Measured, b: _Measured) -> bool:
    """Whether they are known to be of the same documents: a draw of one is then one of the other."""
    return a is b or (a.data is not None and a.data == b.data and a.names == b.names)


def _beside(each: list[_Measured], statistic: Statistic) -> list[list[Row]]:
    """By run and number of the statistic: it, its interval, and how far it is from the first run's."""
    first = each[0]
    own = [x.windows.redrawn(seed=SEED) for x in each]
    found = []
    for n, one in enumerate(each):
        rows = [_shown(x) for x in _intervals(statistic, [one], [own[n]])]
        apart: list[Row | None] = [None] * len(rows)
        if n and first.layers and rows:
            draws = own[n] if _paired(first, one) else one.windows.redrawn(seed=SEED + n)
            apart = [_shown(x) for x in _intervals(statistic, [one, first], [draws, own[0]])]
        found.append([row | {"difference": x} for row, x in zip(rows, apart, strict=True)])
    return found


def _intervals(
    statistic: Statistic, each: list[_Measured], drawn: list[Values | None]
) -> list[Interval]:
    """Of a statistic of one run, or of the difference of two; none where nothing was measured."""
    if not all(x.layers for x in each):
        return []
    value = _minus([statistic(x, x.windows.mean())[0] for x in each])
    draws = [x for x in drawn if x is not None]
    if len(draws) < len(each):
        return [Interval(float(x), None, None) for x in value]
    return intervals(value, _minus([statistic(x, d) for x, d in zip(each, draws, strict=True)]))


def _minus(of: list[Values]) -> Values:
    return of[0] if len(of) == 1 else of[0] - of[1]


def _whole(of: _Measured, means: Values) -> Values:
    """The mean over layers."""
    return over_layers(means)


def _at_depths(of: _Measured, means: Values) -> Values:
    """(draw, layer) -> (draw, DEPTHS); nothing is said beyond the layers that are known."""
    return np.stack([np.interp(DEPTHS, of.depths, x, left=np.nan, right=np.nan) for x in means])


def _each(of: _Measured, means: Values) -> Values:
    """The layers themselves."""
    return means


def _shown(x: Interval) -> Row:
    return {"value": x.value if np.isfinite(x.value) else None, "low": x.low, "high": x.high}


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
        if all(x.layers == numbers[0] for x in each)
        for layer, row in zip(
            numbers[0], _transposed(_beside(each, _each), len(numbers[0])), strict=True
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


def _gaps(runs: Sequence[Shown], of: dict[str, list[_Measured]]) -> list[str]:
    """Where a mean over layers is not over all of them."""
    found = []
    for n, run in enumerate(runs):
        all_layers = {x["layer"] for x in run.result.manifest["layers"]}
        for measure, each in of.items():
            missing = sorted(all_layers - set(each[n].layers))
            if missing and each[n].layers:
                found.append(
                    f"{run.name} has no {measure} in layer {', '.join(map(str, missing))}: its mean is "
                    "over the others."
                )
    return found


def _data_of(run: Shown) -> Any:
    """What is known of the data: its hash, or which text of Outward's own it is."""
    manifest = run.result.manifest
    return (manifest.get("data") or {}).get("sha256") or manifest.get("note")


def warnings(runs: Sequence[Shown], series: str) -> list[str]:
    """What makes the runs hard to compare."""
    first, *others = runs
    found = []
    models = {(r.result.manifest.get("model") or {}).get("id") for r in runs}
    if len(models) > 1:
        found.append(
            "different models: compare the excess; the raw cosine also says how alike all values are."
        )
    if any(_data_of(r) is None for r in runs):
        found.append("of runs made in Python the data are not known: they are not compared in pairs.")
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
