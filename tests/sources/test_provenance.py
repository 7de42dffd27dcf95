"""What the data was: its hash changes exactly when the data does."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from outward.sources.errors import SourceError
from outward.sources.provenance import describe, fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    (path / "sub").mkdir(parents=True)
    (path / "a.txt").write_text("one")
    (path / "sub" / "b.txt").write_text("two")
    return path


def test_the_same_data_elsewhere_has_the_same_hash(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other" / "data")
    assert fingerprint(folder) == fingerprint(other)
    assert fingerprint(folder / "a.txt") == fingerprint(other / "a.txt")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "a.txt").write_text("onE"),
        lambda path: (path / "a.txt").rename(path / "c.txt"),
        lambda path: (path / "sub" / "b.txt").unlink(),
        lambda path: (path / "new.txt").touch(),
        lambda path: (path / "sub" / "b.txt").rename(path / "b.txt"),
    ],
)
def test_any_change_changes_the_hash(change: object, folder: Path) -> None:
    before = fingerprint(folder)
    assert callable(change)
    change(folder)
    assert fingerprint(folder) != before


def test_the_record_of_files(folder: Path) -> None:
    assert describe(str(folder)) == {
        "data": str(folder),
        "sha256": fingerprint(folder),
        "files": 2,
        "note": None,
    }


@pytest.mark.parametrize(
    ("kind", "said"), [("text", "pydoc"), ("image", "pictures"), ("audio", "sounds")]
)
def test_the_record_says_that_no_data_was_given(kind: str, said: str) -> None:
    record = describe(None, kind)
    assert record["data"] is None
    assert said in str(record["note"])
    assert len({fingerprint(None, other) for other in ("text", "image", "audio")}) == 3


def test_missing_data_is_named() -> None:
    with pytest.raises(SourceError, match="nowhere: there is no such file or folder"):
        fingerprint("nowhere")


def test_a_stream_is_known_by_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = {"org/set": "1"}
    api = SimpleNamespace(dataset_info=lambda name: SimpleNamespace(sha=commits[name]))
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api)
    before = fingerprint("hf:org/set#part:test")
    assert before == fingerprint("hf:org/set#part:test") != fingerprint("hf:org/set")
    commits["org/set"] = "2"
    assert fingerprint("hf:org/set#part:test") != before


def test_a_stream_out_of_reach_is_one_clear_error() -> None:
    with pytest.raises(SourceError, match="hf:org/set cannot be reached"):
        fingerprint("hf:org/set")
