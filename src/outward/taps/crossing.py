"""Whether keys come from other tokens than queries: from what a module was given, never from shapes."""

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

# What attention modules call the states of other tokens, where they take both.
_OTHERS = (
    "key_value_states",
    "encoder_hidden_states",
    "encoder_states",
    "encoder_outputs",
    "cross_attention_states",
    "cross_states",
    "encoder_output",
    "encoder_out",
    "enc_output",
    "enc_out",
    "enc_states",
    "memory",
    "memories",
    "mem",
    "context",
    "contexts",
    "ctx",
    "cond",
    "x_ctx",
    "y_ctx",
    "xa",
    "inputs",
    "kv_states",
    "image_hidden_states",
)
_CROSS = re.compile("cross_?att", re.IGNORECASE)  # CrossAttention, CrossAttn, cross_attn
# XAttn, but not FlexAttn. XAttention is the name of self-attention, with sparse masks.
_X = re.compile("(?<![A-Za-z])[Xx]_?[Aa]ttn|(?<=[a-z])X_?[Aa]ttn")
# Where both are always given: other tokens only if not the same as the queries.
_KEYS = ("key", "keys", "key_states", "hidden_kv", "key_value", "kv", "x_kv", "kv_x", "kv_input")
_CACHES = ("past_key_values", "past_key_value", "layer_past", "cache", "past", "mems")


def crossing(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Why this is cross-attention, or None."""
    kind = type(module).__name__
    by_name = crossing_by_name(kind)
    if by_name is not None:
        return by_name
    if getattr(module, "is_cross_attention", False) is True:
        return f"cross-attention ({kind})"
    given = given_to(module, args, kwargs)
    queries = next((x for x in given.values() if isinstance(x, Tensor)), None)
    for name in _OTHERS:
        other = given.get(name)
        if isinstance(other, Tensor) and other is not queries and _are_states(other, queries):
            return f"cross-attention (keys from {name})"
    for name in _KEYS:
        other = given.get(name)
        if isinstance(other, Tensor) and queries is not None and not same_tokens(queries, other):
            return f"cross-attention ({name} is not the same states as the queries)"
    return None


def crossing_by_name(kind: str) -> str | None:
    """Why a module of this class is cross-attention: its name says so."""
    return f"cross-attention ({kind})" if _CROSS.search(kind) or _X.search(kind) else None


def _are_states(x: Tensor, queries: Tensor | None) -> bool:
    """Whether these are states of tokens: no mask, and no one vector for all tokens of a text.

    Where that vector is a token, and its keys are attended to, the shapes of the call say so.
    """
    if queries is None:
        return x.is_floating_point()
    if not x.is_floating_point() or x.ndim < min(3, queries.ndim):
        return False
    return x.ndim < 2 or x.shape[-2] > 1 or queries.shape[-2] == 1


def has_cache(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether keys of earlier tokens came from a cache."""
    given = given_to(module, args, kwargs)
    return any(given.get(name) is not None for name in _CACHES)


def same_tokens(a: Tensor, b: Tensor) -> bool:
    """Whether two inputs of attention are the same states, by identity or by value."""
    return a is b or (a.shape == b.shape and torch.equal(a, b))


def given_to(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a module's forward by name, however they were passed."""
    names = _parameters(type(module).forward)
    return {**dict(zip(names, args, strict=False)), **kwargs}


@cache
def _parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = inspect.signature(forward).parameters.values()
    return tuple(p.name for p in found if p.kind in positional)[1:]
