"""A chunk that fails twice is named and left out, and tried again by --resume; so is a full disk."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.command import call, finished_chunks, options, profile_bytes
from outward.probe.loop import Probe
from outward.run import load

Said = pytest.CaptureFixture[str]
PATCHES = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By a run in which nothing fails."""
    out = tmp_path_factory.mktemp("unharmed") / "run"
    assert call(*options(out)) == 0
    return out


def failing(document: str, times: float) -> Callable[..., Any]:
    """Probe.measure, without memory for the chunk with this document, so many times."""
    measure, left = Probe.measure, [times]

    def measure_or_fail(self: Probe, batches: Any) -> Any:
        batches = list(batches)
        if left[0] > 0 and any(document in name for b in batches for name in b.documents):
            left[0] -= 1
            raise torch.OutOfMemoryError("tried to allocate 7.00 GiB\nand so on")
        return measure(self, batches)

    return measure_or_fail


# Eight windows are a chunk, and texts take turns: of 00.txt to 14.txt the first eight begin. 04.txt and
# 09.txt have one window each.
@pytest.mark.parametrize(
    ("document", "chunk", "begins"), [("04.txt", 1, "00.txt"), ("09.txt", 2, "08.txt")]
)
def test_a_chunk_that_fails_twice_is_left_out(
    document: str,
    chunk: int,
    begins: str,
    unharmed: Path,
    tmp_path: Path,
    monkeypatch: PATCHES,
    capsys: Said,
) -> None:
    monkeypatch.setattr(Probe, "measure", failing(document, 2))
    assert call(*options(tmp_path)) == 3
    name = f"main.{chunk:06d}: tried to allocate 7.00 GiB"
    assert f"1 chunk failed, the first: {name}" in capsys.readouterr().out
    run = load(tmp_path)
    assert run.manifest["failed"] == [name]
    assert document not in set(run.samples["document"])
    assert run.manifest["checks"]["identical"]
    assert len(finished_chunks(tmp_path)) == 3
    assert profile_bytes(tmp_path) != profile_bytes(unharmed)

    assert call(*options(tmp_path)) == 1  # going on must be asked for
    assert "holds a finished run" in capsys.readouterr().err
    tries = counted(monkeypatch)
    assert call(*options(tmp_path, "--resume")) == 0
    assert tries == [begins]
    assert load(tmp_path).manifest["failed"] == []
    assert profile_bytes(tmp_path) == profile_bytes(unharmed)
    assert not (tmp_path / "chunks").exists()


def counted(monkeypatch: PATCHES) -> list[str]:
    """The first documents of the chunks that are measured from here on."""
    found: list[str] = []
    monkeypatch.undo()
    measure = Probe.measure

    def measure_and_tell(self: Probe, batches: Any) -> Any:
        batches = list(batches)
        found.append(batches[0].documents[0])
        return measure(self, batches)

    monkeypatch.setattr(Probe, "measure", measure_and_tell)
    return found


def test_a_chunk_that_fails_once_is_tried_again(
    unharmed: Path, tmp_path: Path, monkeypatch: PATCHES
) -> None:
    monkeypatch.setattr(Probe, "measure", failing("04.txt", 1))
    assert call(*options(tmp_path)) == 0
    assert profile_bytes(tmp_path) == profile_bytes(unharmed)


def test_what_fails_again_is_left_out_again(tmp_path: Path, monkeypatch: PATCHES) -> None:
    monkeypatch.setattr(Probe, "measure", failing("04.txt", 4))
    assert call(*options(tmp_path)) == 3
    assert call(*options(tmp_path, "--resume")) == 3
    assert call(*options(tmp_path, "--resume")) == 0


def test_where_all_chunks_fail_nothing_is_measured(
    tmp_path: Path, monkeypatch: PATCHES, capsys: Said
) -> None:
    monkeypatch.setattr(Probe, "measure", failing("txt", torch.inf))
    assert call(*options(tmp_path)) == 1
    assert (
        "nothing could be measured. main.000001: tried to allocate 7.00 GiB" in capsys.readouterr().err
    )
    monkeypatch.undo()
    assert call(*options(tmp_path, "--resume")) == 0


# ---- a chunk that is damaged


@pytest.mark.parametrize("left", [0, 100])
def test_a_damaged_chunk_is_named_and_made_again(
    left: int, unharmed: Path, tmp_path: Path, capsys: Said
) -> None:
    for n in ("1/2", "2/2"):
        assert call(*options(tmp_path, "--shard", n)) == 0
    damaged = tmp_path / "chunks" / "main.000002.chunk"
    damaged.write_bytes(damaged.read_bytes()[:left])
    capsys.readouterr()
    assert call("merge", str(tmp_path)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{damaged} is damaged" in line
    assert "--resume" in line
    assert call(*options(tmp_path, "--resume")) == 0
    assert profile_bytes(tmp_path) == profile_bytes(unharmed)


# ---- the disk


def test_a_full_disk_stops_the_run_and_resume_goes_on(
    unharmed: Path, tmp_path: Path, monkeypatch: PATCHES, capsys: Said
) -> None:
    sync, left = os.fsync, [3]  # the plan, the model, and the first chunk

    def full(handle: int) -> None:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    assert call(*options(tmp_path)) == 1
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert f"{tmp_path / 'chunks' / 'main.000002.chunk'} cannot be written: No space left" in line
    assert "--resume" in line
    assert finished_chunks(tmp_path) == ["main.000001.chunk"]
    assert not list(tmp_path.rglob("*.tmp"))
    monkeypatch.undo()
    assert call(*options(tmp_path, "--resume")) == 0
    assert profile_bytes(tmp_path) == profile_bytes(unharmed)
