"""Windows done, rate and time left, on stderr."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from outward.cli.printing import say

EVERY = 10.0  # seconds from one line to the next, where stderr is no terminal


@contextmanager
def progress(
    samples: int, workers: int, passes: Sequence[str]
) -> Iterator[Callable[[str, int, int], None]]:
    """Windows done, rate and time left on stderr; where that is no terminal, a line now and then."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    told = Told(samples, workers, passes)
    if console.is_terminal:
        with console.status("loading the model") as status:
            yield lambda *done: status.update(told.line(*done))
        return
    last = time.monotonic()

    def now_and_then(*done: Any) -> None:
        nonlocal last
        line = told.line(*done)
        if time.monotonic() - last > EVERY:
            last = time.monotonic()
            say(line)

    yield now_and_then


class Told:
    """What is said of progress: of at most so many windows in each pass, shared by so many workers."""

    def __init__(self, samples: int, workers: int, passes: Sequence[str]) -> None:
        self.samples, self.workers, self.passes = samples, workers, list(passes)
        self.series, self.began, self.before = "", time.monotonic(), 0

    def line(self, series: str, done: int, windows: int) -> str:
        """After `done` windows of this worker, and `windows` of the pass."""
        now = time.monotonic()
        rate = (done - self.before) / max(now - self.began, 1e-3)
        if (
            series != self.series
        ):  # the rate is measured from the first chunk on: before it, the model loads
            self.series, self.began, self.before = series, now, done
            rate = 0.0
        which = f" ({self.passes.index(series) + 1} of {len(self.passes)})" if self.passes[1:] else ""
        said = f"{series}{which}: {windows} of at most {self.samples} windows"
        if rate > 0:
            left = max(0, self.samples - windows) / self.workers / rate
            said += f", {rate:.3g} a second, {_duration(left)} left"
        return said


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
