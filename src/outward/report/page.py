"""A report: one HTML file that needs nothing else. No script, no request, no font of its own."""

import base64
import hashlib
import shlex
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from outward.report.compare import comparison
from outward.report.drawing import page_svg
from outward.report.frames import Shown
from outward.report.reading import reading, verdict
from outward.report.story import Figure
from outward.report.tables import as_csv, as_html, side_by_side
from outward.report.visible import escaped, file_name

HIDDEN = ("order", "which")  # columns of figures that say nothing in a table
GLOSSARY = {
    "cos(y, v)": "the bias: the cosine of what attention returns at a token, y, with its own value, v",
    "null": "the same with the values of the other tokens that it sees: what any token would score",
    "excess": "cos(y, v) less the null: the part that is about this token",
    "self, common, selective": "the weight on itself, what the other values have in common with its "
    "own, and which of them it chooses; they sum to cos(y, v)",
    "weight": "the attention that a token gives itself",
    "cos(v, v of another token)": "how alike the values of different tokens are",
    "centred": "cos(y, v) once what all visible values share is taken out of both",
}


def page(runs: Sequence[Shown], told: Sequence[Figure], *, title: str | None = None) -> str:
    """The whole document, with these figures."""
    title = title or "Attention similarity bias: " + ", ".join(r.name for r in runs)
    style = files("outward.report").joinpath("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'"
    body = "\n".join(
        [
            f"<header><h1>{escaped(title)}</h1>{_verdicts(runs)}</header>",
            "<main>",
            *map(_figure, told[:1]),
            _side_by_side(runs),
            _readings(runs),
            *map(_figure, told[1:]),
            _caveats(runs),
            _words(),
            *(_made(r) for r in runs),
            "</main>",
            "<footer><p>Made by Outward. This file needs no network: all of it is inside.</p></footer>",
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escaped(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _verdicts(runs: Sequence[Shown]) -> str:
    return "".join(f'<p class="verdict">{escaped(verdict(r.document, r.name))}</p>' for r in runs)


def _side_by_side(runs: Sequence[Shown]) -> str:
    """The differences from the first run, where there are several."""
    if len(runs) < 2:
        return ""
    document = comparison(runs)
    said = "".join(f"<li>{escaped(w)}</li>" for w in document["warnings"])
    how = "pairs of the same documents" if all(document["paired"]) else "documents drawn apart"
    return _section(
        "side-by-side",
        "Side by side",
        f"{as_html(side_by_side(document))}<p>Means over layers and heads, 95 % intervals by {how}.</p>"
        + (f"<ul>{said}</ul>" if said else ""),
    )


def _readings(runs: Sequence[Shown]) -> str:
    said = "".join(
        f"<h3>{escaped(r.name)}</h3><ul>"
        + "".join(f"<li>{escaped(s)}</li>" for s in reading(r.document))
        + "</ul>"
        for r in runs
    )
    return _section("reading", "What the numbers say", said)


def _caveats(runs: Sequence[Shown]) -> str:
    said = "".join(
        f"<h3>{escaped(r.name)}</h3><ul>"
        + "".join(f"<li>{escaped(s)}</li>" for s in (*r.document["warnings"], *_checked(r)))
        + "</ul>"
        for r in runs
    )
    return _section("caveats", "Before you believe it", said)


def _checked(run: Shown) -> list[str]:
    """What the first batch proved of the watching itself."""
    checks = run.document["checks"]
    if not checks:
        return ["not verified: whether watching changed the model's output was not tried."]
    if checks["identical"]:
        same = "checked on the first batch: the model returned the same bits watched and not watched"
    else:
        same = (
            "checked on the first batch: this model differs from itself from call to call; watching "
            f"changed its output by {checks['output_difference']:.2g}, within that"
        )
    return [f"{same}; what was captured agrees with float64 to {checks['y_error']:.1g}."]


def _words() -> str:
    terms = "".join(f"<dt>{escaped(k)}</dt><dd>{escaped(v)}.</dd>" for k, v in GLOSSARY.items())
    return _section("words", "Words", f"<dl>{terms}</dl>")


def _made(run: Shown) -> str:
    facts = "".join(
        f"<tr><th scope=row>{escaped(k)}</th><td>{escaped(v)}</td></tr>" for k, v in _facts(run)
    )
    found = run.document["coverage"]
    counts = Counter(c["status"] for c in found)
    rows = [{k: c[k] for k in ("module", "kind", "status", "tier", "reason")} for c in found]
    said = ", ".join(f"{n} {status}" for status, n in counts.items())
    return _section(
        file_name(f"made-{run.name}"),
        f"How it was made: {run.name}",
        f"<table class=facts>{facts}</table><h3>Attention modules: {escaped(said)}</h3>"
        + _details("Every module", as_html(rows)),
    )


def _facts(run: Shown) -> list[tuple[str, Any]]:
    """What made it: command, model, data, versions."""
    manifest = run.result.manifest
    environment = (manifest.get("environment") or {}).get("main") or {}
    model, data = manifest.get("model") or {}, manifest.get("data") or {}
    found: list[tuple[str, Any]] = []
    if environment.get("argv"):
        found.append(("command", "outward " + shlex.join(environment["argv"])))
    found += [(f"model: {k.replace('_', ' ')}", v) for k, v in model.items() if v is not None]
    found.append(("data", data.get("data") or manifest.get("note") or "batches given in Python"))
    if data.get("sha256"):
        found.append(("data sha256", data["sha256"]))
    windows, documents = manifest["windows"], manifest["documents"]
    found += [(f"windows, {s}", f"{n} windows of {documents[s]} documents") for s, n in windows.items()]
    found += [(k, manifest[k]) for k in ("kernel", "threads", "machine") if k in manifest]
    found += [(f"version of {k}", v) for k, v in (manifest.get("versions") or {}).items()]
    return [*found, ("finished", environment.get("finished"))]


# ---- a figure


def _figure(figure: Figure) -> str:
    columns = [c for c in figure.rows[0] if c not in HIDDEN]
    rows = [{c: r.get(c) for c in columns} for r in figure.rows]
    data = base64.b64encode(as_csv(rows).encode("utf-8", "backslashreplace")).decode()
    download = (
        f'<p><a download="{figure.file}.csv" '
        f'href="data:text/csv;charset=utf-8;base64,{data}">Download as CSV</a></p>'
    )
    return _section(
        figure.file,
        figure.title,
        f'<figure><div class="chart" role="img" tabindex="0" aria-label="{escaped(figure.alt)}">'
        f"{page_svg(figure.chart)}</div>"
        f"<figcaption>{escaped(figure.caption)}</figcaption></figure>"
        + _details("Data as table", download + as_html(rows)),
    )


def _section(anchor: str, title: str, inside: str) -> str:
    return (
        f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{escaped(title)}</h2>{inside}</section>'
    )


def _details(title: str, inside: str) -> str:
    return f"<details><summary>{escaped(title)}</summary>{inside}</details>"
