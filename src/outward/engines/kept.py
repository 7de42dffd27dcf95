"""What a run keeps while it is worked on: the model, and the chunks of every pass."""

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from outward.engines.plan import MODEL, Pass
from outward.probe.chunks import unpack
from outward.probe.tally import Chunk
from outward.results import ResultError, as_json, read_json, write_file
from outward.sources.errors import first_line
from outward.sources.source import Identity


def agree(folder: Path, identity: Identity) -> None:
    """See that every worker of a run has loaded the same model: of a hub, only loading tells which.

    Each writes down its own under a name that depends on it, and looks for others afterwards: of two
    that begin at the same time, one at least sees both.
    """
    document = as_json(identity).encode()
    own = folder / f"{MODEL}{hashlib.sha256(document).hexdigest()[:16]}.json"
    was_there = own.is_file()
    if not was_there:
        write_file(own, document)
    others = [file for file in folder.glob(f"{MODEL}*.json") if file != own]
    if not others:
        return
    if not was_there:
        own.unlink()
    found = read_json(others[0])
    differing = [k for k in identity if found.get(k) != identity[k]]
    raise ResultError(
        f"{folder.parent} was begun with another model named {identity['id']} (its "
        f"{', '.join(differing)} differ): give back the same, or another --out."
    )


def chunk_file(folder: Path, one: Pass, number: int) -> Path:
    """Where a chunk is kept."""
    return folder / f"{one.series}.{number:06d}.chunk"


def is_whole(file: Path) -> bool:
    """Whether a chunk is there, and can be read: one that is damaged is made again."""
    return file.is_file() and readable(file) is not None


def readable(file: Path) -> Chunk | None:
    """What a chunk holds; None of one that is damaged."""
    try:
        return unpack(file.read_bytes())
    except (zlib.error, SafetensorError, ValueError, LookupError):
        return None


def read_chunk(file: Path) -> Chunk:
    """What a chunk holds; it is an error that it is damaged."""
    found = readable(file)
    if found is None:
        raise ResultError(
            f"{file} is damaged: measure with --resume, which makes it again, or remove it."
        )
    return found


def about_file(folder: Path, one: Pass) -> Path:
    """Where it is told how many chunks a pass has, and what was seen of the model."""
    return folder / f"{one.series}.json"


def write_about(folder: Path, one: Pass, count: int, skipped: list[str], about: dict[str, Any]) -> None:
    """Tell it."""
    document = {"chunks": count, "skipped": skipped, **about}
    write_file(about_file(folder, one), as_json(document).encode())


def keep(file: Path, make: Callable[[], bytes]) -> list[str]:
    """Make a chunk and write it; tried twice. What fails then is named, and tried again by --resume."""
    note = file.with_suffix(".failed")
    problem = ""
    for _ in range(2):
        try:
            write_file(file, make())
        except (RuntimeError, MemoryError) as error:  # out of memory, a device that is gone
            problem = f"{file.stem}: {first_line(error)}"
        else:
            note.unlink(missing_ok=True)
            return []
    write_file(note, problem.encode())
    return [problem]
