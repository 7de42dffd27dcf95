"""A run, as a user holds it: DataFrames, a document, a reading, and a table in a notebook."""

import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from outward.report.context import context_document, context_reading
from outward.report.frames import Shown
from outward.report.heads import head_document
from outward.report.reading import reading
from outward.report.summary import summary
from outward.report.terminal import show
from outward.results import Result
from outward.results import load as load_result
from outward.results import save as save_result
from outward.run.head import Head


@dataclass(frozen=True, eq=False)
class Run:
    """What was measured. `layers`, `heads`, `profile` and `samples` are DataFrames."""

    result: Result
    path: Path | None = None

    @cached_property
    def document(self) -> dict[str, Any]:
        """What --json prints."""
        make = summary if self.manifest["kind"] == "measure" else context_document
        return make(self.result, None if self.path is None else str(self.path))

    @property
    def manifest(self) -> dict[str, Any]:
        """run.json: model, data, options, coverage, checks, versions."""
        return self.result.manifest

    @cached_property
    def layers(self) -> pd.DataFrame:
        """A row per layer: the mean over heads of every measure, and the interval of the bias."""
        return pd.DataFrame([_flat(x) for x in self.document["layers"]]).set_index("layer")

    @cached_property
    def heads(self) -> pd.DataFrame:
        """A row per layer and head."""
        return pd.DataFrame(self.document["heads"]).set_index(["layer", "head"])

    @cached_property
    def profile(self) -> pd.DataFrame:
        """Tidy: a row for each series, layer, head, measure and place, with spread and quantiles."""
        return self.arrow["profile"].to_pandas()

    @cached_property
    def samples(self) -> pd.DataFrame:
        """Tidy: a row for each window, layer, head and measure."""
        return self.arrow["samples"].to_pandas()

    @property
    def arrow(self) -> dict[str, pa.Table]:
        """The tables as pyarrow has them."""
        return dict(self.result.tables)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Histograms and matrices."""
        return dict(self.result.arrays)

    @property
    def reading(self) -> list[str]:
        """What it means, in sentences."""
        return (reading if self.manifest["kind"] == "measure" else context_reading)(self.document)

    def save(self, path: str | Path) -> "Run":
        """Write it as a run directory."""
        save_result(self.result, Path(path))
        return Run(self.result, Path(path))

    def __repr__(self) -> str:
        windows = self.manifest["windows"].get("main", 0)
        return f"Run({len(self.manifest['layers'])} layers, {windows} windows, path={self.path})"

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        show(self.document, self.reading, Console(file=text, width=120))
        return text.getvalue()

    def head(self, layer: int, head: int, *, series: str = "main") -> Head:
        """One head: its measures, by place in the text, and how tokens are spread."""
        return Head(
            self.result, layer, head, series, head_document(self.result, layer, head, series=series)
        )

    def _repr_html_(self) -> str:
        from outward.report.cells import run_cell

        model = (self.manifest.get("model") or {}).get("id") or "a model"
        return run_cell(Shown(str(model), self.result))


def _flat(layer: dict[str, Any]) -> dict[str, Any]:
    """With the ends of its interval as two numbers."""
    low, high = layer.get("self_similarity_interval") or (None, None)
    known = {k: x for k, x in layer.items() if k != "self_similarity_interval"}
    return known | {"self_similarity_low": low, "self_similarity_high": high}


def load(path: str | Path) -> Run:
    """Read a run directory."""
    return Run(load_result(Path(path)), Path(path))
