"""What figures and tables are made of: plain rows, from one or several runs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from outward.report.summary import SEED, by_window, layer_intervals, layers, over_layers, summary
from outward.results import Result
from outward.stats.bootstrap import bootstrap
from outward.stats.histogram import edges

Row = dict[str, Any]
CELLS = 64
"""Of a distribution in a figure: two bins of a histogram in each."""


@dataclass(frozen=True, eq=False)
class Shown:
    """A run, and the name that it is shown under."""

    name: str
    result: Result

    @cached_property
    def document(self) -> dict[str, Any]:
        """Its summary."""
        return summary(self.result)

    @cached_property
    def profile(self) -> pd.DataFrame:
        """A row for each series, layer, head, measure and place."""
        return self.result.tables["profile"].to_pandas()

    @cached_property
    def samples(self) -> pd.DataFrame:
        """A row for each series, window, layer, head and measure."""
        return self.result.tables["samples"].to_pandas()

    def windows(self, series: str) -> pd.DataFrame:
        """The samples of one series."""
        return self.samples[self.samples["series"] == series]

    @property
    def measures(self) -> list[str]:
        """What was measured."""
        return list(self.result.manifest["measures"])

    @property
    def baselines(self) -> list[str]:
        """Series made without training, or without order."""
        return list(self.document["baselines"])


def over_depth(run: Shown, measures: Iterable[str], series: Iterable[str] = ("main",)) -> list[Row]:
    """By series, measure and layer: the mean over heads, and its interval over documents.

    depth is 0 in the first layer and 1 in the last.
    """
    return [row for s in series for m in measures for row in _one_over_depth(run, m, s)]


def _one_over_depth(run: Shown, measure: str, series: str) -> Iterator[Row]:
    known = run.profile[run.profile["place"].isna() & (run.profile["series"] == series)]
    found = [x for x in layers(known) if x.get(measure) is not None]
    between = layer_intervals(run.windows(series), measure)
    numbers = [x["layer"] for x in run.result.manifest["layers"]]
    last = max(1, len(numbers) - 1)
    for layer in found:
        low, high = between.get(layer["layer"]) or (None, None)
        yield {
            "run": run.name,
            "series": series,
            "measure": measure,
            "layer": layer["layer"],
            "depth": numbers.index(layer["layer"]) / last,
            "mean": layer[measure],
            "low": low,
            "high": high,
        }


def over_heads(run: Shown, measure: str) -> list[Row]:
    """The mean of each head of each layer."""
    return [
        {"layer": x["layer"], "head": x["head"], "value": x[measure]}
        for x in run.document["heads"]
        if x.get(measure) is not None
    ]


def over_places(run: Shown, measures: Iterable[str]) -> list[Row]:
    """The mean over layers and heads at the places 0, 1, 2-3, 4-7, ... of a text."""
    chosen = run.profile[
        run.profile["place"].notna()
        & (run.profile["series"] == "main")
        & run.profile["measure"].isin(list(measures))
    ]
    means = chosen.groupby(["measure", "place"], observed=True)["mean"].mean()
    return [
        {"run": run.name, "measure": str(m), "place": int(place), "mean": float(x)}
        for (m, place), x in means.items()
        if np.isfinite(x)
    ]


def over_series(run: Shown, prefix: str, measures: Iterable[str]) -> list[Row]:
    """By what follows length= or step= in the name of a series: the mean over layers and heads.

    Beside other lengths stands the run's own.
    """
    series = [str(s) for s in run.samples["series"].unique() if str(s).startswith(prefix)]
    named = {s: int(s.removeprefix(prefix)) for s in series}
    tokens = run.document["tokens"]
    if prefix == "length=" and named and tokens and tokens not in named.values():
        named["main"] = tokens
    return [
        {"run": run.name, "measure": m, prefix.rstrip("="): number} | found
        for s, number in sorted(named.items(), key=lambda x: x[1])
        for m in measures
        if (found := mean_of(run.windows(s), m)) is not None
    ]


def mean_of(samples: pd.DataFrame, measure: str) -> Row | None:
    """The mean over layers and heads, with its interval over documents."""
    windows, numbers = by_window(samples, measure)
    if not numbers:
        return None
    (found,) = bootstrap(windows, over_layers, seed=SEED)
    return {"mean": found.value, "low": found.low, "high": found.high}


def spread(run: Shown, measure: str) -> list[Row]:
    """How the numbers of single tokens are spread in each layer: the share of them in each cell."""
    if measure not in run.measures:
        return []
    at = run.measures.index(measure)
    bounds = edges("cosine")[:: len(edges("cosine")) // CELLS]
    found = []
    for layer in run.result.manifest["layers"]:
        kept = run.result.arrays.get(f"main.layer{layer['layer']}.histogram")
        if kept is None:
            continue
        counts = kept[at].sum(axis=0)
        share = counts.reshape(CELLS, -1).sum(axis=1) / max(1, counts.sum())
        found += [
            {"layer": layer["layer"], "low": float(a), "high": float(b), "share": float(x)}
            for a, b, x in zip(bounds[:-1], bounds[1:], share, strict=True)
            if x > 0
        ]
    return found
