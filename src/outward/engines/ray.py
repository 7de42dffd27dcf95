"""The same chunks on Ray: actors keep the model, the driver reads the data and writes the chunks.

Ray starts actors again when they die, and does their chunk again.
"""

from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from outward.engines.plan import Pass, Plan, chunks, load, passes
from outward.engines.work import Progress, Watched, chunk_file, keep, threads, threads_of, write_about
from outward.sources.batch import Batch
from outward.sources.errors import require
from outward.sources.provenance import NOTES

RETRIES = 3


class Worker:
    """One actor: a model of one pass, under the probe."""

    def __init__(self, plan: Plan, one: Pass, verify: bool) -> None:
        self._threads = threads(threads_of(plan))
        self._threads.__enter__()
        self.watched = Watched(load(plan, one), plan.layers, verify)
        self.watched.__enter__()

    def measure(self, batches: tuple[Batch, ...]) -> bytes:
        """A chunk."""
        return self.watched.measure(batches)

    def about(self) -> dict[str, Any]:
        """What was seen of the model."""
        return self.watched.about()


def work(
    plan: Plan, out: Path, *, address: str | None, workers: int | None, verify: bool, progress: Progress
) -> list[str]:
    """All chunks that are not done yet; the names of those that failed."""
    ray = require("ray", extra="cluster", user="--engine ray")
    began = not ray.is_initialized()
    if began:
        ray.init(address=address, include_dashboard=False, log_to_driver=False)
    try:
        folder = out / "chunks"
        folder.mkdir(parents=True, exist_ok=True)
        number = workers or max(1, int(ray.cluster_resources()["CPU"]) // threads_of(plan))
        return [
            name
            for one in passes(plan)
            for name in _pass(ray, plan, one, number, folder, verify, progress)
        ]
    finally:
        if began:
            ray.shutdown()


def _pass(
    ray: Any, plan: Plan, one: Pass, workers: int, folder: Path, verify: bool, progress: Progress
) -> list[str]:
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    remote = ray.remote(
        num_cpus=threads_of(plan), num_gpus=gpus, max_restarts=RETRIES, max_task_retries=RETRIES
    )(Worker)
    free = [remote.remote(plan, one, verify) for _ in range(workers)]
    skipped: list[str] = []
    failed: list[str] = []
    count = done = 0
    running: dict[Any, tuple[Any, Path, int]] = {}
    todo = enumerate(chunks(plan, one, load(plan, one), skipped), start=1)
    while running or free:
        for number, chunk in islice(todo, 1) if free else ():
            count = number
            file = chunk_file(folder, one, number)
            if not file.is_file():
                actor = free.pop()
                windows = sum(len(b.documents) for b in chunk)
                running[actor.measure.remote(chunk)] = (actor, file, windows)
            break
        else:
            if not running:
                break
            (ready,), _ = ray.wait(list(running))
            actor, file, windows = running.pop(ready)
            failed += keep(file, partial(ray.get, ready))
            free.append(actor)
            done += windows
            progress(one.series, done, done)
    abouts = ray.get([actor.about.remote() for actor in free])
    about = next((a for a in abouts if a["checks"] or not verify), abouts[0])
    note = None if plan.data else NOTES[about["takes"]]
    write_about(folder, one, count, skipped, about | {"note": note})
    return failed

