"""Results go to stdout, everything else to stderr."""

import sys
from typing import TYPE_CHECKING, Any

from outward.cli.options import Condition, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from outward.results import Result
    from outward.run import Run

DONE, FAILED, USAGE, PARTIAL, CONDITION = 0, 1, 2, 3, 4


def print_run(
    run: "Run",
    *,
    json: bool,
    shown: tuple[str, ...],
    conditions: list["Condition"],
    kept: bool,
) -> int:
    from outward.report.terminal import show
    from outward.report.visible import visible
    from outward.results import as_json

    document = {**run.document, "run": str(run.path) if kept else None}
    _refuse_missing((*shown, *(c.measure for c in conditions)), run)
    true = [c.text for c in conditions if c.holds(document["layers"])]
    if json:
        result(as_json(document))
    else:
        wide = None if sys.stdout.isatty() else 120
        result(visible(heading(run.manifest)))
        show(document, run.reading, _console(width=wide), shown)
        if kept:
            result(f"kept in {run.path}")
    for text in true:
        say(f"--fail-if {text}: it is true")
    if true:
        return CONDITION
    for condition in conditions:  # last: what was measured is shown, and kept
        condition.refuse_silence(document["layers"])
    return PARTIAL if run.manifest["failed"] or run.manifest["skipped"] else DONE


def heading(manifest: dict[str, Any]) -> str:
    """What was measured, in one line: a table that is kept must say of what it is."""
    model, data = manifest.get("model") or {}, manifest.get("data") or {}
    kind = ", ".join(str(model[n]) for n in ("class", "dtype") if model.get(n))
    windows, documents = (manifest[n].get("main", 0) for n in ("windows", "documents"))
    name = model.get("id") or "a model"
    source = data.get("data") or "data of its own"
    return f"{name} ({kind}) on {source}: windows {windows}, documents {documents}"


def _refuse_missing(measures: tuple[str, ...], run: "Run") -> None:
    """A run has the optional measures that it was begun with: of others nothing can be said."""
    missing = [n for n in measures if n not in run.manifest["measures"]]
    if missing:
        raise UsageError(
            f"{run.path} holds no {', '.join(missing)}: measures that cost extra must be named "
            "when a run begins; measure again, with --measures."
        )


def print_context(found: "Result", *, json: bool, kept_in: "Path | None") -> None:
    from outward.report.context import context_document, context_reading
    from outward.report.terminal import show_context
    from outward.report.visible import visible
    from outward.results import as_json

    document = context_document(found, None if kept_in is None else str(kept_in))
    if json:
        result(as_json(document))
        return
    result(visible(heading(found.manifest)))
    console = _console(width=None if sys.stdout.isatty() else 140)
    show_context(document, context_reading(document), console)
    if kept_in is not None:
        result(f"kept in {kept_in}")


def print_comparison(document: dict[str, Any], *, json: bool, csv: bool) -> None:
    from outward.report.compare import rows
    from outward.report.tables import as_csv
    from outward.report.terminal import show_comparison
    from outward.results import as_json

    if json:
        result(as_json(document))
    elif csv:
        sys.stdout.write(as_csv(rows(document)))
    else:
        show_comparison(document, _console(width=None if sys.stdout.isatty() else 1000))


def print_rows(rows: list[dict[str, Any]], json: bool) -> int:
    from rich.table import Table

    from outward.results import as_json

    if json:
        result(as_json(rows))
        return DONE
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(str(x) for x in row.values()))
    _console(markup=False).print(table)
    return DONE


def _console(**options: Any) -> "Console":
    """Of stdout; where that is closed, rich would end the process as if it had failed."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Piped(highlight=False, **options)


def result(text: str) -> None:
    """What the command is asked for."""
    sys.stdout.write(text + "\n")


def say(message: str) -> None:
    from outward.report.visible import visible

    seen = "\n".join(map(visible, message.split("\n")))
    sys.stderr.write(f"outward: {seen}\n")
    sys.stderr.flush()
