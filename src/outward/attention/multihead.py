"""A drop-in for `nn.MultiheadAttention`: the same parameters, the same call, exclusive output."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from outward.attention.exclusive import exclude_self
from outward.attention.inputs import Mask, is_visible
from outward.attention.standard import softmax_attention


class ExclusiveMultiheadAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` with z_i = y_i - α (y_i·v̂_i) v̂_i per head, before `out_proj`.

    State dicts load with strict=True both ways. Constructor and call are those of torch, whose masks
    mean the opposite of ours: True hides. Three differences: query and key must be the same object
    (cross-attention has no own value); a token that sees no key gets 0 rather than NaN; and
    `strength` may be set, α = 1 unless it is.

    The weights that need_weights=True returns are those of the softmax: exclusion changes what is
    made of them, not them.
    """

    strength: float = 1.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._has_one_projection = self._qkv_same_embed_dim
        # nn.TransformerEncoderLayer has a fast path for inference that reads our parameters and
        # never calls us, unless this says that it must not. Nothing else in torch reads it.
        self._qkv_same_embed_dim = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        self._check(query, key, value, attn_mask, is_causal)
        batched = query.ndim == 3
        x, values = (self._batch_first(t, batched) for t in (query, value))
        q, k, v = self._project(x, values)
        causal = is_causal and key_padding_mask is None and not need_weights and not self._adds_keys
        mask = None if causal else self._mask(attn_mask, key_padding_mask, q, k, batched)
        dropout = self.dropout if self.training else 0.0
        own = v[:, :, : q.shape[2]]
        if need_weights:
            weights = F.dropout(_weights(q, k, mask), dropout)
            y = weights @ v
        else:
            y = softmax_attention(q, k, v, causal, mask, None, None, dropout)
        z = exclude_self(y, own.to(y.dtype), strength=self.strength)
        out = self.out_proj(z.transpose(1, 2).flatten(-2))
        if not batched:
            out = out.squeeze(0)
        elif not self.batch_first:
            out = out.transpose(0, 1)
        if not need_weights:
            return out, None
        shown = weights.mean(dim=1) if average_attn_weights else weights
        return out, shown if batched else shown.squeeze(0)

    @property
    def _adds_keys(self) -> bool:
        return self.bias_k is not None or self.add_zero_attn

    def _check(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool
    ) -> None:
        if query.is_nested or value.is_nested:
            raise ValueError(
                "exclusive attention does not take nested tensors: build nn.TransformerEncoder with "
                "enable_nested_tensor=False, or set use_nested_tensor = False on one that is built"
            )
        if query is not key:
            raise ValueError(
                "cross-attention: query and key are not the same tensor object, so the query tokens "
                "need not be among the keys, and have no own value to exclude. Call with the same "
                "object for both if this is self-attention, or keep nn.MultiheadAttention here."
            )
        if query.ndim not in (2, 3) or value.shape[:-1] != key.shape[:-1]:
            raise ValueError(
                f"query {tuple(query.shape)}, value {tuple(value.shape)}: both must be (token, dim), "
                "or both have the same batch and tokens"
            )
        if is_causal and attn_mask is None:
            raise ValueError("is_causal=True is a hint about attn_mask: pass the mask too")

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _project(self, x: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self._has_one_projection:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (F.linear(t, w, b) for t, w, b in zip((x, x, values), weights, biases, strict=True))
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat((k, self.bias_k.to(k.dtype).expand(len(k), -1, -1)), dim=1)
            v = torch.cat((v, self.bias_v.to(v.dtype).expand(len(v), -1, -1)), dim=1)
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        return q, k, v

    def _mask(
        self,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        q: Tensor,
        k: Tensor,
        batched: bool,
    ) -> Mask | None:
        """torch's two masks (True hides) as one of ours, additive, with the added keys visible."""
        mask = None
        if attn_mask is not None:
            mask = _to_add(attn_mask, q)
            mask = (
                mask.view(-1, self.num_heads, *mask.shape[1:]) if mask.ndim == 3 else mask[None, None]
            )
        if key_padding_mask is not None:
            padding = _to_add(key_padding_mask if batched else key_padding_mask[None], q)
            padding = padding[:, None, None, :]
            mask = padding if mask is None else mask + padding
        added = k.shape[2] - q.shape[2]
        return F.pad(mask, (0, added)) if mask is not None and added else mask


def _to_add(mask: Tensor, q: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(q.dtype)
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask, -torch.inf)


def _weights(
    q: Float[Tensor, "batch head query dim"],
    k: Float[Tensor, "batch head key dim"],
    mask: Mask | None,
) -> Float[Tensor, "batch head query key"]:
    scores = q.shape[3] ** -0.5 * q @ k.mT
    if mask is None:
        return scores.softmax(dim=-1)
    seen = is_visible(mask).any(dim=-1, keepdim=True)
    return (scores + mask).masked_fill(~seen, 0).softmax(dim=-1).masked_fill(~seen, 0)
