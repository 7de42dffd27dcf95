"""batches: data becomes batches for a Source, whatever it takes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from outward.sources.batch import Batch, placed
from outward.sources.errors import SourceError
from outward.sources.images import image_batches
from outward.sources.source import Source
from outward.sources.speech import sound_batches
from outward.sources.text import SpecialTokens, text_batches, text_windows

TOKENS = 512  # of a window of text, unless said
SECONDS = 5.0  # of a window of sound, unless said


def batches(
    source: Source,
    data: str | Path | None,
    *,
    length: float | None = None,
    samples: int = 64,
    batch: int = 8,
    seed: int = 0,
    special_tokens: SpecialTokens = "auto",
    field: str | None = None,
    skipped: list[str] | None = None,
) -> Iterator[Batch]:
    """Batches of at most `samples` windows, on the model's device, in the order of the data.

    length is in tokens (text) or seconds (audio). seed is for what is generated where data is None.
    What had to be left out is named in `skipped`.
    """
    if samples < 1 or batch < 1:
        raise SourceError(f"samples {samples}, batch {batch}: both must be at least 1.")
    if source.kind == "text":
        length = _length(source, length, TOKENS)
        made = _text(source, data, int(length), samples, batch, special_tokens, field, skipped)
    elif source.kind == "image":
        if length is not None:
            raise SourceError(f"length {length}: {source.name} takes pictures, which it cuts itself.")
        made = image_batches(source, data, samples=samples, batch=batch, seed=seed, skipped=skipped)
    else:
        seconds = _length(source, length, SECONDS)
        made = sound_batches(
            source, data, length=seconds, samples=samples, batch=batch, seed=seed, skipped=skipped
        )
    return _ready(source, made)
