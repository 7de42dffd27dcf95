"""What a notebook shows: HTML that stands by itself, without a script, a request or a style sheet."""

from collections.abc import Sequence
from typing import Any

from outward.glossary import title_of
from outward.report import figures as draw
from outward.report.drawing import page_svg
from outward.report.figures import SERIES
from outward.report.frames import Row, Shown
from outward.report.reading import reading, verdict
from outward.report.story import Figure, bias
from outward.report.tables import as_html, side_by_side
from outward.report.terminal import COLUMNS
from outward.report.visible import escaped

ALONG = ("self_similarity", "null_similarity", "excess_similarity")


def run_cell(run: Shown) -> str:
    """The verdict, the bias over depth, the table per layer, the reading."""
    rows = [
        {"layer": x["layer"]} | {title: x.get(m) for m, title in COLUMNS.items() if m in x}
        for x in run.document["layers"]
    ]
    said = "".join(f"<li>{escaped(s)}</li>" for s in reading(run.document))
    return (
        f"<div><p><b>{escaped(verdict(run.document, run.name))}</b></p>{_drawn(bias([run]))}"
        f"{as_html(rows)}<ul>{said}</ul></div>"
    )


def comparison_cell(runs: Sequence[Shown], document: dict[str, Any]) -> str:
    """The differences, and all curves over each other."""
    said = "".join(f"<li>{escaped(w)}</li>" for w in document["warnings"])
    return f"<div>{as_html(side_by_side(document))}{_drawn(bias(runs))}<ul>{said}</ul></div>"


def head_cell(document: dict[str, Any]) -> str:
    """The measures of one head, the spread of its cosine over tokens, and its course along the text."""
    rows = [
        {"measure": title_of(m)} | {k: x[k] for k in ("mean", "std", "q05", "q50", "q95", "n")}
        for m, x in document["measures"].items()
    ]
    name = f"layer {document['layer']}, head {document['head']} ({document['module']})"
    return f"<div><p><b>{escaped(name)}</b></p>{''.join(_of_head(document))}{as_html(rows)}</div>"


def _of_head(document: dict[str, Any]) -> list[str]:
    counts = document["histograms"].get("self_similarity")
    drawn = []
    if counts is not None:
        chart = draw.bars(_shares(counts), axis=title_of("self_similarity"))
        drawn.append(_image(chart, "Histogram of cos(y, v) over tokens."))
    along = [
        {"run": "", SERIES: title_of(m), "measure": m, "place": x["place"], "mean": x["mean"]}
        for m in ALONG
        for x in document["places"].get(m, [])
        if x["mean"] is not None
    ]
    if along:
        chart = draw.curves(along, axis="cosine", by="place")
        drawn.append(_image(chart, "cos(y, v), the null and the excess along the text."))
    return drawn


def _shares(histogram: dict[str, Any]) -> list[Row]:
    counts, bounds = histogram["counts"], histogram["edges"]
    total = sum(counts) or 1
    return [
        {"low": a, "high": b, "share": n / total}
        for n, a, b in zip(counts, bounds[:-1], bounds[1:], strict=True)
        if n
    ]


def _drawn(figure: Figure) -> str:
    return _image(figure.chart, figure.alt)


def _image(chart: Any, alt: str) -> str:
    return f'<div role="img" aria-label="{escaped(alt)}">{page_svg(chart)}</div>'
