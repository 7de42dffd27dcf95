"""The census in words: lines, figures, the records of results/census and the page docs/models.md."""

import json
import platform
from collections import Counter
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.census_row import Row

PACKAGES = ("torch", "transformers", "timm", "open_clip_torch", "torchvision")
HEAD = """# Models that Outward can watch

`outward.capture(model)` and `outward measure` work on a model as it is: nothing of it is re-written
here. This page says on which. It is made by a program:

    {command}

takes every architecture of each library, builds it small and with random weights, runs it twice plain
and once watched, and compares. Nothing is downloaded. (A name that is not here is no hurdle: every
model proves itself on its first batch, and what cannot be read is refused by name.)

{figures}

How to read the tables:

* *same bits*: all tensors that the watched model returned equal those of the plain one, bit for bit.
* *captured*: of the attention modules that ran, how many were captured. What was not, is in the last
  column. *whole* counts a model if all its self-attention by softmax over keys was captured; rightly
  left out are cross-attention and what is no softmax over keys.
* *tier*: how it was seen. `interface` is transformers' own switch between attention functions;
  `torch` is `F.scaled_dot_product_attention` or `nn.MultiheadAttention`; `softmax` is a softmax
  followed by a product, written by hand.
* *y error*: how far what attention returned, as captured, is from what q, k, v and mask (or the
  weights, in the tier `softmax`) give in float64, relative to the largest entry. Rounding of float32
  explains it in every row: the largest share of the bound is {share:.0%}.
"""
COLUMNS = (
    "| model | same bits | captured | tier | y error | not captured, and why |\n" + "|---" * 6 + "|\n"
)


@dataclass(frozen=True)
class Summary:
    """Counts: everything that ran, and of that, what has softmax attention."""

    architectures: int
    ran: int
    identical: int
    attending: int
    whole: int
    other: int
    without: int
    tiers: dict[str, int]
    y_error: float
    y_share: float


def summary(rows: list[Row]) -> Summary:
    """The figures of some rows."""
    ran = [r for r in rows if r.ran]
    attending = [r for r in ran if r.has_attention]
    return Summary(
        architectures=len(rows),
        ran=len(ran),
        identical=sum(r.identical for r in ran),
        attending=len(attending),
        whole=sum(r.whole for r in attending),
        other=sum(bool(r.refused) and not r.has_attention for r in ran),
        without=sum(not r.refused and not r.has_attention for r in ran),
        tiers=dict(Counter(t for r in attending for t in r.tiers)),
        y_error=max((r.y_error for r in ran), default=0.0),
        y_share=max((r.y_share for r in ran), default=0.0),
    )


def figures(rows: list[Row]) -> str:
    """The figures in a sentence or three."""
    s = summary(rows)
    share = f" ({s.whole / s.attending:.1%})" if s.attending else ""
    return (
        f"{s.ran} of {s.architectures} ran; {s.identical} of these returned the same bits watched. "
        f"{s.attending} have self-attention by softmax, and {s.whole}{share} were captured whole; "
        f"{s.other} have other attention only, and were refused by name; {s.without} have none."
    )


def line(row: Row) -> str:
    """One row for the terminal."""
    if not row.ran:
        return f"{row.library} {row.name}: {row.error}"
    marks = _same(row, "same", "DIFFERS")
    found = f"{row.captured}/{row.called} {','.join(row.tiers)} y {row.y_error:.0e} ({row.y_share:.2g})"
    extra = "".join(f"\n    refused {x}" for x in row.refused)
    extra += "".join(f"\n    MISSED {x}" for x in row.missed)
    return f"{row.library} {row.name}: {marks} {found}{extra}"


def _same(row: Row, yes: str, no: str) -> str:
    return (yes if row.identical else no) + ("" if row.repeats else " (differs from itself)")


def document(rows: list[Row], command: str) -> str:
    """docs/models.md."""
    libraries = list(dict.fromkeys(r.library for r in rows))
    totals = [f"* **{x}**: {figures([r for r in rows if r.library == x])}" for x in libraries]
    head = HEAD.format(command=command, figures="\n".join(totals), share=summary(rows).y_share)
    parts = [head, *(_section(x, [r for r in rows if r.library == x]) for x in libraries)]
    return "\n".join(parts)


def _section(library: str, rows: list[Row]) -> str:
    versions = installed()
    which = {"open_clip": "open_clip_torch"}.get(library, library)
    text = f"## {library} {versions[which]}\n\n{COLUMNS}" + "".join(
        _table_row(r) for r in rows if r.ran
    )
    silent = ", ".join(r.name for r in rows if not r.ran)
    if not silent:
        return text
    return text + (
        "\nNot run, as the recipe, which knows no model, made none that is small enough or found no "
        f"inputs for it (which of these, is in results/census): {silent}.\n"
    )


def _table_row(row: Row) -> str:
    missed = (f"**missed**: {x}" for x in row.missed)
    why = "; ".join([*missed, *row.refused]).replace("|", "/")
    captured = f"{row.captured} of {row.called}" if row.called else "no attention"
    error = f"{row.y_error:.0e}" if row.calls else ""
    same = _same(row, "yes", "**no**")
    return f"| {row.name} | {same} | {captured} | {', '.join(row.tiers)} | {error} | {why} |\n"


def installed() -> dict[str, str]:
    """Versions of what it was run with."""
    return {"python": platform.python_version(), **{x: version(x) for x in PACKAGES}}


def write(folder: Path, rows: list[Row], command: str, seconds: float) -> None:
    """A record per library, one row a line, and what was printed."""
    folder.mkdir(parents=True, exist_ok=True)
    for library in dict.fromkeys(r.library for r in rows):
        own = [r for r in rows if r.library == library]
        head = {
            "command": command,
            "versions": installed(),
            "seconds for all libraries": round(seconds),
            "summary": asdict(summary(own)),
        }
        lines = ",\n".join(json.dumps(record(r)) for r in own)
        text = json.dumps(head, indent=1).removesuffix("\n}") + f',\n "rows": [\n{lines}\n]\n}}\n'
        (folder / f"{library}.json").write_text(text)
        printed = [f"$ {command}", *(line(r) for r in own), figures(own)]
        (folder / f"{library}.txt").write_text("\n".join(printed) + "\n")


def record(row: Row) -> dict[str, Any]:
    """A row without its library, and without what is false, zero or empty."""
    found = {f.name: getattr(row, f.name) for f in fields(row) if f.name != "library"}
    return {n: float(f"{x:.3g}") if isinstance(x, float) else x for n, x in found.items() if x}
