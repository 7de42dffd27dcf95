"""Bytes become a picture, what the model saw of it, and the model's tokens a grid on it."""

import io
import struct
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outward.explorer.safety import RefusedError
from outward.sources.errors import first_line, require
from outward.sources.images import generated_image, image_size
from outward.sources.source import Source

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MOST_PIXELS = 50_000_000
MOST_PREFIX = 64
Grid = tuple[int, int]


def read_picture(data: bytes) -> Any:
    """A picture of PIL's, in three colours. What would unpack to too many pixels is not unpacked."""
    pillow = require("PIL.Image", extra="vision", user="Pictures")
    broken = (
        OSError,
        ValueError,
        TypeError,
        LookupError,
        SyntaxError,
        EOFError,
        struct.error,
        pillow.DecompressionBombError,
        pillow.DecompressionBombWarning,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(io.BytesIO(data), formats=FORMATS) as image:
                _refuse_size(image.width * image.height)
                return image.convert("RGB")
    except broken as error:
        raise RefusedError(
            422,
            f"This is no picture that can be read ({', '.join(FORMATS)}): {first_line(error)[:200]}.",
        ) from error


def example(source: Source) -> Any:
    """A generated picture, of the size that the model is made for."""
    pillow = require("PIL.Image", extra="vision", user="Pictures")
    pixels = generated_image(*image_size(source), seed=0)
    return pillow.fromarray((pixels * 255).byte().permute(1, 2, 0).numpy())


def _refuse_size(pixels: int) -> None:
    if pixels > MOST_PIXELS:
        raise RefusedError(
            413,
            f"The picture has {pixels / 1e6:.0f} million pixels, more than {MOST_PIXELS / 1e6:g}; make "
            "it smaller.",
        )


def as_seen(pixels: Tensor | None, processor: Any) -> NDArray[np.uint8] | None:
    """(height, width, 3): what the model was given, in colours again; None where it is no picture."""
    if pixels is None or pixels.ndim != 4 or pixels.shape[:2] != (1, 3):
        return None
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in _normalisation(processor))
    colours = pixels[0].detach().float().cpu() * std + mean
    return (colours.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().numpy()


def _normalisation(processor: Any) -> tuple[list[float], list[float]]:
    """(mean, std) of each colour, as the processor has it; without one, pictures go from -1 to 1."""
    if processor is None:
        return [0.5] * 3, [0.5] * 3
    if hasattr(processor, "image_mean"):
        if not getattr(processor, "do_normalize", True):
            return [0.0] * 3, [1.0] * 3
        return _three(processor.image_mean), _three(processor.image_std)
    steps = getattr(processor, "transforms", [])
    found = next((t for t in steps if hasattr(t, "mean") and hasattr(t, "std")), None)
    return ([0.0] * 3, [1.0] * 3) if found is None else (_three(found.mean), _three(found.std))


def _three(x: Any) -> list[float]:
    return np.broadcast_to(np.asarray(x, np.float64).ravel(), 3).tolist()


def grid_of(body: nn.Module, pixels: Tensor | None, tokens: int) -> tuple[Grid | None, int]:
    """(rows, columns) of the patches, and how many tokens stand before them; None where unknown."""
    patch = _patch(body)
    if pixels is None or pixels.ndim != 4 or patch is None:
        return None, 0
    rows, columns = pixels.shape[2] // patch[0], pixels.shape[3] // patch[1]
    prefix = tokens - rows * columns
    if not (rows and columns and 0 <= prefix <= MOST_PREFIX):
        return None, 0
    return (rows, columns), prefix


def _patch(body: nn.Module) -> Grid | None:
    """(height, width) of a patch: as the config says, or as the first convolution cuts."""
    said = getattr(getattr(body, "config", None), "patch_size", None)
    if isinstance(said, int):
        return said, said
    if isinstance(said, list | tuple) and len(said) == 2:
        return int(said[0]), int(said[1])
    first = next((m for m in body.modules() if isinstance(m, nn.Conv2d)), None)
    if first is None or tuple(first.kernel_size) != tuple(first.stride):
        return None
    return int(first.stride[0]), int(first.stride[1])


def names_of_patches(grid: Grid | None, prefix: int, tokens: int) -> list[str]:
    """What stands for each token: pictures have no words."""
    if grid is None:
        return [f"token {n}" for n in range(tokens)]
    rows, columns = grid
    before = [f"before the patches {n}" for n in range(prefix)]
    return before + [f"row {r}, column {c}" for r in range(rows) for c in range(columns)]
