"""Rows as HTML and as CSV. Text in them is hostile until it is escaped."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from outward.glossary import title_of
from outward.report.frames import Row
from outward.report.visible import escaped, visible

FORMULA = ("=", "+", "-", "@")
"""With what a spreadsheet begins a formula."""


def as_html(rows: Sequence[Row]) -> str:
    """A table that scrolls by itself."""
    if not rows:
        return "<p>Nothing.</p>"
    head = "".join(f"<th scope=col>{escaped(c)}</th>" for c in rows[0])
    body = "".join("<tr>" + "".join(map(_cell, r.values())) + "</tr>" for r in rows)
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(x: Any) -> str:
    if x is None:
        return "<td>–</td>"
    if isinstance(x, float):
        return f"<td class=n>{x:.4g}</td>"
    if isinstance(x, int):
        return f"<td class=n>{x}</td>"
    return f"<td>{escaped(x)}</td>"


def side_by_side(document: dict[str, Any]) -> list[Row]:
    """A comparison as rows: each measure of each run, and how far it is from the first run."""
    names = [r["name"] for r in document["runs"]]
    label = "measure"
    while label in names:
        label += " "
    return [
        {label: title_of(x["measure"])}
        | {name: with_interval(one) for name, one in zip(names, x["runs"], strict=True)}
        | {
            f"{name} \N{MINUS SIGN} {names[0]}": with_interval(one and one["difference"], "+")
            for name, one in list(zip(names, x["runs"], strict=True))[1:]
        }
        for x in document["measures"]
    ]


def with_interval(x: dict[str, Any] | None, sign: str = "") -> str:
    """A number and its interval, if it has one."""
    if x is None or x["value"] is None:
        return "–"
    between = "" if x["low"] is None else f" [{x['low']:{sign}.3f}, {x['high']:{sign}.3f}]"
    return f"{x['value']:{sign}.3f}{between}"


def as_csv(rows: Sequence[Row]) -> str:
    """Numbers in six digits; text that a spreadsheet would take for a formula is quoted off."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if rows:
        writer.writerow(rows[0])
    for row in rows:
        writer.writerow([_plain(x) for x in row.values()])
    return out.getvalue()


def _plain(x: Any) -> str:
    if x is None:
        return ""
    if isinstance(x, int | float):
        return f"{x:.6g}" if isinstance(x, float) else str(x)
    text = visible(x)
    return f"'{text}" if text.startswith(FORMULA) else text
