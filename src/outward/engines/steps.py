"""A watched training on disk: what is watched, a chunk for each step measured, and the run of them.

    plan.json               what every step must have in common
    chunks/step=100.chunk   what was measured at step 100; step=100.json: of what, when, by what
    chunks/step=100.failed  why nothing was

The chunks stay when the run is written: a training may go on.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from outward.engines.finish import assemble
from outward.engines.kept import readable
from outward.engines.plan import KIND, PLAN
from outward.probe.chunks import pack
from outward.probe.tally import Chunk
from outward.results import (
    MANIFEST,
    Result,
    ResultError,
    as_json,
    claim,
    read_json,
    read_manifest,
    save,
    write_file,
)

PREFIX = "step="
BY_SERIES = ("windows", "documents", "environment")


def begin(out: Path, watched: dict[str, Any], *, resume: bool) -> None:
    """Claim the directory for a training, or see that what is there is of the same one."""
    claim(out, KIND)
    written = json.loads(as_json(watched))
    begun = bool(_numbered(out, ".chunk") or _numbered(out, ".failed"))
    other = (out / PLAN).is_file() and not is_watched(out)
    if other or ((out / MANIFEST).is_file() and not begun):
        raise ResultError(f"{out} holds a run that no watched training can add to; give another out.")
    if begun:
        _refuse_other(out, written, resume=resume)
    write_file(out / PLAN, as_json({"watch": written}).encode())
    (out / "chunks").mkdir(exist_ok=True)


def _refuse_other(out: Path, written: dict[str, Any], *, resume: bool) -> None:
    if not resume:
        raise ResultError(
            f"{out} holds a training that was watched before: resume=True goes on with it; or give "
            "another out."
        )
    found = _plan(out) or {}
    differing = [k for k in written if k != "every" and found.get(k) != written[k]]
    if differing:
        raise ResultError(
            f"{out} is of a training watched with other {' and '.join(differing)}: go on with the "
            "same, or give another out."
        )


def is_watched(out: Path) -> bool:
    """Whether a directory is of a watched training."""
    return _plan(out) is not None


def _plan(out: Path) -> dict[str, Any] | None:
    file = out / PLAN
    return read_json(file).get("watch") if file.is_file() else None


def steps_in(out: Path) -> list[int]:
    """The steps measured so far, in order."""
    return _numbered(out, ".chunk")


def _numbered(out: Path, suffix: str) -> list[int]:
    names = (file.stem for file in (out / "chunks").glob(f"{PREFIX}*{suffix}"))
    return sorted(int(name.removeprefix(PREFIX)) for name in names)


def _file(out: Path, step: int, suffix: str) -> Path:
    return out / "chunks" / f"{PREFIX}{step}{suffix}"


def keep(out: Path, step: int, chunk: Chunk, about: dict[str, Any]) -> None:
    """What was measured at a step; the chunk last, so that a step that has one is whole."""
    forget(out, step)
    write_file(_file(out, step, ".json"), as_json(about).encode())
    write_file(_file(out, step, ".chunk"), pack(chunk))


def note_failure(out: Path, step: int, problem: str) -> None:
    """Why nothing was measured at a step."""
    forget(out, step)
    write_file(_file(out, step, ".failed"), f"{PREFIX}{step}: {problem}".encode())


def forget(out: Path, step: int) -> None:
    """As if nothing had been measured at a step."""
    for suffix in (".chunk", ".json", ".failed"):
        _file(out, step, suffix).unlink(missing_ok=True)


def forget_after(out: Path, step: int) -> None:
    """As if the training had not been further than a step."""
    for later in {*_numbered(out, ".chunk"), *_numbered(out, ".failed")}:
        if later > step:
            forget(out, later)


def gather(out: Path) -> Result:
    """The run of all steps measured so far, written: what a stopped training left is enough."""
    steps = steps_in(out)
    if not steps:
        raise ResultError(f"{out}: no step of a training was measured there yet; measure one first.")
    result = _joined(out, steps)
    save(result, out)
    return replace(result, manifest=read_manifest(out))


def _joined(out: Path, steps: list[int]) -> Result:
    """One step at a time: of each, only the tables stay. The last is also what `main` means."""
    tables: dict[str, list[pa.Table]] = {}
    manifests = {}
    for step in steps:
        last = _result_of(out, step)
        manifests[f"{PREFIX}{step}"] = last.manifest
        for name, table in last.tables.items():
            tables.setdefault(name, []).append(_of_series(table, f"{PREFIX}{step}"))
    whole = {
        name: pa.concat_tables([last.tables[name], *parts]).unify_dictionaries()
        for name, parts in tables.items()
    }
    told = {"watch": _plan(out), "steps": steps, **_told(last.manifest, manifests)}
    failed = [_file(out, n, ".failed").read_text() for n in _numbered(out, ".failed")]
    return Result({**last.manifest, **told, "failed": failed}, whole, last.arrays)


def _told(last: dict[str, Any], manifests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the manifest tells of each series."""
    every = {"main": last, **manifests}
    by_series = {k: {series: m[k]["main"] for series, m in every.items()} for k in BY_SERIES}
    skipped = [f"{series}: {x}" for series, m in manifests.items() for x in m["skipped"]]
    return {**by_series, "skipped": skipped}


def _result_of(out: Path, step: int) -> Result:
    """The run of one step alone."""
    chunk, about = readable(_file(out, step, ".chunk")), read_json(_file(out, step, ".json"))
    if chunk is None:
        raise ResultError(
            f"{_file(out, step, '.chunk')} is damaged: remove it, and the run is of the other steps."
        )
    facts = {"plan": None, "data": None, "versions": about["versions"]}
    return assemble({"main": chunk}, {"main": about}, facts, [])


def _of_series(table: pa.Table, series: str) -> pa.Table:
    """The same rows under another name."""
    at = table.schema.get_field_index("series")
    names = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.int32()), [series])
    return table.set_column(at, "series", names)
