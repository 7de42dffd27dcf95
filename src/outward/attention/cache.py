"""Keys and values of the tokens so far, for decoding step by step. One cache for each layer."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class KVCache:
    """Grows with every call; with `max_tokens` a fixed buffer; with `window` the last tokens only.

    A fixed buffer is longer than what is filled: its tail is zeros, and no key of a token. That is
    why `append` says by `self_key` where among the keys the new tokens are.
    """

    def __init__(self, *, max_tokens: int | None = None, window: int | None = None) -> None:
        if max_tokens is not None and window is not None:
            raise ValueError("a cache is either a fixed buffer (max_tokens) or sliding (window)")
        self.max_tokens, self.window = max_tokens, window
        self.num_tokens = 0  # seen so far
        self.num_dropped = 0  # of these, no longer kept
        self._kept: tuple[Tensor, Tensor, Tensor] | None = None

    def append(
        self,
        k: Float[Tensor, "batch kv_head token dim"],
        v: Float[Tensor, "batch kv_head token value_dim"],
        valid: Bool[Tensor, "batch token"],
    ) -> tuple[
        Float[Tensor, "batch kv_head key dim"],
        Float[Tensor, "batch kv_head key value_dim"],
        Bool[Tensor, "batch key"],
        Int[Tensor, " token"],
    ]:
        """All keys, values and validities to attend to, and the index of each new token's own key."""
        start = self.num_tokens - self.num_dropped
        self.num_tokens += k.shape[2]
        self_key = torch.arange(start, start + k.shape[2], device=k.device)
        new = (k, v, valid)
        if self.max_tokens is not None:
            return *self._write(new, start, self.max_tokens), self_key
        old = self._kept
        full = (
            new
            if old is None
            else (
                torch.cat((old[0], k), dim=2),
                torch.cat((old[1], v), dim=2),
                torch.cat((old[2], valid), dim=1),
            )
        )
        self._keep(full)
        return *full, self_key

    def _keep(self, full: tuple[Tensor, Tensor, Tensor]) -> None:
        """A token sees itself and window - 1 tokens before it: the next needs no more than these."""
        k, v, valid = full
        if self.window is not None and k.shape[2] > self.window - 1:
            first = k.shape[2] - (self.window - 1)
            self.num_dropped += first
            k, v, valid = k[:, :, first:], v[:, :, first:], valid[:, first:]
        self._kept = k, v, valid

    def _write(
        self, new: tuple[Tensor, Tensor, Tensor], start: int, size: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        k, v, valid = new
        end = start + k.shape[2]
        if end > size:
            self.num_tokens = start
            raise ValueError(
                f"the cache holds {start} of {size} tokens, and {k.shape[2]} more do not fit: "
                f"make it with max_tokens={end} or more"
            )
        if self._kept is None:
            self._kept = (
                k.new_zeros(*k.shape[:2], size, k.shape[3]),
                v.new_zeros(*v.shape[:2], size, v.shape[3]),
                valid.new_zeros(valid.shape[0], size),
            )
        kept_k, kept_v, kept_valid = self._kept
        kept_k[:, :, start:end], kept_v[:, :, start:end] = k, v
        kept_valid[:, start:end] = valid
        return self._kept
