"""The run directory: whole or refused, whatever happens while it is written."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outward import results
from outward.results import (
    MANIFEST,
    SCHEMA,
    Result,
    ResultError,
    as_json,
    claim,
    load,
    read_manifest,
    save,
    write_file,
)


def result(kind: str = "measure", number: float = 1.5) -> Result:
    table = pa.table({"layer": pa.array([0, 1], pa.int32()), "mean": [number, None]})
    arrays = {"histogram": np.arange(6, dtype=np.int32).reshape(2, 3)}
    return Result({"kind": kind, "note": "ünï", "x": float("nan")}, {"profile": table}, arrays)


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.rglob("*"))


def fails(number: int) -> Callable[..., None]:
    def fail(*args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


# ---- round trip


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    save(result(), tmp_path / "deep" / "run")
    found = load(tmp_path / "deep" / "run")
    assert found.tables["profile"].equals(result().tables["profile"])
    assert np.array_equal(found.arrays["histogram"], result().arrays["histogram"])
    assert found.manifest["note"] == "ünï"
    assert found.manifest["schema"] == SCHEMA
    assert not found.tables["profile"].equals(result(number=2.5).tables["profile"])


def test_the_manifest_lists_every_file_with_its_size_and_hash(tmp_path: Path) -> None:
    import hashlib

    save(result(), tmp_path)
    listed = read_manifest(tmp_path)["files"]
    assert sorted([*listed, MANIFEST]) == names(tmp_path)
    for name, known in listed.items():
        data = (tmp_path / name).read_bytes()
        assert known == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_nan_is_null_in_json_and_in_tables(tmp_path: Path) -> None:
    odd = {"a": float("nan"), "b": [float("inf"), np.float32("nan"), np.int64(3)], 4: (1.5, None)}
    assert json.loads(as_json(odd)) == {"a": None, "b": [None, None, 3], "4": [1.5, None]}
    assert "NaN" in json.dumps(odd, default=float)  # what json does by itself is no JSON
    save(result(), tmp_path)
    assert read_manifest(tmp_path)["x"] is None
    assert pq.read_table(tmp_path / "profile.parquet")["mean"].null_count == 1


# ---- crashes


def test_a_crash_before_the_manifest_leaves_what_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        write = results.write_file

        def crash(path: Path, data: bytes) -> None:
            if path.name == MANIFEST:
                raise KeyboardInterrupt
            write(path, data)

        patch.setattr(results, "write_file", crash)
        with pytest.raises(KeyboardInterrupt):
            save(result(), run)
    assert names(run) == ["arrays.safetensors", "profile.parquet"]
    with pytest.raises(ResultError, match=r"run: it has no run\.json.*--resume"):
        load(run)
    save(result(), run)
    assert load(run).manifest["kind"] == "measure"


def test_saving_again_never_leaves_an_old_manifest_beside_new_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(result(number=1.5), tmp_path)
    old = (tmp_path / "profile.parquet").stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(results, "save_arrays", fails(errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            save(result(number=2.5), tmp_path)
    assert (tmp_path / "profile.parquet").stat().st_size == old  # the sizes would not tell
    with pytest.raises(ResultError, match="did not finish"):
        load(tmp_path)


def test_what_a_killed_writer_left_is_cleared_and_no_stranger(tmp_path: Path) -> None:
    (tmp_path / "profile.parquetab12.tmp").write_bytes(b"half")
    save(result(), tmp_path)
    assert names(tmp_path) == ["arrays.safetensors", "profile.parquet", MANIFEST]


@pytest.mark.parametrize("step", ["replace", "fsync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_is_said_and_nothing_half_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    file = tmp_path / "plan.json"
    file.write_text("before")
    with monkeypatch.context() as patch:
        patch.setattr(os, step, fails(number))
        with pytest.raises(ResultError, match=rf"plan\.json cannot be written: {os.strerror(number)}"):
            write_file(file, b"after")
    assert names(tmp_path) == ["plan.json"]
    assert file.read_text() == "before"
    write_file(file, b"after")
    assert file.read_text() == "after"


def test_writing_in_place_would_lose_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sibling: as one writes without care, the same failure destroys the file."""

    def careless(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[:2])
            os.fsync(file.fileno())
            file.write(data[2:])

    file = tmp_path / "plan.json"
    file.write_text("before")
    monkeypatch.setattr(os, "fsync", fails(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        careless(file, b"after")
    assert file.read_text() == "af"


def test_files_are_as_readable_as_others(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


# ---- what is refused


def test_a_newer_schema_is_refused_and_named(tmp_path: Path) -> None:
    save(result(), tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, "schema": SCHEMA + 1}))
    with pytest.raises(
        ResultError, match=rf"schema is {SCHEMA + 1}.*reads up to {SCHEMA}; update outward"
    ):
        load(tmp_path)
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    assert load(tmp_path).manifest["schema"] == SCHEMA


@pytest.mark.parametrize("stranger", ["thesis.tex", "train.parquet", "cache.tmp"])
def test_a_directory_with_something_else_in_it_is_refused(tmp_path: Path, stranger: str) -> None:
    (tmp_path / stranger).write_text("mine")
    with pytest.raises(ResultError, match=f"holds '{stranger}'.*empty or new --out"):
        save(result(), tmp_path)
    assert names(tmp_path) == [stranger]


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    claim(tmp_path, "measure")
    assert names(tmp_path) == []


def test_a_run_of_another_kind_is_refused(tmp_path: Path) -> None:
    save(result("context"), tmp_path)
    with pytest.raises(ResultError, match="is a run of `context`, not of `measure`"):
        save(result("measure"), tmp_path)
    assert load(tmp_path).manifest["kind"] == "context"


def test_a_file_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    with pytest.raises(ResultError, match=r"notes\.txt is a file; a run is a directory"):
        save(result(), file)
    with pytest.raises(ResultError, match="no such run directory"):
        load(file)
    with pytest.raises(ResultError, match="cannot be made: Not a directory; give another --out"):
        save(result(), file / "run")
    assert file.read_text() == "mine"


def test_a_run_json_of_another_program_or_broken_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"name": "wandb"}')
    with pytest.raises(ResultError, match="of another program"):
        load(tmp_path)
    with pytest.raises(ResultError, match="of another program"):
        save(result(), tmp_path)
    for broken in ("{", "[1]", "\udcff"):
        (tmp_path / MANIFEST).write_bytes(broken.encode("utf-8", "surrogateescape"))
        with pytest.raises(ResultError, match=r"run\.json (is damaged|holds no JSON object)"):
            load(tmp_path)


@pytest.mark.parametrize("name", ["profile.parquet", "arrays.safetensors"])
def test_a_table_that_is_cut_short_missing_or_damaged_is_named(tmp_path: Path, name: str) -> None:
    save(result(), tmp_path)
    whole = (tmp_path / name).read_bytes()
    for damaged in (whole[:-1], bytes(len(whole))):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(ResultError, match=rf"{name} is (missing or cut short|damaged)"):
            load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ResultError, match=f"{name} is missing"):
        load(tmp_path)
    (tmp_path / name).write_bytes(whole)
    assert load(tmp_path).tables["profile"].num_rows == 2
