"""Tiny random models of every architecture of transformers.

Nothing here knows a model: configurations shrink by the names of their fields. What cannot be built
this way is said to be so.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

WIDTH, HEADS, LAYERS, VOCAB, BATCH, TOKENS = 64, 4, 2, 256, 2, 12
LARGEST = 60_000_000  # parameters

# The first pattern that a field's name matches says what becomes of its number.
SIZES: tuple[tuple[str, Callable[[int], int]], ...] = (
    (r"^(type|max|min|relative|num_key|entity).*vocab|^type_vocab", lambda x: min(x, VOCAB)),
    (r"max_source_positions", lambda x: min(x, 64)),
    (r"kv_shared_layers", lambda x: 0),
    (r"vocab_size|codebook_size|num_embeddings$", lambda x: min(x, VOCAB)),
    (r"qk_head_dim", lambda x: 24),
    (r"qk_rope_head_dim|rotary_dim", lambda x: min(x, 8)),
    (r"head_dim|_lora_rank|d_kv|dim_head|d_head|head_size", lambda x: min(x, WIDTH // HEADS)),
    (r"(key_value|kv)_heads?$", lambda x: min(x, HEADS // 2)),
    (r"heads?$|heads_per_stage$", lambda x: 2 if x == 3 else min(x, HEADS)),
    (r"(n_group|topk_group)$", lambda x: 1),
    (r"experts_per_tok|experts_per_token|moe_topk|moe_k$|top_k_experts", lambda x: min(x, 2)),
    (r"experts$", lambda x: min(x, 4)),
    (r"topk$", lambda x: min(x, 4)),
    (r"first_k_dense|num_dense_layers", lambda x: min(x, 1)),
    (
        r"(hidden_layers|_layers|^layers|n_layer|_blocks|^depths?|_depth|blocks_per_stage)$",
        lambda x: min(x, LAYERS),
    ),
    (
        r"intermediate|ffn_dim|d_ff|inner|mlp_dim|feed_?forward|ffn_hidden|ffn_size",
        lambda x: min(x, 2 * WIDTH),
    ),
    (r"image_size$|^input_size|img_size", lambda x: min(x, 64)),
    (r"sliding_window$|attention_chunk_size", lambda x: min(x, 8)),
    (
        r"hidden_sizes?$|hidden_dims?$|d_model|embed_dims?$|n_embd|embedding_size|proj\w*_(dim|size)|width$|"
        r"embed_dim_per_stage|conv_dim$|output_dim$|dim$|lru_width|encoder_dim|embedding_dim",
        lambda x: x if x < 32 else WIDTH,
    ),
)
# What some configurations leave open, for the checkpoint to say.
OPEN: dict[str, Any] = {
    "vocab_size": VOCAB,
    "head_dim": WIDTH // HEADS,
    "num_key_value_heads": HEADS,
    "num_experts_per_tok": 2,
    "prediction_length": 8,
    "sliding_window": 8,
    "pad_token_id": 0,
    "attn_layer_indices": [LAYERS - 1],
}
DEPTHS = ("(layers|depth|blocks)", "vocab", "experts")


@dataclass
class Shrink:
    """One way to make configurations small."""

    layers: int = LAYERS
    keep_heads: bool = False  # as wide as they were, only fewer
    head: int | None = None  # so wide, where keep_heads does not know
    depth_only: bool = False
    fill: bool = False  # what is left open, too
    ids: dict[int, int] = field(default_factory=dict)

    def __call__(self, config: Any) -> None:
        """In place, with the configurations inside."""
        layers, heads = field_of(config, "num_hidden_layers"), self.head or _heads_of(config)
        alike = layers is not None and field_of(config, "num_key_value_heads", 0) == getattr(
            config, "num_attention_heads", None
        )
        ropes = field_of(config, "head_dim") == field_of(config, "qk_rope_head_dim", 0)
        for name, value in list(vars(config).items()):
            if not name.startswith("_") and not isinstance(value, bool):
                self._field(config, name, value, layers, heads)
        if ropes:
            config.head_dim = config.qk_rope_head_dim
        if alike and not self.depth_only:
            config.num_key_value_heads = config.num_attention_heads

    def _field(self, config: Any, name: str, value: Any, layers: int | None, heads: int) -> None:
        if hasattr(value, "to_dict"):
            self(value)
        elif name == "rope_parameters" and isinstance(value, dict) and not self.keep_heads:
            _shrink_sections(value)
        elif value is not None:
            with contextlib.suppress(Exception):  # some check each number as it is set
                setattr(config, name, self._smaller(name, value, layers, heads))
        elif self.fill and name in OPEN:
            setattr(config, name, OPEN[name])

    def _smaller(self, name: str, value: Any, layers: int | None, width: int) -> Any:
        if isinstance(value, list | tuple) and value:
            if layers is not None and len(value) == layers and layers > self.layers:
                return type(value)(_of_each_kind(value, self.layers))
            if re.search(r"attn_layer_indices|fullatt_block_indexes", name):
                return [self.layers - 1]
            if all(isinstance(x, int) and not isinstance(x, bool) for x in value):
                return type(value)(self._number(name, x, width) for x in value)
            return value
        return self._number(name, value, width) if isinstance(value, int) else value

    def _number(self, name: str, value: int, width: int) -> int:
        if re.search(r"token_(id|index)s?$", name):
            return value if value < VOCAB else self.ids.setdefault(value, VOCAB - 1 - len(self.ids))
        if self.depth_only and not any(re.search(p, name) for p in DEPTHS):
            return value
        made = next((make(value) for p, make in SIZES if re.search(p, name)), value)
        if re.search(r"(layers|blocks)$", name):
            return min(value, self.layers)
        if self.keep_heads and re.search(r"head_dim|rotary_dim|_lora_rank", name):
            return value
        if self.keep_heads and made == WIDTH:
            return width * HEADS
        return made


def field_of(config: Any, name: str, default: Any = None) -> Any:
    """A field, if it is one number for all layers."""
    try:
        return getattr(config, name, default)
    except Exception:  # transformers raises an error of its own where layers differ
        return default


def _heads_of(config: Any) -> int:
    """How wide a head is."""
    found = field_of(config, "head_dim")
    width, heads = (field_of(config, n) for n in ("hidden_size", "num_attention_heads"))
    if isinstance(found, int):
        return found
    return width // heads if isinstance(width, int) and isinstance(heads, int) else WIDTH // HEADS


SIZED = (
    Shrink(),
    Shrink(keep_heads=True),
    Shrink(keep_heads=True, head=64),
    Shrink(fill=True),
    Shrink(layers=8),
    Shrink(depth_only=True),
)


def _of_each_kind(kinds: Any, layers: int) -> list[Any]:
    """So many entries, of different kinds where there are different ones."""
    first = [kinds[0], *(x for x in kinds if x != kinds[0]), *kinds]
    return first[:layers]


def _shrink_sections(rope: dict[str, Any]) -> None:
    if "mrope_section" in rope:
        rope["mrope_section"] = [2, 3, 3]
    for inner in rope.values():
        if isinstance(inner, dict):
            _shrink_sections(inner)


def small_models(model_type: str) -> Iterator[nn.Module]:
    """The same architecture in one size after another, smallest first; none where none can be built."""
    for shrink in SIZED:
        with contextlib.suppress(Exception):
            size = _parameters(*_smaller_config(model_type, shrink))
            if (size is None and shrink.depth_only) or (size or 0) > LARGEST:
                continue
            torch.manual_seed(0)
            model_class, config = _smaller_config(model_type, shrink)
            yield enliven(model_class._from_config(config).float().eval())


def why_not(model_type: str) -> str:
    """What building it said."""
    try:
        model_class, config = _smaller_config(model_type, SIZED[0])
        model_class._from_config(config)
    except Exception as error:
        return one_line(error)
    return "larger than it may be"


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:120]}"


def _smaller_config(model_type: str, shrink: Shrink) -> tuple[Any, Any]:
    from transformers import AutoConfig

    config = AutoConfig.for_model(model_type)
    replace(shrink, ids={})(config)
    return _class_of(config), config


def _class_of(config: Any) -> Any:
    """The plainest model of a configuration: without a head, if there is one."""
    from transformers.models.auto import modeling_auto

    names = [n for n in vars(modeling_auto) if n.endswith("_MAPPING") and n != "MODEL_MAPPING"]
    for name in ("MODEL_MAPPING", *names):
        found = getattr(modeling_auto, name).get(type(config), None)
        if found is not None:
            return found[0] if isinstance(found, tuple) else found
    return _class_beside(config)


def _class_beside(config: Any) -> Any:
    """The model in the file beside the configuration: of a tower, which no mapping has."""
    import importlib

    from transformers import PreTrainedModel

    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    found = [
        x
        for x in vars(module).values()
        if isinstance(x, type)
        and issubclass(x, PreTrainedModel)
        and x.__dict__.get("config_class", getattr(x, "config_class", None)) is type(config)
    ]
    built = [x for x in found if not x.__name__.endswith("PreTrainedModel")]
    if not built:
        raise LookupError(f"no model class for {type(config).__name__}")
    return min(built, key=lambda x: (not x.__name__.endswith("Model"), len(x.__name__)))


def _parameters(model_class: Any, config: Any) -> int | None:
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in model_class._from_config(config).parameters())
    except Exception:  # some models look at values while they are built
        return None


def calm(model: nn.Module) -> None:
    """Smaller random weights, for models that overflow: those without norms."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim >= 2:
                p.mul_(0.2)


def enliven(model: nn.Module) -> nn.Module:
    """Random weights large enough that attention is sharp: as initialised, it is all but uniform."""
    generator = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float32).to(p.dtype)
        with torch.no_grad():
            if p.ndim >= 2:
                p.copy_(noise * 1.5 / max(1, p[0].numel()) ** 0.5)
            elif "norm" not in name and name.endswith(("bias", "sinks")):
                p.copy_(noise * 0.3)
    return model
