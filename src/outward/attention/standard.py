"""Standard attention: the one thing that all forms share."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

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
    mask: bool (True: visible) or additive (-inf: hidden), broadcast to (batch, head, query, key).
        A query that sees no key gets 0.
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
    """`standard_attention` for inputs that are checked already, by torch's fused kernels."""
    if causal and (mask is not None or self_key is not None):
        mask, causal = restrict(mask, self_key, q, k), False
    if mask is not None and mask.dtype not in (torch.bool, q.dtype):
        mask = mask.to(q.dtype)
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    with sdpa_kernel(SDPBackend.MATH) if is_transformed(q, k, v, mask) else nullcontext():
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=causal,
            scale=scale,
            **grouped,
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
        and not (mask is not None and mask.requires_grad)
        and not is_transformed(q, k, v, mask)
    )


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """(y, log-sum-exp) by the flash kernel of the CPU.

    Unlike torch's own attention it takes a mask of the keys and causal=True together, and skips the
    future all the same. It returns NaN for inputs whose last axis is strided.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
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
    """A boolean mask as numbers to add: 0 where visible, -inf where hidden."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(~mask, -torch.inf)


def autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What autocast does for torch's own attention; it does not see the kernel behind it."""
    if not torch.is_autocast_enabled(q.device.type):
        return q, k, v
    dtype = torch.get_autocast_dtype(q.device.type)
    return q.to(dtype), k.to(dtype), v.to(dtype)
