"""watch(model, batches): a fixed set of batches, measured again and again while a model is trained."""

import hashlib
import platform
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn

import outward
from outward.engines import steps
from outward.engines.direct import as_batches, tallied
from outward.engines.plan import asked_for
from outward.engines.undisturbed import devices_of, seeded, undisturbed, unwrapped
from outward.engines.work import Watched, kernel_of
from outward.measures.bias import Kernel
from outward.probe.loop import BiasLens
from outward.probe.tally import Chunk
from outward.run import Run
from outward.sources.batch import Batch
from outward.sources.errors import first_line


@dataclass(frozen=True)
class Options:
    """How each step is measured."""

    every: int
    layers: tuple[int, ...] | None
    measures: tuple[str, ...]
    kernel: Kernel
    verify: bool
    run: Callable[[Any], Any] | None


def watch(
    model: nn.Module,
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
) -> "Watcher":
    """Measure the same batches as a training goes on, without disturbing it, into one run.

        watcher = outward.watch(model, batches, every=100, out="runs/watch")
        for step in range(1000):
            ...
            optimizer.step()
            watcher.step(step)  # at 0, 100, ...: the layers' means; otherwise None
        run = watcher.finish()

    batches: as of `measure`: what the model is called with. They are copied here, and moved to the
        model's device each time. A tensor, a mapping or a `Batch` alone is one batch.
    out: the directory of the run. A step that was measured is there at once, whatever becomes of the
        training; `outward merge` makes a run of what a stopped one left.
    every: how many steps from one measurement to the next.
    run, layers, measures, kernel: as of `measure`.
    verify: prove, at the first measurement, that watching changes nothing and sees what is computed.
    resume: go on with what `out` holds of the same training.

    The training goes on bit for bit as if nobody had looked: modes, gradients and random states are as
    before. A model of torch.compile or DistributedDataParallel is measured by what it wraps.
    """
    _refuse_rank()
    if every < 1:
        raise ValueError(f"every={every}: it is the number of steps between measurements, 1 or more.")
    model = unwrapped(model)
    with seeded(devices_of(model)):
        fixed = [_copied(batch) for batch in as_batches(_several(batches))]
    if not fixed:
        raise ValueError("batches is empty: there is nothing to measure.")
    only = None if layers is None else tuple(layers)
    options = Options(every, only, asked_for(measures), kernel_of(kernel), verify, run)
    steps.begin(Path(out), _identity(model, fixed, options), resume=resume)
    return Watcher(model, fixed, Path(out), options)


class Watcher:
    """A training that is being watched. As a context manager it finishes where the block ends well."""

    def __init__(self, model: nn.Module, batches: list[Batch], out: Path, options: Options) -> None:
        self.model, self.batches, self.out, self.options = model, batches, out, options
        self._checks: dict[str, Any] | None = None
        self._last: int | None = None  # of the steps told
        self._looked = False  # whether that one was measured
        self._worked = False  # whether any was, by this object

    @property
    def steps(self) -> list[int]:
        """The steps measured so far, those of an earlier process among them."""
        return steps.steps_in(self.out)

    def step(self, step: int) -> pd.DataFrame | None:
        """To be told of every step: measures at multiples of `every`, and returns the layers' means.

        The table has a row for each layer: the mean over heads of every measure. Told of a step
        again, as for each part of a batch whose gradients are accumulated, it does nothing.
        """
        if not self._is_new(step) or step % self.options.every:
            return None
        return self._measure(step)

    def measure(self, step: int) -> pd.DataFrame | None:
        """Measure now, whatever `every` says, unless this step was measured just before."""
        self._is_new(step)
        return None if self._looked else self._measure(step)

    def rewind(self, step: int) -> None:
        """The training goes back to a checkpoint: what was measured after `step` is dropped."""
        steps.forget_after(self.out, step)
        self._last, self._looked = None, False

    def finish(self) -> Run:
        """Measure the last step told, if it was not yet, and write the run, in which it is `main`."""
        if self._last is not None and not self._looked:
            self._measure(self._last)
        return Run(steps.gather(self.out), self.out)

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.finish()

    # ---- one step

    def _is_new(self, step: int) -> bool:
        if index(step) < 0:
            raise ValueError(f"step {step}: steps are counted from 0.")
        before = self._last if self._last is not None else max(self.steps, default=None)
        if before is not None and step < before:
            raise ValueError(
                f"step {step} is told after step {before}: steps go up; where the training goes back "
                f"to a checkpoint, tell it by watcher.rewind({step})."
            )
        if step == self._last:
            return False
        self._last, self._looked = step, False
        return True

    def _measure(self, step: int) -> pd.DataFrame | None:
        self._looked = True
        try:
            chunk, about = self._look()
        except (RuntimeError, MemoryError) as error:  # out of memory
            self._failed(step, first_line(error), error)
            return None
        if not chunk.documents:
            problem = " ".join(["nothing could be measured.", *chunk.skipped[:1]])
            self._failed(step, problem, ValueError(problem))
            return None
        self._worked = True
        steps.keep(self.out, step, chunk, about)
        return means(chunk)

    def _look(self) -> tuple[Chunk, dict[str, Any]]:
        options = self.options
        call = options.run or (lambda batch: self.model(*batch.args, **batch.inputs))
        verify = options.verify and self._checks is None
        device = next(iter(devices_of(self.model)), None)
        with undisturbed(self.model):
            watched = Watched(
                self.model,
                options.layers,
                verify,
                lens=BiasLens(options.measures, options.kernel),
                run=call,
            )
            chunk, about = tallied(watched, (_moved(b, device) for b in self.batches))
        self._checks = self._checks or about["checks"]
        return chunk, {**about, "checks": self._checks, "versions": _versions()}

    def _failed(self, step: int, problem: str, error: Exception) -> None:
        """At first an error; later a note and a warning: a training is not lost for being watched."""
        if not self._worked:
            raise error
        steps.note_failure(self.out, step, problem)
        warnings.warn(f"step {step} is not measured: {problem}", stacklevel=4)


def means(chunk: Chunk) -> pd.DataFrame:
    """A row for each layer: the mean over heads of every measure, as in `Run.layers`."""
    rows = []
    for layer in chunk.layers:
        tokens, pairs = layer.tokens.over(2).value()["mean"], layer.pairs.value()["mean"]
        heads = pd.DataFrame(np.concatenate((pairs, tokens)).T, columns=list(layer.measures))
        rows.append({"layer": layer.layer, "module": layer.module, **heads.mean()})
    return pd.DataFrame(rows).set_index("layer")


def _refuse_rank() -> None:
    if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
        raise ValueError(
            f"watch in process {dist.get_rank()} of {dist.get_world_size()}: one process is enough, "
            "and all would write to the same place; watch in process 0 only."
        )


def _several(batches: Any) -> Iterable[Any]:
    if isinstance(batches, Tensor | Mapping | Batch):
        return [batches]
    if isinstance(batches, tuple):
        raise TypeError(
            "batches is a tuple, which may be one batch or several: give a list, as in [batch] for one."
        )
    if not isinstance(batches, Iterable):
        raise TypeError(f"batches is of type {type(batches).__name__}: give a list of batches.")
    return batches


# ---- the batches


def _changed(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Every tensor of it."""

    def each(x: Any) -> Any:
        return change(x) if isinstance(x, Tensor) else x

    return replace(
        batch,
        args=tuple(map(each, batch.args)),
        inputs={name: each(x) for name, x in batch.inputs.items()},
        valid=each(batch.valid),
        special=each(batch.special),
    )


def _copied(batch: Batch) -> Batch:
    """Of its own: a loader may fill the same memory again."""
    return _changed(batch, lambda x: x.detach().clone())


def _moved(batch: Batch, device: torch.device | None) -> Batch:
    return batch if device is None else _changed(batch, lambda x: x.to(device))


# ---- what steps of one training have in common


def _identity(model: nn.Module, batches: list[Batch], options: Options) -> dict[str, Any]:
    return {
        "every": options.every,
        "model": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "structure": structure(model),
        "batches": _digest(batches),
        "layers": options.layers,
        "measures": options.measures,
    }


def structure(model: nn.Module) -> str:
    """sha256 over the names and shapes of the parameters, in their order."""
    named = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    return hashlib.sha256(repr(named).encode()).hexdigest()


def _digest(batches: list[Batch]) -> str:
    """sha256 over names, types, shapes and numbers."""
    total = hashlib.sha256()
    for batch in batches:
        given = {str(n): x for n, x in enumerate(batch.args)}
        parts = {**given, **batch.inputs, "valid": batch.valid}
        total.update(repr((batch.documents, batch.windows, list(parts))).encode())
        for x in parts.values():
            total.update(_bytes(x) if isinstance(x, Tensor) else type(x).__name__.encode())
    return total.hexdigest()


def _bytes(x: Tensor) -> bytes:
    flat = x.cpu().flatten().view(torch.uint8)
    return f"{x.dtype} {tuple(x.shape)}".encode() + flat.numpy().tobytes()


def _versions() -> dict[str, str]:
    return {
        "outward": outward.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
