"""The ways to the same three quantities: from TransformerLens's cache, as is usual there, and ours.

value_similarity    the mean over i≠j of cos(v_i, v_j)
self_weight         the mean over i of P_ii
self_similarity     the mean over i of cos(y_i, v_i); the peer calls y `z`
"""

from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from copy import deepcopy
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from outward.engines.work import kernel_of
from outward.probe.loop import Probe
from outward.sources.batch import Batch

QUANTITIES = ("value_similarity", "self_weight", "self_similarity")
PLAIN, OURS = "plain forward", ("with the head", "without the head")
THEIRS = ("everything cached", "only what is needed")
ROOT = Path(__file__).parents[2]
NAME, BOS, WORDS = "gpt2", "<|endoftext|>", 50256

Run = Callable[[Int[Tensor, "batch token"]], Any]


def gpt2(layers: int) -> Any:
    """GPT-2 small of random weights, as large as makes the peer's processing and the masks matter.

    The scores have a standard deviation near 2, so that attention is far from uniform; the values
    have biases, and the norms gains and biases, so that there is something to fold.
    """
    torch.manual_seed(0)
    config = _config(layers)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight[:, : 2 * config.n_embd] *= 2.5
            block.attn.c_attn.bias.normal_(std=0.3)
            for norm in (block.ln_1, block.ln_2):
                norm.weight.normal_(mean=1.0, std=0.1)
                norm.bias.normal_(std=0.1)
    return model


def _config(layers: int) -> GPT2Config:
    config = GPT2Config(n_layer=layers)
    config.update({"n_ctx": 1024, "architectures": ["GPT2LMHeadModel"]})  # the peer reads both
    return config


def ids(batch: int, tokens: int) -> Int[Tensor, "batch token"]:
    """Random tokens, none of them BOS."""
    return torch.randint(WORDS, (batch, tokens), generator=torch.Generator().manual_seed(1))


def texts(tokens: Int[Tensor, "batch token"]) -> list[str]:
    """Strings that the tokenizer of `at_home` makes these tokens of."""
    return [" ".join(f"w{n}" for n in row) for row in tokens.tolist()]


@contextmanager
def at_home(layers: int) -> Iterator[None]:
    """In a folder where `gpt2` is a folder: the peer looks there, before any hub, for what it needs."""
    words = {f"w{n}": n for n in range(WORDS)} | {BOS: WORDS}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=BOS))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), BOS)
    with TemporaryDirectory() as home, chdir(home):
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(NAME)
        _config(layers).save_pretrained(NAME)
        yield


# ---- the peer


def is_bridge() -> bool:
    """Whether the peer is of those that have a bridge only, and no HookedTransformer."""
    return int(version("transformer-lens").split(".")[0]) >= 4


def peer(model: Any, *, processed: bool = False) -> Any:
    """The peer's model of the same weights, as they are or processed as it likes best."""
    own = {"hf_model": deepcopy(model), "device": "cpu"}  # the bridge changes the model it is given
    if is_bridge():
        bridge = import_module("transformer_lens.model_bridge").TransformerBridge
        made = bridge.boot_transformers(NAME, **own)
        if processed:
            made.enable_compatibility_mode()
        return made
    hooked = import_module("transformer_lens").HookedTransformer
    make = hooked.from_pretrained if processed else hooked.from_pretrained_no_processing
    return make(NAME, **own)


def from_cache(
    peer_model: Any, given: Tensor | list[str], *, only: bool = False, first: bool = False
) -> Float[Tensor, "layer quantity head"]:
    """The quantities of every layer from the cache of one run.

    only: cache nothing but what is needed, and make no logits.
    """
    options: dict[str, Any] = {"names_filter": _is_needed, "return_type": None} if only else {}
    with torch.no_grad():
        _, cache = peer_model.run_with_cache(given, **options)
        layers = range(peer_model.cfg.n_layers)
        return torch.stack(
            [
                quantities(*(cache[name, n] for name in ("v", "pattern", "z")), first=first)
                for n in layers
            ]
        )


def _is_needed(name: str) -> bool:
    return name.endswith(("attn.hook_v", "attn.hook_pattern", "attn.hook_z"))


def quantities(
    v: Float[Tensor, "batch token head dim"],
    pattern: Float[Tensor, "batch head token token"],
    z: Float[Tensor, "batch token head dim"],
    *,
    first: bool = False,
) -> Float[Tensor, "quantity head"]:
    """By T x T matrices. first: count the first token too, which sees only itself: there z = v."""
    tokens, start = v.shape[1], 0 if first else 1
    unit = F.normalize(v.transpose(1, 2), dim=-1)
    cosines = unit @ unit.mT
    among = cosines.sum(dim=(-2, -1)) - cosines.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    weight = pattern.diagonal(dim1=-2, dim2=-1)[..., start:].mean(dim=-1)
    similarity = F.cosine_similarity(z, v, dim=-1)[:, start:].mean(dim=1)
    return torch.stack([among / (tokens * (tokens - 1)), weight, similarity]).mean(dim=1)


# ---- ours


def watched(model: nn.Module, tokens: Int[Tensor, "batch token"]) -> Any:
    """All default measures of one batch, hooks put in and taken out again; keys are not kept."""
    names = [str(n) for n in range(len(tokens))]
    batch = Batch((), {"input_ids": tokens}, names, [0] * len(tokens))
    with Probe(model, lambda b: model(**b.inputs, use_cache=False), kernel=kernel_of("auto")) as probe:
        return probe.measure([batch])


def ours(model: Any) -> dict[str, Run]:
    """Ours, and the model that nobody watches."""
    head, no_head = OURS
    return {
        PLAIN: partial(_plain, model),
        head: partial(watched, model),
        no_head: partial(watched, model.transformer),
    }


def theirs(peer_model: Any) -> dict[str, Run]:
    """The peer's, as it comes and as careful as can be."""
    as_it_comes, careful = THEIRS
    return {
        as_it_comes: partial(from_cache, peer_model),
        careful: partial(from_cache, peer_model, only=True),
    }


def _plain(model: nn.Module, tokens: Tensor) -> Any:
    with torch.no_grad():
        return model(tokens, use_cache=False)
