"""Standard attention: the one thing that all forms share.

It is done by torch's fused kernels. Where these have no rules (under `torch.func`, in forward-mode
differentiation, and where a backward pass is itself differentiated) it is done plainly, by
operations that autograd knows, in float32 or wider; no switch of torch's is touched for that, as
those are shared by all threads.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from outward.attention.inputs import (
    Keys,
    Mask,
    Output,
    Queries,
    SelfKey,
    Values,
    check_mask,
    check_qkv,
    own_keys,
)
from outward.attention.masks import causal_mask


def standard_attention(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    causal: bool = False,
    mask: Mask | None = None,
    scale: float | None = None,
    self_key: SelfKey | None = None,
    dropout: float = 0.0,
) -> Output:
    """y_i = sum_j P_ij v_j, with P_ij the softmax over j of scale * q_i·k_j + mask_ij.

    The options below are the same for every form.

    causal: no query sees a key after its own.
    mask: bool (True: visible) or additive, broadcast to (batch, head, query, key). An additive mask
        hides by -inf, or by any number below what a bias may be, -2^26 (and half of the lowest of
        its type): those of finfo.min and -1e9 count as -inf. A query that sees no key gets 0.
    scale: 1/sqrt(dim) unless given.
    self_key: the index among the keys of each query's own key, as (query,) or (batch, query). It is
        the slot in the cache, not the position id: the two differ under left padding. Without it,
        query i is key i; where there are more keys than queries it must be given, or follow from
        causal=True with a mask of one row per query (the last visible key of the row).
    dropout: the probability with which a weight is dropped; nothing looks at a training flag here.

    k and v may have fewer heads than q, each serving a group of consecutive query heads.
    """
    check_qkv(q, k, v, dropout)
    mask = check_mask(mask, q, k)
    if causal:
        self_key = own_keys(q, k, causal=True, mask=mask, self_key=self_key)
    return softmax_attention(q, k, v, causal, mask, scale, self_key, dropout)


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    mask: Mask | None,
    scale: float | None,
    self_key: SelfKey | None,
    dropout: float,
) -> Tensor:
    """`standard_attention` for inputs that are checked already, on the road that knows the way."""
    if causal and (mask is not None or self_key is not None):
        mask, causal = restrict(mask, self_key, q, k), False
    if is_transformed(q, k, v, mask):
        return plain_attention(*autocast(q, k, v), mask, causal, scale, dropout)
    if needs_gradient(q, k, v) and has_flash(q, k, v, mask, dropout):
        return _Flash.apply(*for_flash(q, k, v), mask, causal, scale)
    if mask is not None and mask.dtype not in (torch.bool, q.dtype):
        mask = mask.to(q.dtype)
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale, **grouped
    )


def is_transformed(*inputs: object) -> bool:
    """Inside torch.func, or in forward-mode differentiation: the fused kernels have no rules there."""
    if torch.compiler.is_compiling():
        return False
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    return any(
        torch._C._functorch.is_functorch_wrapped_tensor(x)
        or forward_ad.unpack_dual(x).tangent is not None
        for x in tensors
    )


def needs_gradient(*inputs: Tensor | None) -> bool:
    """Whether autograd asks for a node, in eager mode; a compiler sees to its own."""
    if torch.compiler.is_compiling():
        return False
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)


def differentiates_again(gz: Tensor) -> bool:
    """Whether the backward pass must consist of operations that autograd or torch.func knows."""
    if torch.compiler.is_compiling():  # a compiled backward pass is final
        return False
    return torch.is_grad_enabled() or is_transformed(gz)


def restrict(mask: Mask | None, self_key: SelfKey | None, q: Tensor, k: Tensor) -> Mask:
    """Hide from each query the keys after its own, beside what the mask hides already."""
    if self_key is None:
        self_key = torch.arange(q.shape[2], device=q.device)
    past = causal_mask(self_key, k.shape[2])
    if mask is None:
        return past
    return mask & past if mask.dtype == torch.bool else mask.masked_fill(~past, -torch.inf)


def has_flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> bool:
    """Whether the flash kernel of the CPU can be called by hand, which gives the log-sum-exp too.

    It knows no dropout, no gradient of the mask and no transforms; an empty input crashes it.
    """
    return (
        q.device.type == "cpu"
        and q.shape[3] == v.shape[3]
        and dropout == 0.0
        and q.numel() > 0
        and k.numel() > 0
        and not (mask is not None and mask.requires_grad)
        and not is_transformed(q, k, v, mask)
    )


def for_flash(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As the kernel needs them: it knows no autocast, and makes NaN of a last axis that is strided.

    Before an autograd node and not in it, so that what the node keeps hangs on the graph.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in autocast(q, k, v))
    return q, k, v


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """(y, log-sum-exp) by the flash kernel of the CPU, of inputs that went through `for_flash`.

    Unlike torch's own attention it takes a mask of the keys and causal=True together, and skips the
    future all the same.
    """
    added = None if mask is None else additive(mask, q)
    y, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=added, scale=scale
    )
    return y, lse


def flash_gradient(
    gy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    y: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v. The kernel takes a boolean mask without complaint, and wrongly."""
    added = None if mask is None else additive(mask, q)
    gq, gk, gv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gy, q, k, v, y, lse, 0.0, causal, attn_mask=added, scale=scale
    )
    return gq, gk, gv


def additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as numbers to add: of a boolean one 0 where visible, -inf where hidden.

    In float32 beside half types, or in the type itself: of another the kernel makes garbage, silently.
    """
    if mask.dtype != torch.bool:
        return (
            mask if mask.dtype == like.dtype else mask.to(torch.promote_types(mask.dtype, like.dtype))
        )
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(~mask, -torch.inf)


def autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What autocast does for torch's own attention, which leaves float64 alone; it does not see us."""
    if not torch.is_autocast_enabled(q.device.type) or q.dtype == torch.float64:
        return q, k, v
    dtype = torch.get_autocast_dtype(q.device.type)
    return q.to(dtype), k.to(dtype), v.to(dtype)


class _Flash(torch.autograd.Function):
    """q, k, v -> y by the flash kernel of the CPU; torch's own node cannot be differentiated again."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float | None,
    ) -> Tensor:
        y, lse = flash_attention(q, k, v, mask, causal, scale)
        ctx.save_for_backward(q, k, v, y, lse, mask)
        ctx.causal, ctx.scale = causal, scale
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, y, lse, mask = ctx.saved_tensors
        if differentiates_again(gy):
            grads = plain_gradient(gy, q, k, v, mask, ctx.causal, ctx.scale)
        else:
            grads = flash_gradient(gy, q, k, v, y, lse, mask, ctx.causal, ctx.scale)
        return *grads, None, None, None


# ---- plainly


def plain_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    causal: bool,
    scale: float | None,
    dropout: float,
) -> Tensor:
    """Attention by operations that autograd and torch.func know, in float32 or wider."""
    with torch.autocast(q.device.type, enabled=False):
        P = _weights(q, k, mask, causal, scale)
        y = (F.dropout(P, dropout) if dropout else P) @ _wide_groups(v, v.shape[1])
        return y.flatten(1, 2).to(q.dtype)


def plain_gradient(
    gy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, which can be differentiated in turn.

    With G = gy v^T and gs = P * (G - sum_j P G): gv = P^T gy, gq = scale gs k, gk = scale gs^T q.
    """
    scale = q.shape[3] ** -0.5 if scale is None else scale
    wide_gy, wide_q, wide_k, wide_v = (_wide_groups(x, k.shape[1]) for x in (gy, q, k, v))
    with torch.autocast(q.device.type, enabled=False):
        P = _weights(q, k, mask, causal, scale)
        G = wide_gy @ wide_v.mT
        gs = scale * P * (G - (P * G).sum(dim=-1, keepdim=True))
        gq, gk, gv = gs @ wide_k, gs.mT @ wide_q, P.mT @ wide_gy
    return gq.flatten(1, 2).to(q.dtype), gk.sum(dim=2).to(k.dtype), gv.sum(dim=2).to(v.dtype)


def _weights(q: Tensor, k: Tensor, mask: Mask | None, causal: bool, scale: float | None) -> Tensor:
    """P_ij as (batch, kv_head, group, query, key); 0 in rows that see no key."""
    if causal:
        mask = restrict(mask, None, q, k)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    s = scale * _wide_groups(q, k.shape[1]) @ _wide_groups(k, k.shape[1]).mT
    if mask is None:
        return s.softmax(dim=-1)
    s = s + _groups(additive(mask, s), k.shape[1])
    blind = (s == -torch.inf).all(dim=-1, keepdim=True)
    return s.masked_fill(blind, 0).softmax(dim=-1).masked_fill(blind, 0)


def _wide_groups(x: Tensor, kv_heads: int) -> Tensor:
    return _groups(x.to(torch.promote_types(x.dtype, torch.float32)), kv_heads)


def _groups(x: Tensor, kv_heads: int) -> Tensor:
    """(batch, kv_head, group, ...), or 1 for both of the heads of what is the same for all."""
    return x.unsqueeze(1) if x.shape[1] == 1 else x.unflatten(1, (kv_heads, x.shape[1] // kv_heads))
