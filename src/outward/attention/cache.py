"""Keys and values of the tokens so far, for decoding step by step. One cache for each layer."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


class KVCache:
    """Grows with every call; with `max_tokens` a fixed buffer; with `window` the last tokens only.

    A fixed buffer is longer than what is filled: its tail is zeros, and no key of a token. That is
    why `append` says by `self_key` where among the keys the new tokens are.
    """

    def __init__(self, *, max_tokens: int | None = None, window: int | None = None) -> None:
        if max_tokens is not None and window is not None:
            raise ValueError("a cache is either a fixed buffer (max_tokens) or sliding (window)")
        for name, size in (("max_tokens", max_tokens), ("window", window)):
            if size is not None and size < 1:
                raise ValueError(f"{name}={size}: a cache holds at least one token")
        self.max_tokens, self.window = max_tokens, window
        self.num_tokens = 0  # seen so far
        self.num_dropped = 0  # of these, no longer kept
        self._kept: tuple[Tensor, Tensor, Tensor] | None = None
        self._layer: weakref.ref[nn.Module] | None = None

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
        start, new = self.num_tokens - self.num_dropped, (k, v, valid)
        self._check(new, start)
        self_key = torch.arange(start, start + k.shape[2], device=k.device)
        full = self._grown(new) if self.max_tokens is None else self._write(new, start, self.max_tokens)
        self.num_tokens += k.shape[2]
        return *full, self_key

    def valid_with(self, new: Bool[Tensor, "batch token"]) -> Bool[Tensor, "batch key"]:
        """Which tokens are no padding: of those kept, then of some new ones."""
        if self._kept is None:
            return new
        return torch.cat((self._kept[2][:, : self.num_tokens - self.num_dropped], new), dim=1)

    def serve(self, layer: nn.Module) -> None:
        """From the first call on, a cache is that of one layer: another's keys are not its own."""
        if torch.compiler.is_compiling():
            return
        if self._layer is None:
            self._layer = weakref.ref(layer)
        elif self._layer() is not layer:
            raise ValueError("the cache holds the tokens of another layer: make one for each layer")

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Whatever fails within leaves the cache as it was."""
        before = self.num_tokens, self.num_dropped, self._kept, self._layer
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self.num_tokens, self.num_dropped, self._kept, self._layer = before
                self._clear_tail()

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or what comes out of a pickle, has no layer yet."""
        return self.__dict__ | {"_layer": None}

    def _check(self, new: tuple[Tensor, Tensor, Tensor], start: int) -> None:
        """What comes must fit to what is there, before anything is changed."""
        tokens = new[0].shape[2]
        if self.max_tokens is not None and start + tokens > self.max_tokens:
            raise ValueError(
                f"the cache holds {start} of {self.max_tokens} tokens, and {tokens} more do not fit: "
                f"make it with max_tokens={start + tokens} or more"
            )
        if self._kept is None:
            return
        for name, x, kept in zip(("k", "v"), new[:2], self._kept[:2], strict=True):
            (*was, _, dim), (*is_now, _, new_dim) = kept.shape, x.shape
            if (*was, dim) != (*is_now, new_dim) or kept.dtype != x.dtype or kept.device != x.device:
                raise ValueError(
                    f"{name} {tuple(x.shape)}, {x.dtype} on {x.device}: the cache holds {name} "
                    f"{tuple(kept.shape)}, {kept.dtype} on {kept.device}, and only the number of "
                    "tokens may change. Begin another sequence with another cache."
                )

    def _grown(self, new: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        k, v, valid = new
        if self._kept is not None:
            old_k, old_v, old_valid = self._kept
            k, v = torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2)
            valid = torch.cat((old_valid, valid), dim=1)
        self._keep(k, v, valid)
        return k, v, valid

    def _keep(self, k: Tensor, v: Tensor, valid: Tensor) -> None:
        """A token sees itself and window - 1 tokens before it: the next needs no more than these."""
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

    def _clear_tail(self) -> None:
        if self.max_tokens is not None and self._kept is not None:
            kept_k, kept_v, kept_valid = self._kept
            kept_k[:, :, self.num_tokens :], kept_v[:, :, self.num_tokens :] = 0, 0
            kept_valid[:, self.num_tokens :] = False
