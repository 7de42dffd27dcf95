"""Tiers 2 and 3, for models of any library: what torch's own functions are called with.

Tier 2 sees F.scaled_dot_product_attention and F.multi_head_attention_forward. Tier 3 follows the
result of a softmax to the product that it enters: the weights, the other operand v, and y.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from outward.taps.crossing import same_tokens
from outward.taps.kernels import FusedCall, attend


@runtime_checkable
class Listener(Protocol):
    """What a capture is to this file."""

    def is_listening(self) -> bool:
        """Whether one of its modules is running, outside of what tier 1 sees."""

    def fused_call(self, call: FusedCall, *, crossing: str | None, added_keys: bool) -> None:
        """Told of a call of torch's attention."""

    def product(self, weights: Tensor, v: Tensor, y: Tensor) -> None:
        """Told of weights times values."""

    def operation(self, name: str) -> None:
        """Told that the running module mixes tokens by this, for the reason of a refusal."""


# What a module that is called attention may do instead, or in ways that are not followed.
_MIXING = (
    {f: "softmax" for f in (torch.softmax, Tensor.softmax, F.softmax, F.log_softmax)}
    | {
        F.grid_sample: "grid_sample",
        torch.einsum: "einsum",
        torch.cumsum: "cumsum",
        Tensor.cumsum: "cumsum",
    }
    | {f: "a product" for f in (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)}
    | {f: "a convolution" for f in (F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d)}
    | {
        f: "a Fourier transform"
        for f in (torch.fft.fft, torch.fft.rfft, torch.fft.fftn, torch.fft.rfft2)
    }
    | {f: "a mean" for f in (torch.mean, Tensor.mean, F.avg_pool2d, F.adaptive_avg_pool2d)}
)
_SOFTMAX = {torch.softmax, Tensor.softmax, F.softmax}
_MATMUL = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
# What may stand between a softmax and its product without being anything but weights.
_KEEP = {
    F.dropout,
    torch.dropout,
    torch.mul,
    Tensor.mul,
    Tensor.__mul__,
    Tensor.mul_,
    Tensor.to,
    Tensor.type,
    Tensor.type_as,
    Tensor.float,
    Tensor.half,
    Tensor.bfloat16,
    Tensor.contiguous,
    Tensor.clone,
    Tensor.view,
    Tensor.reshape,
    torch.reshape,
    Tensor.flatten,
    torch.flatten,
    Tensor.unflatten,
    Tensor.squeeze,
    Tensor.unsqueeze,
    Tensor.expand,
    Tensor.__getitem__,
    Tensor.masked_fill,
    Tensor.masked_fill_,
    torch.nan_to_num,
    Tensor.nan_to_num,
    torch.where,
}
_TURN = {
    torch.transpose,
    Tensor.transpose,
    Tensor.swapaxes,
    Tensor.swapdims,
    Tensor.permute,
    torch.permute,
}


class WatchFunctions(TorchFunctionMode):
    """Sees every torch function of one thread; looks only while the listener is listening."""

    def __init__(self, listener: Listener, *, weights: bool = True) -> None:
        super().__init__()
        self.listener = listener
        self.follows_weights = weights
        # Kept alive until the module returns, so that no other tensor gets the same id.
        self.weights: dict[int, Tensor] = {}

    def forget(self) -> None:
        """The module has returned: its weights go nowhere any more."""
        self.weights.clear()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.listener.is_listening():
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            call = attend(*args, **kwargs)
            self.listener.fused_call(call, crossing=None, added_keys=False)
            return call.y
        if func is F.multi_head_attention_forward:
            return self._multi_head(func, args, kwargs)
        result = func(*args, **kwargs)
        if self.follows_weights:
            if func in _MIXING:
                self.listener.operation(_MIXING[func])
            self._follow(func, args, kwargs, result)
        return result

    # ---- tier 2: nn.MultiheadAttention

    def _multi_head(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls: list[FusedCall] = []
        if kwargs.get("need_weights", True):  # by hand, without torch's attention: once more with it
            result = func(*args, **kwargs)
            with _fused_calls_to(calls):
                func(*args, **{**kwargs, "need_weights": False})
        else:
            with _fused_calls_to(calls):
                result = func(*args, **kwargs)
        query, key = args[:2]
        crossing = None if same_tokens(query, key) else "cross-attention (query is not key)"
        added = args[7] is not None or bool(args[9])  # bias_k, add_zero_attn
        for call in calls:
            self.listener.fused_call(call, crossing=crossing, added_keys=added)
        return result

    # ---- tier 3: softmax, then a product

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if func in _SOFTMAX:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if result.ndim >= 3 and dim in (-1, -2, result.ndim - 1, result.ndim - 2):
                self.weights[id(result)] = result
        elif not self.weights:
            return
        elif func in _MATMUL:
            self._matmul(*args, result)
        elif func is torch.einsum:
            self._einsum(args, result)
        elif (func in _KEEP or func in _TURN) and isinstance(result, Tensor):
            if any(id(x) in self.weights for x in args if isinstance(x, Tensor)):
                self.weights[id(result)] = result

    def _matmul(self, a: Tensor, b: Tensor, y: Tensor) -> None:
        if id(a) in self.weights and id(b) not in self.weights:
            self.listener.product(a, b, y)
        elif id(b) in self.weights and id(a) not in self.weights:  # (weights^T) from the right
            self.listener.product(b.mT, a.mT, y.mT)

    def _einsum(self, args: tuple[Any, ...], y: Tensor) -> None:
        if not isinstance(args[0], str) or len(args) != 3:
            return
        equation = args[0].replace(" ", "")
        if "." in equation or "->" not in equation:
            return
        inputs, out = equation.split("->")
        letters = inputs.split(",")
        tensors = list(args[1:])
        for p, other in ((0, 1), (1, 0)):
            if id(tensors[p]) in self.weights and id(tensors[other]) not in self.weights:
                found = _as_product(letters[p], letters[other], out)
                if found is not None:
                    order = [tensors[p], tensors[other], y]
                    turned = (
                        x.permute([s.index(c) for c in want])
                        for x, s, want in zip(
                            order, (letters[p], letters[other], out), found, strict=True
                        )
                    )
                    self.listener.product(*turned)
                return


def _as_product(p: str, v: str, y: str) -> tuple[str, str, str] | None:
    """The order of letters that makes an einsum a product (leads, i, j) @ (leads, j, d)."""
    keys = [c for c in p if c in v and c not in y]
    queries = [c for c in p if c in y and c not in v]
    dims = [c for c in v if c in y and c not in p]
    leads = "".join(c for c in p if c in v and c in y)
    if not len(keys) == len(queries) == len(dims) == 1 or len(leads) + 2 != len(v):
        return None
    i, j, d = queries[0], keys[0], dims[0]
    return leads + i + j, leads + j + d, leads + i + d


_patching = threading.Lock()


@contextmanager
def _fused_calls_to(calls: list[FusedCall]) -> Iterator[None]:
    """For the duration, this thread's F.scaled_dot_product_attention are kept.

    Inside F.multi_head_attention_forward no mode is active any more: the name itself is replaced.
    """
    with _patching:
        original, owner = F.scaled_dot_product_attention, threading.get_ident()

        def kept(*args: Any, **kwargs: Any) -> Tensor:
            if threading.get_ident() != owner:
                return original(*args, **kwargs)
            call = attend(*args, **kwargs, function=original)
            calls.append(call)
            return call.y

        F.scaled_dot_product_attention = kept
        try:
            yield
        finally:
            F.scaled_dot_product_attention = original
