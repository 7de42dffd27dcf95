"""Outward measures how much attention hands each token back to itself, and takes it out.

Attention is meant to bring each token something from the others. Often its output y_i lies along
the token's own value v_i: the attention similarity bias. Exclusive Self Attention removes that
part, z_i = y_i - (y_i·v̂_i) v̂_i, per head and before the output projection (arXiv 2603.09078).

    z = outward.exclusive_attention(q, k, v, causal=True)    # in place of torch's attention
    z = outward.exclude_self(y, v)                           # or behind any attention
    layer = outward.ExclusiveAttention(width=768, num_heads=12)

Functions, from (batch, head, token, dim) to the same; k and v may have fewer heads than q:

    exclude_self                  take from each output its component along its own value
    standard_attention            what all others start from; its options are theirs
    exclusive_attention           standard, then exclude_self, in one
    gated_exclusive_attention     a strength α of it, per head or token, which may be learned
    gated_attention               a sigmoid gate on the output
    no_self_attention             the own key hidden
    random_direction_attention    a placebo: a fixed random direction taken out
    mean_direction_attention      a placebo: the mean of the visible values taken out

Layers, from (batch, token, width) to the same, with rotary positions, grouped heads and a cache:

    StandardAttention  ExclusiveAttention  GatedExclusiveAttention  GatedAttention
    NoSelfAttention  RandomDirectionAttention  MeanDirectionAttention

    ExclusiveMultiheadAttention   in place of nn.MultiheadAttention, with its parameters and call
    KVCache                       keys and values of the tokens so far: growing, fixed or sliding
    Strength                      α as a parameter: by tanh, sigmoid or raw, per head or token
    parameter_groups              for the optimizer: a learned strength must not decay

help(outward.exclusive_attention), say, tells the rest. Names are imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outward.attention.cache import KVCache as KVCache
    from outward.attention.exclusive import exclude_self as exclude_self
    from outward.attention.exclusive import exclusive_attention as exclusive_attention
    from outward.attention.forms import gated_attention as gated_attention
    from outward.attention.forms import gated_exclusive_attention as gated_exclusive_attention
    from outward.attention.forms import mean_direction_attention as mean_direction_attention
    from outward.attention.forms import no_self_attention as no_self_attention
    from outward.attention.forms import random_direction_attention as random_direction_attention
    from outward.attention.modules import ExclusiveAttention as ExclusiveAttention
    from outward.attention.modules import GatedAttention as GatedAttention
    from outward.attention.modules import GatedExclusiveAttention as GatedExclusiveAttention
    from outward.attention.modules import MeanDirectionAttention as MeanDirectionAttention
    from outward.attention.modules import NoSelfAttention as NoSelfAttention
    from outward.attention.modules import RandomDirectionAttention as RandomDirectionAttention
    from outward.attention.modules import StandardAttention as StandardAttention
    from outward.attention.modules import Strength as Strength
    from outward.attention.modules import parameter_groups as parameter_groups
    from outward.attention.multihead import (
        ExclusiveMultiheadAttention as ExclusiveMultiheadAttention,
    )
    from outward.attention.standard import standard_attention as standard_attention

__version__ = "0.1.0"

# Where each public name lives. There is no __all__: help(outward) would then print all of nn.Module
# for every layer, and bury the page above.
_HOME = {
    "exclude_self": "exclusive",
    "exclusive_attention": "exclusive",
    "standard_attention": "standard",
    "gated_exclusive_attention": "forms",
    "gated_attention": "forms",
    "no_self_attention": "forms",
    "random_direction_attention": "forms",
    "mean_direction_attention": "forms",
    "StandardAttention": "modules",
    "ExclusiveAttention": "modules",
    "GatedExclusiveAttention": "modules",
    "GatedAttention": "modules",
    "NoSelfAttention": "modules",
    "RandomDirectionAttention": "modules",
    "MeanDirectionAttention": "modules",
    "ExclusiveMultiheadAttention": "multihead",
    "KVCache": "cache",
    "Strength": "modules",
    "parameter_groups": "modules",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"outward has no {name!r}; it has: {', '.join(_HOME)}")
    return getattr(import_module(f"outward.attention.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
