"""Windows of text: where they begin and end, what is left out, and what may not change them."""

import json
import os
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow.parquet import write_table

from outward.sources import text
from outward.sources.batch import Batch
from outward.sources.documents import PIECE
from outward.sources.errors import SourceError
from outward.sources.provenance import fingerprint
from outward.sources.text import (
    AT_ONCE,
    Window,
    encoder,
    shuffled,
    special_ids,
    text_batches,
    text_windows,
)
from sources.tiny import WORDS, byte_tokenizer, prefix_tokenizer, word_tokenizer, words

PLAIN = word_tokenizer(special=False)
AROUND = word_tokenizer(special=True)


def windows(data: object, tokenizer: Any = PLAIN, **options: Any) -> list[Window]:
    return list(text_windows(data, tokenizer, **{"length": 10, "samples": 1000, **options}))


def ids(first: int, count: int) -> list[int]:
    return list(range(100 + first, 100 + first + count))


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl(path: Path, texts: Iterable[object], name: str = "text") -> Path:
    return written(path, "".join(json.dumps({"id": 1, name: text}) + "\n" for text in texts))


def test_a_file_is_one_document_cut_into_whole_windows(tmp_path: Path) -> None:
    made = windows(written(tmp_path / "a.txt", words(43)))
    assert made == [Window("a.txt", i, ids(10 * i, 10)) for i in range(4)]


def test_the_short_rest_is_kept_where_there_is_no_other(tmp_path: Path) -> None:
    assert windows(written(tmp_path / "a.txt", words(3))) == [Window("a.txt", 0, ids(0, 3))]


def crosses(made: list[Window], ranges: list[tuple[int, int]]) -> bool:
    """Whether a window holds tokens of two records."""
    return not all(
        any(100 + low <= min(w.ids) and max(w.ids) < 100 + high for low, high in ranges) for w in made
    )


RECORDS = [(0, 7), (7, 32), (32, 36)]


def test_windows_never_cross_records(tmp_path: Path) -> None:
    texts = [words(high - low, offset=low) for low, high in RECORDS]
    made = windows(jsonl(tmp_path / "a.jsonl", texts))
    assert [(w.document, w.index, len(w.ids)) for w in made] == [
        ("a.jsonl:1", 0, 7),
        ("a.jsonl:2", 0, 10),
        ("a.jsonl:3", 0, 4),
        ("a.jsonl:2", 1, 10),
    ]
    assert not crosses(made, RECORDS)


def test_documents_take_turns(tmp_path: Path) -> None:
    """A few windows are of many texts, and no more than AT_ONCE are open at a time."""
    many = AT_ONCE + 3
    path = jsonl(tmp_path / "a.jsonl", [words(20, offset=20 * n) for n in range(many)])
    made = windows(path, samples=many)
    assert len({w.document for w in made}) == AT_ONCE
    assert [w.index for w in made] == [0] * AT_ONCE + [1] * 3
    rest = windows(path, samples=10**6)
    assert len(rest) == 2 * many
    assert len({(w.document, w.index) for w in rest}) == 2 * many


def test_windows_that_cross_records_would_be_seen(tmp_path: Path) -> None:
    texts = [words(high - low, offset=low) for low, high in RECORDS]
    assert crosses(windows(written(tmp_path / "joined.txt", " ".join(texts))), RECORDS)


def test_special_tokens_are_inside_the_length(tmp_path: Path) -> None:
    made = windows(written(tmp_path / "a.txt", words(20)), AROUND)
    assert [w.ids for w in made] == [[1, *ids(0, 8), 2], [1, *ids(8, 8), 2]]
    assert {w.special for w in made} == {(1, 1)}


def test_special_tokens_can_be_left_out(tmp_path: Path) -> None:
    made = windows(written(tmp_path / "a.txt", words(20)), AROUND, special_tokens="never")
    assert [(w.ids, w.special) for w in made] == [(ids(0, 10), (0, 0)), (ids(10, 10), (0, 0))]


def test_special_tokens_that_change_the_text_are_refused() -> None:
    odd = SimpleNamespace(num_special_tokens_to_add=2)

    class Odd:
        num_special_tokens_to_add = encode = odd

        def __call__(self, text: str, add_special_tokens: bool = True, **_: object) -> object:
            return {"input_ids": [1, 5, 2] if add_special_tokens else [4]}

    with pytest.raises(SourceError, match=r"Odd.*special_tokens='never'"):
        special_ids(Odd())


def long_text(characters: int) -> str:
    line = WORDS + ".\n\nAnd then, as before: "
    return line * (characters // len(line) + 1)


TOKENIZERS = {"words": lambda: PLAIN, "bytes": byte_tokenizer, "prefixed": prefix_tokenizer}


def in_pieces(path: Path, tokenizer: Any) -> list[int]:
    return [x for w in windows(path, tokenizer, length=64, samples=10**6) for x in w.ids]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_text_in_pieces_has_the_tokens_of_the_whole(name: str, tmp_path: Path) -> None:
    tokenizer, whole = TOKENIZERS[name](), long_text(3 * PIECE + 77)
    expected = encoder(tokenizer)(whole)
    found = in_pieces(written(tmp_path / "a.txt", whole), tokenizer)
    assert len(expected) - 64 < len(found)
    assert found == expected[: len(found)]


@pytest.mark.parametrize(
    ("name", "part", "wrong"),
    [
        ("bytes", "_last_seam", len),  # in the middle of a word
        ("bytes", "_unwritten", lambda encode: " "),  # the space is lost
        ("prefixed", "_unwritten", lambda encode: ""),  # the space is there twice
    ],
)
def test_a_wrong_seam_would_be_seen(
    name: str, part: str, wrong: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, whole = TOKENIZERS[name](), long_text(3 * PIECE + 77)
    monkeypatch.setattr(text, part, wrong)
    found = in_pieces(written(tmp_path / "a.txt", whole), tokenizer)
    assert found != encoder(tokenizer)(whole)[: len(found)]


def test_text_without_any_space_is_read_too(tmp_path: Path) -> None:
    whole = "w" * (2 * PIECE + 5)
    found = in_pieces(written(tmp_path / "a.txt", whole), byte_tokenizer())
    assert abs(len(found) - len(encoder(byte_tokenizer())(whole))) <= 64 + 2


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_large_file_is_read_only_as_far_as_needed(tmp_path: Path) -> None:
    path, size = tmp_path / "large.txt", 100 * 2**20
    with path.open("wb") as file:
        file.write(words(900).encode() * (PIECE // 4000))
        file.truncate(size)  # NUL bytes follow, at which reading on would fail
    assert peak_of(lambda: windows(path, samples=20)) < 2**22


def test_a_file_read_to_its_end_is_never_held_whole(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", words(900) * 800)
    size = path.stat().st_size

    def through() -> None:
        for _ in text_windows(path, byte_counter(), length=64, samples=10**9):
            pass

    assert peak_of(through) < size / 2 < peak_of(path.read_text)


def byte_counter() -> object:
    """A tokenizer of one's own, one token for every 64 characters: what holds memory is the reading."""
    return SimpleNamespace(encode=lambda seen: [len(seen)] * (len(seen) // 64))


GOOD = words(12)
BAD = {
    "empty.txt": (b"", "empty.txt is empty"),
    "nul.txt": (b"w1 w2\0 w3", "nul.txt is no text: it holds NUL bytes"),
    "latin.txt": ("w1 caf\xe9 w2".encode("latin-1"), "latin.txt is not UTF-8"),
    "short.txt": (b"w1", "short.txt has fewer than 2 tokens"),
    "white.txt": (b" \n\t ", "white.txt is empty"),
}


def test_what_is_no_text_is_named_and_left_out(tmp_path: Path) -> None:
    for name, (content, _) in BAD.items():
        written(tmp_path / name, content)
    written(tmp_path / "good.txt", GOOD)
    skipped: list[str] = []
    assert [w.document for w in windows(tmp_path, skipped=skipped)] == ["good.txt"]
    assert len(skipped) == len(BAD)
    assert all(any(said in line for line in skipped) for _, said in BAD.values())


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_text_is_an_error_alone(name: str, tmp_path: Path) -> None:
    content, said = BAD[name]
    with pytest.raises(SourceError, match=said):
        windows(written(tmp_path / name, content))


def test_a_folder_is_read_in_sorted_order_without_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("c.txt", "b/z.md", "b/a.txt", "a", ".hidden", ".git/config"):
        written(tmp_path / name, GOOD)
    assert [w.document for w in windows(tmp_path)] == ["a", "b/a.txt", "b/z.md", "c.txt"]


def test_a_folder_without_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no text of 2 tokens or more"):
        windows(tmp_path)


def test_broken_records_are_named_and_left_out(tmp_path: Path) -> None:
    lines = ['{"text": "w1 w2 w3"}', '{"text": "w4', '{"text": null}', "[1]", '{"other": 1}', ""]
    path = written(tmp_path / "a.jsonl", "\n".join([*lines, '{"text": "w5 w6"}']))
    skipped: list[str] = []
    assert [w.document for w in windows(path, skipped=skipped)] == ["a.jsonl:1", "a.jsonl:7"]
    for said in ("a.jsonl:2 is no JSON", "a.jsonl:3: its field 'text' is NoneType", "a.jsonl:4", ":5"):
        assert any(said in line for line in skipped), said
    assert len(skipped) == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": "w1 \\ud800 w2"}', "a.jsonl:2: its field 'text' is text with half a character"),
        ("[" * 200_000 + "]" * 200_000, "a.jsonl:2 is nested too deeply"),
    ],
    ids=["surrogate", "nested"],
)
def test_a_record_that_no_tokenizer_takes_is_left_out(line: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", "\n".join(['{"text": "w1 w2"}', line, '{"text": "w5 w6"}']))
    skipped: list[str] = []
    assert [w.document for w in windows(path, skipped=skipped)] == ["a.jsonl:1", "a.jsonl:3"]
    (told,) = skipped
    assert told.startswith(said)


def test_what_cannot_be_read_twice_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (windows, fingerprint):
        with pytest.raises(SourceError, match=r"pipe is neither a file nor a folder.*as a file"):
            read(tmp_path / "pipe")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_field_can_be_named_and_a_wrong_one_is_told_the_others(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        jsonl(path, [words(4), words(5)], "body")
    else:
        write_table(pyarrow.table({"id": [1, 1], "body": [words(4), words(5)]}), path)
    assert [(w.document, len(w.ids)) for w in windows(path, field="body")] == [
        (f"a.{kind}:1", 4),
        (f"a.{kind}:2", 5),
    ]
    with pytest.raises(SourceError, match="no field 'text'; it has: id, body"):
        windows(path)


def test_a_field_of_what_has_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"field 'body': .*a\.txt has no fields"):
        windows(written(tmp_path / "a.txt", GOOD), field="body")


def test_a_parquet_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.parquet is no Parquet file"):
        windows(written(tmp_path / "a.parquet", "PAR, or not"))


def test_missing_data_is_named() -> None:
    with pytest.raises(SourceError, match="nowhere: there is no such file or folder"):
        windows("nowhere")


def test_the_default_text_is_cut_by_topic() -> None:
    made = windows(None, byte_tokenizer(), length=50, samples=60)
    names = list(dict.fromkeys(w.document for w in made))
    assert len(made) == 60
    assert len(names) > 1
    assert names == sorted(names)


def hub(rows: object, asked: list[object]) -> SimpleNamespace:
    def load_dataset(*args: object, **options: object) -> object:
        asked.append((args, options))
        if isinstance(rows, Exception):
            raise rows
        return rows

    return SimpleNamespace(load_dataset=load_dataset)


def test_the_hub_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    rows = ({"text": words(10)} for _ in range(10**9))
    monkeypatch.setattr("outward.sources.documents.require", lambda *a, **k: hub(rows, asked))
    made = windows("hf:org/set#part:test", samples=3)
    assert [w.document for w in made] == [f"hf:org/set#part:test:{i}" for i in (1, 2, 3)]
    assert asked == [(("org/set", "part"), {"split": "test", "streaming": True})]


def test_what_the_hub_says_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = FileNotFoundError("Dataset 'org/set' doesn't exist\nmore")
    monkeypatch.setattr("outward.sources.documents.require", lambda *a, **k: hub(gone, []))
    with pytest.raises(SourceError, match=r"hf:org/set cannot be streamed: Dataset 'org/set'.*exist$"):
        windows("hf:org/set")


def test_streaming_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SourceError, match=r"hf:a/b needs the package datasets.*outward\[data\]"):
        windows("hf:a/b")


@pytest.mark.parametrize(("tokenizer", "length", "least"), [(PLAIN, 1, 2), (AROUND, 2, 3)])
def test_a_token_alone_is_refused(tokenizer: Any, length: int, least: int, tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", GOOD)
    with pytest.raises(SourceError, match=f"length {length}: .* at least {least} tokens"):
        windows(path, tokenizer, length=length)
    assert {len(w.ids) for w in windows(path, tokenizer, length=least)} == {least}


def test_no_samples_are_refused() -> None:
    with pytest.raises(SourceError, match="samples 0"):
        windows(None, samples=0)


def test_what_has_no_encode_is_no_tokenizer() -> None:
    with pytest.raises(SourceError, match="NoneType is no tokenizer"):
        windows(None, None)


LENGTHS = (5, 3, 7, 7, 2)
RAGGED = [Window(f"d{i}", i, ids(10 * i, n)) for i, n in enumerate(LENGTHS)]


def in_order(made: Iterable[Batch]) -> bool:
    rows = [(d, w) for batch in made for d, w in zip(batch.documents, batch.windows, strict=True)]
    return rows == [(w.document, w.index) for w in RAGGED]


def test_batches_keep_the_order_and_pad_on_the_right() -> None:
    made = list(text_batches(RAGGED, batch=2, pad_id=9))
    assert in_order(made)
    assert made[0].inputs["input_ids"].tolist() == [ids(0, 5), [*ids(10, 3), 9, 9]]
    assert made[0].inputs["attention_mask"].tolist() == [[1] * 5, [1, 1, 1, 0, 0]]
    assert made[0].valid is not None
    assert made[0].valid.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert list(made[1].inputs) == ["input_ids"]
    assert made[1].valid is None


def test_batches_sorted_by_length_would_be_seen() -> None:
    assert not in_order(text_batches(sorted(RAGGED, key=lambda w: len(w.ids)), batch=2, pad_id=9))


def test_without_a_pad_id_rows_of_a_batch_are_of_one_length() -> None:
    made = list(text_batches(RAGGED, batch=2, pad_id=None))
    assert in_order(made)
    assert [x.inputs["input_ids"].shape for x in made] == [(1, 5), (1, 3), (2, 7), (1, 2)]


SPECIAL = [Window("a", 0, [1, *ids(0, 20), 2], (1, 1)), Window("b", 4, [1, *ids(30, 9), 2], (1, 1))]


def stay(before: Batch, after: Batch) -> bool:
    """Whether special tokens and padding are where they were."""
    x, y = before.inputs["input_ids"], after.inputs["input_ids"]
    return bool((x[x < 100] == y[x < 100]).all())


def test_shuffling_moves_the_tokens_of_the_text_only() -> None:
    (batch,) = text_batches(SPECIAL, batch=2, pad_id=0)
    mixed = shuffled(batch, seed=1)
    before, after = batch.inputs["input_ids"], mixed.inputs["input_ids"]
    assert stay(batch, mixed)
    assert not before.equal(after)
    assert before.sort().values.equal(after.sort().values)
    assert torch.equal(mixed.inputs["attention_mask"], batch.inputs["attention_mask"])


def test_shuffling_that_moves_all_would_be_seen() -> None:
    (batch,) = text_batches(SPECIAL, batch=2, pad_id=0)
    blind = shuffled(replace(batch, special=None, valid=None), seed=1)
    assert not stay(batch, blind)


def test_the_order_depends_on_seed_document_and_window_not_on_the_batch() -> None:
    (both,) = text_batches(SPECIAL, batch=2, pad_id=0)
    *_, second = text_batches(SPECIAL, batch=1, pad_id=0)
    alone = shuffled(second, seed=1).inputs["input_ids"][0]
    assert shuffled(both, seed=1).inputs["input_ids"][1, : len(alone)].equal(alone)
    assert not shuffled(second, seed=2).inputs["input_ids"][0].equal(alone)
    for other in (replace(second, documents=["c"]), replace(second, windows=[5])):
        assert not shuffled(other, seed=1).inputs["input_ids"][0].equal(alone)


def test_pictures_are_not_shuffled() -> None:
    picture = Batch((), {"pixel_values": torch.zeros(1, 3, 4, 4)}, ["a"], [0])
    for batch in (picture, replace(picture, args=(torch.zeros(1, 3, 4, 4),), inputs={})):
        with pytest.raises(SourceError, match="baseline for text"):
            shuffled(batch, seed=0)
