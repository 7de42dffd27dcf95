"""Altair charts -> SVG, PNG and PDF, without a browser and without a network."""

import re
from pathlib import Path
from typing import Any

import vl_convert

from outward.results import ResultError, write_file

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
VEGA_LITE = "6.1"
FORMATS = ("svg", "png", "pdf")


_SPOKEN = re.compile(r' (?:role|aria-[a-z]+)="[^"]*"')
_TAG = re.compile(r"<[^>]*>")


def page_svg(chart: Any) -> str:
    """For a page: in the colour of the text around it, on whatever is behind.

    It is silent: whoever puts it there describes it, once, instead of every line in it.
    """
    svg = _svg(_themed(chart, "currentColor", "transparent"))
    svg = _TAG.sub(lambda tag: _SPOKEN.sub("", tag[0]), svg)
    return svg.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)


def paper(chart: Any, form: str) -> bytes:
    """For a paper: black on white, as svg, png or pdf."""
    spec = _themed(chart, "black", "white")
    if form == "svg":
        return _svg(spec).encode()
    if form == "png":
        return vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=2.5)
    return vl_convert.vegalite_to_pdf(spec, vl_version=VEGA_LITE)


def save_figures(charts: dict[str, Any], folder: Path) -> list[Path]:
    """Each chart as SVG, PNG and PDF, under its name."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultError(f"{folder} cannot be made: {error.strerror}; give another folder.") from error
    files = []
    for name, chart in charts.items():
        for form in FORMATS:
            files.append(folder / f"{name}.{form}")
            write_file(files[-1], paper(chart, form), way_out="Give another --figures.")
    return files


def _svg(spec: dict[str, Any]) -> str:
    return vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)


def _themed(chart: Any, ink: str, ground: str) -> dict[str, Any]:
    """The specification of a chart, with one look for all."""
    spec: dict[str, Any] = chart.to_dict()
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": 11, "titleFontSize": 12}
    spec["config"] = {
        "background": ground,
        "aria": False,  # the page describes each figure itself, in words
        "font": FONT,
        "view": {"stroke": None},
        "axisY": {"titlePadding": 10, "minExtent": 34},
        "axis": text
        | {"titleFontWeight": "normal", "gridColor": ink, "gridOpacity": 0.12}
        | {"domainColor": ink, "tickColor": ink, "domainOpacity": 0.5, "tickOpacity": 0.5},
        "legend": text | {"titleFontWeight": "normal"},
        "title": {"color": ink, "fontSize": 13, "fontWeight": 600, "anchor": "start", "offset": 12},
        "header": text,
    }
    return _inked(spec, ink)


def _inked(x: Any, ink: str) -> Any:
    """Marks that are drawn in the colour of the text, in this ink."""
    if isinstance(x, dict):
        return {k: v if k in ("values", "datasets") else _inked(v, ink) for k, v in x.items()}
    if isinstance(x, list):
        return [_inked(v, ink) for v in x]
    return ink if x == "currentColor" else x
