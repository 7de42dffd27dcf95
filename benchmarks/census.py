"""Which models the taps can watch: one small random model of every architecture of the libraries.

    python -m benchmarks.census [--library transformers,timm,open_clip,torch] [--only NAME,...]
                                [--out results/census] [--table docs/models.md]

Every model runs twice as it is and once watched. The three outputs must be the same bits; every
attention module that ran must be captured, or refused with a reason; and y of every call must follow
from its q, k, v and mask (or weights) in float64, within what rounding explains.
"""

import argparse
import multiprocessing
import os
import queue
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from benchmarks import census_text, tiny
from benchmarks.census_models import LIBRARIES
from benchmarks.census_row import Row, census

LIMIT = 60
"""Seconds of the processor for one model: those of others on the machine do not count."""
HANGS = 900
"""Seconds on the wall after which a process is given up."""
WORKERS = 2


class _TooLongError(BaseException):
    """Past the limit; not an Exception, so that no model swallows it."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise _TooLongError


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    before = signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def one(library: str, name: str) -> Row:
    """The row of one architecture; what keeps a model from running is said in it."""
    try:
        with _within(LIMIT), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, run = LIBRARIES[library][1](name)
            return census(library, name, model, run)
    except _TooLongError:
        return Row(library, name, error=f"longer than {LIMIT} s")
    except Exception as error:  # whatever it is, it belongs in the row: there are hundreds of models
        return Row(library, name, error=tiny.one_line(error))


def _worker(pipe: Any) -> None:
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  libraries print what nobody reads
    while True:
        pipe.send(one(*pipe.recv()))


class Worker:
    """A process of its own for the models: some fall over in ways that take the process with them."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._start()

    def _start(self) -> None:
        self._pipe, other = self._context.Pipe()
        self._process = self._context.Process(target=_worker, args=(other,), daemon=True)
        self._process.start()
        other.close()

    def __call__(self, library: str, name: str) -> Row:
        """The row of one architecture, though its process may die of it."""
        self._pipe.send((library, name))
        try:
            if self._pipe.poll(HANGS):
                return self._pipe.recv()
            said = "hangs"
        except EOFError:
            said = "takes the process with it"
        self.close()
        self._start()
        return Row(library, name, error=said)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()


def run_census(
    architectures: Sequence[tuple[str, str]], tell: Callable[[Row], None], *, workers: int = WORKERS
) -> list[Row]:
    """The rows of (library, name), in order; each is told as soon as those before it are done."""
    idle: queue.Queue[Worker] = queue.Queue()
    made = [Worker() for _ in range(workers)]
    for worker in made:
        idle.put(worker)

    def row(architecture: tuple[str, str]) -> Row:
        worker = idle.get()
        try:
            return worker(*architecture)
        finally:
            idle.put(worker)

    rows = []
    try:
        with ThreadPoolExecutor(workers) as pool:
            for found in pool.map(row, architectures):
                rows.append(found)
                tell(found)
    finally:
        for worker in made:
            worker.close()
    return rows


def architectures_of(libraries: Sequence[str], only: Sequence[str] = ()) -> list[tuple[str, str]]:
    """(library, name) of all there are, or of some names."""
    return [(x, name) for x in libraries for name in only or LIBRARIES[x][0]()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", default=",".join(LIBRARIES))
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    return parser.parse_args()


def main() -> None:
    """Run it, and print, and write what was asked for."""
    options = _options()
    started = time.time()
    architectures = architectures_of(
        options.library.split(","), [x for x in options.only.split(",") if x]
    )
    rows = run_census(
        architectures, lambda row: print(census_text.line(row), flush=True), workers=options.workers
    )
    print(census_text.figures(rows))
    command = " ".join(["python -m benchmarks.census", *sys.argv[1:]])
    if options.out:
        census_text.write(options.out, rows, command, time.time() - started)
    if options.table:
        options.table.parent.mkdir(parents=True, exist_ok=True)
        options.table.write_text(census_text.document(rows, command))


if __name__ == "__main__":
    main()
