"""The one loop that joins a model, batches, measures and stats: batches in, a chunk's tallies out."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from outward.attention.call import AttentionCall
from outward.attention.visible import Visible, visible
from outward.measures.bias import PER_TOKEN, Kernel, bias
from outward.measures.optional import extra, requests_for
from outward.probe.tally import EMPTY, Chunk, LayerTally, tally
from outward.sources.batch import Batch
from outward.taps.capture import Capture, capture

# NaN in v or y shows in the cosine; in q or k only in the weight: fused kernels may swallow it.
_MUST_BE_FINITE = [PER_TOKEN.index(name) for name in ("self_weight", "self_similarity")]


class BadSampleError(Exception):
    """A window that the model cannot be run on, or that it makes NaN of."""


@dataclass(frozen=True, eq=False)
class _Mask:
    """What decides who sees whom in a call, without the call: its q, k, v and y are large."""

    mask: Tensor | None
    self_key: Tensor | None
    valid: Tensor | None
    shape: tuple[int, int, int, bool]

    @staticmethod
    def of(call: AttentionCall) -> "_Mask":
        shape = (call.y.shape[0], call.y.shape[2], call.v.shape[2], call.causal)
        return _Mask(call.mask, call.self_key, call.valid, shape)

    def is_like(self, other: "_Mask") -> bool:
        """Whether two calls of one forward pass have the same mask, tokens and padding."""
        same = self.mask is other.mask and self.self_key is other.self_key
        if not same or self.shape != other.shape or self.valid is other.valid:
            return same and self.shape == other.shape
        both = self.valid is not None and other.valid is not None
        return both and torch.equal(self.valid, other.valid)  # type: ignore[arg-type]


@runtime_checkable
class Lens(Protocol):
    """What is looked for in calls, and how it is tallied."""

    def read(self, batch: Batch) -> None:
        """What is to be known of the batch before its calls come."""

    def tally(self, call: AttentionCall, see: Visible, windows: int) -> LayerTally | None:
        """One call, of so many windows; None of one that nothing can be said of."""


class BiasLens:
    """The measures of bias.py and optional.py."""

    def __init__(self, measures: tuple[str, ...] = (), kernel: Kernel = "torch") -> None:
        self.requests, self.kernel = requests_for(measures), kernel

    def read(self, batch: Batch) -> None:
        """Nothing: calls say all."""

    def tally(self, call: AttentionCall, see: Visible, windows: int) -> LayerTally:
        """One call, of so many windows."""
        measured = bias(call, see, kernel=self.kernel)
        numbers = measured.tokens[_MUST_BE_FINITE]
        if not torch.where(measured.kept[:, None], numbers, 0).isfinite().all():
            raise BadSampleError(f"NaN or infinity comes out of {call.module}")
        more = extra(call, measured, self.requests)
        return tally(call.layer, call.module, measured, windows, extra=more, kernel=self.kernel)


class Probe:
    """A model that is being watched. `measure` runs a batch and returns its tallies."""

    def __init__(
        self,
        model: nn.Module,
        run: Callable[[Batch], Any],
        *,
        layers: tuple[int, ...] | None = None,
        measures: tuple[str, ...] = (),
        kernel: Kernel = "torch",
        lens: Lens | None = None,
    ) -> None:
        self.model, self.run, self.only = model, run, layers
        self.lens = BiasLens(measures, kernel) if lens is None else lens
        self.calls = capture(model, self._observe)
        self._layers: list[list[LayerTally]] = []
        self._seen: list[tuple[_Mask, Visible]] = []
        self._windows = 0

    def __enter__(self) -> "Probe":
        self.calls.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.calls.__exit__(*error)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not look for a while."""
        self.calls.__exit__(None, None, None)
        try:
            yield
        finally:
            self.calls.__enter__()

    def measure(self, batches: Iterable[Batch]) -> Chunk:
        """The batches in order. A window that cannot be measured is named and left out."""
        chunk = EMPTY
        for batch in batches:
            chunk = chunk.merge(self._measure_or_split(batch))
        return chunk

    def _measure_or_split(self, batch: Batch) -> Chunk:
        try:
            return self._measure(batch)
        except (BadSampleError, IndexError, RuntimeError, ValueError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            if len(batch.documents) == 1:
                name = f"{batch.documents[0]}, window {batch.windows[0]}"
                return Chunk([], [], [], [f"{name}: {_one_line(error)}"])
        alone = EMPTY
        for i in range(len(batch.documents)):
            alone = alone.merge(self._measure_or_split(row(batch, i)))
        return alone

    def _measure(self, batch: Batch) -> Chunk:
        self._layers, self._windows = [], len(batch.documents)
        self.calls.valid = batch.valid
        self._seen.clear()  # of a batch that failed, with other padding
        self.lens.read(batch)
        self.calls.begin()
        with torch.no_grad():
            self.run(batch)
        self._seen.clear()
        layers = [self._one(parts) for parts in self._layers if parts]
        return Chunk(layers, list(batch.documents), list(batch.windows))

    def _observe(self, call: AttentionCall) -> None:
        if self.only is not None and call.layer not in self.only:
            return
        found = self.lens.tally(call, self._visible(call), self._windows)
        if found is None:
            return
        while len(self._layers) <= call.layer:
            self._layers.append([])
        self._layers[call.layer].append(found)

    def _visible(self, call: AttentionCall) -> Visible:
        """Layers share masks: each is read once in a forward pass."""
        mask = _Mask.of(call)
        for other, see in self._seen:
            if mask.is_like(other):
                return see
        see = visible(call)
        self._seen.append((mask, see))
        return see

    @staticmethod
    def _one(parts: list[LayerTally]) -> LayerTally:
        """A layer that was called in several parts (packed images) is one layer."""
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.merge(part)
        return whole


def row(batch: Batch, i: int) -> Batch:
    """One window of a batch."""
    many = len(batch.documents)

    def pick(x: Any) -> Any:
        return x[i : i + 1] if isinstance(x, Tensor) and x.ndim and len(x) == many else x

    return replace(
        batch,
        args=tuple(pick(x) for x in batch.args),
        inputs={k: pick(x) for k, x in batch.inputs.items()},
        documents=[batch.documents[i]],
        windows=[batch.windows[i]],
        valid=pick(batch.valid),
        special=pick(batch.special),
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def coverage_of(calls: Capture) -> list[dict[str, Any]]:
    """As it stands in run.json."""
    return [
        {"module": c.module, "kind": c.kind, "status": c.status, "tier": c.tier, "reason": c.reason}
        for c in calls.coverage
    ]
