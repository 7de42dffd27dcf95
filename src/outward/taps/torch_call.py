"""What torch's own attention, and a softmax followed by a product, say in our words."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from outward.attention.inputs import Mask, SelfKey
from outward.taps.coverage import is_shell
from outward.taps.kernels import FusedCall
from outward.taps.layouts import (
    DROPPED_OUT,
    NotMeasurableError,
    find_self_key,
    four_axes,
    four_axes_mask,
    number_of_heads,
)


def from_fused(call: FusedCall, module: nn.Module, added_keys: bool, cached: bool) -> dict[str, Any]:
    """The fields of an AttentionCall, of one F.scaled_dot_product_attention."""
    if call.dropout > 0:
        raise NotMeasurableError(DROPPED_OUT)
    leads = tuple(call.q.shape[:-2])
    heads = number_of_heads(module)
    q, k, v, y = (four_axes(x, heads) for x in (call.q, call.k, call.v, call.y))
    mask = four_axes_mask(call.mask, q, leads)
    own: SelfKey | None = torch.arange(q.shape[2], device=q.device)
    if not added_keys:
        own = find_self_key(q, v, mask, cached=cached, causal=call.causal)
    return {
        "q": q,
        "k": k,
        "v": v,
        "y": y,
        "scale": call.scale,
        "causal": call.causal,
        "mask": mask,
        "self_key": own,
        "lse": None if call.lse is None else call.lse.reshape(y.shape[:3]),
    }


def from_product(
    weights: Tensor,
    v: Tensor,
    y: Tensor,
    module: nn.Module,
    given: tuple[Any, ...],
    cached: bool,
    *,
    dropped: bool,
) -> dict[str, Any]:
    """The fields of an AttentionCall, of weights times values in a module that was `given` these."""
    if is_shell(module):
        raise NotMeasurableError("its softmax is outside of the attention in it, and mixes no tokens")
    heads = number_of_heads(module)
    if _over_channels(weights, y, heads, given):
        raise NotMeasurableError("its softmax is over channels, not over keys")
    if dropped:
        raise NotMeasurableError(DROPPED_OUT)
    P, v, y = four_axes(weights, heads), four_axes(v, heads), four_axes(y, heads)
    if P.shape[-1] != v.shape[-2] or P.shape[0] != y.shape[0]:
        raise NotMeasurableError(
            f"weights {tuple(weights.shape)} and values {tuple(v.shape)} do not pair up"
        )
    rounding = 4 * torch.finfo(P.dtype).eps + P.shape[-1] * torch.finfo(torch.float32).eps
    if (P.sum(dim=-1) > 1 + rounding).any():
        raise NotMeasurableError("its weights are no softmax over keys: their sum exceeds 1")
    seen = _has_weight(P).any(dim=1, keepdim=True)
    mask: Mask | None = None if seen.all() else seen
    own = find_self_key(y, v, mask, cached=cached)
    return {"v": v.expand(*P.shape[:2], -1, -1), "y": y, "weights": P, "mask": mask, "self_key": own}


def _has_weight(P: Tensor) -> Tensor:
    """Which keys count as visible where no mask was seen, head by head.

    Masks that add -inf, finfo.min or -100 leave weights of 0 or below float32's smallest normal number
    in every head; a key that is seen, only if its score is 87 below the highest in every head. Weights
    of float16 are 0 from 17 below on, and its subnormal ones are weights: 2^-126 would be 0 in it.
    """
    return P > 0 if P.dtype == torch.float16 else P.float() >= 2.0**-126


def _over_channels(weights: Tensor, y: Tensor, heads: int | None, given: tuple[Any, ...]) -> bool:
    """Whether channels attend to channels: (batch, head, channel, channel) times (..., channel, token).

    Windows of attention over tokens look the same if a head has as many channels as there are tokens:
    they are more than batch * head.
    """
    batch, tokens = _batch_and_tokens(given)
    if tokens is None or y.shape[-1] != tokens or weights.shape[-1] == tokens:
        return False
    if weights.shape[-2] != weights.shape[-1]:
        return False
    return heads is None or math.prod(weights.shape[:-2]) == batch * heads


def _batch_and_tokens(given: tuple[Any, ...]) -> tuple[int, int | None]:
    """Of the first input, if its axes are (batch, token, dim) or (batch, dim, height, width)."""
    for x in given:
        if isinstance(x, Tensor) and x.is_floating_point():
            if x.ndim == 3:
                return x.shape[0], x.shape[1]
            return x.shape[0], x.shape[2] * x.shape[3] if x.ndim == 4 else None
    return 0, None
