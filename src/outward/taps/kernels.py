"""A fused kernel computes the log-sum-exp of every row and torch drops it: here it is kept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True, eq=False)
class FusedCall:
    """The arguments of one F.scaled_dot_product_attention, its result, and its log-sum-exp if any."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    y: Tensor
    lse: Tensor | None
    dropout: float = 0.0


FUSED = F.scaled_dot_product_attention
"""torch's own, as modes are told of it. Another thread may put another function in its name's place."""

# Each returns (output, log-sum-exp, ...). The last one leaves it out unless asked.
_WITH_LSE = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
)


class _KeepLse(TorchDispatchMode):
    """Sees the kernel that torch chose, with all that it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.lse: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name == "_scaled_dot_product_efficient_attention":
            args = (*args[:4], True, *args[5:])  # compute_log_sumexp: one more number per row
        out = func(*args, **kwargs)
        if name in _WITH_LSE and isinstance(out[1], Tensor) and out[1].numel():
            self.lse = out[1]
        return out


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    function: Callable[..., Tensor] = FUSED,
) -> FusedCall:
    """Run torch's attention as it was called, and keep what it was called with."""
    with _KeepLse() as kept:
        y = function(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    lse = None if kept.lse is None else kept.lse[..., : y.shape[-2]]  # some kernels pad its rows
    if lse is not None and lse.shape != y.shape[:-1]:
        lse = None
    return FusedCall(query, key, value, attn_mask, is_causal, scale, y, lse, dropout_p)


class WatchFused(TorchFunctionMode):
    """Hands every F.scaled_dot_product_attention within to `observe`."""

    def __init__(self, observe: Callable[[FusedCall], None]) -> None:
        super().__init__()
        self.observe = observe

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not FUSED:
            return func(*args, **(kwargs or {}))
        call = attend(*args, **(kwargs or {}))
        self.observe(call)
        return call.y
