"""batches: data becomes batches for a Source, whatever it takes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

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
    length: int | float | None = None,
    samples: int = 64,
    batch: int = 8,
    seed: int = 0,
    special_tokens: SpecialTokens = "auto",
    field: str | None = None,
    whole: bool = False,
    skipped: list[str] | None = None,
) -> Iterator[Batch]:
    """Batches of at most `samples` windows, on the model's device, in the order of the data.

    length is in tokens (text) or seconds (audio). seed is for what is generated where data is None.
    What had to be left out is named in `skipped`; with whole, that are also texts shorter than length.
    """
    if samples < 1 or batch < 1:
        raise SourceError(f"samples {samples}, batch {batch}: both must be at least 1.")
    if source.kind == "image" and length is not None:
        raise SourceError(f"length {length}: {source.name} takes pictures, whose size it sets itself.")
    if source.kind == "text":
        tokens = int(_length(source, length, TOKENS))
        windows = text_windows(
            data,
            source.processor,
            length=tokens,
            samples=samples,
            special_tokens=special_tokens,
            field=field,
            whole=whole,
            skipped=skipped,
        )
        made = text_batches(windows, batch=batch, pad_id=_pad_id(source))
    elif source.kind == "image":
        made = image_batches(source, data, samples=samples, batch=batch, seed=seed, skipped=skipped)
    else:
        seconds = _length(source, length, SECONDS)
        made = sound_batches(
            source, data, length=seconds, samples=samples, batch=batch, seed=seed, skipped=skipped
        )
    return (ready(source, one) for one in made)


def _length(source: Source, length: int | float | None, default: int | float) -> int | float:
    """The length asked for, or the default, within what the model allows."""
    longest = source.max_length
    if length is None:
        return default if longest is None else min(default, longest)
    if longest is not None and length > longest:
        raise SourceError(
            f"length {length:g}: {source.name} takes at most {longest}; give that or less."
        )
    if length <= 0 or (source.kind == "text" and length != int(length)):
        raise SourceError(
            f"length {length:g}: it must be positive, and for text a whole number of tokens."
        )
    return length


def _pad_id(source: Source) -> int | None:
    """What fills up short rows; None for models that could not be told where it is."""
    if not hasattr(source.body, "main_input_name"):
        return None
    ids = (getattr(source.processor, name, None) for name in ("pad_token_id", "eos_token_id"))
    return next((x for x in ids if isinstance(x, int)), 0)  # hidden by the mask, so any will do


def ready(source: Source, batch: Batch) -> Batch:
    """As the model is called with it: on its device, of its type, with a start for its decoder."""
    if source.kind == "text" and not hasattr(source.body, "main_input_name"):
        batch = replace(batch, args=(batch.inputs["input_ids"],), inputs={})
    if getattr(getattr(source.body, "config", None), "is_encoder_decoder", False):
        start = torch.full((len(batch.documents), 1), _decoder_start(source))
        batch = replace(batch, inputs={**batch.inputs, "decoder_input_ids": start})
    floating = (p for p in source.body.parameters() if p.is_floating_point())
    return placed(batch, next(floating, torch.zeros(())))


def _decoder_start(source: Source) -> int:
    settings = [
        getattr(m, n, None)
        for m in (source.model, source.body)
        for n in ("config", "generation_config")
    ]
    said = (getattr(x, "decoder_start_token_id", None) for x in settings)
    start = next((x for x in said if isinstance(x, int)), None)
    if start is None:
        raise SourceError(
            f"{source.name} has a decoder, but its config states no decoder_start_token_id."
        )
    return start
