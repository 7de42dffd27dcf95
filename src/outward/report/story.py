"""What a report tells, in which order: figures with captions, made from one run or several."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from outward.glossary import title_of
from outward.report import figures as draw
from outward.report.figures import PARTS, SERIES
from outward.report.frames import (
    Row,
    Shown,
    over_depth,
    over_heads,
    over_places,
    over_series,
    spread,
)
from outward.report.visible import file_name

THREE = ("value_similarity", "self_weight", "self_similarity")
HEATS = ("self_similarity", "excess_similarity", "self_weight", "selective_part")
SIGNED = ("self_similarity", "excess_similarity", "selective_part")
BIAS = ("self_similarity", "null_similarity", "excess_similarity")
NARROW = 250  # of each of three charts in a row
FEW = 2  # runs of which every heat map is shown; of more, the first two each


@dataclass(frozen=True, eq=False)
class Figure:
    """A chart with its words and its numbers.

    caption says how to read it, alt what is to be seen, rows what was drawn.
    """

    name: str
    title: str
    caption: str
    alt: str
    chart: Any
    rows: list[Row] = field(default_factory=list)

    @property
    def file(self) -> str:
        """Its name, for files and anchors."""
        return file_name(self.name)


def story(runs: Sequence[Shown]) -> list[Figure]:
    """All figures that the runs have the numbers for."""
    told: list[Figure | None] = [bias(runs), quantities(runs)]
    told += [parts(r) for r in runs]
    told += [heads(r, HEATS if len(runs) <= FEW else HEATS[:2]) for r in runs]
    told += [tokens(r) for r in runs]
    told += [places(runs), lengths(runs), steps(runs)]
    return [f for f in told if f is not None and f.rows]


def bias(runs: Sequence[Shown]) -> Figure:
    """The bias over depth, what any other token would score, and the difference."""
    rows = _named(runs, BIAS)
    for run in runs:
        others = over_depth(run, BIAS, run.baselines)
        rows += [r | {SERIES: _other(r, alone=len(runs) == 1)} for r in others]
    baselines = " Broken lines are the baselines." if any(r.baselines for r in runs) else ""
    return Figure(
        "bias-over-depth",
        "The bias over depth",
        "Left, the cosine of what attention returns at a token with the token's own value: the mean "
        "over heads, with its 95 % interval over documents. In the middle the null, which is what "
        "any other visible token would score. Right, the excess, which is the difference: the part "
        f"that is about this token.{baselines}",
        " ".join(_told(rows, m) for m in BIAS),
        draw.panels(rows, BIAS, width=NARROW),
        rows,
    )


def _other(row: Row, *, alone: bool) -> str:
    """A baseline, by its name and, among several runs, the run's."""
    if alone and row["series"] != row["run"]:
        return str(row["series"])
    return f"{row['run']}, {row['series']}"


def _named(runs: Sequence[Shown], measures: Sequence[str]) -> list[Row]:
    return [r | {SERIES: r["run"]} for run in runs for r in over_depth(run, measures)]


def quantities(runs: Sequence[Shown]) -> Figure:
    """The three that the paper measured."""
    rows = _named(runs, THREE)
    return Figure(
        "three-quantities",
        "The three quantities of the paper",
        "How alike the values of different tokens are, how much weight a token gives itself, and the "
        "cosine of what it gets with its own value, over depth (as Figure 1 of arXiv 2603.09078).",
        " ".join(_told(rows, m) for m in THREE),
        draw.panels(rows, THREE, width=NARROW),
        rows,
    )


def parts(run: Shown) -> Figure:
    """What the cosine is made of, per layer."""
    rows: list[Row] = [
        {
            "layer": x["layer"],
            "part": PARTS[m],
            "order": n,
            "value": x[m],
            "whole": x["self_similarity"],
        }
        for x in run.document["layers"]
        for n, m in enumerate(PARTS)
        if x.get(m) is not None and x.get("self_similarity") is not None
    ]
    means = {p: _mean([r["value"] for r in rows if r["part"] == p]) for p in PARTS.values()}
    said = ", ".join(f"{p} {x:+.2f}" for p, x in means.items() if x is not None)
    return Figure(
        f"parts-{run.name}",
        f"What the bias is made of: {run.name}",
        "Self is the weight that a token gives itself, common what the values of the other visible "
        "tokens have in common with its own, selective which of them it chooses. The three sum to the "
        "cosine, which is the thick mark. Each is over |y|: where what a head gathers nearly cancels, "
        "they are many times the whole, of either sign.",
        f"Signed bars per layer of {run.name}; on average over layers: {said}.",
        draw.parts(rows),
        rows,
    )


def heads(run: Shown, measures: Sequence[str]) -> Figure:
    """A heat map per measure, side by side."""
    cells = {m: over_heads(run, m) for m in measures}
    charts = [
        draw.heat(rows, title=title_of(m), signed=m in SIGNED) for m, rows in cells.items() if rows
    ]
    rows = [
        {k: h.get(k) for k in ("layer", "head", *cells)}
        for h in run.document["heads"]
        if any(h.get(m) is not None for m in cells)
    ]
    return Figure(
        f"heads-{run.name}",
        f"Every head: {run.name}",
        "One cell per head; layers downwards, the first on top. Where numbers have a sign, blue is "
        "negative and orange positive; elsewhere yellow is more.",
        " ".join(f"{title_of(m)} is highest in {_top(x)}." for m, x in cells.items() if x),
        draw.beside(charts),
        rows,
    )


def _top(rows: list[Row]) -> str:
    top = sorted(rows, key=lambda r: -r["value"])[:3]
    return ", ".join(f"layer {r['layer']} head {r['head']} ({r['value']:.2f})" for r in top)


def tokens(run: Shown) -> Figure:
    """How single tokens differ."""
    rows = spread(run, "self_similarity")
    return Figure(
        f"tokens-{run.name}",
        f"Single tokens: {run.name}",
        "Means hide what single tokens do. By layer, the share of tokens (of all heads and texts) "
        "with a cosine in each of 64 ranges.",
        _spread_told(run),
        draw.spread(rows, axis="cos(y, v)"),
        rows,
    )


def _spread_told(run: Shown) -> str:
    known = run.profile[
        run.profile["place"].isna()
        & (run.profile["series"] == "main")
        & (run.profile["measure"] == "self_similarity")
    ]
    low, high = known["q05"].mean(), known["q95"].mean()
    return (
        f"Distribution of cos(y, v) over tokens by layer; in a head, nine in ten tokens lie between "
        f"{low:.2f} and {high:.2f} on average."
    )


def places(runs: Sequence[Shown]) -> Figure | None:
    """How much it matters how many others a token sees."""
    rows = [r for run in runs for r in over_places(run, BIAS)]
    rows = [r for r in rows if r["mean"] is not None]
    if not rows:
        return None
    return _by_size(
        runs,
        rows,
        "place",
        "Along the text",
        "By the place of a token in its text, in ranges 0, 1, 2–3, 4–7, and so on: the mean over "
        "layers and heads. In causal models the place is the number of others that a token sees, and "
        "all three numbers depend on it; the averages above are over all places.",
    )


def lengths(runs: Sequence[Shown]) -> Figure | None:
    """The length sweep, where it was asked for."""
    rows = [r for run in runs for r in over_series(run, "length=", BIAS)]
    if not rows:
        return None
    return _by_size(
        runs,
        rows,
        "length",
        "By length of text",
        "The mean over layers and heads for windows of different lengths, with 95 % intervals.",
    )


def steps(runs: Sequence[Shown]) -> Figure | None:
    """A training that was watched."""
    rows = [r for run in runs for r in over_series(run, "step=", BIAS)]
    if not rows:
        return None
    return _by_size(
        runs,
        rows,
        "step",
        "While it was trained",
        "The same batches, measured again and again: the mean over layers and heads.",
    )


def _by_size(runs: Sequence[Shown], rows: list[Row], by: str, title: str, caption: str) -> Figure:
    """One run: its bias, null and excess in one chart. Several: a chart for bias and one for excess."""
    if len(runs) == 1:
        rows = [r | {SERIES: title_of(r["measure"])} for r in rows]
        chart = draw.curves(rows, by=by, axis="cosine", width=2 * draw.WIDTH)
    else:
        rows = [r | {SERIES: r["run"]} for r in rows]
        chart = draw.panels(rows, BIAS[::2], by=by)
    said = f"{title}: " + " ".join(
        _told(rows, m, by=by) for m in ("self_similarity", "excess_similarity")
    )
    return Figure(f"by-{by}", title, caption, said, chart, rows)


def _told(rows: list[Row], measure: str, *, by: str = "depth") -> str:
    """What a curve does, in a sentence for each line of it."""
    said = []
    for name in dict.fromkeys(r[SERIES] for r in rows):
        line = [r for r in rows if r[SERIES] == name and r["measure"] == measure]
        line = sorted((r for r in line if r["mean"] is not None), key=lambda r: r[by])
        if line:
            top = max(line, key=lambda r: r["mean"])
            said.append(
                f"{name}: from {line[0]['mean']:.2f} to {line[-1]['mean']:.2f}, "
                f"highest {top['mean']:.2f} at {by} {_number(top[by])}"
            )
    return f"{title_of(measure)}, {'; '.join(said)}." if said else ""


def _number(x: int | float) -> str:
    return f"{x:.2f}" if isinstance(x, float) else str(x)


def _mean(x: list[float]) -> float | None:
    return sum(x) / len(x) if x else None
