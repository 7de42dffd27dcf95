"""Runs side by side, as a user holds them."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from outward.report.compare import comparison, rows
from outward.report.frames import Shown
from outward.report.terminal import show_comparison
from outward.run.run import Run, load


@dataclass(frozen=True, eq=False)
class Comparison:
    """Differences from the first run, with intervals over documents, and curves over relative depth."""

    runs: tuple[Shown, ...]
    document: dict[str, Any]

    @cached_property
    def table(self) -> pd.DataFrame:
        """Tidy: a row for each run, measure, and depth or layer; `along` is all for the means."""
        return pd.DataFrame(rows(self.document))

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        show_comparison(self.document, Console(file=text, width=140))
        return text.getvalue()

    def __repr__(self) -> str:
        return f"Comparison({', '.join(r.name for r in self.runs)})"

    def _repr_html_(self) -> str:
        from outward.report.cells import comparison_cell

        return comparison_cell(self.runs, self.document)


def compare(
    *runs: Run | str | Path,
    names: Sequence[str] = (),
    measures: Sequence[str] = (),
    series: str = "main",
) -> Comparison:
    """Two runs or more, or their directories: means, differences from the first, curves over depth.

    names: what to call them; the names of their directories unless given. measures: the main ones
    unless given. Runs of the same documents are compared in pairs.
    """
    if names and len(names) != len(runs):
        raise ValueError(f"{len(names)} names for {len(runs)} runs: give one for each, or none.")
    if len(set(names)) < len(names):
        raise ValueError(f"{', '.join(names)}: give each run a name of its own.")
    read = [r if isinstance(r, Run) else load(r) for r in runs]
    shown = tuple(Shown(n, r.result) for n, r in zip(names or _names(read), read, strict=True))
    return Comparison(shown, comparison(shown, measures, series=series))


def _names(runs: Sequence[Run]) -> Iterator[str]:
    """Of directories, else of models; where a name came before, with a number."""
    given: dict[str, int] = {}
    for run in runs:
        model = (run.manifest.get("model") or {}).get("id") or "run"
        name = run.path.name if run.path is not None and run.path.name else str(model)
        given[name] = given.get(name, 0) + 1
        yield name if given[name] == 1 else f"{name} ({given[name]})"
