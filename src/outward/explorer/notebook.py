"""A run as a widget of a notebook: the page's own views, in a shadow of their own, with no server."""

from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

from outward.explorer.runs import Parsed
from outward.results import finite
from outward.run import Run
from outward.stats.histogram import edges

MOST_HEADS = 512
"""Above it, what is known of single heads would be tens of megabytes, and stays out."""
DIGITS = 5
RENDER = """
function details(data, said, box, layer, head) {
  const one = data.heads[`${layer}.${head}`];
  said.textContent = `Layer ${layer}, head ${head}`;
  if (!one) return box.replaceChildren(el("p", {}, "The notebook holds no more of it."));
  const measures = data.document.measures;
  const [table, plots] = [el("section", {}), el("section", { class: "plots" })];
  const draw = (chosen) => {
    const [{ kind }, spread] = [measures[chosen], one.measures];
    const [counts, rows] = [one.histograms[chosen]?.counts, one.places[chosen] ?? []];
    const [bars, line] = [counts?.some(Boolean) && el("div"), rows.length > 1 && el("div")];
    measureTable(table, { spread, measures, chosen, choose: draw });
    plots.replaceChildren(...[bars, line].filter(Boolean));
    const [mean, edges] = [spread[chosen].mean, data.edges[kind]];
    if (bars) histogram(bars, { counts, edges, kind, mean, label: `Histogram of ${title(chosen)}` });
    if (line) curve(line, { rows, kind, label: `${title(chosen)} by place in the document` });
  };
  const words = el("p", {}, sentence(one.measures));
  box.replaceChildren(words, el("div", { class: "head" }, table, plots));
  draw("self_similarity" in one.measures ? "self_similarity" : Object.keys(one.measures)[0]);
}

function render({ model, el: outer }) {
  const [data, style] = [model.get("data"), document.createElement("style")];
  style.textContent = model.get("style");
  const [run, said, one] = [el("div"), el("h2", { "aria-live": "polite" }), el("div")];
  const root = el("div", { class: "outward" }, run, said, one);
  outer.attachShadow({ mode: "open" }).append(style, root);
  const open = (layer, head) => details(data, said, one, layer, head);
  renderRun(run, data.document, { series: data.series, open });
}

export default { render };
"""


def run_widget(run: Run, series: str = "main") -> Any:
    """An anywidget of a run; series is the one whose heads are drawn first, and told of in full."""
    read = Parsed(run.result, run.path.name if run.path is not None else "a run")
    if series not in read.document["series"]:
        raise ValueError(f"no series {series!r} in this run: there are {read.document['series']}.")
    return _kind()(data=_rounded(finite(widget_data(read, series))), style=_static("style.css"))


def widget_data(read: Parsed, series: str) -> dict[str, Any]:
    """What the widget holds; the edges of histograms once for each kind of quantity."""
    heads = read.heads(series)
    kinds = {x["kind"] for x in read.document["measures"].values() if x["kind"]}
    return {
        "document": read.document,
        "series": series,
        "heads": {f"{n}.{h}": _head(read, n, h, series) for n, h in heads if len(heads) <= MOST_HEADS},
        "edges": {kind: edges(kind).tolist() for kind in sorted(kinds)},
    }


def _head(read: Parsed, layer: int, head: int, series: str) -> dict[str, Any]:
    known = read.head(layer, head, series)
    counts = {name: {"counts": x["counts"]} for name, x in known["histograms"].items()}
    return {**known, "histograms": counts}


def _rounded(document: Any) -> Any:
    """Numbers to DIGITS digits: more cannot be drawn, and make it twice as large."""
    if isinstance(document, dict):
        return {name: _rounded(x) for name, x in document.items()}
    if isinstance(document, list):
        return [_rounded(x) for x in document]
    return float(f"{document:.{DIGITS}g}") if isinstance(document, float) else document


def _static(name: str) -> str:
    return (files("outward.explorer") / "static" / name).read_text(encoding="utf-8")


@cache
def _kind() -> Any:
    """The class of the widget: made late, as its parents come with the extra `notebook`."""
    try:
        anywidget, traitlets = import_module("anywidget"), import_module("traitlets")
    except ImportError as error:
        raise ImportError(
            "A widget needs the package anywidget: pip install 'outward[notebook]'."
        ) from error
    fields = {
        "_esm": _static("views.js") + RENDER,
        "data": traitlets.Dict().tag(sync=True),
        "style": traitlets.Unicode().tag(sync=True),
    }
    return type("RunWidget", (anywidget.AnyWidget,), fields)
