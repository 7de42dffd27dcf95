"""Outward measures how much attention hands each token back to itself, and takes it out.

Attention is meant to bring each token something from the others. Often its output y_i lies along
the token's own value v_i: the attention similarity bias. Exclusive Self Attention removes that
part, z_i = y_i - (y_i·v̂_i) v̂_i, per head and before the output projection (arXiv 2603.09078).

    run = outward.measure(model, batches)                    # any PyTorch transformer, as it is
    run.layers, run.heads, run.reading                       # DataFrames, and what they mean
    z = outward.exclusive_attention(q, k, v, causal=True)    # in place of torch's attention

Measuring, of any model that calls softmax attention (on the command line: outward measure):

    measure                       a model, batches -> a Run
    load                          a run directory -> a Run
    compare                       two runs or more -> differences with intervals
    load_model, batches           names and paths -> a Source, and batches for it
    watch, WatchCallback          the same batches, again and again while a model is trained
    capture                       every attention call of a model: q, k, v, y, and who saw whom

Forms, from (batch, head, token, dim) to the same; k and v may have fewer heads than q:

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

help(outward.measure), say, tells the rest. Names are imported when first used.
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
    from outward.engines.direct import measure as measure
    from outward.engines.trainer import WatchCallback as WatchCallback
    from outward.engines.watch import watch as watch
    from outward.run import compare as compare
    from outward.run import load as load
    from outward.sources.batches import batches as batches
    from outward.sources.models import load_model as load_model
    from outward.taps.capture import capture as capture

__version__ = "0.1.0"

# Where each public name lives. There is no __all__: help(outward) would then print all of nn.Module
# for every layer, and bury the page above.
_HOME = {
    "measure": "engines.direct",
    "load": "run",
    "compare": "run",
    "load_model": "sources.models",
    "batches": "sources.batches",
    "watch": "engines.watch",
    "WatchCallback": "engines.trainer",
    "capture": "taps.capture",
    "exclude_self": "attention.exclusive",
    "exclusive_attention": "attention.exclusive",
    "standard_attention": "attention.standard",
    "gated_exclusive_attention": "attention.forms",
    "gated_attention": "attention.forms",
    "no_self_attention": "attention.forms",
    "random_direction_attention": "attention.forms",
    "mean_direction_attention": "attention.forms",
    "StandardAttention": "attention.modules",
    "ExclusiveAttention": "attention.modules",
    "GatedExclusiveAttention": "attention.modules",
    "GatedAttention": "attention.modules",
    "NoSelfAttention": "attention.modules",
    "RandomDirectionAttention": "attention.modules",
    "MeanDirectionAttention": "attention.modules",
    "ExclusiveMultiheadAttention": "attention.multihead",
    "KVCache": "attention.cache",
    "Strength": "attention.modules",
    "parameter_groups": "attention.modules",
}


def __getattr__(name: str) -> object:
    if name == "explorer":  # a room, of which `widget` is for users
        return import_module("outward.explorer")
    if name not in _HOME:
        raise AttributeError(f"outward has no {name!r}; it has: {', '.join(_HOME)}")
    return getattr(import_module(f"outward.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
