"""The work of one worker: its share of the chunks of every pass, each kept as soon as it is done."""

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import outward
from outward.engines.plan import Pass, Plan, chunks, load, passes
from outward.probe.chunks import pack
from outward.probe.loop import Probe, coverage_of
from outward.results import as_json, write_file
from outward.sources.batch import Batch
from outward.sources.errors import first_line
from outward.sources.provenance import NOTES, fingerprint
from outward.sources.source import Source
from outward.taps.proof import prove

Progress = Callable[[str, int, int], None]
"""Told of each finished chunk: series, windows done by this worker, windows of the pass so far."""


@dataclass(frozen=True)
class Share:
    """Worker `index` of `count`: it does the chunks whose number leaves that remainder."""

    index: int = 0
    count: int = 1


def facts_of(plan: Plan) -> dict[str, Any]:
    """What must be equal for two workers to make the same bytes."""
    return {
        "versions": {
            "outward": outward.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": platform.machine(),
        "threads": threads_of(plan),
        "data": {"data": plan.data, "sha256": None if plan.data is None else fingerprint(plan.data)},
    }


def threads_of(plan: Plan) -> int:
    """As many as asked for, or as there are cores for this process."""
    return plan.threads or len(os.sched_getaffinity(0))


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Sums depend on how they are cut among threads: the number is part of a run."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def work(plan: Plan, share: Share, out: Path, *, verify: bool, progress: Progress) -> list[str]:
    """Do the worker's chunks that are not done yet; returns the names of those that failed twice."""
    folder = out / "chunks"
    folder.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    source: Source | None = None
    with threads(threads_of(plan)):
        for one in passes(plan):
            if source is None or one.random_weights:
                source = load(plan, one)
            failed += _pass(plan, one, source, share, folder, verify, progress)
    return failed


def _pass(
    plan: Plan,
    one: Pass,
    source: Source,
    share: Share,
    folder: Path,
    verify: bool,
    progress: Progress,
) -> list[str]:
    skipped: list[str] = []
    failed: list[str] = []
    done = number = windows = 0
    with Watched(source, plan.layers, verify) as watched:
        for number, chunk in enumerate(chunks(plan, one, source, skipped), start=1):
            windows += sum(len(b.documents) for b in chunk)
            file = chunk_file(folder, one, number)
            if number % share.count != share.index or file.is_file():
                continue
            failed += keep(file, partial(watched.measure, chunk))
            done += sum(len(b.documents) for b in chunk)
            progress(one.series, done, windows)
        if share.index == 1 % share.count:  # the worker of the first chunk
            about = watched.about() | {"note": None if plan.data else NOTES[source.kind]}
            write_about(folder, one, number, skipped, about)
    return failed


def chunk_file(folder: Path, one: Pass, number: int) -> Path:
    """Where a chunk is kept."""
    return folder / f"{one.series}.{number:06d}.chunk"


def write_about(
    folder: Path, one: Pass, count: int, skipped: list[str], about: dict[str, Any]
) -> None:
    """How many chunks a pass has, and what was seen of the model."""
    document = {"chunks": count, "skipped": skipped, **about}
    write_file(folder / f"{one.series}.json", as_json(document).encode())


def keep(file: Path, make: Callable[[], bytes]) -> list[str]:
    """Make a chunk and write it; tried twice. What fails then is named, and tried again by --resume."""
    note = file.with_suffix(".failed")
    problem = ""
    for _ in range(2):
        try:
            write_file(file, make())
        except (RuntimeError, MemoryError) as error:  # out of memory, a device that is gone
            problem = f"{file.stem}: {first_line(error)}"
        else:
            note.unlink(missing_ok=True)
            return []
    write_file(note, problem.encode())
    return [problem]


class Watched:
    """A source under the probe, proven on the first batch that it runs."""

    def __init__(self, source: Source, layers: tuple[int, ...] | None, verify: bool) -> None:
        self.source, self.verify = source, verify
        self.probe = Probe(source.body, self.run, layers=layers)
        self.checks: dict[str, Any] | None = None

    def __enter__(self) -> "Watched":
        self.probe.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.probe.__exit__(*error)

    def run(self, batch: Batch) -> Any:
        """The forward pass, without the head of a language model."""
        return self.source.body(*batch.args, **batch.inputs)

    def measure(self, batches: tuple[Batch, ...]) -> bytes:
        """A chunk."""
        if self.verify and self.checks is None:
            self.checks = self.prove(batches[0])
        return pack(self.probe.measure(batches))

    def prove(self, batch: Batch) -> dict[str, Any]:
        """The capture changes nothing, and sees what was computed."""
        with self.probe.paused():
            return asdict(prove(self.source.body, lambda: self.run(batch), valid=batch.valid))

    def about(self) -> dict[str, Any]:
        """What is known of the model after running it."""
        return {
            "model": self.source.identity,
            "takes": self.source.kind,
            "coverage": coverage_of(self.probe.calls),
            "checks": self.checks,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "argv": sys.argv[1:],
        }
