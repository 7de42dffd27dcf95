"""Inputs for a model of transformers, from the signature of its `forward` and its configuration."""

import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.tiny import BATCH, TOKENS, WIDTH, field_of

ATTEMPTS = 48

Inputs = dict[str, Any]


def inputs_of(model: nn.Module) -> Iterator[Inputs]:
    """Inputs to try, the fullest first."""
    parameters = inspect.signature(model.forward).parameters
    main = str(getattr(model, "main_input_name", "input_ids"))
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
    media: list[str] = [
        n for n in ("pixel_values", "flattened_patches", "input_features", "input_values") if n in known
    ]
    grids = [
        n for n in ("image_grid_thw", "spatial_shapes", "pixel_attention_mask", "bbox") if n in known
    ]
    base = list(dict.fromkeys([*required, main]))
    tries: list[list[str]] = [
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
    seen: list[list[str]] = []
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
                found = field_of(config, name)
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

    def flattened(self) -> list[Any]:
        """Patches in a row, each after the numbers of its row and column."""
        patch = self.find("patch_size", default=16)
        where = torch.arange(16)
        places = torch.stack((where // 4, where % 4), dim=-1).float().expand(BATCH, -1, -1)
        return [torch.cat((places, self.random(BATCH, 16, 3 * patch * patch)), dim=-1)]

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
    ("flattened_patches", Shapes.flattened),
    ("pixel_values(_videos)?|images|left_images|hidden_states_image", Shapes.pixels),
    ("input_features|audio_mel|audio_features|spectrogram", Shapes.features),
    ("input_values|audio_values|audio", Shapes.waves),
    ("(image_)?grid_thw|spatial_shapes|grid_hws?", Shapes.grid),
    ("pixel_attention_mask", lambda s: [torch.ones(BATCH, 64, dtype=torch.bool), None]),
    ("bbox", Shapes.boxes),
    ("inputs_embeds|hidden_states|encoder_hidden_states|inputs|query_embeds", Shapes.embeddings),
    ("past_values", Shapes.series),
    ("past_observed_mask", lambda s: [torch.ones_like(x) for x in s.series()]),
)
