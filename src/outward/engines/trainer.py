"""WatchCallback: watch, for transformers' Trainer."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from outward.engines.watch import Watcher, watch
from outward.results import ResultError
from outward.run import Run


class WatchCallback(TrainerCallback):
    """Measure the same batches while a Trainer trains: before the first step, every so many, last.

        callback = outward.WatchCallback(batches, every=100, out="runs/watch")
        Trainer(..., callbacks=[callback]).train()
        callback.run

    Options are those of `outward.watch`. Of several processes, the main one measures. With
    resume=True a training that goes on from a checkpoint goes on here: what was measured after the
    checkpoint is dropped. The last step is measured before the best checkpoint is loaded, if one is.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        *,
        out: str | Path,
        every: int = 100,
        run: Callable[[Any], Any] | None = None,
        layers: Iterable[int] | None = None,
        measures: Iterable[str] = (),
        kernel: str = "auto",
        verify: bool = True,
        resume: bool = False,
    ) -> None:
        self._begin = partial(
            watch,
            batches=batches,
            out=out,
            every=every,
            run=run,
            layers=layers,
            measures=measures,
            kernel=kernel,
            verify=verify,
            resume=resume,
        )
        self._watcher: Watcher | None = None
        self.run: Run | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **more: Any,
    ) -> None:
        """Measure what the training begins with."""
        if not state.is_world_process_zero:
            return
        assert model is not None
        self._watcher = self._begin(model)
        _refuse_from_scratch(self._watcher, state.global_step)
        self._watcher.rewind(state.global_step)
        self._watcher.measure(state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Measure if it is time."""
        if self._watcher is not None:
            self._watcher.step(state.global_step)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Measure the last step: when the training ends, the model may be another one, the best."""
        if self._watcher is not None and control.should_training_stop:
            self._watcher.measure(state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Write the run."""
        if self._watcher is not None:
            self.run = self._watcher.finish()
            self._watcher = None


def _refuse_from_scratch(watcher: Watcher, begins: int) -> None:
    """To drop every step of a training because another one begins would be no resuming."""
    if begins == 0 and watcher.steps:
        raise ResultError(
            f"{watcher.out} holds steps up to {watcher.steps[-1]}, and this training begins at 0: give "
            "another out, or go on from a checkpoint by resume_from_checkpoint."
        )
