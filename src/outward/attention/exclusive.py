"""Exclusive Self Attention, fast: y without its component along the token's own value.

    z_i = y_i - α (y_i·v_i)/(v_i·v_i) v_i        per head, before the output projection

What it means is written in reference.py; the arithmetic is in projection.py. Here are the two
autograd nodes that keep little for the backward pass, and the choice between them:

* `exclude_self` keeps y and v, which attention keeps anyway;
* `exclusive_attention` on the CPU is one node around torch's flash kernel that overwrites y with z
  and keeps, beyond what attention keeps, one number per token and head. Its backward pass hands z
  to the flash kernel in place of y: the kernel uses y only in sum(gy * y), and the gradient gy is
  at right angles to v, so sum(gy * y) = sum(gy * z).

Under `torch.func`, in forward-mode differentiation and where the backward pass is itself
differentiated, both become plain operations that autograd knows. Compiled, the nodes stay, and what
is in them becomes operations that the compiler fuses.
"""

import math
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from outward.attention.inputs import (
    Keys,
    Mask,
    Output,
    Queries,
    SelfKey,
    Values,
    check_mask,
    check_own_values,
    check_qkv,
    check_yv,
    looks_at_values,
    own_keys,
    own_values,
)
from outward.attention.projection import (
    WHOLE,
    Impl,
    Strength,
    gradient,
    gradient_summed,
    project,
    project_rows,
)
from outward.attention.standard import (
    differentiates_again,
    flash_attention,
    flash_gradient,
    for_flash,
    has_flash,
    is_transformed,
    plain_attention,
    plain_gradient,
    softmax_attention,
)


def exclude_self(
    y: Float[Tensor, "batch head token dim"],
    v: Float[Tensor, "batch kv_head token dim"],
    *,
    strength: Float[Tensor, "..."] | float | int | None = None,
    impl: Impl = "eager",
) -> Float[Tensor, "batch head token dim"]:
    """z_i = y_i - α (y_i·v̂_i) v̂_i: take from each output its component along its own value.

    y is the output of attention per head, before the output projection, and v[:, :, i] the value of
    the token of y[:, :, i]. v may have fewer heads than y, each serving a group of consecutive ones.
    strength is α: a number, (head,), or (batch, head, token); all of the component goes without it.

    impl="compiled" makes one kernel of the arithmetic: on the CPU in float32 and bfloat16 our own,
    which the machine's C++ compiler makes at the first use; elsewhere torch.compile's, which needs
    Triton on a GPU and takes seconds. In a model that is compiled itself it makes no difference.

    v_i = 0 leaves y_i as it is; y_i equal to v_i gives exactly 0. NaN and infinity are refused on
    the CPU in eager mode; elsewhere they are not looked for, and make NaN of the tokens they touch.
    """
    check_yv(y, v)
    check_impl(impl)
    alpha = check_strength(strength, y)
    pairs, values = pair(y, v)
    if isinstance(alpha, Tensor):
        alpha = group_strength(alpha, pairs)
    if is_transformed(y, v, alpha):
        z, _ = project_rows(pairs, values, alpha)
    else:
        z = _ExcludeSelf.apply(pairs, values, alpha, impl)
    return z.flatten(1, 2)


def exclusive_attention(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    causal: bool = False,
    mask: Mask | None = None,
    scale: float | None = None,
    self_key: SelfKey | None = None,
    dropout: float = 0.0,
    impl: Impl = "eager",
) -> Output:
    """z_i = y_i - (y_i·v̂_i) v̂_i, with y_i the output of standard attention (arXiv 2603.09078).

    The options are those of `standard_attention`; `impl` is that of `exclude_self`. With a cache, k
    and v hold more tokens than q: say which key is each query's own by self_key, or by causal=True
    and a mask of one row per query.
    """
    check_qkv(q, k, v, dropout)
    check_own_values(v)
    check_impl(impl)
    mask = check_mask(mask, q, k)
    self_key = own_keys(q, k, causal=causal, mask=mask, self_key=self_key)
    if self_key is None and has_flash(q, k, v, mask, dropout):
        return _ExclusiveFlash.apply(*for_flash(q, k, v), mask, causal, scale, impl)
    y = softmax_attention(q, k, v, causal, mask, scale, self_key, dropout)
    return exclude_self(y, own_values(v, self_key).to(y.dtype), impl=impl)


def check_impl(impl: str) -> None:
    """One of the two, by name."""
    if impl not in get_args(Impl):
        raise ValueError(f"impl={impl!r}: it must be one of {', '.join(get_args(Impl))}.")


def check_strength(strength: Tensor | float | int | None, y: Tensor) -> Strength:
    """None, a number, (head,) or (batch, head, token) to a number or four axes."""
    if strength is None or isinstance(strength, int | float):
        alpha = WHOLE if strength is None else float(strength)
        if not (torch.compiler.is_compiling() or math.isfinite(alpha)):
            raise ValueError(
                f"strength {alpha}: it must be a finite number; 1 takes out the whole part."
            )
        return alpha
    if looks_at_values(strength) and not strength.isfinite().all():
        raise ValueError(f"strength {tuple(strength.shape)} holds NaN or infinity.")
    if strength.device != y.device:
        raise TypeError(f"strength is on {strength.device} and y on {y.device}; use .to(...) first.")
    if strength.ndim == 0:
        return strength.expand(1, 1, 1, 1)
    if strength.shape == (y.shape[1],):
        return strength[None, :, None, None]
    if strength.shape == y.shape[:3]:
        return strength[..., None]
    raise ValueError(
        f"strength {tuple(strength.shape)} for y {tuple(y.shape)}: it must be a number, one per head "
        f"({y.shape[1]},), or one per token {tuple(y.shape[:3])}."
    )


def pair(y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Query heads beside their value head, as views: (batch, kv_head, group or 1, token, dim)."""
    kv_heads = v.shape[1]
    return y.unflatten(1, (kv_heads, y.shape[1] // kv_heads)), v.unsqueeze(2)


def group_strength(alpha: Tensor, pairs: Tensor) -> Tensor:
    """The axes of `pair` for a strength of four axes."""
    if alpha.shape[1] == 1:
        return alpha.unsqueeze(1)
    return alpha.unflatten(1, pairs.shape[1:3])


def refuse_old_batching(gz: Tensor) -> None:
    """torch.autograd's own vmap, older than torch.func, has no rules for views and results."""
    if torch.compiler.is_compiling():
        return
    if torch._C._functorch.is_legacy_batchedtensor(gz):
        raise RuntimeError(
            "exclusive attention cannot batch its gradient by is_grads_batched=True or "
            "torch.autograd.functional.jacobian(vectorize=True); use torch.func.jacrev or "
            "torch.func.vmap over torch.func.vjp, which it supports."
        )


class _ExcludeSelf(torch.autograd.Function):
    """y, v, α -> z, on paired heads; keeps y, v and α."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, v: Tensor, strength: Strength, impl: Impl) -> Tensor:
        ctx.save_for_backward(y, v, strength if isinstance(strength, Tensor) else None)
        ctx.number, ctx.impl = strength, impl
        z, _ = project(y, v, strength, impl=impl, in_place=False)
        return z

    @staticmethod
    def backward(ctx: Any, gz: Tensor) -> tuple[Tensor | None, ...]:
        refuse_old_batching(gz)
        y, v, strength = ctx.saved_tensors
        alpha = ctx.number if strength is None else strength
        if differentiates_again(gz):
            z1, c = project_rows(y, v, WHOLE)
            gy, gv, g_alpha = gradient_summed(gz, z1, c, v, alpha)
        else:
            z1, a = project(y, v, WHOLE, impl=ctx.impl, in_place=False)
            gy, gv, g_alpha = gradient(gz, z1, a, v, alpha, impl=ctx.impl)
        if strength is None:
            return gy, gv, None, None
        return gy, gv, g_alpha.sum_to_size(strength.shape).to(strength.dtype), None


class _ExclusiveFlash(torch.autograd.Function):
    """q, k, v -> z in one node; keeps q, k, v, z, the log-sum-exp, and a = (y·v)/(v·v)."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float | None,
        impl: Impl,
    ) -> Tensor:
        y, lse = flash_attention(q, k, v, mask, causal, scale)
        z1, a = project(*pair(y, v), WHOLE, impl=impl, in_place=True)
        z = z1.flatten(1, 2) if torch.compiler.is_compiling() else y
        ctx.save_for_backward(q, k, v, z, lse, a, mask)
        ctx.causal, ctx.scale, ctx.impl = causal, scale, impl
        return z

    @staticmethod
    def backward(ctx: Any, gz: Tensor) -> tuple[Tensor | None, ...]:
        refuse_old_batching(gz)
        q, k, v, z, lse, a, mask = ctx.saved_tensors
        if differentiates_again(gz):
            grads = _plain_exclusive_gradient(gz, q, k, v, mask, ctx.causal, ctx.scale)
            return *grads, None, None, None, None
        (z1, values), (gz1, _) = pair(z, v), pair(gz, v)
        gy, gv, _ = gradient(gz1, z1, a, values, WHOLE, impl=ctx.impl)
        gq, gk, gv_through_y = flash_gradient(
            gy.flatten(1, 2), q, k, v, z, lse, mask, ctx.causal, ctx.scale
        )
        return gq, gk, gv_through_y.add_(gv.squeeze(2)), None, None, None, None


def _plain_exclusive_gradient(
    gz: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, ...]:
    """The gradient once more by plain operations, so that it can be differentiated in turn."""
    y = plain_attention(q, k, v, mask, causal, scale, 0.0)
    (y1, values), (gz1, _) = pair(y, v), pair(gz, v)
    z1, c = project_rows(y1, values, WHOLE)
    gy, gv, _ = gradient_summed(gz1, z1, c, values, WHOLE)
    gq, gk, gv_through_y = plain_gradient(gy.flatten(1, 2), q, k, v, mask, causal, scale)
    return gq, gk, gv_through_y + gv.squeeze(2)
