"""Figures: rows of frames.py -> Altair charts. One function per figure; what it shows is its docstring.

Hue is never the only sign: runs differ in dash and in the shape of points too, and every figure stands
beside its numbers as a table. Colours can be told apart by colour-blind readers, on white and on black.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt

from outward.glossary import title_of
from outward.report.frames import Row
from outward.report.visible import visible

INKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # Okabe and Ito's that show on white and on black
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [12, 2])  # one more than inks: pairs repeat after 20
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
PARTS = {"self_part": "self", "common_part": "common", "selective_part": "selective"}
WIDTH, HEIGHT = 400, 260

SERIES = "which"


def values_of(rows: Sequence[Row]) -> Any:
    """Rows as Altair takes them, however many."""
    return alt.InlineData(values=[{k: _seen(x) for k, x in r.items()} for r in rows])


def _seen(x: Any) -> Any:
    """Text that can only be read: some characters end the program that draws."""
    return visible(x) if isinstance(x, str) else x


def panels(
    rows: Sequence[Row], measures: Sequence[str], *, by: str = "depth", width: int = WIDTH
) -> Any:
    """A chart of curves for each measure, side by side, over one key to their lines."""
    looks = _looks(rows)
    charts = [
        _curves([r for r in rows if r["measure"] == m], looks, axis=title_of(m), by=by, width=width)
        for m in measures
    ]
    return _keyed(beside(charts, columns=len(charts)), looks)


def curves(rows: Sequence[Row], *, axis: str, by: str, width: int = WIDTH) -> Any:
    """All curves in one chart, over the key to them."""
    looks = _looks(rows)
    return _keyed(_curves(rows, looks, axis=axis, by=by, width=width), looks)


def _curves(rows: Sequence[Row], looks: "Looks", *, axis: str, by: str, width: int) -> Any:
    """Lines with bands: rows with `which`, the place along `by`, mean, low and high."""
    seen = [r | looks[r[SERIES]] for r in rows]
    base = alt.Chart(values_of(seen), width=width, height=HEIGHT).encode(
        x=_across(by, rows), color=_as_said("ink"), detail=f"{SERIES}:N"
    )
    y = alt.Y("mean:Q", title=axis, scale=alt.Scale(zero=False, nice=True))
    band = base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q"), y2="high:Q")
    line = base.mark_line(strokeWidth=2).encode(y=y, strokeDash=alt.StrokeDash("dash:N", scale=None))
    points = base.mark_point(filled=True, size=28, opacity=1).encode(
        y=y, shape=alt.Shape("shape:N", scale=None)
    )
    return alt.layer(band, line, points)


Looks = dict[str, Row]
"""By line: its ink, dash and shape of points."""


def _looks(rows: Sequence[Row]) -> Looks:
    """Of several runs, ink and shape tell the run, and the dash its series."""
    lines = {r[SERIES]: (r["run"], r.get("series", "main")) for r in rows}
    runs, series = (list(dict.fromkeys(x[n] for x in lines.values())) for n in range(2))
    found = {}
    for n, (name, (run, which)) in enumerate(lines.items()):
        ink, dash = (runs.index(run), series.index(which)) if len(runs) > 1 else (n, n)
        found[name] = {
            "ink": INKS[ink % len(INKS)],
            "dash": DASHES[dash % len(DASHES)],
            "shape": SHAPES[ink % len(SHAPES)],
        }
    return found


def _as_said(field: str) -> Any:
    return alt.Color(f"{field}:N", scale=None)


def _keyed(chart: Any, looks: Looks) -> Any:
    """With a key below: a line of each look, and its name. One line alone needs none."""
    if len(looks) < 2:
        return chart
    rows = [{SERIES: name, "n": n} | look for n, (name, look) in enumerate(looks.items())]
    place = alt.Y("n:O", axis=None)
    base = alt.Chart(values_of(rows), width=2 * WIDTH, height=18 * len(rows))
    line = base.mark_rule(strokeWidth=2.5).encode(
        y=place,
        x=alt.value(0),
        x2=alt.value(44),
        color=_as_said("ink"),
        strokeDash=alt.StrokeDash("dash:N", scale=None),
    )
    point = base.mark_point(filled=True, size=40, opacity=1).encode(
        y=place, x=alt.value(22), color=_as_said("ink"), shape=alt.Shape("shape:N", scale=None)
    )
    name = base.mark_text(align="left", color="currentColor", limit=600, fontSize=12).encode(
        y=place, x=alt.value(54), text=f"{SERIES}:N"
    )
    return alt.vconcat(chart, alt.layer(line, point, name), spacing=14)


def _across(by: str, rows: Sequence[Row]) -> Any:
    if by == "depth":
        return alt.X("depth:Q", title="depth: 0 first layer, 1 last", scale=alt.Scale(domain=[0, 1]))
    if by == "layer":
        return alt.X("layer:Q", title="layer", axis=alt.Axis(tickMinStep=1, format="d"))
    if by == "step":
        return alt.X("step:Q", title="training step", axis=alt.Axis(format="d"))
    found = sorted({r[by] for r in rows})
    named = {"place": "place in the text (first of its range)", "length": "tokens in a window"}
    scale = alt.Scale(type="symlog", constant=1) if 0 in found else alt.Scale(type="log", base=2)
    axis = alt.Axis(values=found, format="d", grid=False)
    return alt.X(f"{by}:Q", title=named[by], scale=scale, axis=axis)


def beside(charts: Iterable[Any], *, columns: int = 2) -> Any:
    """Several charts in a row, each with its own scales."""
    joined = alt.concat(*charts, columns=columns, spacing=28)
    return joined.resolve_scale(y="independent", x="independent", color="independent")


def parts(rows: Sequence[Row]) -> Any:
    """Signed bars per layer: what the cosine is made of, and the whole of it as a black mark.

    rows: layer, part, value, whole. Parts can be negative or exceed the whole.
    """
    names = list(PARTS.values())
    layers = len({r["layer"] for r in rows})
    base = alt.Chart(values_of(rows), width=max(420, min(760, 22 * layers)), height=HEIGHT)
    x = alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0, labelOverlap=True))
    bars = base.mark_bar(stroke="currentColor", strokeWidth=0.4).encode(
        x=x,
        y=alt.Y("value:Q", title="part of cos(y, v)", stack="zero"),
        color=alt.Color(
            "part:N",
            sort=names,
            scale=alt.Scale(domain=names, range=[INKS[1], "#9aa5b1", INKS[0]]),
            legend=alt.Legend(title=None, orient="bottom", labelLimit=260),
        ),
        order=alt.Order("order:O"),
    )
    whole = base.mark_tick(thickness=3, color="currentColor", width=14).encode(x=x, y="whole:Q")
    zero = base.mark_rule(color="currentColor", strokeWidth=1).encode(y=alt.datum(0))
    return alt.layer(bars, zero, whole)


def heat(rows: Sequence[Row], *, title: str, signed: bool) -> Any:
    """Layers downwards, heads to the right; signed numbers on a scale that is centred on 0."""
    layers, heads = ({r[k] for r in rows} for k in ("layer", "head"))
    most = max((abs(r["value"]) for r in rows), default=1.0) or 1.0
    low = min((r["value"] for r in rows), default=0.0)
    scale = (
        alt.Scale(scheme="blueorange", domain=[-most, most])
        if signed
        else alt.Scale(scheme="cividis", domain=[min(0.0, low), most])
    )
    size = max(9, min(22, 420 // max(1, len(heads))))
    axis = alt.Axis(labelAngle=0, labelOverlap=True, grid=False)
    return (
        alt.Chart(
            values_of(rows),
            width=size * len(heads),
            height=max(9, min(22, 480 // max(1, len(layers)))) * len(layers),
            title=title,
        )
        .mark_rect()
        .encode(
            x=alt.X("head:O", title="head", axis=axis),
            y=alt.Y("layer:O", title="layer", axis=axis),
            color=alt.Color(
                "value:Q",
                scale=scale,
                legend=alt.Legend(title=None, orient="right", gradientLength=120, format=".2~f"),
            ),
        )
    )


def spread(rows: Sequence[Row], *, axis: str) -> Any:
    """By layer, the share of tokens and heads in each cell of a measure: darker is more."""
    layers = len({r["layer"] for r in rows})
    return (
        alt.Chart(values_of(rows), width=640, height=max(120, min(16 * layers, 480)))
        .mark_rect()
        .encode(
            x=alt.X("low:Q", title=axis, scale=alt.Scale(domain=[-1, 1], nice=False)),
            x2="high:Q",
            y=alt.Y("layer:O", title="layer", axis=alt.Axis(labelOverlap=True, grid=False)),
            color=alt.Color(
                "share:Q",
                scale=alt.Scale(scheme="cividis"),
                legend=alt.Legend(title="share", orient="right", gradientLength=100, format=".0%"),
            ),
        )
    )


def bars(rows: Sequence[Row], *, axis: str) -> Any:
    """A histogram: rows with low, high and share."""
    return (
        alt.Chart(values_of(rows), width=WIDTH, height=HEIGHT)
        .mark_rect(color=INKS[0])
        .encode(
            x=alt.X("low:Q", title=axis),
            x2="high:Q",
            y=alt.Y("share:Q", title="share of tokens", axis=alt.Axis(format="%")),
            y2=alt.datum(0),
        )
    )
