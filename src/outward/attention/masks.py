"""Who may see whom, as boolean masks: True means visible. Combine them with `&`.

A mask has the axes (batch, head, query, key); an axis of size 1 counts for all.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

SelfKey = Int[Tensor, " query"] | Int[Tensor, "batch query"]


def causal_mask(self_key: SelfKey, num_keys: int) -> Bool[Tensor, "#batch 1 query key"]:
    """Each query sees its own key and all keys before it: j <= self_key_i."""
    return _key_minus_self(self_key, num_keys) <= 0


def itself_mask(self_key: SelfKey, num_keys: int) -> Bool[Tensor, "#batch 1 query key"]:
    """Each query sees its own key and no other: j = self_key_i."""
    return _key_minus_self(self_key, num_keys) == 0


def window_mask(self_key: SelfKey, num_keys: int, *, size: int) -> Bool[Tensor, "#batch 1 query key"]:
    """Each query sees keys fewer than `size` places from its own: |j - self_key_i| < size."""
    if size < 1:
        raise ValueError(
            f"window size {size}: a token must at least see itself; give a size of 1 or more"
        )
    return _key_minus_self(self_key, num_keys).abs() < size


def document_mask(document: Int[Tensor, "batch token"]) -> Bool[Tensor, "batch 1 token token"]:
    """Tokens of a packed row see the tokens of their own document: same number, same document."""
    return (document[:, None, :] == document[:, :, None])[:, None]


def padding_mask(valid: Bool[Tensor, "batch key"]) -> Bool[Tensor, "batch 1 1 key"]:
    """Nobody sees padding: `valid` is True at real tokens."""
    return valid[:, None, None, :]


def _key_minus_self(self_key: SelfKey, num_keys: int) -> Int[Tensor, "#batch 1 query key"]:
    own = self_key if self_key.ndim == 2 else self_key[None]
    keys = torch.arange(num_keys, device=self_key.device)
    return keys - own[:, None, :, None]
