"""Source: a model with what is needed to feed it and to say later which one it was."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from outward.sources.errors import SourceError
from outward.sources.files import digest

Kind = Literal["text", "image", "audio"]
Identity = dict[str, str | int | float | bool | None]

KIND_OF_INPUT: dict[str, Kind] = {
    "input_ids": "text",
    "pixel_values": "image",
    "input_values": "audio",
    "input_features": "audio",
}
HASHED_BYTES = 2**28  # above it, hashing the weights would cost seconds
SAMPLES, SAMPLE_BYTES = 64, 2**16  # of each file above it: training changes nearly every weight


@dataclass(frozen=True)
class Source:
    """A model ready to be measured: in eval mode, without gradients.

    body is the part to run alone: without the head of a language model, so that no logits are
    computed; of an image-text pair of towers, the image tower. max_length is in tokens (text) or
    seconds (audio). processor is a tokenizer, an image transform or a feature extractor.
    """

    name: str
    kind: Kind
    model: nn.Module
    body: nn.Module
    processor: Any
    identity: Identity
    max_length: int | None


@dataclass(frozen=True)
class Options:
    """How weights are to be had; seed: fresh ones, and those on disk are not read."""

    dtype: str
    allow_pickle: bool
    seed: int | None


@dataclass(frozen=True)
class Loaded:
    """What a loader makes of a name."""

    model: nn.Module
    body: nn.Module
    processor: Any
    identity: Identity
    max_length: int | None = None


def kind_of(name: str, loaded: Loaded) -> Kind:
    """What the model takes: by the name of its main input, else its processor, else its layers."""
    main = getattr(loaded.body, "main_input_name", None)
    if main is not None:
        if main not in KIND_OF_INPUT:
            raise SourceError(
                f"{name} takes {main!r}; Outward feeds models that take {', '.join(KIND_OF_INPUT)}."
            )
        return KIND_OF_INPUT[main]
    if hasattr(loaded.processor, "sampling_rate"):
        return "audio"
    if hasattr(loaded.processor, "encode"):
        return "text"
    is_image = loaded.processor is not None or any(
        isinstance(m, nn.Conv2d) for m in loaded.body.modules()
    )
    return "image" if is_image else "text"


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Fresh weights that depend on the seed only; the caller's random state comes back after it."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def weights_identity(files: list[Path]) -> Identity:
    """Size of the weights, and their sha256 where that is cheap; else that of places in them."""
    size = sum(path.stat().st_size for path in files)
    if size > HASHED_BYTES:
        return {"weights_bytes": size, "weights_sampled_sha256": _sampled(sorted(files))}
    return {
        "weights_bytes": size,
        "weights_sha256": digest((path.name, path) for path in sorted(files)),
    }


def _sampled(files: list[Path]) -> str:
    """sha256 over names, sizes, and SAMPLES pieces of each file, evenly from beginning to end."""
    total = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        total.update(f"{path.name}\0{size}\n".encode())
        with path.open("rb") as file:
            for n in range(SAMPLES):
                file.seek(max(0, size - SAMPLE_BYTES) * n // (SAMPLES - 1))
                total.update(file.read(SAMPLE_BYTES))
    return total.hexdigest()


def random_identity(seed: int) -> Identity:
    """How weights that nobody trained are told from others."""
    return {"weights": "random", "seed": seed}
