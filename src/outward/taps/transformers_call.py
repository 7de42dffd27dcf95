"""What a call of transformers' attention interface says, in our words."""

from typing import Any

import torch
from torch import Tensor, nn

from outward.attention.inputs import Mask
from outward.attention.masks import causal_mask, padding_mask, window_mask
from outward.taps.kernels import FusedCall
from outward.taps.layouts import (
    DROPPED_OUT,
    NotMeasurableError,
    find_self_key,
    four_axes_mask,
    output_axes,
)

# Options of attention functions that change the weights in ways that are not read here.
_UNREAD = ("indices", "block_indices", "topk_indices", "cache")


def from_interface(
    module: nn.Module,
    inputs: tuple[Tensor, Tensor, Tensor, Any],
    options: dict[str, Any],
    result: tuple[Tensor, Tensor | None],
    fused: list[FusedCall],
    cached: bool,
) -> dict[str, Any]:
    """The fields of an AttentionCall."""
    q, k, v, given_mask = inputs
    for name in _UNREAD:
        if options.get(name) is not None and not fused:
            raise NotMeasurableError(f"attention with {name}, which the taps do not read")
    if options.get("dropout"):
        raise NotMeasurableError(DROPPED_OUT)
    if getattr(module, "compressor", None) is not None and k.shape[2] != q.shape[2]:
        raise NotMeasurableError(  # in a causal mask, the last key that a query sees is a block
            "its keys are tokens and, after them, blocks of tokens (compressor): whose own key is "
            "whose cannot be told"
        )
    y = output_axes(result[0], q, v)
    softcap = options.get("softcap")
    found: dict[str, Any] = {"q": q, "k": k, "v": v, "y": y, "softcap": softcap}
    sinks = sinks_of(module, options)
    found |= {"sinks": sinks, "scale": _scale(module, q, options)}
    if len(fused) == 1 and fused[0].y.shape == y.shape:
        call = fused[0]
        found |= {"mask": four_axes_mask(call.mask, q, tuple(call.q.shape[:-2]))}
        found |= {"causal": call.causal, "scale": call.scale}
        found |= {"lse": call.lse if found["sinks"] is None and softcap is None else None}
    else:
        found |= _without_fused(module, q, v, given_mask, options, result[1])
    aligned = found["causal"] and bool(fused) and found["mask"] is None
    found["self_key"] = find_self_key(q, v, found["mask"], cached=cached, causal=aligned)
    if sinks is not None and len(sinks) != q.shape[1]:  # one for each query: only weights tell
        if found.get("weights") is None:
            raise NotMeasurableError(
                "a sink of its own for every query, in a kernel that shows no weights"
            )
        found |= {"q": None, "k": None, "sinks": None}
    if found["self_key"] is not None and not aligned:
        found["causal"] = False  # the mask, or one query that sees all keys, says it all
    return found


def sinks_of(module: nn.Module, options: dict[str, Any]) -> Tensor | None:
    """A score per head that belongs to no value, as in gpt-oss."""
    for x in (options.get("s_aux"), options.get("sinks"), getattr(module, "sinks", None)):
        if isinstance(x, Tensor):
            return x.detach().flatten()
    return None


def _scale(module: nn.Module, q: Tensor, options: dict[str, Any]) -> float:
    scale = options.get("scaling")
    if scale is None:
        dim = getattr(module, "head_dim", q.shape[-1])
        return float(dim**-0.5)
    return float(scale)


def _without_fused(
    module: nn.Module,
    q: Tensor,
    v: Tensor,
    mask: Any,
    options: dict[str, Any],
    weights: Tensor | None,
) -> dict[str, Any]:
    bias = options.get("position_bias")
    if weights is not None:  # written out by hand: the mask it was given is the whole mask
        both = mask if bias is None else bias if mask is None else bias + mask
        found = {"mask": both, "causal": False}
        return found if weights.shape[-2:] != (q.shape[2], v.shape[2]) else found | {"weights": weights}
    if bias is not None:
        raise NotMeasurableError(
            "a position bias within a kernel that shows neither its mask nor weights"
        )
    causal = options.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
    causal = causal and q.shape[2] > 1
    return {"mask": _kernel_mask(mask, q, v, causal, options.get("sliding_window")), "causal": causal}


def _kernel_mask(mask: Any, q: Tensor, v: Tensor, causal: bool, window: int | None) -> Mask | None:
    """The masks of kernels with their own language: padding as (batch, key), windows, blocks."""
    if mask is not None and hasattr(mask, "mask_mod"):
        from torch.nn.attention.flex_attention import create_mask

        return create_mask(mask.mask_mod, q.shape[0], 1, q.shape[2], v.shape[2], device=str(q.device))
    dense: Mask | None = None
    if isinstance(mask, Tensor):
        dense = padding_mask(mask.bool()) if mask.ndim == 2 else mask
    if window is not None and causal:
        own = torch.arange(q.shape[2], device=q.device) + v.shape[2] - q.shape[2]
        near = window_mask(own, v.shape[2], size=window) & causal_mask(own, v.shape[2])
        dense = near if dense is None else dense & near
    return dense
