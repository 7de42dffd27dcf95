"""The table per layer, for a terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

COLUMNS = {
    "self_similarity": "cos(y, v)",
    "excess_similarity": "excess",
    "self_part": "self",
    "common_part": "common",
    "selective_part": "selective",
    "centred_similarity": "centred",
    "value_similarity": "cos(v, v)",
    "self_weight": "weight",
    "self_weight_ratio": "x even",
    "sink_weight": "sink",
}
BAR = 16


def show(
    document: dict[str, Any], said: list[str], console: Console, measures: tuple[str, ...] = ()
) -> None:
    """Table (of some measures, or the main ones), reading, warnings."""
    columns = {name: name.replace("_", " ") for name in measures} or COLUMNS
    for n, part in enumerate(_fitting(document["layers"], columns, console)):
        console.print(layer_table(document["layers"], part, bars=n == 0))
    for sentence in said:
        console.print(f"• {sentence}", soft_wrap=True, highlight=False, markup=False)
    for warning in document["warnings"]:
        console.print(f"! {warning}", soft_wrap=True, highlight=False, markup=False, style="dim")


def _fitting(
    layers: list[dict[str, Any]], columns: dict[str, str], console: Console
) -> list[dict[str, str]]:
    """The columns, in as many tables as it takes for no number to be cut off."""
    unlimited = console.options.update(width=10_000)
    parts: list[dict[str, str]] = [{}]
    for name, title in columns.items():
        longer = {**parts[-1], name: title}
        table = layer_table(layers, longer, bars=len(parts) == 1)
        if parts[-1] and console.measure(table, options=unlimited).maximum > console.width:
            parts.append({name: title})
        else:
            parts[-1] = longer
    return parts


def layer_table(
    layers: list[dict[str, Any]], columns: dict[str, str] = COLUMNS, *, bars: bool = True
) -> Table:
    """A row per layer, with the bias as a bar."""
    table = Table(box=None, pad_edge=False)
    table.add_column("layer", justify="right", no_wrap=True)
    if bars:
        table.add_column("cos(y, v) from 0 to 1", min_width=BAR, no_wrap=True)
    for title in columns.values():
        table.add_column(title, justify="right", no_wrap=True)
    for layer in layers:
        numbers = [_cell(layer.get(name)) for name in columns]
        drawn = [bar(layer.get("self_similarity"))] if bars else []
        table.add_row(str(layer["layer"]), *drawn, *numbers)
    return table


def bar(x: float | None) -> Text:
    """A share of one as a bar, in eighths of a character."""
    eighths = 0 if x is None else round(max(0.0, min(1.0, x)) * BAR * 8)
    full, rest = divmod(eighths, 8)
    return Text("█" * full + ("" if rest == 0 else "▏▎▍▌▋▊▉"[rest - 1]), style="cyan")


def _cell(x: float | None) -> str:
    return "–" if x is None else f"{x:.3f}" if abs(x) < 10 else f"{x:.1f}"
