"""outward compare, outward report."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from outward.cli.options import UsageError
from outward.cli.printing import DONE, print_comparison, result, say

if TYPE_CHECKING:
    from outward.report.frames import Shown

PAGE = "report.html"
Runs = Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN")]


def compare(
    runs: Runs,
    /,
    *,
    measures: Annotated[str, arg(metavar="NAMES")] = "",
    series: Annotated[str, arg(metavar="NAME")] = "main",
    json: bool = False,
    csv: bool = False,
    debug: bool = False,
) -> int:
    """Runs side by side: means, differences from the first run, and curves over relative depth.

    Args:
        runs: directories that `outward measure --out` made, two or more; the others are compared
            with the first. Runs of the same documents are compared in pairs.
        measures: which to compare, with commas; the main ones unless given.
        series: main, or a baseline or a length of the runs, as in random-weights or length=128.
        json: print one JSON document.
        csv: print the numbers as a table with commas, a row per run, measure and depth or layer.
        debug: show the traceback of an error.
    """
    from outward.report.compare import comparison

    if json and csv:
        raise UsageError("--json, --csv: give one of them.")
    shown = _shown(runs)
    if len(shown) < 2:
        raise UsageError("compare takes two runs or more: outward compare RUN RUN")
    chosen = tuple(x.strip() for x in measures.split(",") if x.strip())
    with _as_written(shown):
        document = comparison(shown, chosen, series=series)
    print_comparison(document, json=json, csv=csv)
    return DONE


def report(
    runs: Runs,
    /,
    *,
    out: Annotated[Path, arg(aliases=("-o",), metavar="FILE")] = Path(PAGE),
    figures: Annotated[Path | None, arg(metavar="DIR")] = None,
    title: Annotated[str | None, arg(metavar="TEXT")] = None,
    debug: bool = False,
) -> int:
    """One HTML file of one run or several, to read and to send: it needs no network and no program.

    Args:
        runs: directories that `outward measure --out` made. Several are drawn into the same curves.
        out: the file to write; - is stdout.
        figures: also write every figure there, as SVG, PNG and PDF.
        title: of the page.
        debug: show the traceback of an error.
    """
    if not runs:
        raise UsageError("report takes a run: outward report RUN -o report.html")
    _refuse_target(out)
    shown = _shown(runs)  # reads them: what cannot be read is said before anything is drawn

    from outward.report.drawing import save_figures
    from outward.report.page import page
    from outward.report.story import story
    from outward.results import write_file

    with _as_written(shown):
        told = story(shown)
        text = page(shown, told, title=title).encode("utf-8", "replace")
    if str(out) == "-":
        sys.stdout.buffer.write(text)
    else:
        write_file(out.resolve(), text, way_out="Give another --out.")
        result(str(out))
    if figures is not None:
        for file in save_figures({f.file: f.chart for f in told}, figures):
            say(f"wrote {file}")
    return DONE


def _shown(runs: tuple[Path, ...]) -> "list[Shown]":
    """Each run under the shortest name that no other has."""
    from outward.report.frames import Shown
    from outward.results import load

    for given in runs:
        _refuse_folder(given)
    whole = [p.resolve() for p in runs]
    if len(set(whole)) < len(whole):
        twice = next(p for n, p in enumerate(whole) if p in whole[:n])
        raise UsageError(f"{twice.name} is named twice; name each run once.")
    found = [Shown(_name(p, whole), load(given)) for p, given in zip(whole, runs, strict=True)]
    for one in found:
        kind = one.result.manifest["kind"]
        if kind != "measure":
            raise UsageError(f"{one.name} is a run of {kind}; this shows runs of `outward measure`.")
    return found


@contextmanager
def _as_written(shown: "list[Shown]") -> Iterator[None]:
    """Runs that another program wrote, or a hand, have not all that is drawn."""
    from outward.results import ResultError

    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        names = ", ".join(s.name for s in shown)
        raise ResultError(
            f"{names}: not as outward writes a run ({type(error).__name__}: {error}); measure again."
        ) from error


def _refuse_target(out: Path) -> None:
    """What is there may be something else than an old report."""
    from outward.results import MANIFEST, OURS

    if out.is_dir():
        raise UsageError(f"--out {out}: it is a folder; name a file in it, as in {out / PAGE}.")
    if out.exists() and not out.is_file():
        raise UsageError(f"--out {out}: it is no file; name one, or - for stdout.")
    if out.name in OURS and (out.parent / MANIFEST).is_file():
        raise UsageError(f"--out {out}: it is a file of a run, which would be lost; name another.")


def _refuse_folder(path: Path) -> None:
    """Of runs: which of them is meant must be said."""
    from outward.results import MANIFEST

    if path.is_dir() and not (path / MANIFEST).is_file():
        inside = sorted(p.name for p in path.iterdir() if (p / MANIFEST).is_file())
        if inside:
            raise UsageError(f"{path} holds runs ({', '.join(inside)}): name those that you mean.")
    if path.name == MANIFEST and path.is_file():
        raise UsageError(f"{path} is a file of a run: name its directory, {path.parent}.")


def _name(path: Path, among: list[Path]) -> str:
    for many in range(1, len(path.parts) + 1):
        last = path.parts[-many:]
        if sum(p.parts[-many:] == last for p in among) == 1:
            break
    return "/".join(last)
