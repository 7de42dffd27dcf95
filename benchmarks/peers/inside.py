"""What runs in the environment that holds both: numbers, layers, time and memory, as one JSON document.

python -m benchmarks.peers.inside document --to FILE [--quick]
python -m benchmarks.peers.inside peak --way "with the head" --batch 8 --tokens 512 [--quick]
"""

import argparse
import ctypes
import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.measure import EXACT
from benchmarks.peers.numbers import compare
from benchmarks.peers.ways import (
    OURS,
    PLAIN,
    ROOT,
    THEIRS,
    at_home,
    gpt2,
    ids,
    ours,
    peer,
    theirs,
)
from benchmarks.tables import Row, as_json, environment
from benchmarks.timing import interleaved, ratio

Size = tuple[int, int]
# At 8 x 512, of the peer's way as it comes: times faster, and times less memory.
TARGETS = {"with the head": (1.5, 6.0), "without the head": (2.0, 20.0)}
PROCESSES = 3  # for each peak of ours: where the allocator leaves its holes is partly luck


def layers_of(*, quick: bool) -> int:
    """Of GPT-2 small, or too few to wait for."""
    return 2 if quick else 12


def document(*, quick: bool) -> dict[str, Any]:
    """All sections, of the version of the peer that is installed."""
    sizes = [(3, 64)] if quick else [(8, 512), (1, 1024)]
    model = gpt2(layers_of(quick=quick))
    numbers, layers = compare(model, *((3, 64) if quick else (4, 256)))
    found = {
        "numbers": numbers,
        "layers": layers,
        "time": list(time(model, sizes, rounds=3 if quick else 5)),
        "memory": list(memory(sizes, quick=quick)),
    }
    return {"made": environment()} | {name: list(map(_named, rows)) for name, rows in found.items()}


def _named(row: Row) -> Row:
    return {"TransformerLens": version("transformer-lens")} | row


def time(model: Any, sizes: list[Size], *, rounds: int) -> Iterator[Row]:
    """CPU seconds of one batch, all ways in turn in one process."""
    runs = ours(model) | theirs(peer(model))
    for batch, tokens in sizes:
        given = ids(batch, tokens)
        each = {name: partial(run, given) for name, run in runs.items()}
        times = interleaved(each, rounds=rounds, warmup=1)
        for row, way, own in _pairs(batch, tokens):
            faster, over_plain = ratio(times, way, own), ratio(times, own, PLAIN)
            row |= {"theirs, s": faster.seconds, "ours, s": over_plain.seconds}
            row |= {"plain, s": median(times[PLAIN]), "times faster": faster}
            yield row | _verdict(row, faster.ratio, 0)


def memory(sizes: list[Size], *, quick: bool) -> Iterator[Row]:
    """MiB at the peak beyond the model at rest, each way in processes of its own."""
    for batch, tokens in sizes:
        peaks = {way: [peak(way, batch, tokens, quick=quick)] for way in (PLAIN, *OURS, *THEIRS)}
        for own in OURS * (0 if quick else PROCESSES - 1):
            peaks[own].append(peak(own, batch, tokens, quick=quick))
        middle = {way: median(found) for way, found in peaks.items()}
        for row, way, own in _pairs(batch, tokens):
            row |= {"theirs, MiB": middle[way], "ours, MiB": middle[own]}
            row |= {"ours, least and most": f"{min(peaks[own]):.0f} to {max(peaks[own]):.0f}"}
            row |= {"plain, MiB": middle[PLAIN], "times less": middle[way] / middle[own]}
            yield row | _verdict(row, middle[way] / middle[own], 1)


def _pairs(batch: int, tokens: int) -> Iterator[tuple[Row, str, str]]:
    for way in THEIRS:
        for own in OURS:
            yield {"batch": f"{batch} x {tokens}", "theirs": way, "ours": own}, way, own


def _verdict(row: Row, reached: float, which: int) -> Row:
    if (row["batch"], row["theirs"]) != ("8 x 512", THEIRS[0]):
        return {}
    target = TARGETS[row["ours"]][which]
    return {"target": target, "met": "yes" if reached >= target else "NO"}


# ---- one peak, in a process of its own


def peak(way: str, batch: int, tokens: int, *, quick: bool) -> float:
    """`extra`, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.peers.inside", "peak", "--way", way]
    command += ["--batch", str(batch), "--tokens", str(tokens), *(["--quick"] if quick else [])]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | EXACT
    )
    return float(done.stdout.splitlines()[-1])


def extra(way: str, batch: int, tokens: int, *, quick: bool) -> float:
    """MiB of this process at the peak of one run, beyond what it held before it.

    A run of few tokens comes first: what libraries load at their first use is no batch's price.
    """
    model = gpt2(layers_of(quick=quick))
    run = theirs(peer(model))[way] if way in THEIRS else ours(model)[way]
    del model
    run(ids(1, 8))
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps of freed memory would hide as much
    given = ids(batch, tokens)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
    before = _resident("VmRSS")
    run(given)
    return _resident("VmHWM") - before


def _resident(name: str) -> float:
    """MiB, as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith(f"{name}:")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("document", "peak"))
    parser.add_argument("--to", type=Path, help="the file to write")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--way", choices=(PLAIN, *OURS, *THEIRS))
    parser.add_argument("--batch", type=int)
    parser.add_argument("--tokens", type=int)
    options = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)  # the peer would rather have its bridge used
    torch.set_num_threads(1)
    to = options.to and options.to.resolve()
    with at_home(layers_of(quick=options.quick)):
        if options.what == "peak":
            print(extra(options.way, options.batch, options.tokens, quick=options.quick))
        else:
            to.write_text(as_json(document(quick=options.quick)))


if __name__ == "__main__":
    main()
