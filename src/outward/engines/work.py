"""The work of one worker: its share of the chunks of every pass, each kept as soon as it is done."""

import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

import outward
from outward.engines.kept import about_file, agree, chunk_file, is_whole, keep, write_about
from outward.engines.plan import Pass, Plan, chunks, load, passes
from outward.environment import cores
from outward.measures import native
from outward.measures.bias import Kernel
from outward.probe.chunks import pack
from outward.probe.context import ContextLens
from outward.probe.loop import BiasLens, Lens, Probe, coverage_of, row
from outward.probe.tally import Chunk
from outward.results import ResultError
from outward.sources.batch import Batch
from outward.sources.functions import refuse_fresh
from outward.sources.models import local_identity
from outward.sources.provenance import NOTES, fingerprint
from outward.sources.source import Source
from outward.sources.text import ORDER, separators
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
        "order": ORDER,
        "machine": platform.machine(),
        "threads": threads_of(plan),
        "kernel": kernel_of(plan.kernel),
        "model": local_identity(plan.model),
        "data": {"data": plan.data, "sha256": None if plan.data is None else fingerprint(plan.data)},
    }


def threads_of(plan: Plan) -> int:
    """As many as asked for, or as there are cores for this process."""
    return plan.threads or cores()


def kernel_of(asked: str) -> Kernel:
    """What computes the measures on CPUs: the compiled kernel where it can be had, unless said."""
    if asked == "torch":
        return "torch"
    why = native.missing()
    if why is not None and asked == "native":
        raise ResultError(f"kernel native: {why}; or take kernel torch, which is slower.")
    return "native" if why is None else "torch"


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
            if source is None:
                source = load(plan, one)
                agree(folder, source.identity)
                refuse_passes(plan, source)
            elif one.random_weights:
                source = load(plan, one)
            failed += _pass(plan, one, source, share, folder, verify, progress)
    return failed


def refuse_passes(plan: Plan, source: Source) -> None:
    """Baselines and lengths that the model does not take, before hours went by with the others."""
    if "random-weights" in plan.baselines:
        refuse_fresh(plan.model)
    if plan.context is not None and source.kind != "text":
        raise ResultError(
            f"context similarity is of texts, and {source.name} takes {source.kind}: take another."
        )
    if "shuffled-tokens" in plan.baselines and source.kind != "text":
        raise ResultError(
            f"baseline shuffled-tokens: it is for text, and {source.name} takes {source.kind}; leave "
            "it out."
        )
    for one in passes(plan):
        chunks(plan, one, source, [])


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
    first: tuple[Batch, ...] = ()
    done = number = windows = made = 0
    with Watched(source.body, plan.layers, verify, lens=lens_of(plan, one, source)) as watched:
        for number, chunk in enumerate(chunks(plan, one, source, skipped), start=1):
            first = first or chunk
            windows += windows_in(chunk)
            file = chunk_file(folder, one, number)
            if number % share.count != share.index or is_whole(file):
                continue
            problems = keep(file, partial(watched.measure, chunk))
            failed += problems
            made += not problems
            done += windows_in(chunk)
            progress(one.series, done, windows)
        told = about_file(folder, one).is_file()
        if share.index == 1 % share.count and (made or not told):  # the worker of the first chunk
            if not made and not failed:  # all chunks were there, but nobody has told what made them
                watched.measure(first)
            write_about(folder, one, number, skipped, watched.about() | told_of(plan, source))
    return failed


def lens_of(plan: Plan, one: Pass, source: Source) -> Lens:
    """What a pass looks for."""
    if plan.context is None:
        return BiasLens(plan.measures, kernel_of(plan.kernel))
    ends = separators(source.processor)
    return ContextLens(plan.context, ends, form=one.form, seed=plan.seed)


def windows_in(chunk: tuple[Batch, ...]) -> int:
    """How many windows its batches have."""
    return sum(len(b.documents) for b in chunk)


def told_of(plan: Plan, source: Source) -> dict[str, Any]:
    """What is known of a pass without running the model."""
    return {
        "model": source.identity,
        "takes": source.kind,
        "note": None if plan.data else NOTES[source.kind],
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "argv": sys.argv[1:],
    }


class Watched:
    """A model under the probe, proven on the first window that it can be measured on."""

    def __init__(
        self,
        model: nn.Module,
        layers: tuple[int, ...] | None,
        verify: bool,
        *,
        lens: Lens,
        run: Callable[[Batch], Any] | None = None,
    ) -> None:
        self.model, self.layers, self.verify = model, layers, verify
        self.run = run or (lambda batch: model(*batch.args, **batch.inputs))
        self.probe = Probe(model, self.run, layers=layers, lens=lens)
        self.checks: dict[str, Any] | None = None

    def __enter__(self) -> "Watched":
        self.probe.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.probe.__exit__(*error)

    def measure(self, batches: tuple[Batch, ...]) -> bytes:
        """A chunk, as bytes."""
        return pack(self.tally(batches))

    def tally(self, batches: Iterable[Batch]) -> Chunk:
        """A chunk."""
        kept = tuple(batches)
        found = self.probe.measure(kept)
        if self.verify and self.checks is None:
            measured = set(zip(found.documents, found.windows, strict=True))
            sound = next((x for b in kept if (x := part_of(b, measured))), None)
            self.checks = self.prove(sound) if sound is not None else None
        if found.documents:
            self._refuse_layers()
        return found

    def prove(self, batch: Batch) -> dict[str, Any]:
        """The capture changes nothing, and sees what was computed."""
        with self.probe.paused():
            return asdict(prove(self.model, lambda: self.run(batch), valid=batch.valid))

    def about(self) -> dict[str, Any]:
        """What was seen of the model while it ran."""
        return {"coverage": coverage_of(self.probe.calls), "checks": self.checks}

    def _refuse_layers(self) -> None:
        many = len(self.probe.calls.layers)
        beyond = [n for n in self.layers or () if n >= many]
        if beyond:
            raise ResultError(f"no layer {beyond[0]}: this model has {many}, 0 to {many - 1}.")


def part_of(batch: Batch, measured: set[tuple[str, int]]) -> Batch | None:
    """The batch, if all its windows were measured; else one that was; None without any."""
    names = list(zip(batch.documents, batch.windows, strict=True))
    found = [i for i, name in enumerate(names) if name in measured]
    if len(found) == len(names):
        return batch
    return row(batch, found[0]) if found else None
