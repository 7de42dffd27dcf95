"""The run directory on disk: what is in it, how it is written, and how it is read. No torch.

    run.json              what was measured, how, on what, by which version; written last
    profile.parquet       a row for each layer, head, measure and place bucket
    samples.parquet       a row for each window, layer, head and measure: its mean, for intervals
    arrays.safetensors    matrices and histograms

Everything is written under a temporary name, flushed and renamed. A directory without run.json is
incomplete. NaN is null in JSON and in tables. Nothing is pickled.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes

SCHEMA = 1
MANIFEST = "run.json"
OURS = (MANIFEST, "plan.json", "chunks", "profile.parquet", "samples.parquet", "arrays.safetensors")
GUESTS = ("report.html", ".DS_Store")
"""What may lie in a run's directory without being of it."""
Json = Any


class ResultError(Exception):
    """A run directory that cannot be read or written as asked."""


@dataclass(frozen=True, eq=False)
class Result:
    """A run in memory: what `save` writes and `load` reads."""

    manifest: dict[str, Json]
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def save(result: Result, path: Path) -> None:
    """Write a run directory; the manifest last, so that a directory that has one is whole."""
    claim(path, str(result.manifest["kind"]))
    _remove(path / MANIFEST)  # of an earlier run: what follows would not be its own
    files = {}
    for name, table in result.tables.items():
        files[f"{name}.parquet"] = _write(path / f"{name}.parquet", _parquet(table))
    if result.arrays:
        data = save_arrays(result.arrays)
        files["arrays.safetensors"] = _write(path / "arrays.safetensors", data)
    manifest = {"schema": SCHEMA, **result.manifest, "files": files}
    _write(path / MANIFEST, as_json(manifest).encode())
    for left in path.glob("*.tmp"):  # by writers that were killed
        _remove(left)


def load(path: Path) -> Result:
    """Read a run directory."""
    manifest = read_manifest(path)
    tables, arrays = {}, {}
    for name, known in manifest["files"].items():
        file = path / Path(name).name  # in the directory, whatever is written there
        if not file.is_file() or file.stat().st_size != known["bytes"]:
            raise ResultError(f"{path}: {name} is missing or cut short; measure again.")
        try:
            if name.endswith(".parquet"):
                tables[name.removesuffix(".parquet")] = pq.read_table(
                    pa.BufferReader(file.read_bytes())
                )
            else:
                arrays = from_bytes(file.read_bytes())
        except (pa.ArrowException, SafetensorError) as error:
            raise ResultError(f"{path}: {name} is damaged ({error}); measure again.") from error
    return Result(manifest, tables, arrays)


def read_manifest(path: Path) -> dict[str, Json]:
    """run.json alone: quick, and enough to say what a directory holds."""
    if not path.is_dir():
        raise ResultError(f"{path}: no such run directory.")
    file = path / MANIFEST
    if not file.is_file():
        raise ResultError(
            f"{path}: it has no {MANIFEST}, so it is no run, or one that did not finish; the command "
            "that wrote it goes on with --resume."
        )
    manifest = read_json(file)
    if manifest.get("schema", 0) > SCHEMA:
        raise ResultError(
            f"{path}: its schema is {manifest['schema']}, and this version reads up to {SCHEMA}; "
            "update outward."
        )
    if not {"schema", "kind", "files"} <= set(manifest):
        raise ResultError(
            f"{path}: its {MANIFEST} is of another program; name a directory of outward's."
        )
    return manifest


def read_json(file: Path) -> dict[str, Json]:
    """A file that holds one JSON object."""
    try:
        found = json.loads(file.read_bytes())
    except ValueError as error:
        raise ResultError(f"{file} is damaged: {error}. Remove it, and measure again.") from error
    if not isinstance(found, dict):
        raise ResultError(f"{file} holds no JSON object; remove it, and measure again.")
    return found


def claim(path: Path, kind: str) -> None:
    """Make the directory, unless it holds something else."""
    if path.exists() and not path.is_dir():
        raise ResultError(f"{path} is a file; a run is a directory. Give another --out.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = sorted(p.name for p in path.iterdir())
    except OSError as error:
        raise ResultError(f"{path} cannot be made: {error.strerror}; give another --out.") from error
    manifest = read_manifest(path) if MANIFEST in names else {"kind": kind, "files": {}}
    if manifest["kind"] != kind:
        raise ResultError(
            f"{path} is a run of `{manifest['kind']}`, not of `{kind}`; give another --out."
        )
    strangers = [n for n in names if not _is_ours(n) and n not in manifest["files"]]
    if strangers:
        raise ResultError(
            f"{path} holds {strangers[0]!r}, which no run writes; give an empty or new --out."
        )


def _is_ours(name: str) -> bool:
    left = name.endswith(".tmp") and name.startswith(OURS)
    return name in (*OURS, *GUESTS) or left


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise ResultError(
            f"{file} cannot be replaced: {error.strerror}; give another --out."
        ) from error


MEND = "Mend that and go on with --resume, or give another --out."


def write_file(path: Path, data: bytes, *, way_out: str = MEND) -> None:
    """Whole or not at all: under another name first, flushed to the disk, then renamed."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ResultError(f"{path} cannot be written: {error.strerror}. {way_out}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def as_json(document: Json) -> str:
    """JSON as the standard has it: NaN and infinity are null."""
    return json.dumps(finite(document), indent=1, ensure_ascii=False, allow_nan=False)


def finite(x: Json) -> Json:
    """The same document with null for numbers that JSON cannot say."""
    if isinstance(x, dict):
        return {str(k): finite(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [finite(v) for v in x]
    if isinstance(x, np.generic):
        x = x.item()
    return None if isinstance(x, float) and not np.isfinite(x) else x


def save_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of a safetensors file."""
    return to_bytes({k: np.ascontiguousarray(v) for k, v in arrays.items()})


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _write(path: Path, data: bytes) -> dict[str, Json]:
    write_file(path, data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
