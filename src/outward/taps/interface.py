"""Tier 1: transformers' attention interface, wrapped for the duration of a capture.

Most models of transformers ask `AttentionInterface.get_interface` which function computes their
attention. Here the function that it returns is run as it is, with the module, q, k and v that it
was given, and the fused call within, if there is one, says with what mask and scale.
"""

import sys
import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from outward.taps.kernels import FusedCall, WatchFused


@runtime_checkable
class Listener(Protocol):
    """What a capture is to this file."""

    def listens_to(self, module: nn.Module) -> bool:
        """Whether the module is of its model, in its thread."""

    def interface_call(
        self,
        module: nn.Module,
        inputs: tuple[Tensor, Tensor, Tensor, Any],
        options: dict[str, Any],
        result: tuple[Tensor, Tensor | None],
        fused: list[FusedCall],
    ) -> None:
        """Told of every call, after it."""

    inside_interface: bool


_lock = threading.Lock()
_listeners: list[Listener] = []
_originals: list[Callable[..., Any]] = []  # one, while somebody listens


def listen(listener: Listener) -> None:
    """Begin to hand the listener every call of its model."""
    interface = _interface()
    if interface is None:
        return
    with _lock:
        if not _listeners:
            _originals.append(interface.get_interface)
            interface.get_interface = _wrapped(interface.get_interface)
        _listeners.append(listener)


def leave(listener: Listener) -> None:
    """The last one to leave restores transformers as it was."""
    interface = _interface()
    with _lock:
        if listener not in _listeners:
            return
        _listeners.remove(listener)
        if not _listeners and interface is not None:
            interface.get_interface = _originals.pop()


def _interface() -> Any:
    """transformers' class, if transformers is loaded: otherwise no model is one of its own."""
    module = sys.modules.get("transformers.modeling_utils")
    return None if module is None else module.AttentionInterface


def _wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def get_interface(self: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return partial(_observed, original(self, *args, **kwargs))

    return get_interface


def _observed(
    function: Callable[..., Any],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    inputs = (query, key, value, attention_mask)
    mine = [x for x in _listeners if x.listens_to(module)]
    if not mine or args:
        return function(module, *inputs, *args, **kwargs)
    fused: list[FusedCall] = []
    for listener in mine:
        listener.inside_interface = True
    try:
        with WatchFused(fused.append):
            result = function(module, *inputs, **kwargs)
    finally:
        for listener in mine:
            listener.inside_interface = False
    for listener in mine:
        listener.interface_call(module, inputs, kwargs, result, fused)
    return result
