"""Pictures, read from a folder or generated, as a model's own processor prepares them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from outward.sources.batch import Batch, grouped, limited
from outward.sources.errors import SourceError, first_line, require
from outward.sources.files import files_in
from outward.sources.source import Source

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
DEFAULT_SIZE = 224
Prepared = tuple[str, dict[str, Tensor]]


def image_batches(
    source: Source,
    data: str | Path | None,
    *,
    samples: int,
    batch: int,
    seed: int,
    skipped: list[str] | None = None,
) -> Iterator[Batch]:
    """Batches of at most `samples` pictures; what cannot be read is named in `skipped`."""
    left_out = skipped if skipped is not None else []
    pictures = _generated(source, samples, seed) if data is None else _read(data, left_out)
    nothing = f"{data} holds no picture that can be read ({_suffixes()})."
    first = limited(pictures, samples, nothing, left_out)
    ready = ((name, prepared(source, image)) for name, image in first)
    for group in grouped(ready, batch, lambda item: [x.shape for x in item[1].values()]):
        yield picture_batch(source, group)


def generated_image(height: int, width: int, *, seed: int) -> Float[Tensor, "3 height width"]:
    """A picture from 0 to 1: a smooth gradient, gratings of several scales, and shapes in front."""
    draw = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=draw)

    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    slope = random(3, 3, 1, 1)
    image = slope[0] + (slope[1] - 0.5) * x + (slope[2] - 0.5) * y
    for cycles in (3, 10, 30):
        angle, phase = random(2) * 2 * torch.pi
        wave = torch.sin(2 * torch.pi * cycles * (x * angle.cos() + y * angle.sin()) + phase)
        image = image + 0.3 * (random(3, 1, 1) - 0.5) * wave
    for shape in range(6):
        (cx, cy), (rx, ry) = random(2), 0.05 + 0.2 * random(2)
        dx, dy = ((x - cx) / rx).abs(), ((y - cy) / ry).abs()
        inside = (dx**2 + dy**2 < 1) if shape % 2 else (torch.maximum(dx, dy) < 1)
        image = torch.where(inside, random(3, 1, 1) * (0.6 + 0.4 * x), image)
    return image.clamp(0, 1)


def image_size(source: Source) -> tuple[int, int]:
    """(height, width) that the model is made for, as far as it says so."""
    config = getattr(source.body, "config", None)
    settings = getattr(source.body, "pretrained_cfg", None) or {}
    said = getattr(config, "image_size", None) or getattr(source.body, "image_size", None)
    said = said or settings.get("input_size", (0, 0, 0))[1:]
    if isinstance(said, int):
        return said, said
    height, width = said
    return (height, width) if height and width else (DEFAULT_SIZE, DEFAULT_SIZE)


def _generated(source: Source, samples: int, seed: int) -> Iterator[tuple[str, Any]]:
    pillow = require("PIL.Image", extra="vision", user="Pictures")
    height, width = image_size(source)
    for index in range(samples):
        pixels = generated_image(height, width, seed=seed * 2**20 + index)
        yield f"generated-{index}", pillow.fromarray((pixels * 255).byte().permute(1, 2, 0).numpy())


def _read(data: str | Path, skipped: list[str]) -> Iterator[tuple[str, Any]]:
    pillow = require("PIL.Image", extra="vision", user="Pictures")
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise SourceError(f"{data} is no folder: pictures are read from a folder of {_suffixes()}.")
    for path in files_in(folder, SUFFIXES):
        name = path.relative_to(folder).as_posix()
        try:
            with pillow.open(path) as image:
                yield name, image.convert("RGB")
        except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
            skipped.append(f"{name} cannot be read as a picture: {first_line(error)}.")


def prepared(source: Source, image: Any) -> dict[str, Tensor]:
    """The inputs of one picture, with a batch axis of 1."""
    processor = source.processor
    if processor is None:
        return {"pixel_values": _plain(image, image_size(source))}
    if hasattr(processor, "model_input_names"):  # those of transformers
        return dict(processor(images=image, return_tensors="pt"))
    return {"pixel_values": processor(image)[None]}


def _plain(image: Any, size: tuple[int, int]) -> Float[Tensor, "1 3 height width"]:
    """Resized, from -1 to 1: for models without a processor."""
    height, width = size
    pixels = torch.frombuffer(bytearray(image.resize((width, height)).tobytes()), dtype=torch.uint8)
    return pixels.view(height, width, 3).permute(2, 0, 1)[None] / 127.5 - 1


def picture_batch(source: Source, group: list[Prepared]) -> Batch:
    """Pictures that were prepared, as one batch."""
    joined = {name: torch.cat([inputs[name] for _, inputs in group]) for name in group[0][1]}
    documents = [name for name, _ in group]
    if hasattr(source.body, "main_input_name"):
        return Batch((), joined, documents, [0] * len(group))
    return Batch(tuple(joined.values()), {}, documents, [0] * len(group))


def _suffixes() -> str:
    return ", ".join(sorted(suffix.removeprefix(".") for suffix in SUFFIXES))
