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
    `strength` may be set, α = 1 unless it is: to a number, or to an `nn.Parameter` of shape () or
    (num_heads,), which is then learned and part of the state dict.

    The weights that need_weights=True returns are those of the softmax: exclusion changes what is
    made of them, not them.
    """

    strength: float | Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.kdim != self.embed_dim:
            raise ValueError(
                f"kdim={self.kdim}: query and key are the same tensor here, so it must be embed_dim, "
                f"{self.embed_dim}; leave it out. Only the value may differ, by vdim."
            )
        self.strength = 1.0

    def _reset_parameters(self) -> None:
        """What torch's constructor ends with, and some initialisers of models call again."""
        self._qkv_same_embed_dim = self._has_one_projection
        super()._reset_parameters()
        # nn.TransformerEncoderLayer has a fast path for inference that reads our parameters and
        # never calls us, unless this says that it must not. Nothing else in torch reads it.
        self._qkv_same_embed_dim = False

    @property
    def _has_one_projection(self) -> bool:
        return self.in_proj_weight is not None

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
        self._check(query, key, value)
        batched = query.ndim == 3
        self._check_masks(query, attn_mask, key_padding_mask)
        hinted = is_causal and key_padding_mask is None and not need_weights
        self._check_hint(is_causal, hinted, attn_mask)
        x, values = (self._batch_first(t, batched) for t in (query, value))
        q, k, v = self._project(x, values)
        mask = None if hinted else self._mask(attn_mask, key_padding_mask, q, k, batched)
        dropout = self.dropout if self.training else 0.0
        own = v[:, :, : q.shape[2]]
        if need_weights:
            weights = F.dropout(_weights(q, k, mask), dropout)
            y = weights @ v
        else:
            y = softmax_attention(q, k, v, hinted, mask, None, None, dropout)
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

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
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

    def _check_hint(self, is_causal: bool, hinted: bool, attn_mask: Tensor | None) -> None:
        """hinted: whether torch would take the word of is_causal=True and not look at the mask."""
        if is_causal and attn_mask is None:
            raise ValueError("is_causal=True is a hint about attn_mask: pass the mask too")
        if hinted and self._adds_keys:
            raise ValueError(
                "is_causal=True with bias_k or add_zero_attn: the added keys come last, and the hint "
                "would hide them, which the mask does not. Pass attn_mask alone."
            )

    def _check_masks(
        self, query: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None
    ) -> None:
        """The types and shapes that torch takes, and no others."""
        rows = query.shape[:-1] if query.ndim == 2 or self.batch_first else query.shape[1::-1]
        batch, tokens = (1, *rows) if len(rows) == 1 else rows
        square = (tokens, tokens)
        _check_one_mask("attn_mask", attn_mask, square, (batch * self.num_heads, *square))
        _check_one_mask("key_padding_mask", key_padding_mask, tuple(rows))

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
        if mask is None:
            return None
        mask = mask.masked_fill(~is_visible(mask), -torch.inf)
        return F.pad(mask, (0, k.shape[2] - q.shape[2]))


def _check_one_mask(name: str, mask: Tensor | None, *wanted: tuple[int, ...]) -> None:
    if mask is None:
        return
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"{name} is {mask.dtype}: it must be bool (True hides) or floating, to be added."
        )
    if not any(mask.shape == shape for shape in wanted):
        raise ValueError(f"{name} {tuple(mask.shape)}: it must be {' or '.join(map(str, wanted))}.")


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
