"""What every form accepts, checked once: shapes, masks, and which key is a token's own.

Only shapes, types and devices are checked in compiled code, under torch.func and on accelerators,
where a look at the values would cost a graph break or a synchronisation; on the CPU in eager mode
the values of `self_key` and of masks are checked too.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Queries = Float[Tensor, "batch head query dim"]
Keys = Float[Tensor, "batch kv_head key dim"]
Values = Float[Tensor, "batch kv_head key value_dim"]
Output = Float[Tensor, "batch head query value_dim"]
Mask = Bool[Tensor, "..."] | Float[Tensor, "..."]
SelfKey = Int[Tensor, " query"] | Int[Tensor, "batch query"]

# No additive mask hides below this; from 2^26 on, numbers of float32 lie 8 apart, and a score that is
# added to one is lost. Biases stay above: those of ALiBi reach -1e6 at a million tokens. Masks that
# mean to hide lie below: -1e8, -1e9, finfo.min. (exp(mask) = 0 would be too high a bar: a softmax is
# blind to what a row has in common, and a bias of -1000 says only that other keys come first.)
LOWEST_BIAS = -(2.0**26)

# Old code hides by -1e4, which float16 can hold. It is told from a bias by having no other value than 0
# beside it; no bias has two values and this distance.
HIGHEST_HIDING = -1e3

SELF_KEY_RULE = (
    "Which key is each query's own cannot be told from shapes. With a cache, pass self_key, the "
    "index among the keys of each query's own key, as (query,) or (batch, query); or causal=True "
    "with a mask of one row per query, whose last visible key is the query's own. Cross-attention, "
    "where the query tokens are not among the keys, has no own key: use standard_attention there."
)


def shapes(**tensors: Tensor) -> str:
    """What the messages quote: name (shape), name (shape)."""
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items())


def check_qkv(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> None:
    """Shapes, head counts, types and devices of query, key and value."""
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout {dropout}: it is a probability, from 0 to 1.")
    if not (q.ndim == k.ndim == v.ndim == 4):
        raise ValueError(f"{shapes(q=q, k=k, v=v)}: each must have the axes (batch, head, token, dim).")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"{shapes(q=q, k=k, v=v)}: k and v must agree in batch, heads and tokens.")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"{shapes(q=q, k=k, v=v)}: q and k must agree in batch and dim (first, last).")
    check_heads(q=q, v=v)
    check_alike(q=q, k=k, v=v)


def check_yv(y: Tensor, v: Tensor) -> None:
    """Shapes, head counts, types and devices of an attention output and the own values."""
    if y.ndim != 4 or v.ndim != 4:
        raise ValueError(f"{shapes(y=y, v=v)}: each must have the axes (batch, head, token, dim).")
    if y.shape[0] != v.shape[0] or y.shape[2:] != v.shape[2:]:
        raise ValueError(
            f"{shapes(y=y, v=v)}: y and v must agree in batch, tokens and dim. v[:, :, i] must be the "
            f"value of the token that y[:, :, i] belongs to. {SELF_KEY_RULE}"
        )
    check_own_values(v)
    check_heads(y=y, v=v)
    check_alike(y=y, v=v)


def check_own_values(v: Tensor) -> None:
    """An empty dim has no direction."""
    if v.shape[3] == 0:
        raise ValueError(f"{shapes(v=v)}: the last axis is empty; a value needs at least one dim.")


def check_heads(*, v: Tensor, **queries: Tensor) -> None:
    """The heads of q (or y), named by its keyword, divide over those of v."""
    ((_, q),) = queries.items()
    heads, kv_heads = q.shape[1], v.shape[1]
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(
            f"{shapes(**queries, v=v)}: {heads} query heads do not divide evenly over {kv_heads} value "
            "heads. Under grouped-query attention each value head serves head // kv_head consecutive "
            "query heads."
        )


def check_alike(**tensors: Tensor) -> None:
    """One floating type, one device."""
    first = next(iter(tensors.values()))
    for name, x in tensors.items():
        if not x.is_floating_point():
            raise TypeError(f"{name} is {x.dtype}: attention needs a floating-point type.")
        if x.dtype != first.dtype or x.device != first.device:
            given = ", ".join(f"{n} {t.dtype} on {t.device}" for n, t in tensors.items())
            raise TypeError(f"{given}: all must have the same type and device; use .to(...) first.")


def check_mask(mask: Mask | None, q: Tensor, k: Tensor) -> Mask | None:
    """A boolean (True: visible) or additive mask, brought to 4 axes; -inf where it hides."""
    if mask is None:
        return None
    if mask.dtype != torch.bool and mask.dtype not in (q.dtype, torch.float32):
        raise TypeError(
            f"mask is {mask.dtype}: it must be bool (True: visible), or additive of type {q.dtype} "
            "or float32 (-inf: hidden)."
        )
    if mask.device != q.device:
        raise TypeError(f"mask is on {mask.device} and q on {q.device}; use .to(...) first.")
    want = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    four = mask[(None,) * (4 - mask.ndim)] if mask.ndim < 4 else mask
    # not `m not in (1, w)`: the compiler gets that wrong where sizes are symbols
    if four.ndim != 4 or any(m != 1 and m != w for m, w in zip(four.shape, want, strict=True)):
        raise ValueError(
            f"mask {tuple(mask.shape)} does not broadcast to (batch, head, query, key) = {want}."
        )
    if looks_at_values(mask) and mask.dtype != torch.bool and mask.isnan().any():
        raise ValueError(f"mask {tuple(mask.shape)} holds NaN; an additive mask hides with -inf.")
    if four.shape[3] != k.shape[2]:  # what has one column speaks of every key
        four = four.expand(-1, -1, -1, k.shape[2]).contiguous()
    return four if four.dtype == torch.bool else four.masked_fill(~is_visible(four), -torch.inf)


def own_keys(
    q: Tensor, k: Tensor, *, causal: bool, mask: Mask | None, self_key: SelfKey | None
) -> SelfKey | None:
    """The index of each query's own key; None says that query i is key i."""
    queries, keys = q.shape[2], k.shape[2]
    if self_key is not None:
        return _check_self_key(self_key, q, k)
    if queries == keys:
        return None
    if causal and mask is not None:
        if mask.shape[2] != queries:
            raise ValueError(
                f"mask {tuple(mask.shape)} has one row for {queries} queries. {SELF_KEY_RULE}"
            )
        return last_visible_key(mask).expand(q.shape[0], queries)
    raise ValueError(f"{shapes(q=q, k=k)}: {queries} queries, {keys} keys. {SELF_KEY_RULE}")


def own_values(v: Values, self_key: SelfKey | None) -> Float[Tensor, "batch kv_head query dim"]:
    """The value of each query's own token: v itself where query i is key i."""
    if self_key is None:
        return v
    if self_key.ndim == 1:
        return v.index_select(2, self_key)
    index = self_key[:, None, :, None].expand(-1, v.shape[1], -1, v.shape[3])
    return v.gather(2, index.long())


def is_visible(mask: Mask) -> Bool[Tensor, "..."]:
    """Which keys a mask shows. Additive ones hide by -inf, finfo.min, or what no bias reaches: -1e9."""
    if mask.dtype == torch.bool:
        return mask
    return mask > max(torch.finfo(mask.dtype).min / 2, LOWEST_BIAS)


def hides_by_two_values(mask: Mask) -> bool:
    """Whether an additive mask is 0, and one number at or below -1000 that hides: in old code -1e4.

    Twice that number is no third value: causal masks and padding were added. What hides in any case,
    as -inf, is none either.
    """
    if mask.dtype == torch.bool or mask.numel() == 0:
        return False
    seen = is_visible(mask)
    low = mask[seen & (mask <= HIGHEST_HIDING)]
    if low.numel() == 0:
        return False
    top = low.max()
    return bool(((mask == 0) | (mask == top) | (mask == 2 * top) | ~seen).all())


def last_visible_key(mask: Mask) -> Int[Tensor, "batch query"]:
    """The last key that each row of a causal mask shows; 0 in rows that show none."""
    visible = is_visible(mask)
    if mask.shape[1] != 1:
        raise ValueError(f"mask {tuple(mask.shape)} differs by head. {SELF_KEY_RULE}")
    last = (visible[:, 0] * torch.arange(mask.shape[3], device=mask.device)).amax(dim=-1)
    if looks_at_values(mask):
        rows = visible[:, 0].any(dim=-1)
        both = rows[:, 1:] & rows[:, :-1]
        if (both & (last.diff(dim=-1) <= 0)).any():
            raise ValueError(
                f"mask {tuple(mask.shape)} is not causal: two queries in a row end at the same key "
                f"or an earlier one. {SELF_KEY_RULE}"
            )
    return last


def looks_at_values(x: Tensor) -> bool:
    """Whether a check of values is free here: in eager mode, on the CPU, outside torch.func."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(x)


def _check_self_key(self_key: SelfKey, q: Tensor, k: Tensor) -> SelfKey:
    batch, queries, keys = q.shape[0], q.shape[2], k.shape[2]
    if not isinstance(self_key, Tensor):
        raise TypeError(f"self_key is {self_key!r}: it must be a tensor of indices, one per query.")
    if self_key.shape != (queries,) and self_key.shape != (batch, queries):
        raise ValueError(
            f"self_key {tuple(self_key.shape)}: it must be (query,) = ({queries},) or "
            f"(batch, query) = ({batch}, {queries})."
        )
    if self_key.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"self_key is {self_key.dtype}: indices must be int64 or int32.")
    if self_key.device != k.device:
        raise TypeError(f"self_key is on {self_key.device} and k on {k.device}; use .to(...) first.")
    if looks_at_values(self_key) and ((self_key < 0) | (self_key >= keys)).any():
        raise ValueError(
            f"self_key reaches from {self_key.min()} to {self_key.max()}, but there are {keys} keys, "
            f"0 to {keys - 1}. Cross-attention has no own key: use standard_attention there."
        )
    return self_key
