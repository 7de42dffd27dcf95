"""Data becomes documents: each a name that stays the same, and its text in pieces.

A text file is one document; in a folder, in JSONL and in Parquet each record is one. Nothing is
read before it is asked for, and of a text file never more than one piece is held.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from outward.sources.errors import SourceError, first_line, require
from outward.sources.files import existing, files_in

PIECE = 2**16  # characters
DEFAULT_FIELD = "text"
NO_TEXT = re.compile("[\0\ud800-\udfff]")


class UnreadableError(SourceError):
    """A document without text in it; among others it is left out and named."""


@dataclass(frozen=True)
class Document:
    """A name, and pieces of text that make the whole when joined."""

    name: str
    pieces: Iterator[str]


def documents(data: str | Path | None, *, field: str | None, skipped: list[str]) -> Iterator[Document]:
    """The documents of a file, folder, JSONL, Parquet, hf:ORG/NAME, or (None) of the default text."""
    if data is None:
        return (Document(name, iter([text])) for name, text in default_text().items())
    if str(data).startswith("hf:"):
        return _records(str(data), _hub_rows(str(data)), field, skipped)
    path = existing(data)
    if path.suffix in (".jsonl", ".ndjson"):
        return _records(path.name, _json_rows(path, skipped), field, skipped)
    if path.suffix == ".parquet":
        return _records(path.name, _parquet_rows(path, field), field, skipped)
    if field is not None:
        raise SourceError(f"field {field!r}: {data} has no fields; JSONL, Parquet and hf: data have.")
    if path.is_dir():
        return (Document(p.relative_to(path).as_posix(), text_pieces(p)) for p in files_in(path))
    return iter([Document(path.name, text_pieces(path))])


def is_one_document(data: str | Path | None) -> bool:
    """Whether the data is a single stream of text, not records."""
    path = Path(data or "").expanduser()
    return path.is_file() and path.suffix not in (".jsonl", ".ndjson", ".parquet")


def default_text() -> dict[str, str]:
    """English that every Python carries: the topics of its help, by name."""
    topics = import_module("pydoc_data.topics").topics
    return {name: topics[name] for name in sorted(topics)}


def text_pieces(path: Path) -> Iterator[str]:
    """The text of a UTF-8 file, a piece at a time."""
    with path.open(encoding="utf-8-sig") as file:
        try:
            while piece := file.read(PIECE):
                if "\0" in piece:
                    raise UnreadableError(f"{path.name} is no text: it holds NUL bytes.")
                yield piece
        except UnicodeDecodeError as error:
            raise UnreadableError(
                f"{path.name} is not UTF-8 ({first_line(error)}): save it as UTF-8 to have "
                "what follows read."
            ) from error


def _records(
    source: str, rows: Iterator[tuple[int, dict[str, Any]]], field: str | None, skipped: list[str]
) -> Iterator[Document]:
    """One document for each row that has text in its field."""
    name, seen = field or DEFAULT_FIELD, False
    for number, row in rows:
        if name not in row and not seen:
            raise SourceError(
                f"{source} has no field {name!r}; it has: {', '.join(row)}. Name the one with the text."
            )
        seen = True
        text = row.get(name)
        if not isinstance(text, str) or NO_TEXT.search(text):
            skipped.append(f"{source}:{number}: its field {name!r} is {_kind(text)}.")
            continue
        yield Document(f"{source}:{number}", _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    """Of this text, whatever has been read since."""
    return (text[i : i + PIECE] for i in range(0, len(text), PIECE))


def _kind(value: Any) -> str:
    """What the value of a field is, that is no text."""
    if not isinstance(value, str):
        return type(value).__name__
    if "\0" in value:
        return "text with NUL bytes"
    return "text with half a character (a lone surrogate), which no encoding has"


def _json_rows(path: Path, skipped: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line) if line.strip() else None
            except ValueError as error:  # of the JSON or of its UTF-8
                skipped.append(f"{path.name}:{number} is no JSON: {first_line(error)}.")
                continue
            except RecursionError:
                skipped.append(f"{path.name}:{number} is nested too deeply.")
                continue
            if isinstance(row, dict):
                yield number, row
            elif line.strip():
                skipped.append(f"{path.name}:{number} is no JSON object.")


def _parquet_rows(path: Path, field: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")  # they have no types
    try:
        file = parquet.ParquetFile(path)
        columns = [name for name in file.schema_arrow.names if name == (field or DEFAULT_FIELD)]
        rows = (
            row for batch in file.iter_batches(64, columns=columns or None) for row in batch.to_pylist()
        )
        yield from enumerate(rows, start=1)
    except pyarrow.ArrowException as error:
        raise SourceError(f"{path.name} is no Parquet file: {first_line(error)}") from error


def _hub_rows(data: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """hf:ORG/NAME[#CONFIG][:SPLIT], streamed: nothing is stored."""
    repository, config, split = hub_name(data)
    datasets = require("datasets", extra="data", user=data)
    try:
        rows = datasets.load_dataset(repository, config, split=split, streaming=True)
        yield from enumerate(rows, start=1)
    except (OSError, ValueError) as error:
        raise SourceError(f"{data} cannot be streamed: {first_line(error)}") from error


def hub_name(data: str) -> tuple[str, str | None, str]:
    """(ORG/NAME, CONFIG, SPLIT) of hf:ORG/NAME#CONFIG:SPLIT; the split is train unless said."""
    name, _, split = data.removeprefix("hf:").partition(":")
    repository, _, config = name.partition("#")
    return repository, config or None, split or "train"
