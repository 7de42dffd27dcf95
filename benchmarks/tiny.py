"""Tiny random models of every architecture of transformers, and inputs that they run on.

Nothing here knows a model: configurations shrink by the names of their fields, and inputs follow from
the signature of `forward`. What cannot be built or fed this way is said to be so.
"""

import contextlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HEADS, LAYERS, VOCAB, BATCH, TOKENS = 64, 4, 2, 256, 2, 12
LARGEST = 60_000_000  # parameters
ATTEMPTS = 48

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
    (r"heads?$|heads_per_stage$", lambda x: min(x, HEADS)),
    (r"(n_group|topk_group)$", lambda x: 1),
    (r"experts_per_tok|experts_per_token|moe_topk|top_k_experts", lambda x: min(x, 2)),
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
DEPTHS = ("(layers|depth|blocks)", "vocab", "experts")


@dataclass
class Shrink:
    """One way to make configurations small."""

    layers: int = LAYERS
    keep_heads: bool = False  # as wide as they were, only fewer
    head: int | None = None  # so wide, where keep_heads does not know
    depth_only: bool = False
    ids: dict[int, int] = field(default_factory=dict)

    def __call__(self, config: Any) -> None:
        """In place, with the configurations inside."""
        layers, heads = _get(config, "num_hidden_layers"), self.head or _heads_of(config)
        alike = layers is not None and _get(config, "num_key_value_heads", 0) == getattr(
            config, "num_attention_heads", None
        )
        ropes = _get(config, "head_dim") == _get(config, "qk_rope_head_dim", 0)
        for name, value in list(vars(config).items()):
            if name.startswith("_") or isinstance(value, bool):
                continue
            if hasattr(value, "to_dict"):
                self(value)
            elif name == "rope_parameters" and isinstance(value, dict) and not self.keep_heads:
                _shrink_sections(value)
            else:
                with contextlib.suppress(Exception):
                    setattr(config, name, self._smaller(name, value, layers, heads))
        if ropes:
            config.head_dim = config.qk_rope_head_dim
        if alike and not self.depth_only:
            config.num_key_value_heads = config.num_attention_heads

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


def _get(config: Any, name: str, default: Any = None) -> Any:
    """A field, if it is one number for all layers."""
    try:
        return getattr(config, name, default)
    except Exception:  # transformers raises an error of its own where layers differ
        return default


def _heads_of(config: Any) -> int:
    """How wide a head is."""
    found = _get(config, "head_dim")
    width, heads = (_get(config, n) for n in ("hidden_size", "num_attention_heads"))
    if isinstance(found, int):
        return found
    return width // heads if isinstance(width, int) and isinstance(heads, int) else WIDTH // HEADS


SIZED = (
    Shrink(),
    Shrink(keep_heads=True),
    Shrink(keep_heads=True, head=64),
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
    """The model in the file beside the configuration: of a tower, which has no place in the mappings."""
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


# ---- inputs


Inputs = dict[str, Any]


def inputs_of(model: nn.Module) -> Iterator[Inputs]:
    """Inputs to try, the fullest first."""
    parameters = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    required = [
        n
        for n, p in parameters.items()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    shapes = Shapes(model.config)
    for names in _which(set(parameters), main, required):
        each = [[(n, x) for x in shapes.of(n)] for n in names]
        for chosen in itertools.islice(itertools.product(*each), ATTEMPTS):
            yield dict(chosen)


def _which(known: set[str], main: str, required: list[str]) -> Iterator[list[str]]:
    """Names of inputs that go together."""
    text = ["input_ids", "attention_mask"]
    target = ["decoder_input_ids"] if "decoder_input_ids" in known else []
    media = [n for n in ("pixel_values", "input_features", "input_values") if n in known]
    grids = [
        n for n in ("image_grid_thw", "spatial_shapes", "pixel_attention_mask", "bbox") if n in known
    ]
    base = list(dict.fromkeys([*required, main]))
    tries = [
        [*base, *text, *media, *grids, *target],
        [*base, *text, *media, *target],
        [*base, *text, *target],
        [*base, "attention_mask", *target],
        [*base, *grids, *target],
        [*base, *target],
        base,
        required,
        [*text, *media],
        text,
        media,
        ["inputs_embeds"],
    ]
    seen = []
    for names in tries:
        kept = [n for n in dict.fromkeys(names) if n in known]
        if kept and kept not in seen:
            seen.append(kept)
            yield kept


class Shapes:
    """What an input of a name may look like for a configuration."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.generator = torch.Generator().manual_seed(1)

    def find(self, *names: str, default: Any = None) -> Any:
        """A field of the configuration, or of one inside."""
        inside = [c for c in vars(self.config).values() if hasattr(c, "to_dict")]
        inside += [d for c in inside for d in vars(c).values() if hasattr(d, "to_dict")]
        for name in names:
            for config in (self.config, *inside):
                found = _get(config, name)
                if isinstance(found, int | list | tuple) and found:
                    return found
        return default

    def of(self, name: str) -> list[Any]:
        """Values to try, one after another."""
        for pattern, make in INPUTS:
            if re.fullmatch(pattern, name):
                return make(self)
        return [None]

    def random(self, *shape: int) -> Tensor:
        """Of normal distribution."""
        return torch.randn(*shape, generator=self.generator)

    def ids(self) -> list[Any]:
        """Text of ordinary tokens."""
        x = torch.randint(5, 60, (BATCH, TOKENS), generator=self.generator)
        return [x, x.repeat(1, 3), x[:, :7], x[:1]]

    def padding(self) -> list[Any]:
        """The second text ends earlier."""
        mask = torch.ones(BATCH, TOKENS, dtype=torch.long)
        mask[1, -4:] = 0
        return [mask]

    def pixels(self) -> list[Any]:
        """Images, videos, and patches in a row."""
        size = self.find("image_size", "img_size", "input_size", default=64)
        height, width = (size[0], size[-1]) if isinstance(size, list | tuple) else (size, size)
        patch = self.find("patch_size", "spatial_patch_size", default=16)
        patch = patch[-1] if isinstance(patch, list | tuple) else patch
        frames = self.find("num_frames", "frames_per_clip", default=2)
        channels = self.find("num_channels", "in_channels", "in_chans", "num_image_channels", default=3)
        channels = channels if isinstance(channels, int) and channels < 16 else 3
        found = [self.random(BATCH, channels, height, width)]
        found += [self.random(BATCH, frames, channels, height, width)]
        found += [self.random(BATCH, channels, frames, height, width)]
        found += [self.random(BATCH, channels, s, s) for s in (128, 224) if s != height]
        depth = self.find("temporal_patch_size", default=1)
        depth = depth[0] if isinstance(depth, list | tuple) else depth
        found += [self.random(16, channels * depth * patch * patch)]
        found += [self.random(BATCH, 16, channels * patch * patch)]
        return found

    def features(self) -> list[Any]:
        """Spectrograms, either way round."""
        bins = self.find(
            "num_mel_bins",
            "feature_size",
            "input_feat_per_channel",
            "input_dim",
            "feature_projection_input_dim",
            default=80,
        )
        bins = bins[0] if isinstance(bins, list | tuple) else bins
        frames = 2 * self.find("max_source_positions", default=50)
        return [
            x
            for length in (frames, 100, 200, 1024)
            for x in (self.random(BATCH, bins, length), self.random(BATCH, length, bins))
        ]

    def waves(self) -> list[Any]:
        """Sound, or a spectrogram under the same name."""
        length = self.find("max_length", default=1024)
        bins = self.find("num_mel_bins", default=80)
        waves = [self.random(BATCH, 4000), self.random(BATCH, 1, 4000), self.random(BATCH, 2, 4000)]
        return [*waves, self.random(BATCH, length, bins), self.random(BATCH, 16000)]

    def grid(self) -> list[Any]:
        """Sixteen patches of one image."""
        return [torch.tensor([[1, 4, 4]]), torch.tensor([[4, 4]]), torch.tensor([[8, 8], [8, 8]])]

    def embeddings(self) -> list[Any]:
        """In place of tokens."""
        width = self.find("hidden_size", "d_model", "n_embd", default=WIDTH)
        width = width[0] if isinstance(width, list | tuple) else width
        return [self.random(BATCH, TOKENS, width), *self.pixels()[-2:]]

    def series(self) -> list[Any]:
        """Past values."""
        length = self.find("context_length", "prediction_length", default=32)
        lags = max(self.find("lags_sequence", default=[0]))
        inputs = self.find("num_input_channels", default=1)
        return [
            self.random(BATCH, length, inputs),
            self.random(BATCH, length + lags),
            self.random(BATCH, length),
        ]

    def boxes(self) -> list[Any]:
        """Where words stand on a page."""
        corners = torch.tensor([10, 10, 40, 40]).expand(BATCH, TOKENS, 4).contiguous()
        return [corners, corners.float() / 100]


INPUTS: tuple[tuple[str, Callable[[Shapes], list[Any]]], ...] = (
    (
        "(decoder_|question_|qformer_|classes_|tasks_)?input_ids|text_ids|tokens|codes|labels",
        Shapes.ids,
    ),
    ("attention_mask|qformer_attention_mask", Shapes.padding),
    (
        r"\w*features_mask|feature_attention_mask|\w*_mel_mask",
        lambda s: [torch.ones(BATCH, n, dtype=torch.long) for n in (100, 128, 1024)],
    ),
    ("pixel_values(_videos)?|images|flattened_patches|left_images|hidden_states_image", Shapes.pixels),
    ("input_features|audio_mel|audio_features|spectrogram", Shapes.features),
    ("input_values|audio_values|audio", Shapes.waves),
    ("(image_)?grid_thw|spatial_shapes|grid_hws?", Shapes.grid),
    ("pixel_attention_mask", lambda s: [torch.ones(BATCH, 64, dtype=torch.bool), None]),
    ("bbox", Shapes.boxes),
    ("inputs_embeds|hidden_states|encoder_hidden_states|inputs|query_embeds", Shapes.embeddings),
    ("past_values", Shapes.series),
    ("past_observed_mask", lambda s: [torch.ones_like(x) for x in s.series()]),
)
