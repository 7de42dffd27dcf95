"""The same bytes, whoever does the work: one process, shards, torchrun, Ray, and who was killed."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from engines.command import (
    WAITS,
    begun,
    call,
    ended,
    finished_chunks,
    options,
    profile_bytes,
    rows,
    stuck,
    tiny,
    waiting,
)
from outward.results import read_manifest

PASSES = ("--lengths", "8", "--baseline", "shuffled-tokens,random-weights")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
Made = pytest.TempPathFactory


@pytest.fixture(scope="module")
def alone(tmp_path_factory: Made) -> Path:
    """By one process, without interruption."""
    out = tmp_path_factory.mktemp("alone") / "run"
    assert call(*options(out, *PASSES)) == 0
    return out


def assert_same(run: Path, other: Path) -> None:
    """Of the profile, and of the tables and arrays beside it."""
    assert rows(run) > 0
    assert read_manifest(run)["files"] == read_manifest(other)["files"]
    assert profile_bytes(run) == profile_bytes(other)


def parts(out: Path, many: int, *more: str) -> list[list[str]]:
    """The commands of the shards, the last first: none needs another."""
    return [options(out, *more, "--shard", f"{n}/{many}") for n in range(many, 0, -1)]


# ---- in this process


@pytest.mark.parametrize("workers", [3])
def test_shards_make_what_one_makes(workers: int, alone: Path, tmp_path: Path) -> None:
    for part in parts(tmp_path, workers, *PASSES):
        assert not (tmp_path / "run.json").exists()
        assert call(*part) == 0
    assert call("merge", str(tmp_path)) == 0
    assert_same(tmp_path, alone)


@pytest.mark.parametrize(
    "other",
    [
        ("--length", "13"),
        ("--samples", "29"),
        ("--dtype", "bfloat16"),
        ("--baseline", "shuffled-tokens"),
        ("--baseline", "shuffled-tokens", "--seed", "1"),
    ],
    ids=" ".join,
)
def test_another_run_gives_other_bytes(
    other: tuple[str, ...], seen: set[bytes], tmp_path: Path
) -> None:
    assert call(*options(tmp_path, *other)) == 0
    assert profile_bytes(tmp_path) not in seen
    seen.add(profile_bytes(tmp_path))


@pytest.fixture(scope="module")
def seen(alone: Path) -> set[bytes]:
    """The profiles so far."""
    return {profile_bytes(alone)}


def test_the_comparison_sees_one_byte(alone: Path, tmp_path: Path) -> None:
    shutil.copytree(alone, tmp_path, dirs_exist_ok=True)
    assert_same(tmp_path, alone)
    with (tmp_path / "profile.parquet").open("r+b") as file:
        file.write(b"p")
    with pytest.raises(AssertionError):
        assert_same(tmp_path, alone)


def test_a_shard_that_is_missing_is_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    third, second, first = parts(tmp_path, 3)
    steps: list[tuple[list[str], str]] = [
        ([], "no run was begun there"),
        (second, "nothing is there of 'main'"),
        (first, "1 of 4 chunks of 'main' are missing"),
    ]
    for part, said in steps:
        assert not part or call(*part) == 0
        assert call("merge", str(tmp_path)) == 1
        assert said in capsys.readouterr().err
    assert call(*third) == 0
    assert call("merge", str(tmp_path)) == 0


@pytest.mark.parametrize("kind", ["folder", "function"])
@pytest.mark.parametrize("more", [("--shard", "2/2"), ("--resume",)], ids=" ".join)
def test_a_model_that_changed_is_not_gone_on_with(
    kind: str, more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, changed = own_model(kind, tmp_path)
    args = options(tmp_path / "run", model=model)
    assert call(*args, "--shard", "1/2") == 0
    before = changed.read_bytes()
    if kind == "function":
        changed.write_bytes(before + b"# other\n")
    else:
        save_file({k: 2 * v for k, v in load_file(changed).items()}, changed, {"format": "pt"})
    assert call(*args, *more) == 1
    assert "was begun with another state of model" in capsys.readouterr().err
    changed.write_bytes(before)
    assert call(*args, *more) == 0  # or the refusal would say little


def own_model(kind: str, folder: Path) -> tuple[str, Path]:
    """The name of a model, and the file that makes it what it is."""
    shutil.copytree(tiny(), folder / "tiny")
    if kind == "folder":
        return str(folder / "tiny"), folder / "tiny" / "model.safetensors"
    (folder / "own.py").write_text(WAITS.format(folder=str(folder / "tiny")))
    return f"{folder / 'own.py'}:model", folder / "own.py"


def test_a_model_that_only_loading_tells_apart_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("outward.engines.work.local_identity", lambda name: None)  # as of a hub
    model, changed = own_model("folder", tmp_path)
    second, first = (options(tmp_path / "run", "--shard", f"{n}/2", model=model) for n in (2, 1))
    assert call(*first) == 0
    before = changed.read_bytes()
    save_file({k: 2 * v for k, v in load_file(changed).items()}, changed, {"format": "pt"})
    assert call(*second) == 1
    said = capsys.readouterr().err
    assert f"was begun with another model named {model} (its weights_sha256 differ)" in said
    changed.write_bytes(before)
    assert call(*second) == 0
    assert call("merge", str(tmp_path / "run")) == 0


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = parts(tmp_path, 2)[1]
    assert call(*first) == 0
    chunks = {file: file.stat().st_mtime_ns for file in (tmp_path / "chunks").iterdir()}
    monkeypatch.setattr("outward.engines.work.Watched.measure", None)  # would be called in vain
    assert call(*first) == 0
    assert chunks == {file: file.stat().st_mtime_ns for file in (tmp_path / "chunks").iterdir()}


# ---- in processes of their own


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_processes_make_what_one_makes(workers: int, alone: Path, tmp_path: Path) -> None:
    for process in [begun(*part) for part in parts(tmp_path, workers, *PASSES)]:
        code, out, err = ended(process)
        assert (code, out) == (0, ""), err
        assert f"outward merge {tmp_path}" in err
    code, out, err = ended(begun("merge", str(tmp_path)))
    assert code == 0, err
    assert f"kept in {tmp_path}" in out
    assert_same(tmp_path, alone)


@pytest.mark.slow
def test_torchrun_makes_what_one_makes(alone: Path, tmp_path: Path) -> None:
    code, out, err = ended(begun(*options(tmp_path, *PASSES), under=TORCHRUN))
    assert code == 0, err
    assert out.count("kept in") == 1  # one of them prints
    assert_same(tmp_path, alone)


@pytest.mark.slow
def test_ray_makes_what_one_makes(alone: Path, tmp_path: Path) -> None:
    args = options(tmp_path, *PASSES, "--engine", "ray", "--workers", "2")
    code, _, err = ended(begun(*args))
    assert code == 0, err
    assert_same(tmp_path, alone)


# ---- killed in the middle


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: Made) -> Path:
    """By the model that can wait, and did not."""
    out = tmp_path_factory.mktemp("unharmed") / "run"
    assert call(*options(out, "--lengths", "8", model=waiting())) == 0
    return out


def killed(out: Path, *more: str, under: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a run of which one process is killed in its second chunk."""
    place = out.parent / "waits"
    args = options(out, "--lengths", "8", *more, model=waiting())
    process = begun(*args, under=under, waits=place)
    os.kill(stuck(process, place), signal.SIGKILL)
    return ended(process)


def resumed(out: Path, *more: str, under: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """The same run, which nobody kills."""
    args = options(out, "--lengths", "8", "--resume", *more, model=waiting())
    return ended(begun(*args, under=under))


@pytest.mark.slow
def test_what_was_killed_goes_on(unharmed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, said, _ = killed(out)
    assert (code, said) == (-signal.SIGKILL, "")
    assert finished_chunks(out) == ["main.000001.chunk"]
    before = (out / "chunks" / "main.000001.chunk").stat().st_mtime_ns
    assert call("merge", str(out)) == 1
    assert call(*options(out, "--lengths", "8", model=waiting())) == 1  # going on must be asked for
    assert (out / "chunks" / "main.000001.chunk").stat().st_mtime_ns == before
    code, _, err = resumed(out)
    assert code == 0, err
    assert_same(out, unharmed)


@pytest.mark.slow
def test_chunks_outlive_a_group_of_torchrun(unharmed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, said, err = killed(out, under=TORCHRUN)
    assert (code, said) == (1, ""), err
    assert finished_chunks(out)
    code, _, err = resumed(out, under=TORCHRUN)
    assert code == 0, err
    assert_same(out, unharmed)


@pytest.mark.slow
def test_ray_does_again_what_a_dead_worker_did(unharmed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, _, err = killed(out, "--engine", "ray", "--workers", "2")
    assert code == 0, err
    assert_same(out, unharmed)
