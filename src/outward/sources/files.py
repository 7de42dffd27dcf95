"""The files of a folder in their one order, and the hash of files."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from outward.sources.errors import SourceError


def files_in(folder: Path, suffixes: frozenset[str] | None = None) -> Iterator[Path]:
    """All files below a folder, sorted by relative path; hidden ones are left out."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name in sorted(found):
        hidden = any(part.startswith(".") for part in name.split("/"))
        if not hidden and (suffixes is None or found[name].suffix.lower() in suffixes):
            yield found[name]


def existing(data: str | Path) -> Path:
    """The path of data: a file or a folder, which can be read more than once."""
    path = Path(data).expanduser()
    if not path.exists():
        raise SourceError(f"{data}: there is no such file or folder. Text of the hub is hf:ORG/NAME.")
    if not (path.is_file() or path.is_dir()):
        raise SourceError(
            f"{data} is neither a file nor a folder, and data are read more than once: save what comes "
            "out of it as a file."
        )
    return path


def members(data: Path) -> Iterator[tuple[str, Path]]:
    """(name, path) of each file: of a folder relative to it, of a single file its own name."""
    if data.is_dir():
        yield from ((path.relative_to(data).as_posix(), path) for path in files_in(data))
    else:
        yield data.name, data


def digest(named: Iterable[tuple[str, Path]]) -> str:
    """sha256 over names, sizes and bytes."""
    total = hashlib.sha256()
    for name, path in named:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{name}\0{content}\n".encode())
    return total.hexdigest()
