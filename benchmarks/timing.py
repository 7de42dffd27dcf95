"""Candidates timed in turn within one process, and compared as ratios of medians."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any


@dataclass(frozen=True)
class Ratio:
    """One candidate against another: the ratio of medians, and the middle half of round ratios."""

    ratio: float
    low: float
    high: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interleaved(
    candidates: Mapping[str, Callable[[], object]], *, rounds: int, warmup: int = 2
) -> dict[str, list[float]]:
    """CPU seconds of each candidate per round, every round in another random order.

    CPU time, not time on the wall: on a machine shared with others, theirs would be in it. Meant
    for one thread, where the two agree on a quiet machine.
    """
    order = random.Random(0)
    for _ in range(warmup):
        for run in candidates.values():
            run()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name in order.sample(list(candidates), len(candidates)):
            start = time.process_time()
            candidates[name]()
            times[name].append(time.process_time() - start)
    return times


def ratio(times: Mapping[str, list[float]], name: str, base: str) -> Ratio:
    each = [a / b for a, b in zip(times[name], times[base], strict=True)]
    low, _, high = quantiles(each, n=4)
    return Ratio(median(times[name]) / median(times[base]), low, high, median(times[name]))


class Clock:
    """CPU time within some functions, beside that of the whole step that calls them."""

    def __init__(self) -> None:
        self.spent = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        def timed(*args: Any, **options: Any) -> Any:
            start = time.process_time()
            result = function(*args, **options)
            self.spent += time.process_time() - start
            return result

        return timed

    def step(self, run: Callable[[], None]) -> tuple[float, float]:
        """(seconds of the step, and of these within the functions)."""
        self.spent = 0.0
        start = time.process_time()
        run()
        return time.process_time() - start, self.spent
