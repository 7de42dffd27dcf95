"""One head of a run, as a user holds it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from outward.results import Result


@dataclass(frozen=True, eq=False)
class Head:
    """What was measured of one head: every measure, by place in the text, and how tokens are spread."""

    result: Result
    layer: int
    head: int
    series: str
    document: dict[str, Any]

    @cached_property
    def measures(self) -> pd.DataFrame:
        """A row per measure: n, mean, std, min, max and quantiles over tokens."""
        return pd.DataFrame(self.document["measures"]).T.rename_axis("measure")

    @cached_property
    def places(self) -> pd.DataFrame:
        """A row per measure and place in the text: 0, 1, 2-3, 4-7, ..."""
        found = [{"measure": m} | row for m, each in self.document["places"].items() for row in each]
        return pd.DataFrame(found)

    def __repr__(self) -> str:
        return f"Head(layer={self.layer}, head={self.head}, module={self.document['module']!r})"

    def __str__(self) -> str:
        return f"{self!r}\n{self.measures.to_string(float_format='{:.3f}'.format)}"

    def _repr_html_(self) -> str:
        from outward.report.cells import head_cell

        return head_cell(self.document)
