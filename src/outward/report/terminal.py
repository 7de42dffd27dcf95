"""Tables for a terminal: a run by layer, and runs side by side."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outward.report.tables import with_interval
from outward.report.visible import visible

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
CURVES = ("self_similarity", "excess_similarity")


def show(
    document: dict[str, Any], said: list[str], console: Console, measures: tuple[str, ...] = ()
) -> None:
    """Table (of some measures, or the main ones), reading, warnings."""
    columns = {name: name.replace("_", " ") for name in measures} or COLUMNS
    for n, part in enumerate(_fitting(document["layers"], columns, console)):
        console.print(layer_table(document["layers"], part, bars=n == 0))
    _say(said, document["warnings"], console)


def _say(said: list[str], warned: list[str], console: Console) -> None:
    """What comes from file names in it can only be read."""
    for sentence in said:
        console.print(visible(f"• {sentence}"), soft_wrap=True, highlight=False, markup=False)
    for warning in warned:
        console.print(
            visible(f"! {warning}"), soft_wrap=True, highlight=False, markup=False, style="dim"
        )


def _fitting(
    layers: list[dict[str, Any]], columns: dict[str, str], console: Console, *, bars: bool = True
) -> list[dict[str, str]]:
    """The columns, in as many tables as it takes for no number to be cut off."""
    unlimited = console.options.update(width=10_000)
    parts: list[dict[str, str]] = [{}]
    for name, title in columns.items():
        longer = {**parts[-1], name: title}
        table = layer_table(layers, longer, bars=bars and len(parts) == 1)
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


# ---- runs side by side


def show_comparison(document: dict[str, Any], console: Console) -> None:
    """Means with intervals, differences from the first run, and curves over relative depth."""
    for run in document["runs"]:
        said = f"{run['name']}: {run['model'] or 'a model'}, {run['layers']} layers; windows "
        said += f"{run['windows']}, documents {run['documents']}"
        console.print(visible(said), soft_wrap=True, highlight=False, markup=False)
    console.print(difference_table(document))
    for measure in document["depth"]:
        if measure["measure"] in CURVES:
            console.print(depth_table(measure, document["runs"]))
    paired = all(document["paired"])
    how = "pairs of the same documents" if paired else "documents drawn apart for each run"
    console.print(f"Intervals are 95 %, by {how}; * marks a difference whose interval is off 0.")
    for warning in document["warnings"]:
        console.print(
            visible(f"! {warning}"), soft_wrap=True, highlight=False, markup=False, style="dim"
        )


def difference_table(document: dict[str, Any]) -> Table:
    """A row per measure: each run, and how far it is from the first."""
    names = [Text(visible(r["name"])) for r in document["runs"]]
    table = Table(box=None, pad_edge=False)
    table.add_column("measure", no_wrap=True)
    for n, name in enumerate(names):
        table.add_column(name, justify="right")
        if n:
            table.add_column(Text(f"{name} − {names[0]}"), justify="right")
    for row in document["measures"]:
        cells = []
        for n, one in enumerate(row["runs"]):
            cells.append(with_interval(one))
            cells += [_difference(one)] if n else []
        table.add_row(COLUMNS.get(row["measure"], row["measure"]), *cells)
    return table


def _difference(one: dict[str, Any] | None) -> str:
    x = None if one is None else one["difference"]
    if x is None or x["low"] is None:
        return with_interval(x, "+")
    return with_interval(x, "+") + (" *" if x["low"] > 0 or x["high"] < 0 else "  ")


def depth_table(measure: dict[str, Any], runs: list[dict[str, Any]]) -> Table:
    """A line per run: its curve drawn on one scale for all, and some of its numbers."""
    lines = [[_value(r["runs"][n]) for r in measure["rows"]] for n in range(len(runs))]
    known = [x for line in lines for x in line if x is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    shown = range(0, len(measure["rows"]), (len(measure["rows"]) - 1) // 4 or 1)
    name = COLUMNS.get(measure["measure"], measure["measure"])
    table = Table(box=None, pad_edge=False)
    table.add_column(f"{name} over depth", no_wrap=True)
    table.add_column(f"{low:.2f} to {high:.2f}", no_wrap=True)
    for i in shown:
        table.add_column(f"at {measure['rows'][i]['depth']:.0%}", justify="right")
    for run, line in zip(runs, lines, strict=True):
        cells = [_cell(line[i]) for i in shown]
        table.add_row(Text(visible(run["name"])), Text(spark(line, low, high), style="cyan"), *cells)
    return table


def _value(x: dict[str, Any] | None) -> float | None:
    return None if x is None else x["value"]


def spark(line: list[float | None], low: float, high: float) -> str:
    """A curve in characters, from low to high."""
    steps = "▁▂▃▄▅▆▇█"
    span = high - low or 1.0
    return "".join(
        " " if x is None else steps[min(len(steps) - 1, int((x - low) / span * len(steps)))]
        for x in line
    )


# ---- context similarity

CONTEXT = {
    "mask_size": "mask",
    "separator_share": "separators",
    "high_pairs": "high pairs",
    "mean_distance": "distance",
    "same_sentence_share": "one sentence",
    "same_sentence_chance": "by chance",
    "equal_share": "equal",
    "equal_chance": "by chance",
    "focal_tokens": "focal tokens",
    "focal_expected": "by chance",
    "focal_ties": "ties",
}


def show_context(document: dict[str, Any], said: list[str], console: Console) -> None:
    """Table, reading, warnings."""
    for part in _fitting(document["layers"], CONTEXT, console, bars=False):
        console.print(layer_table(document["layers"], part, bars=False))
    _say(said, document["warnings"], console)
