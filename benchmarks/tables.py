"""What every benchmark prints and keeps: sections of rows, as tables and JSON, with their command."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

Row = dict[str, Any]
Sections = Mapping[str, Callable[[bool], Iterator[Row]]]


def run(
    module: str, doc: str | None, sections: Sections, *, clock: str = "CPU time of the process"
) -> None:
    """The command line of a benchmark: `sections` are functions of `quick` that yield rows."""
    options = _options(doc, sections)
    torch.set_num_threads(1)
    console = Console(file=sys.stderr if options.json else sys.stdout, width=200, highlight=False)
    made = {"command": " ".join([f"python -m {module}", *sys.argv[1:]])} | environment(clock)
    document: dict[str, Any] = {"made": made}
    for name in options.only.split(","):
        rows = document[name] = list(sections[name](options.quick))
        shown = table(f"{name}: {sections[name].__doc__}", rows)
        console.print(shown)
        if options.out is not None:
            write(options.out, name, {"made": made, name: rows}, shown)
    if options.json:
        sys.stdout.write(as_json(document) + "\n")


def _options(doc: str | None, sections: Sections) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, no tables")
    parser.add_argument("--out", type=Path, help="also write each section there, as .json and .txt")
    parser.add_argument("--only", default=",".join(sections), help="sections, separated by commas")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    options = parser.parse_args()
    unknown = set(options.only.split(",")) - set(sections)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(sections)}")
    return options


def write(folder: Path, name: str, document: dict[str, Any], shown: Table) -> None:
    """One section: what was printed, and the numbers behind it with the command that made them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(as_json(document) + "\n")
    with (folder / f"{name}.txt").open("w") as file:
        Console(file=file, width=200).print(shown)


def as_json(document: dict[str, Any]) -> str:
    """With ratios as their fields."""
    return json.dumps(document, default=lambda r: r.__dict__, indent=1)


def environment(clock: str = "CPU time of the process") -> dict[str, Any]:
    """What a number depends on."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "clock": clock,
    }


def table(title: str, rows: list[Row]) -> Table:
    """A column for each key of any row."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    shown = Table(*columns, title=title.split("\n")[0], title_justify="left")
    for row in rows:
        shown.add_row(*(cell(row.get(c, "")) for c in columns))
    return shown


def cell(x: object) -> str:
    """Four digits of a number."""
    return f"{x:.4g}" if isinstance(x, float) else str(x)
