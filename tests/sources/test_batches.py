"""What a model is called with: complete, of its type, within its limits, and the same in any batch."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration

from outward.sources.batch import Batch
from outward.sources.batches import batches
from outward.sources.errors import SourceError
from outward.sources.models import load_model
from outward.sources.source import Source
from sources.tiny import word_tokenizer, words

Folder = Callable[[str], Path]


@pytest.fixture
def ragged(tmp_path: Path) -> Path:
    """Records of 20, 5, 31 and 2 words."""
    path = tmp_path / "ragged"
    path.mkdir()
    for i, count in enumerate((20, 5, 31, 2)):
        (path / f"{i}.txt").write_text(words(count, offset=50 * i))
    return path


def outputs(source: Source, made: list[Batch]) -> dict[str, Tensor]:
    """The hidden states of each document's valid tokens."""
    found = {}
    for batch in made:
        hidden = source.body(*batch.args, **batch.inputs)[0]
        for row, name in enumerate(batch.documents):
            found[name] = hidden[row] if batch.valid is None else hidden[row][batch.valid[row]]
    return found


def padding_counts(source: Source, data: Path, change: Callable[[Batch], Batch] = lambda b: b) -> bool:
    """Whether a row's output depends on what it is padded to."""
    padded = [change(batch) for batch in batches(source, data, batch=4)]
    together, alone = outputs(source, padded), outputs(source, list(batches(source, data, batch=1)))
    return not all(torch.allclose(together[name], alone[name], atol=1e-5) for name in alone)


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_padding_changes_nothing(kind: str, folder: Folder, ragged: Path) -> None:
    assert not padding_counts(load_model(str(folder(kind))), ragged)


def test_padding_without_its_mask_would_be_seen(folder: Folder, ragged: Path) -> None:
    def unmasked(batch: Batch) -> Batch:
        return replace(batch, inputs={"input_ids": batch.inputs["input_ids"]})

    assert padding_counts(load_model(str(folder("bert"))), ragged, unmasked)


@pytest.mark.parametrize("kind", ["llama", "bert", "vit", "whisper", "wav2vec2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_kind_runs_on_what_is_made_for_it(kind: str, dtype: str, folder: Folder) -> None:
    source = load_model(str(folder(kind)), dtype=dtype)
    made = list(batches(source, None, samples=5, batch=2))
    assert [len(batch.documents) for batch in made] == [2, 2, 1]
    for batch in made:
        assert source.body(*batch.args, **batch.inputs)[0].isfinite().all()


@pytest.mark.parametrize("kind", ["bert", "vit", "whisper", "wav2vec2"])
def test_the_same_again_and_in_other_batches(kind: str, folder: Folder) -> None:
    source = load_model(str(folder(kind)))

    def rows(size: int, seed: int) -> Tensor:
        made = batches(source, None, samples=5, batch=size, seed=seed)
        return torch.cat([next(iter(batch.inputs.values())) for batch in made])

    assert rows(2, 1).equal(rows(3, 1))
    assert rows(2, 1).equal(rows(2, 2)) is (kind == "bert")  # only what is generated depends on it


@pytest.mark.parametrize(("kind", "length"), [("llama", 64), ("bert", 48)])
def test_the_default_length_is_within_the_limit(kind: str, length: int, folder: Folder) -> None:
    source = load_model(str(folder(kind)))

    def longest(source: Source) -> int:
        return max(batch.inputs["input_ids"].shape[1] for batch in batches(source, None, samples=9))

    assert longest(source) == length
    assert longest(replace(source, max_length=None)) == 512


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("llama", {"length": 65}, "length 65: .* takes at most 64"),
        ("whisper", {"length": 2.5}, r"length 2\.5: .* takes at most 2"),
        ("llama", {"length": 1}, "length 1: a window needs at least 2 tokens"),
        ("llama", {"length": 7.5}, r"length 7\.5: .* a whole number of tokens"),
        ("wav2vec2", {"length": -1}, "length -1: it must be positive"),
        ("vit", {"length": 5}, "length 5: .* takes pictures"),
        ("llama", {"samples": 0}, "samples 0, batch 8: both must be at least 1"),
        ("vit", {"batch": 0}, "batch 0"),
    ],
)
def test_what_cannot_be_asked(kind: str, options: dict[str, Any], said: str, folder: Folder) -> None:
    with pytest.raises(SourceError, match=said):
        list(batches(load_model(str(folder(kind))), None, **options))


def t5(path: Path, **options: int) -> Source:
    config = T5Config(
        vocab_size=1000, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, **options
    )
    T5ForConditionalGeneration(config).save_pretrained(path)
    word_tokenizer(special=False).save_pretrained(path)
    return load_model(str(path))


def test_a_decoder_is_given_its_start(tmp_path: Path, folder: Folder) -> None:
    text, sound = t5(tmp_path, decoder_start_token_id=5), load_model(str(folder("whisper")))
    for source, start in ((text, 5), (sound, 7)):
        (batch,) = batches(source, None, samples=2)
        assert batch.inputs["decoder_input_ids"].tolist() == [[start], [start]]
        assert source.body(**batch.inputs)[0].shape[:2] == (2, 1)


def test_a_decoder_without_a_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="states no decoder_start_token_id"):
        list(batches(t5(tmp_path), None, samples=1))


class Letters:
    """A tokenizer of one's own."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % 50 for letter in text]


def own(processor: object) -> Source:
    model = nn.Embedding(50, 4)
    return Source("mine", "text", model, model, processor, {}, None)


def test_a_model_of_ones_own_gets_its_ids_by_place_and_never_padded(ragged: Path) -> None:
    made = list(batches(own(Letters()), ragged, length=30, batch=4))
    assert all(batch.inputs == {} and batch.valid is None for batch in made)
    rows = [(name, batch.args[0].shape[1]) for batch in made for name in batch.documents]
    whole = len(words(20)) // 30
    assert rows.count(("0.txt", 30)) == whole
    assert ("1.txt", len(words(5, offset=50))) in rows
    assert ("3.txt", len(words(2, offset=150))) in rows


def test_a_model_of_ones_own_without_a_tokenizer_is_told(ragged: Path) -> None:
    with pytest.raises(SourceError, match=r"no tokenizer.*returns \(model, tokenizer\)"):
        list(batches(own(None), ragged))


def test_batches_land_where_the_model_is(folder: Folder, ragged: Path) -> None:
    source = load_model(str(folder("bert")))
    source.model.to("meta")
    for batch in batches(source, ragged):
        assert batch.valid is not None
        assert batch.special is not None
        made = [*batch.inputs.values(), batch.valid, batch.special]
        assert {x.device.type for x in made} == {"meta"}
