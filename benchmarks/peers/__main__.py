"""Outward beside TransformerLens: the same three quantities of the same weights, time and memory.

    python -m benchmarks.peers [--quick] [--out results/peers]

Two versions of the peer: the last that has HookedTransformer, with which the post on GPT-2 was made,
and one that has the bridge only. Each gets an environment of its own, which also holds this package
and is thrown away afterwards; making it needs a package index. The model is GPT-2 small of random
weights. Needs Linux, for the peaks of memory.

Ways:
    everything cached      the peer's run_with_cache, then the quantities by T x T matrices
    only what is needed    the same with a names_filter and no logits asked for
    with the head          all default measures of ours in a forward pass that makes logits
    without the head       the same in the base model: the measures need no logits
    plain forward          the model of transformers, with the head, not watched
"""

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.numbers import ALLOWED
from benchmarks.peers.ways import ROOT
from benchmarks.tables import Row, table, write
from benchmarks.timing import Ratio

VERSIONS = ("3.9.0", "4.3.0")
SECTIONS = {
    "numbers": f"the largest difference of any head and layer; explained, at most {ALLOWED:g} is left",
    "layers": "means over heads: what the peer's processing does to the curves",
    "time": "CPU seconds of one batch, one thread, ways in turn in one process; times faster",
    "memory": "MiB at the peak beyond the model at rest, processes of their own; times less",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--out", type=Path, help="also write each section there, as .json and .txt")
    options = parser.parse_args()
    if not Path("/proc/self/clear_refs").exists():
        parser.error(
            "peaks of memory are read from /proc/self, which this system lacks: run it on Linux"
        )
    documents: list[dict[str, Any]] = []
    for version in VERSIONS:
        documents.append(compared_with(version, quick=options.quick))
        shown = tables(documents)
        if options.out is not None:  # what is measured is kept, whatever becomes of the next
            keep(options.out, documents, shown)
    for section in shown.values():
        Console(width=200, highlight=False).print(section)
    sys.exit("\n".join(unexplained(documents)) or None)


def tables(documents: list[dict[str, Any]]) -> dict[str, Table]:
    """A table for each section, of all versions."""
    return {name: table(f"{name}: {SECTIONS[name]}", rows_of(name, documents)) for name in SECTIONS}


def rows_of(section: str, documents: list[dict[str, Any]]) -> list[Row]:
    """Of all versions."""
    return [row for document in documents for row in document[section]]


def keep(folder: Path, documents: list[dict[str, Any]], shown: dict[str, Table]) -> None:
    """Tables and numbers, with the command that made them."""
    made = {"command": " ".join(["python -m benchmarks.peers", *sys.argv[1:]])} | documents[0]["made"]
    for name, section in shown.items():
        write(folder, name, {"made": made, name: rows_of(name, documents)}, section)


def unexplained(documents: list[dict[str, Any]]) -> Iterator[str]:
    """What is wrong, in a sentence each."""
    for row in rows_of("numbers", documents):
        if not row["left"] <= ALLOWED:
            yield (
                f"TransformerLens {row['TransformerLens']}, weights {row['weights']}, {row['given']}: "
                f"{row['left']:.2g} is unexplained, where {ALLOWED:g} may be: one of the two is wrong."
            )


def compared_with(version: str, *, quick: bool) -> dict[str, Any]:
    """The document that benchmarks.peers.inside makes in an environment with that version."""
    with TemporaryDirectory(prefix="outward-peers-") as folder:
        to = Path(folder, "document.json")
        python = environment_with(version, Path(folder, "environment"))
        command = [str(python), "-m", "benchmarks.peers.inside", "document", "--to", str(to)]
        run([*command, "--quick"] if quick else command)
        return json.loads(to.read_text(), object_hook=_revived)


def environment_with(version: str, folder: Path) -> Path:
    """Its python. Versions are those of requirements.lock, wherever the peer shares a package."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-qq"]
    lock = str(ROOT / "requirements.lock")
    run([*install, "--constraint", lock, "torch", "transformers", f"transformer-lens=={version}"])
    run([*install, "--no-deps", str(ROOT)])
    return python


def run(command: list[str]) -> None:
    """In the checkout, with no hub to ask; what it prints goes to stderr."""
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=offline, stdout=sys.stderr, check=False)
    if done.returncode:
        sys.exit(
            f"{' '.join(command)} failed with status {done.returncode}: see above. Where it was pip, "
            "a package index must be within reach."
        )


def _revived(found: Row) -> Any:
    return Ratio(**found) if set(found) == set(Ratio.__dataclass_fields__) else found


if __name__ == "__main__":
    main()
