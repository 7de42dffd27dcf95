"""From what a tier saw to (batch, head, token, dim), and from shapes to who is whose own key."""

from typing import Any

import torch
from torch import Tensor

from outward.attention.inputs import Mask, SelfKey, is_visible, last_visible_key


class NotMeasurableError(Exception):
    """Attention that cannot be read as self-attention by softmax over keys, and why."""


DROPPED_OUT = "its weights are dropped out at random: call model.eval() first"


def four_axes(x: Tensor, heads: int | None = None) -> Tensor:
    """(..., head, token, dim) with all axes before the head as one batch.

    With three axes, (batch * head, token, dim), the number of heads must be known.
    """
    if x.ndim == 3:
        heads = 1 if heads is None or x.shape[0] % heads else heads
        return x.unflatten(0, (-1, heads))
    return x if x.ndim == 4 else x.flatten(0, -4)


def four_axes_mask(mask: Tensor | None, like: Tensor, leads: tuple[int, ...]) -> Mask | None:
    """A mask that broadcasts to (*leads, query, key), for a call brought to (batch, head, ...)."""
    if mask is None:
        return None
    if mask.ndim == 4:  # the same object: layers that share a mask can be told
        return mask
    if mask.ndim <= 2:
        return mask.view((1,) * (4 - mask.ndim) + mask.shape)
    batch, heads = like.shape[:2]
    if len(leads) == 2:
        return mask[(None,) * (4 - mask.ndim)]
    spread = mask.expand(*leads, *mask.shape[-2:])
    return spread.reshape(batch, heads, *mask.shape[-2:])


def output_axes(y: Tensor, q: Tensor, v: Tensor) -> Tensor:
    """What transformers' attention functions return, (batch, token, head, dim), heads first."""
    batch, heads, tokens = q.shape[:3]
    if y.ndim == 3:
        y = y.unflatten(-1, (heads, -1))
    if y.shape == (batch, tokens, heads, v.shape[3]):
        return y.transpose(1, 2)
    if y.shape == (batch, heads, tokens, v.shape[3]):
        return y
    raise NotMeasurableError(
        f"its output {tuple(y.shape)} is not (batch, token, head, dim) of q {tuple(q.shape)}"
    )


def number_of_heads(module: Any) -> int | None:
    """What an attention module calls the number of its heads."""
    for name in ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads"):
        found = getattr(module, name, None)
        if isinstance(found, int) and not isinstance(found, bool):
            return found
    return None


def find_self_key(
    q: Tensor, v: Tensor, mask: Mask | None, *, cached: bool, causal: bool = False
) -> SelfKey | None:
    """The own key of each query; None says that query i is key i. Refuses to guess from shapes."""
    queries, keys = q.shape[2], v.shape[2]
    if queries == keys:
        return None
    if not cached:
        raise NotMeasurableError(
            f"cross-attention by its shapes ({queries} queries, {keys} keys, no cache): the query "
            "tokens are not the key tokens"
        )
    if mask is None:
        if causal:  # torch shows query i the keys up to i, however many more there are
            return torch.arange(queries, device=v.device)
        if queries > 1:
            raise NotMeasurableError(
                f"{queries} queries and {keys} keys without a mask that orders them"
            )
        return torch.full((1,), keys - 1, device=v.device)
    visible = is_visible(mask).any(dim=1, keepdim=True)
    try:
        return last_visible_key(visible).expand(q.shape[0], queries)
    except ValueError as error:
        raise NotMeasurableError(
            f"{queries} queries, {keys} keys, and a mask that does not order them: whose own key is "
            "whose cannot be told"
        ) from error
