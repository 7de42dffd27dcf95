"""Documents as `summary` makes them, of numbers that are chosen."""

from typing import Any

MEASURES = {
    "value_similarity": 0.11,
    "self_weight": 0.135,
    "self_weight_ratio": 2.34,
    "self_similarity": 0.5,
    "null_similarity": 0.23,
    "excess_similarity": 0.27,
    "self_part": 0.31,
    "common_part": 0.17,
    "selective_part": -0.05,
    "context_part": 0.12,
    "centred_similarity": 0.07,
    "removed_energy": 0.41,
    "sink_weight": 0.02,
    "previous_weight": 0.03,
}


def layer(number: int, **measures: float | None) -> dict[str, Any]:
    """A layer, with the numbers above unless said."""
    return {"layer": number, "module": f"layers.{number}", **MEASURES, **measures}


def head(number: int, index: int, excess: float | None) -> dict[str, Any]:
    """A head, of which only the excess is of interest."""
    return {"layer": number, "module": f"layers.{number}", "head": index, "excess_similarity": excess}


def interval(value: float | None, low: float | None, high: float | None) -> dict[str, float | None]:
    """A number with its interval."""
    return {"value": value, "low": low, "high": high}


def trend(
    curvature: tuple[float | None, float | None, float | None] = (0.5, 0.4, 0.6),
    spearman: tuple[float | None, float | None, float | None] = (0.3, -0.2, 0.7),
) -> dict[str, Any]:
    """How a measure goes with depth."""
    return {
        "last_minus_first": interval(-0.25, -0.375, 0.125),
        "spearman": interval(*spearman),
        "depth_of_minimum": interval(0.25, 0.2, 0.75),
        "curvature": interval(*curvature),
    }


def document(layers: list[dict[str, Any]], **parts: Any) -> dict[str, Any]:
    """Of a run."""
    return {
        "layers": layers,
        "heads": [],
        "trend": {},
        "baselines": {},
        "lengths": {},
        "steps": {},
        "coverage": [],
        "checks": None,
        "warnings": [],
        "run": None,
        **parts,
    }
