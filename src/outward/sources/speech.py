"""Sounds, read from a folder or generated, as a model's own feature extractor prepares them."""

import math
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from outward.sources.batch import Batch, grouped, limited
from outward.sources.errors import SourceError, first_line, require
from outward.sources.files import files_in
from outward.sources.resampling import resample
from outward.sources.source import Source

SUFFIXES = frozenset({".wav", ".flac", ".ogg"})
SHORTEST = 0.1  # seconds; of less, convolutions in front of a model may leave nothing


@dataclass(frozen=True)
class Sound:
    """A window of a recording, at the rate of the model."""

    document: str
    index: int
    wave: Float[Tensor, " time"]


def sound_batches(
    source: Source,
    data: str | Path | None,
    *,
    length: int | float,
    samples: int,
    batch: int,
    seed: int,
    skipped: list[str] | None = None,
) -> Iterator[Batch]:
    """Batches of at most `samples` windows of `length` seconds; what cannot be read is in `skipped`.

    A short rest of a recording is dropped, unless it is all there is of it.
    """
    left_out = skipped if skipped is not None else []
    rate = _rate(source)
    if data is None:
        sounds = _generated(rate, length, samples, seed)
    else:
        sounds = _read(data, rate, length, left_out)
    nothing = f"{data} holds no sound that can be read (wav, flac, ogg; {SHORTEST} s or more)."
    first = limited(sounds, samples, nothing, left_out)
    prepared = ((sound, *_prepare(source, sound, rate)) for sound in first)
    for group in grouped(prepared, batch, lambda item: [x.shape for x in item[1].values()]):
        yield _batch(source, group)


def generated_sound(length: int | float, rate: int, index: int, *, seed: int) -> Float[Tensor, " time"]:
    """In turn a sweep, a harmonic tone with vibrato, and bursts of noise; within -1 and 1."""
    draw = torch.Generator().manual_seed(seed * 2**20 + index)
    a, b, c = torch.rand(3, generator=draw, dtype=torch.float64)
    t = torch.arange(int(length * rate), dtype=torch.float64) / rate
    turn = 2 * torch.pi * t
    if index % 3 == 0:  # the phase is the integral of a frequency that rises exponentially
        low, octaves = 80 + 120 * a, 3 + 2 * b
        growth = octaves * math.log(2) / length
        sound = torch.sin(2 * torch.pi * low * torch.expm1(growth * t) / growth)
    elif index % 3 == 1:
        phase = (110 + 220 * a) * turn + (2 + 2 * b) * torch.sin((4 + 3 * c) * turn)
        sound = sum((torch.sin(n * phase) / n for n in range(1, 9)), torch.zeros_like(t)) / 2
    else:
        envelope = torch.exp(-8 * ((t * (2 + 4 * a)) % 1))
        noise = torch.randn(len(t), generator=draw, dtype=torch.float64) / 4
        sound = envelope * (noise + torch.sin((300 + 900 * b) * turn) / 2)
    return sound.clamp(-1, 1).float()


def read_sound(path: Path) -> tuple[Float[Tensor, " time"], int]:
    """(mono wave from -1 to 1, sampling rate) of a file; soundfile reads it where it is installed."""
    if path.suffix.lower() == ".wav" and find_spec("soundfile") is None:
        return _read_wav(path)
    soundfile = require("soundfile", extra="speech", user=path.name)
    channels, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return torch.from_numpy(channels).mean(dim=1), rate


def _read_wav(path: Path) -> tuple[Float[Tensor, " time"], int]:
    """Integer samples of 1 to 4 bytes; those of one byte are unsigned, as the format says."""
    with wave.open(str(path), "rb") as file:
        data = file.readframes(file.getnframes())
        channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
    raw = np.frombuffer(data[: len(data) // (channels * width) * channels * width], dtype=np.uint8)
    wide = np.zeros((len(raw) // width, 4), dtype=np.uint8)
    wide[:, 4 - width :] = raw.reshape(-1, width) ^ (128 if width == 1 else 0)
    samples = wide.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
    return torch.from_numpy(samples.reshape(-1, channels)).mean(dim=1), rate


def _generated(rate: int, length: int | float, samples: int, seed: int) -> Iterator[Sound]:
    for index in range(samples):
        yield Sound(f"generated-{index}", 0, generated_sound(length, rate, index, seed=seed))


def _read(data: str | Path, rate: int, length: int | float, skipped: list[str]) -> Iterator[Sound]:
    """The windows of every recording in a folder."""
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise SourceError(f"{data} is no folder: sounds are read from a folder of wav, flac or ogg.")
    for path in files_in(folder, SUFFIXES):
        name = path.relative_to(folder).as_posix()
        try:
            sound, recorded = read_sound(path)
        except (OSError, RuntimeError, EOFError, wave.Error, SourceError) as error:
            skipped.append(f"{name} cannot be read as sound: {first_line(error)}")
            continue
        whole = resample(sound, recorded, rate)
        if len(whole) < SHORTEST * rate:
            skipped.append(f"{name} is shorter than {SHORTEST} s.")
            continue
        for index, part in enumerate(_cut(whole, int(length * rate))):
            yield Sound(name, index, part)


def _cut(whole: Float[Tensor, " time"], size: int) -> list[Tensor]:
    """Consecutive windows of `size`; the rest only where there is no other."""
    windows = [part for part in whole.split(size) if len(part) == size]
    return windows or [whole]


def _rate(source: Source) -> int:
    rate = getattr(source.processor, "sampling_rate", None)
    if not isinstance(rate, int):
        raise SourceError(
            f"{source.name} states no sampling rate: its function must return (module, feature "
            "extractor)."
        )
    return rate


def _prepare(source: Source, sound: Sound, rate: int) -> tuple[dict[str, Tensor], Tensor | None]:
    """(inputs with a batch axis of 1, which tokens of the encoder hear it)."""
    made = source.processor(
        sound.wave.numpy(), sampling_rate=rate, return_tensors="pt", return_attention_mask=True
    )
    heard = made.pop("attention_mask", None)
    if heard is None or heard.bool().all():
        return dict(made), None
    tokens = getattr(getattr(source.body, "config", None), "max_source_positions", None)
    if tokens is None:
        return {**made, "attention_mask": heard}, None
    # Whisper pads to 30 s and attends to all of it: the silence is no input of its own, and not masked.
    return dict(made), heard[:, :: heard.shape[1] // tokens].bool()


def _batch(
    source: Source, group: list[tuple[Sound, dict[str, Tensor], Bool[Tensor, "1 token"] | None]]
) -> Batch:
    joined = {name: torch.cat([inputs[name] for _, inputs, _ in group]) for name in group[0][1]}
    documents, windows = [s.document for s, _, _ in group], [s.index for s, _, _ in group]
    heard = [valid for _, _, valid in group]
    tokens = next((v.shape[1] for v in heard if v is not None), None)
    full = torch.ones(1, tokens or 0, dtype=torch.bool)
    valid = None if tokens is None else torch.cat([full if v is None else v for v in heard])
    if hasattr(source.body, "main_input_name"):
        return Batch((), joined, documents, windows, valid=valid)
    return Batch(tuple(joined.values()), {}, documents, windows, valid=valid)
