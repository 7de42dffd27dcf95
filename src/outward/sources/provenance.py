"""What the data was: enough to say later whether it is the same."""

import hashlib
from pathlib import Path

import huggingface_hub

from outward.sources.documents import default_text
from outward.sources.errors import SourceError, first_line
from outward.sources.files import digest, existing, members
from outward.sources.hub import HUB_ERRORS
from outward.sources.source import Kind

NOTES = {
    "text": "the English text of Python's own help (pydoc_data.topics), as no data was given",
    "image": "generated pictures, as no data was given",
    "audio": "generated sounds, as no data was given",
}
GENERATED = "outward generated 1"  # to be counted up when what is generated changes


def fingerprint(data: str | Path | None, kind: Kind = "text") -> str:
    """sha256 over the names and bytes of files; of a stream, over its name and commit."""
    if data is None:
        return _of_text(default_text() if kind == "text" else {kind: GENERATED})
    if str(data).startswith("hf:"):
        return _of_text({str(data): _commit(str(data))})
    return digest(members(existing(data)))


def describe(data: str | Path | None, kind: Kind = "text") -> dict[str, str | int | None]:
    """For the record of a run: the data's name, its hash, its number of files, and what to know."""
    record: dict[str, str | int | None] = {
        "data": None if data is None else str(data),
        "sha256": fingerprint(data, kind),
        "files": None,
        "note": NOTES[kind] if data is None else None,
    }
    if data is not None and not str(data).startswith("hf:"):
        record["files"] = sum(1 for _ in members(Path(data).expanduser()))
    return record


def _of_text(named: dict[str, str]) -> str:
    total = hashlib.sha256()
    for name, text in named.items():
        total.update(f"{name}\0{len(text)}\0{text}\n".encode())
    return total.hexdigest()


def _commit(data: str) -> str:
    repository = data.removeprefix("hf:").partition(":")[0].partition("#")[0]
    try:
        return huggingface_hub.HfApi().dataset_info(repository).sha or ""
    except HUB_ERRORS as error:
        raise SourceError(f"{data} cannot be reached: {first_line(error)}") from error
