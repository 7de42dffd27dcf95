"""Sounds: read, mixed, resampled and cut; and those that cannot be read."""

import sys
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor, nn

from outward.sources import speech
from outward.sources.errors import SourceError
from outward.sources.models import load_model
from outward.sources.resampling import resample
from outward.sources.source import Source
from outward.sources.speech import generated_sound, read_sound, sound_batches

Folder = Callable[[str], Path]
RATE = 16000


def tone(frequency: float, rate: int, seconds: float = 0.5) -> Tensor:
    return torch.sin(
        2 * torch.pi * frequency * torch.arange(int(seconds * rate)).double() / rate
    ).float()


def error_of(resampled: Tensor, expected: Tensor) -> float:
    """The largest difference, away from both ends, where there is no more signal beyond."""
    assert len(resampled) == len(expected)
    return float((resampled - expected).abs()[400:-400].max())


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
@pytest.mark.parametrize("frequency", [50.0, 1000.0, 3000.0])
def test_a_tone_stays_the_tone_at_another_rate(rate: int, frequency: float) -> None:
    assert error_of(resample(tone(frequency, rate), rate, RATE), tone(frequency, RATE)) < 2e-3


def linear(x: Tensor, rate: int, to: int) -> Tensor:
    size = len(x) * to // rate
    return nn.functional.interpolate(x[None, None], size=size, mode="linear")[0, 0]


def test_linear_interpolation_would_be_seen() -> None:
    assert error_of(linear(tone(3000, 8000), 8000, RATE), tone(3000, RATE)) > 0.1


def test_what_the_lower_rate_cannot_hold_is_gone() -> None:
    assert error_of(resample(tone(10000, 48000), 48000, RATE), torch.zeros(8000)) < 1e-3
    assert error_of(linear(tone(10000, 48000), 48000, RATE), torch.zeros(8000)) > 0.1


@pytest.fixture
def audio(folder: Folder) -> Source:
    return load_model(str(folder("wav2vec2")))


def raw(source: Source, data: Path | None, **options: object) -> list[tuple[str, int, int]]:
    asked = {"length": 0.5, "samples": 100, "batch": 3, "seed": 0, **options}
    return [
        (document, window, batch.inputs["input_values"].shape[1])
        for batch in sound_batches(source, data, **asked)
        for document, window in zip(batch.documents, batch.windows, strict=True)
    ]


def test_recordings_are_cut_and_the_short_rest_dropped(audio: Source, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    soundfile.write(tmp_path / "b" / "long.flac", tone(300, 48000, 1.3), 48000)
    soundfile.write(tmp_path / "short.wav", tone(300, 8000, 0.2), 8000)
    soundfile.write(tmp_path / "a.ogg", tone(300, RATE, 0.6), RATE)
    assert raw(audio, tmp_path) == [
        ("a.ogg", 0, 8000),
        ("b/long.flac", 0, 8000),
        ("b/long.flac", 1, 8000),
        ("short.wav", 0, 3200),
    ]


def test_what_cannot_be_heard_is_named_and_left_out(audio: Source, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "good.wav", tone(300, RATE), RATE)
    soundfile.write(tmp_path / "tiny.wav", tone(300, RATE, 0.05), RATE)
    (tmp_path / "broken.wav").write_text("no sound")
    (tmp_path / "empty.flac").touch()
    skipped: list[str] = []
    assert [document for document, _, _ in raw(audio, tmp_path, skipped=skipped)] == ["good.wav"]
    assert [line.split()[0] for line in skipped] == ["broken.wav", "empty.flac", "tiny.wav"]


def test_a_folder_without_sound_is_an_error(audio: Source, tmp_path: Path) -> None:
    (tmp_path / "broken.wav").write_text("no sound")
    with pytest.raises(SourceError, match=r"holds no sound that can be read.*broken\.wav cannot"):
        raw(audio, tmp_path)
    with pytest.raises(SourceError, match=r"broken\.wav is no folder"):
        raw(audio, tmp_path / "broken.wav")


def written(path: Path, width: int) -> Path:
    """Two channels, the right one half as loud, in samples of so many bytes."""
    both = torch.stack([tone(300, 8000), tone(300, 8000) / 2], dim=1).double().numpy()
    scaled = np.round(both * (2 ** (8 * width - 1) - 1)).astype("<i8")
    unsigned = scaled + 128 if width == 1 else scaled
    data = unsigned.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setparams((2, width, 8000, 0, "NONE", None))
        file.writeframes(data)
    return path


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_files_are_read_alike_with_and_without_soundfile(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a.wav", width)
    there, rate = read_sound(path)
    monkeypatch.setattr(speech, "find_spec", lambda name: None)
    without, same_rate = read_sound(path)
    assert rate == same_rate == 8000
    assert there.equal(without)
    assert (there - 0.75 * tone(300, 8000)).abs().max() < 2 / 2 ** (8 * width - 1) + 1e-6


def test_other_files_need_soundfile(
    audio: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile.write(tmp_path / "a.flac", tone(300, RATE), RATE)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(SourceError, match=r"a\.flac needs the package soundfile.*outward\[speech\]"):
        raw(audio, tmp_path)


def test_generated_sounds_fill_the_window_and_differ() -> None:
    sounds = [generated_sound(0.5, RATE, index, seed=0) for index in range(6)]
    for sound in sounds:
        assert sound.shape == (8000,)
        assert 0.05 < sound.square().mean().sqrt() < 1
        assert sound.abs().max() <= 1
    assert not any(a.equal(b) for i, a in enumerate(sounds) for b in sounds[:i])
    assert sounds[2].equal(generated_sound(0.5, RATE, 2, seed=0))
    assert not sounds[2].equal(generated_sound(0.5, RATE, 2, seed=1))


def test_a_sweep_rises() -> None:
    sweep = generated_sound(1.0, RATE, 0, seed=0)
    crossings = [int((part[1:] * part[:-1] < 0).sum()) for part in sweep.chunk(4)]
    assert crossings == sorted(crossings)
    assert crossings[-1] > 4 * crossings[0]


def test_what_whisper_pads_does_not_count(folder: Folder, tmp_path: Path) -> None:
    source = load_model(str(folder("whisper")))
    soundfile.write(tmp_path / "a.wav", tone(300, RATE, 0.5), RATE)
    soundfile.write(tmp_path / "b.wav", tone(300, RATE, 2.0), RATE)
    (batch,) = sound_batches(source, tmp_path, length=2, samples=9, batch=9, seed=0)
    assert batch.valid is not None
    assert source.body.encoder(batch.inputs["input_features"])[0].shape[:2] == batch.valid.shape
    assert batch.valid.sum(dim=1).tolist() == [25, 100]  # 50 tokens a second
    assert batch.valid[0, :25].all()


def test_whisper_without_padding_counts_all(folder: Folder) -> None:
    source = load_model(str(folder("whisper")))
    (batch,) = sound_batches(source, None, length=2, samples=2, batch=2, seed=0)
    assert batch.valid is None


def test_a_model_that_states_no_rate_is_told() -> None:
    source = Source("mine", "audio", nn.Module(), nn.Module(), None, {}, None)
    with pytest.raises(SourceError, match="mine states no sampling rate"):
        raw(source, None)
