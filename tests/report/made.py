"""Results of chosen numbers, whole enough for every table, figure and page."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from outward.glossary import MEASURES
from outward.results import Result
from outward.stats.histogram import BINS

NAMES = tuple(MEASURES)[:14]
PLACES = (None, 0, 1, 2, 4)


def made(
    values: dict[str, list[float]],
    *,
    heads: int = 3,
    series: tuple[str, ...] = ("main",),
    sha256: str | None = "d1",
    places: tuple[int | None, ...] = PLACES,
    measures: tuple[str, ...] = NAMES,
    **manifest: Any,
) -> Result:
    """values: by document, the bias of each layer. Other measures are an eighth of it; heads differ."""
    layers = len(next(iter(values.values())))
    middle = np.mean(list(values.values()), axis=0)
    profile = [
        _row(s, n, h, m, place, _value(m, middle[n], h, heads) + shift / 16)
        for shift, s in enumerate(series)
        for n in range(layers)
        for h in range(heads)
        for m in measures
        for place in (places if m != "value_similarity" else (None,))
    ]
    samples = [
        {
            "series": s,
            "document": name,
            "window": 0,
            "layer": n,
            "head": h,
            "measure": m,
            "mean": _value(m, x, h, heads) + shift / 16,
        }
        for shift, s in enumerate(series)
        for name, line in values.items()
        for n, x in enumerate(line)
        for h in range(heads)
        for m in measures
    ]
    counts = np.zeros((len(measures), heads, BINS), np.int32)
    counts[..., BINS * 3 // 4] = 7
    about = {
        "kind": "measure",
        "model": {"id": "tiny", "class": "Tiny", "dtype": "float32", "weights_sha256": "ab" * 32},
        "data": {"data": "book.txt", "sha256": sha256},
        "coverage": [
            {"module": "layers.0", "kind": "A", "status": "captured", "tier": "torch", "reason": None},
            {"module": "cross", "kind": "B", "status": "refused", "tier": None, "reason": "cross"},
        ],
        "checks": {"identical": True, "output_difference": 0.0, "y_error": 4e-7},
        "documents": dict.fromkeys(series, len(values)),
        "windows": dict.fromkeys(series, len(values)),
        "layers": [{"layer": n, "module": f"layers.{n}", "alone": 0} for n in range(layers)],
        "measures": list(measures),
        "skipped": [],
        "failed": [],
        "note": None,
        "versions": {"outward": "0", "torch": "2"},
        "environment": {"main": {"finished": "2026-01-02T03:04:05Z", "argv": ["measure", "tiny"]}},
    }
    tables = {"profile": _table(profile), "samples": _table(samples)}
    arrays = {f"{s}.layer{n}.histogram": counts for s in series for n in range(layers)}
    return Result(about | manifest, tables, arrays)


def _value(measure: str, x: float, head: int, heads: int) -> float:
    whole = x if measure == "self_similarity" else x / 8
    return whole + (head - (heads - 1) / 2) / 32


def _row(series: str, layer: int, head: int, measure: str, place: int | None, x: float) -> Any:
    numbers = {"mean": x, "std": 0.1, "min": x - 0.2, "max": x + 0.2, "q05": x - 0.1, "q50": x}
    return {
        "series": series,
        "layer": layer,
        "module": f"layers.{layer}",
        "head": head,
        "measure": measure,
        "place": place,
        "n": 7,
        **numbers,
        "q95": x + 0.1,
    }


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    frame = pd.DataFrame(rows)
    if "place" in frame:
        frame["place"] = frame["place"].astype("Int64")
    named = [c for c in ("series", "module", "measure", "document") if c in frame]
    return pa.Table.from_pandas(frame.astype(dict.fromkeys(named, "category")))
