"""The same chunks on Ray: actors keep the model, the driver reads the data and writes the chunks.

Ray starts actors again when they die, and does their chunk again.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from outward.engines.kept import about_file, agree, chunk_file, is_whole, keep, write_about
from outward.engines.plan import Pass, Plan, chunks, load, passes
from outward.engines.work import (
    Progress,
    Watched,
    lens_of,
    refuse_passes,
    threads,
    threads_of,
    told_of,
    windows_in,
)
from outward.results import ResultError
from outward.sources.batch import Batch
from outward.sources.errors import first_line, require
from outward.sources.source import Source

RETRIES = 3


class Worker:
    """One actor: a model of one pass, under the probe."""

    def __init__(self, plan: Plan, one: Pass, number: int, verify: bool) -> None:
        self._threads = threads(number)
        self._threads.__enter__()
        source = load(plan, one)
        lens = lens_of(plan, one, source)
        self.watched = Watched(source.body, plan.layers, verify, lens=lens)
        self.watched.__enter__()

    def measure(self, batches: tuple[Batch, ...]) -> bytes:
        """A chunk."""
        return self.watched.measure(batches)

    def about(self) -> dict[str, Any]:
        """What was seen of the model."""
        return self.watched.about()


@dataclass
class Team:
    """The actors of one pass. One that died for good is replaced."""

    ray: Any
    hire: Callable[[], Any]
    size: int
    free: list[Any] = field(default_factory=list)
    running: dict[Any, tuple[Any, Path, tuple[Batch, ...]]] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        """Whether all are at work."""
        return len(self.running) == self.size

    def give(self, file: Path, chunk: tuple[Batch, ...]) -> None:
        """A chunk to somebody."""
        actor = self.free.pop() if self.free else self.hire()
        self.running[actor.measure.remote(chunk)] = (actor, file, chunk)

    def take(self) -> tuple[list[str], int]:
        """The next finished chunk is kept: what failed, and how many windows it had."""
        (ready,), _ = self.ray.wait(list(self.running))
        actor, file, chunk = self.running.pop(ready)
        answers = chain([ready], (actor.measure.remote(chunk) for _ in range(1)))
        problems = keep(file, lambda: self.result(next(answers)))
        if not problems:
            self.free.append(actor)
        return problems, windows_in(chunk)

    def result(self, reference: Any) -> Any:
        """What an actor sent or raised; that it died is a RuntimeError, as lack of memory is."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self.ray.exceptions.RayActorError as error:
            raise RuntimeError(f"the worker died: {first_line(error)}") from error


def work(
    plan: Plan, out: Path, *, address: str | None, workers: int | None, verify: bool, progress: Progress
) -> list[str]:
    """All chunks that are not done yet; the names of those that failed."""
    ray = require("ray", extra="cluster", user="--engine ray")
    source = load(plan, passes(plan)[0])
    folder = out / "chunks"
    folder.mkdir(parents=True, exist_ok=True)
    agree(folder, source.identity)
    refuse_passes(plan, source)
    began = not ray.is_initialized()
    if began:
        _start(ray, address)
    try:
        number = _workers(ray, plan, workers)
        failed: list[str] = []
        for one in passes(plan):
            team = Team(ray, partial(_actor, ray, plan, verify, one), number)
            failed += _pass(team, plan, one, source, folder, progress)
        return failed
    finally:
        if began:
            ray.shutdown()


def _start(ray: Any, address: str | None) -> None:
    try:
        with _signals_kept():
            ray.init(
                address=address, include_dashboard=False, log_to_driver=False, logging_level="error"
            )
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise ResultError(
            f"--engine {':'.join(filter(None, ('ray', address)))}: no cluster could be reached or "
            f"started ({first_line(error)}); leave the address out to start one here."
        ) from error


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself, and ends the process by it before anything can be put away."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    if threading.current_thread() is threading.main_thread():  # elsewhere it leaves them alone
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: of no Python code


def _workers(ray: Any, plan: Plan, wanted: int | None) -> int:
    """How many actors; more than there is room for would wait for ever."""
    each, there = threads_of(plan), ray.cluster_resources()
    room = int(there.get("CPU", 0)) // each
    if there.get("GPU"):
        room = min(room, int(there["GPU"]))
    if (wanted or 1) > room:
        raise ResultError(
            f"--workers {wanted or 1}: Ray has room for {room} of {each} threads each; give fewer "
            "workers, or fewer --threads."
        )
    return wanted or room


def _actor(ray: Any, plan: Plan, verify: bool, one: Pass) -> Any:
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    number = threads_of(plan)
    options = {"num_cpus": number, "num_gpus": gpus}
    made = ray.remote(max_restarts=RETRIES, max_task_retries=RETRIES, **options)(Worker)
    return made.remote(plan, one, number, verify)


def _pass(
    team: Team, plan: Plan, one: Pass, source: Source, folder: Path, progress: Progress
) -> list[str]:
    skipped: list[str] = []
    failed: list[str] = []
    first: tuple[Batch, ...] = ()
    count = done = 0

    def take() -> None:
        nonlocal done
        problems, windows = team.take()
        failed.extend(problems)
        done += windows
        progress(one.series, done, done)

    for count, chunk in enumerate(chunks(plan, one, source, skipped), start=1):
        first = first or chunk
        file = chunk_file(folder, one, count)
        if not is_whole(file):
            team.give(file, chunk)
        while team.is_busy:
            take()
    while team.running:
        take()
    if team.free or not about_file(folder, one).is_file():
        known = told_of(plan, source) | {"model": load(plan, one).identity}
        write_about(folder, one, count, skipped, _about(team, first, failed) | known)
    return failed


def _about(team: Team, first: tuple[Batch, ...], failed: list[str]) -> dict[str, Any]:
    """What was seen of the model, by whoever has proven it."""
    if not team.free and not failed:  # all chunks were there, but nobody has told what made them
        team.free.append(team.hire())
        team.result(team.free[0].measure.remote(first))
    abouts = [team.result(actor.about.remote()) for actor in team.free]
    return next(
        (a for a in abouts if a["checks"]), abouts[0] if abouts else {"coverage": [], "checks": None}
    )
