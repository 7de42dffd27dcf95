"""capture(model): every self-attention call of a model, for the length of a `with` block."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from outward.attention.call import AttentionCall
from outward.taps import interface
from outward.taps.coverage import ModuleCoverage, Seen, coverage
from outward.taps.crossing import crossing, given_to, has_cache
from outward.taps.functions import SOFTMAX, WatchFunctions
from outward.taps.kernels import FusedCall
from outward.taps.layouts import NotMeasurableError
from outward.taps.torch_call import from_fused, from_product
from outward.taps.transformers_call import from_interface

Observer = Callable[[AttentionCall], None]
Reader = Callable[[bool], dict[str, Any]]  # given whether there is a cache: the fields of a call


def capture(model: nn.Module, observe: Observer | None = None) -> "Capture":
    """Every self-attention call of `model` within the block, without changing what it returns.

        with outward.capture(model) as calls:
            model(**inputs)
        for call in calls: ...

    With `observe`, each call is handed to it as it happens and not kept: q, k, v and y of a long
    text are large. What is kept are copies, as a model may write into its own. Calls are seen in this
    thread; other models and threads are not disturbed.
    Of nn.TransformerEncoder, torch runs the plain layer instead of its fused one, which nobody can
    see into: the result is the same but for rounding.
    """
    return Capture(model, observe)


class Capture(Sequence[AttentionCall]):
    """The calls so far, in order, and what became of each attention module (`coverage`)."""

    def __init__(self, model: nn.Module, observe: Observer | None) -> None:
        refuse_compiled(model)
        self.model, self._observe = model, observe
        self.valid: Tensor | None = None
        self._calls: list[AttentionCall] = []
        self._names = {id(m): name for name, m in model.named_modules()}
        self._layers: dict[tuple[str, int], int] = {}
        self._seen = Seen()
        self._running: list[_Run] = []
        self._times: dict[str, int] = {}
        self._given: dict[str, Any] = {}
        self._thread = threading.get_ident()
        self._functions: WatchFunctions | None = None
        self._stack = ExitStack()
        self.inside_interface = self._observing = False

    # ---- the calls

    def __len__(self) -> int:
        return len(self._calls)

    def __getitem__(self, index: Any) -> Any:
        return self._calls[index]

    @property
    def coverage(self) -> list[ModuleCoverage]:
        """One row for each attention module of the model."""
        return coverage(self.model, self._seen)

    @property
    def layers(self) -> list[str]:
        """The module of each layer: a layer is one run of a module within one run of the model."""
        return [name for name, _ in self._layers]

    # ---- the block

    def __enter__(self) -> "Capture":
        if self._functions is not None:
            raise RuntimeError(
                "this capture is running already: leave its block, or make another capture(model)."
            )
        self._thread = threading.get_ident()
        with ExitStack() as stack:
            for module in self.model.modules():
                for handle in self._hooks(module):
                    stack.callback(handle.remove)
            stack.enter_context(_NotCompiled(self.model))
            interface.listen(self)
            stack.callback(interface.leave, self)
            self._functions = stack.enter_context(WatchFunctions(self))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        self._functions = None
        self._running.clear()

    def begin(self) -> None:
        """Here the model starts anew, and each module is the layer that it was before.

        A capture sees where the model itself begins, but not where parts of it do: `model.encode(x)`.
        """
        self._running.clear()
        self._times.clear()
        self._given = {}

    def settle(self) -> None:
        """Watch from here on only what the model was seen to use: cheaper, by a little.

        Meant for after a first forward pass; a module that has not run yet is not seen.
        """
        tiers = set(self._seen.tiers.values())
        if self._functions is not None and "softmax" not in tiers:
            self._functions.follows_weights = False

    def _hooks(self, module: nn.Module) -> list[RemovableHandle]:
        return [
            module.register_forward_pre_hook(self._begins, with_kwargs=True),
            module.register_forward_hook(self._ends, always_call=True),
        ]

    def _begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            return
        if module is self.model:
            self.begin()
            self._given = given_to(module, args, kwargs)
        name = self._names[id(module)]
        nth = self._times.get(name, 0)
        self._times[name] = nth + 1
        self._seen.called.add(name)
        self._running.append(_Run(module, name, nth, args, kwargs))

    def _ends(self, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        weights = {} if self._functions is None else self._functions.weights
        if id(output) in weights and any(getattr(x, "shape", None) == output.shape for x in args):
            self._seen.gates.add(self._names[id(module)])
        while self._running and self._running.pop().module is not module:
            pass  # modules that left by an exception
        if self._functions is not None and not self._running:
            self._functions.forget()

    # ---- what the tiers tell

    def listens_to(self, module: nn.Module) -> bool:
        """Whether the module is of this model and runs in this thread."""
        return id(module) in self._names and threading.get_ident() == self._thread

    def is_listening(self) -> bool:
        """Whether a module of this model is running, outside of what tier 1 sees."""
        return bool(self._running) and not self.inside_interface and not self._observing

    def interface_call(
        self,
        module: nn.Module,
        inputs: tuple[Tensor, Tensor, Tensor, Any],
        options: dict[str, Any],
        result: tuple[Tensor, Tensor | None],
        fused: list[FusedCall],
    ) -> None:
        """Tier 1."""
        run = self._run_of(module)
        self._emit(
            run, "interface", None, partial(from_interface, module, inputs, options, result, fused)
        )

    def fused_call(self, call: FusedCall, *, crossing: str | None, added_keys: bool) -> None:
        """Tier 2."""
        run = self._running[-1]
        self._emit(run, "torch", crossing, partial(from_fused, call, run.module, added_keys))

    def product(self, weights: Tensor, v: Tensor, y: Tensor, *, dropped: bool) -> None:
        """Tier 3."""
        run = self._running[-1]
        given = (*run.args, *run.kwargs.values())
        self._emit(
            run,
            "softmax",
            None,
            partial(from_product, weights, v, y, run.module, given, dropped=dropped),
        )

    def operation(self, name: str) -> None:
        """What else a module does, for the reason why nothing came of it."""
        run = self._running[-1]
        self._seen.operations.setdefault(run.name, set()).add(name)
        if name == SOFTMAX and run.name not in self._seen.crossing:
            self._seen.crossing[run.name] = crossing(run.module, run.args, run.kwargs)

    def lost(self, name: str) -> None:
        """Where the weights of a module went."""
        self._seen.lost.setdefault(self._running[-1].name, set()).add(name)

    def _run_of(self, module: nn.Module) -> "_Run":
        for run in reversed(self._running):
            if run.module is module:
                return run
        return _Run(module, self._names[id(module)], 0, (), {})

    def _emit(self, run: "_Run", tier: str, crosses: str | None, read: Reader) -> None:
        crosses = crosses or crossing(run.module, run.args, run.kwargs)
        cached = has_cache(run.module, run.args, run.kwargs)
        try:
            if crosses is not None:
                raise NotMeasurableError(crosses)
            found = read(cached)
        except NotMeasurableError as error:
            self._seen.refused[run.name] = str(error)
            return
        self._seen.tiers[run.name] = tier
        if tier == "softmax" and found["mask"] is not None:
            self._seen.inferred.add(run.name)
        layer = self._layers.setdefault((run.name, run.nth), len(self._layers))
        valid = self._valid(run.name, found["y"])
        call = AttentionCall(layer=layer, module=run.name, tier=tier, valid=valid, **found)
        if self._observe is None:
            self._calls.append(_for_keeps(call))
            return
        self._observing = True  # what the observer computes is not the model's
        try:
            with _without_autocast(call.y.device.type):
                self._observe(call)
        finally:
            self._observing = False

    def _valid(self, name: str, y: Tensor) -> Tensor | None:
        """Which tokens are no padding: what the caller says, or what the model was given."""
        two_sided = any(given.startswith("decoder_") for given in self._given)
        side = "decoder_attention_mask" if two_sided and "decoder" in name else "attention_mask"
        masks = (self.valid, self._given.get(side))
        for mask in masks:
            if isinstance(mask, Tensor) and tuple(mask.shape) == (y.shape[0], y.shape[2]):
                return mask.to(y.device).bool()
        return None


class _Run:
    """One module while it runs: the nth time within this run of the model."""

    def __init__(
        self, module: nn.Module, name: str, nth: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.module, self.name, self.nth, self.args, self.kwargs = module, name, nth, args, kwargs


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """Half types are for the model's arithmetic. Some devices, as meta, know no autocast."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def _for_keeps(call: AttentionCall) -> AttentionCall:
    """With a q, k, v and y of its own.

    A model may add to y in place, write every layer's q, k and v into one buffer, and goes on writing
    into a cache. What the model made is freed by it: for good, copies take no memory.
    """
    own = {name: x.clone() for name in ("q", "k", "v", "y") if (x := getattr(call, name)) is not None}
    return replace(call, **own)


def refuse_compiled(model: nn.Module) -> None:
    """The compiler takes the calls away before anybody can see them."""
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod"):
            where = f"its module {name!r}" if name else "the model"
            raise ValueError(
                f"{where} is wrapped by torch.compile, and a compiled model shows no attention calls: "
                "capture the original, which is its _orig_mod; the weights are the same."
            )


class _NotCompiled:
    """Models compiled in place (`model.compile()`) run as they were written, for the duration."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [m for m in model.modules() if m._compiled_call_impl is not None]
        self._calls = [m._compiled_call_impl for m in self._modules]

    def __enter__(self) -> None:
        for module in self._modules:
            module._compiled_call_impl = None

    def __exit__(self, *error: object) -> None:
        for module, call in zip(self._modules, self._calls, strict=True):
            module._compiled_call_impl = call
