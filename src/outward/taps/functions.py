"""Tiers 2 and 3, for models of any library: what torch's own functions are called with.

Tier 2 sees F.scaled_dot_product_attention and F.multi_head_attention_forward. Tier 3 follows the
result of a softmax to the product that it enters: the weights, the other operand v, and y.
"""

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from outward.taps.crossing import same_tokens
from outward.taps.kernels import FUSED, FusedCall, attend


@runtime_checkable
class Listener(Protocol):
    """What a capture is to this file."""

    def is_listening(self) -> bool:
        """Whether one of its modules is running, outside of what tier 1 sees."""

    def fused_call(self, call: FusedCall, *, crossing: str | None, added_keys: bool) -> None:
        """Told of a call of torch's attention."""

    def product(self, weights: Tensor, v: Tensor, y: Tensor, *, dropped: bool) -> None:
        """Told of weights times values, and whether some of the weights were dropped at random."""

    def operation(self, name: str) -> None:
        """Told that the running module mixes tokens by this, for the reason of a refusal."""

    def lost(self, name: str) -> None:
        """Told that weights went into a function that the taps do not follow."""


def _named(*names: str) -> set[Any]:
    """Functions by name, in each of torch's places: torch.f, Tensor.f, F.f."""
    return {getattr(place, n) for place in (torch, Tensor, F) for n in names if hasattr(place, n)}


SOFTMAX, LOG_SUM_EXP, BRANCHES = "softmax", "log-sum-exp", "softmax over branches"
"""Operations by which a module may mix tokens, as they are told to the listener."""
_SOFTMAX = _named("softmax")
_MATMUL = _named("matmul", "__matmul__", "bmm")
_DROPOUT = _named("dropout", "dropout_", "feature_dropout", "dropout1d", "dropout2d", "dropout3d")
_ADD = _named("add", "__add__", "__radd__", "add_", "__iadd__")
# What may stand between a softmax and its product without being anything but weights.
_KEEP = (
    _DROPOUT
    | _named(
        "mul",
        "mul_",
        "multiply",
        "__mul__",
        "__rmul__",
        "__imul__",
        "div",
        "div_",
        "true_divide",
    )
    | _named(
        "__truediv__", "__itruediv__", "to", "type", "type_as", "float", "double", "half", "bfloat16"
    )
    | _named("contiguous", "clone", "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze")
    | _named("expand", "expand_as", "__getitem__", "masked_fill", "masked_fill_", "nan_to_num", "where")
    | _named("transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis")
    | {Tensor.mT.__get__}  # type: ignore[attr-defined]
)
# What a module that is called attention may do instead, or in ways that are not followed.
_MIXING: dict[Any, str] = {
    f: said
    for said, functions in {
        SOFTMAX: _SOFTMAX | _named("log_softmax"),
        LOG_SUM_EXP: _named("logsumexp"),
        "grid_sample": _named("grid_sample"),
        "products": _MATMUL | _named("einsum", "baddbmm"),
        "cumulative sums": _named("cumsum"),
        "convolutions": _named("conv1d", "conv2d", "conv3d"),
        "exponentials of its own": _named("exp"),
        "sigmoids": _named("sigmoid"),
        "means": _named("mean", "avg_pool2d", "adaptive_avg_pool2d"),
        "Fourier transforms": {torch.fft.fft, torch.fft.rfft, torch.fft.fftn, torch.fft.rfft2},
    }.items()
    for f in functions
}


class WatchFunctions(TorchFunctionMode):
    """Sees every torch function of one thread; looks only while the listener is listening."""

    def __init__(self, listener: Listener, *, weights: bool = True) -> None:
        super().__init__()
        self.listener = listener
        self.follows_weights = weights
        # Kept alive until the module returns, so that no other tensor gets the same id.
        self.weights: dict[int, Tensor] = {}
        self.dropped: set[int] = set()  # of these, what a dropout in training made

    def forget(self) -> None:
        """The module has returned: its weights go nowhere any more."""
        self.weights.clear()
        self.dropped.clear()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.listener.is_listening():
            return func(*args, **kwargs)
        if func is FUSED:
            call = attend(*args, **kwargs)
            self.listener.fused_call(call, crossing=None, added_keys=False)
            return call.y
        if func is F.multi_head_attention_forward:
            return self._multi_head(func, args, kwargs)
        result = func(*args, **kwargs)
        if self.follows_weights:
            if func in _MIXING:
                branches = func in _SOFTMAX and _weighs_branches(args, kwargs, result)
                self.listener.operation(BRANCHES if branches else _MIXING[func])
            self._follow(func, args, kwargs, result)
        return result

    # ---- tier 2: nn.MultiheadAttention

    def _multi_head(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls: list[FusedCall] = []
        if kwargs.get("need_weights", True):  # by hand, without torch's attention: once more with it
            result = func(*args, **kwargs)
            with torch._C.DisableTorchFunction(), _fused_calls_to(calls):
                func(*args, **{**kwargs, "need_weights": False, "training": False})
        else:
            with _fused_calls_to(calls):
                result = func(*args, **kwargs)
        given = dict(zip(_MULTI_HEAD, args, strict=False)) | kwargs
        same = same_tokens(given["query"], given["key"])
        crossing = None if same else "cross-attention (query is not key)"
        added = given.get("bias_k") is not None or bool(given.get("add_zero_attn"))
        for call in calls:
            self.listener.fused_call(call, crossing=crossing, added_keys=added)
        return result

    # ---- tier 3: softmax, then a product

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if func in _SOFTMAX:
            dim = _dim(args, kwargs)
            if result.ndim >= 3 and dim in (-1, -2, result.ndim - 1, result.ndim - 2):
                self.weights[id(result)] = result
        elif self.weights:
            given = [x for x in args if isinstance(x, Tensor)]
            tagged = [id(x) in self.weights for x in given]
            if func in _MATMUL:
                self._matmul(args[0], args[1], result)
            elif func is torch.einsum:
                self._einsum(args, result)
            elif any(tagged) and isinstance(result, Tensor) and result.ndim >= 3:
                if func in _KEEP or (func in _ADD and all(tagged)):
                    self._keep(given, result, _drops(func, args, kwargs))
                else:
                    self.listener.lost(func.__name__)

    def _keep(self, given: list[Tensor], result: Tensor, drops: bool) -> None:
        self.weights[id(result)] = result
        if drops or any(id(x) in self.dropped for x in given):
            self.dropped.add(id(result))

    def _matmul(self, a: Tensor, b: Tensor, y: Tensor) -> None:
        if id(a) in self.weights and id(b) not in self.weights:
            self.listener.product(a, b, y, dropped=id(a) in self.dropped)
        elif id(b) in self.weights and id(a) not in self.weights:  # (weights^T) from the right
            self.listener.product(b.mT, a.mT, y.mT, dropped=id(b) in self.dropped)

    def _einsum(self, args: tuple[Any, ...], y: Tensor) -> None:
        if not isinstance(args[0], str) or len(args) != 3:
            return
        tensors = list(args[1:])
        inputs, arrow, out = args[0].replace(" ", "").partition("->")
        letters = [_spelt_out(x, t.ndim) for x, t in zip(inputs.split(","), tensors, strict=True)]
        if not arrow:
            return
        out = _spelt_out(out, y.ndim)
        for p, other in ((0, 1), (1, 0)):
            if id(tensors[p]) in self.weights and id(tensors[other]) not in self.weights:
                found = _as_product(letters[p], letters[other], out)
                if found is not None:
                    order = (tensors[p], letters[p]), (tensors[other], letters[other]), (y, out)
                    dropped = id(tensors[p]) in self.dropped
                    self.listener.product(*map(_turned, order, found), dropped=dropped)
                return


def _spelt_out(letters: str, axes: int) -> str:
    """A term of an einsum with as many letters as axes: letters of our own in place of an ellipsis."""
    missing = axes - len(letters.replace("...", ""))
    return letters.replace("...", _OURS[len(_OURS) - missing :])


def _dim(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return kwargs.get("dim", args[1] if len(args) > 1 else None)


def _drops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this is a dropout that drops: in training, with a probability above 0."""
    if func not in _DROPOUT:
        return False
    given = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
    return bool(given.get("training", given.get("train", True))) and given.get("p", 0.5) > 0


def _weighs_branches(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> bool:
    """Whether a softmax is over an axis that stands before others, none of them as long.

    Weights of self-attention have an axis of queries as long as that of keys, or are by windows, and
    then over the last axis or the one before.
    """
    dim = _dim(args, kwargs)
    if not isinstance(dim, int) or not 0 < dim % result.ndim < result.ndim - 2:
        return False
    dim %= result.ndim
    others = (n for axis, n in enumerate(result.shape) if axis not in (0, dim))
    return result.shape[dim] not in others


def _turned(named: tuple[Tensor, str], order: str) -> Tensor:
    x, letters = named
    return x.permute([letters.index(c) for c in order])


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


_OURS = "ΑΒΓΔΕΖΗΘ"  # no letter that an einsum may have; ellipses are aligned from the right
_MULTI_HEAD = tuple(inspect.signature(F.multi_head_attention_forward).parameters)
_patching = threading.RLock()


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
