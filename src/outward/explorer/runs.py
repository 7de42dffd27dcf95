"""Finds runs, gives each an id, and says what is in them: the list, one run, one head. No torch.

Ids are looked up in a table of what was found: no path ever comes from a client.
"""

import hashlib
import json
import shlex
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from outward.explorer.safety import RefusedError
from outward.glossary import MEASURES
from outward.report.heads import head_document
from outward.report.reading import reading
from outward.report.summary import heads, summary
from outward.results import MANIFEST, Result, ResultError, load, read_manifest

BEGUN = (MANIFEST, "plan.json", "chunks")
"""What a directory has that is a run, or was to become one."""
FIRST = (
    *("self_similarity", "null_similarity", "excess_similarity"),
    *("self_part", "common_part", "selective_part", "context_part"),
    *("centred_similarity", "removed_energy"),
    *("self_weight", "self_weight_ratio", "sink_weight", "previous_weight", "entropy"),
)
"""In which order measures are shown: the bias and what it is made of, weights; then those of values."""
DEPTH = 2
NEEDED = ("profile.parquet", "samples.parquet")
MOST_HEADER = 2**20
Document = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A run that was found."""

    id: str
    name: str
    path: Path


class Parsed:
    """A run that was read: what the page shows of it, and of each head."""

    def __init__(self, result: Result, name: str) -> None:
        self.result = result
        self._profile = result.tables["profile"].to_pandas()
        by_head = self._profile.groupby(["series", "layer", "head"], observed=True)
        self._rows: dict[Any, NDArray[np.int64]] = by_head.indices
        self.document = _document(result, self._profile, name)

    def heads(self, series: str) -> list[tuple[int, int]]:
        """The layers and heads that there are."""
        return [(layer, head) for s, layer, head in self._rows if s == series]

    def head(self, layer: int, head: int, series: str) -> Document:
        """The measures of one head, by place in the document, and their histograms."""
        at = self._rows.get((series, layer, head))
        if at is None:
            where = "" if series == "main" else f" in {series[:60]!r}"
            raise RefusedError(404, f"The run has no layer {layer} with a head {head}{where}.")
        rows = self._profile.iloc[at]
        return head_document(self.result, layer, head, series=series, profile=rows)


class Runs:
    """The runs in some folders."""

    def __init__(self, folders: tuple[Path, ...], *, keep: int = 4) -> None:
        self.folders, self._keep = folders, keep
        self._parsed: OrderedDict[tuple[Path, int, int], Parsed] = OrderedDict()
        self._reading = threading.Lock()
        for folder in folders:
            if not any(_runs_in(folder)):
                raise ResultError(
                    f"{folder}: {'no run is in it' if folder.is_dir() else 'there is no such folder'}; "
                    "name a run's directory (what `outward measure` was given as --out), or a folder "
                    "of them."
                )
        self._places = self._found()

    def listed(self) -> list[Document]:
        """All runs there are now, from their run.json alone."""
        self._places = self._found()
        return [_listed(place) for place in self._places.values()]

    def document(self, run: str) -> Document:
        """What the page shows of the run with that id."""
        place = self._place(run)
        return {"id": place.id, "name": place.name, **self._read(place).document}

    def head(self, run: str, layer: int, head: int, series: str) -> Document:
        """What the page shows of one head of it."""
        return self._read(self._place(run)).head(layer, head, series)

    def _place(self, run: str) -> Place:
        places = self._places
        if run not in places:
            raise RefusedError(404, "There is no such run (any more); go back to the list of runs.")
        return places[run]

    def _found(self) -> dict[str, Place]:
        paths = list(dict.fromkeys(p.resolve() for folder in self.folders for p in _runs_in(folder)))
        places = (Place(_id(x), name, x) for x, name in zip(paths, _named(paths), strict=True))
        return {place.id: place for place in places}

    def _read(self, place: Place) -> Parsed:
        """As it is on disk now; the last few are kept."""
        try:
            state = (place.path / MANIFEST).stat()
            with self._reading:
                return self._kept(place, (place.path, state.st_mtime_ns, state.st_size))
        except (ResultError, OSError, *FOREIGN) as error:
            _, problem = _facts(place)
            raise RefusedError(422, problem or _named_as(place, str(error))) from error

    def _kept(self, place: Place, key: tuple[Path, int, int]) -> Parsed:
        if key not in self._parsed:
            self._parsed[key] = Parsed(load(place.path), place.name)
        self._parsed.move_to_end(key)
        while len(self._parsed) > self._keep:
            self._parsed.popitem(last=False)
        return self._parsed[key]


FOREIGN = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""What comes of a run.json that another program wrote, or a hand."""


def _runs_in(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The folder itself, or what is in it."""
    try:
        is_run = any((folder / name).exists() for name in BEGUN)
        inside = sorted(folder.iterdir()) if depth and not is_run and folder.is_dir() else []
    except OSError:  # of others: what may not be looked into holds no run of ours
        return
    if is_run:
        yield folder
    for one in inside:
        if not one.name.startswith(".") and one.is_dir():
            yield from _runs_in(one, depth - 1)


def _id(path: Path) -> str:
    """The same after a restart, so that links stay good; it tells nothing of the path."""
    return hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _named(paths: list[Path]) -> list[str]:
    """The names of directories; where two have the same, with more of the path before it."""
    parts = 1
    while True:
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if max(Counter(names).values(), default=1) == 1:
            return names
        parts += 1


# ---- the list


def _listed(place: Place) -> Document:
    unknown: Document = dict.fromkeys(
        ("kind", "model", "data", "layers", "heads", "windows", "documents", "finished")
    )
    facts, problem = _facts(place)
    return {"id": place.id, "name": place.name, **unknown, "series": [], **facts, "problem": problem}


def _facts(place: Place) -> tuple[Document, str | None]:
    """What run.json says, or nothing, and why the run cannot be shown."""
    path, name = place.path, place.name
    try:
        manifest = read_manifest(path)
        if manifest["kind"] != "measure":
            return {}, f"{name}: a run of `{manifest['kind']}` is not shown here yet: see outward.load."
        sizes = {n: known["bytes"] for n, known in manifest["files"].items()}
        lost = [n for n in dict.fromkeys((*NEEDED, *sizes)) if _size(path / n) != sizes.get(n, -1)]
        if lost:
            return {}, f"{name}: {lost[0]} is missing or cut short; copy it anew, or measure again."
        return _said(manifest) | {"heads": _heads(path / "arrays.safetensors")}, None
    except (ResultError, OSError) as error:
        return {}, _named_as(place, str(error))
    except FOREIGN as error:
        return {}, f"{name}: it is not as outward writes it ({type(error).__name__}: {error})."


def _size(file: Path) -> int | None:
    return file.stat().st_size if file.is_file() else None


def _named_as(place: Place, sentence: str) -> str:
    """A sentence about a path, with the name that the page knows instead."""
    told = sentence.replace(str(place.path), place.name)
    return told if place.name in told else f"{place.name}: {told}"


def _said(manifest: Document) -> Document:
    return {
        "kind": str(manifest["kind"]),
        "model": _name(manifest.get("model"), "id", "class"),
        "data": _name(manifest.get("data"), "data"),
        "layers": len(manifest["layers"]),
        "windows": int(manifest["windows"]["main"]),
        "documents": int(manifest["documents"]["main"]),
        "series": [str(series) for series in manifest["windows"]],
        "finished": manifest["environment"]["main"]["finished"],
    }


def _name(about: Document | None, *keys: str) -> str | None:
    found = (about[key] for key in keys if about and about.get(key))
    return next(map(str, found), None)


def _heads(file: Path) -> int | None:
    """How many a layer has at most: from the shapes in the first bytes of the arrays."""
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size)) if size <= MOST_HEADER else {}
    shapes = [x["shape"] for name, x in header.items() if name.startswith("main.layer")]
    return max((shape[1] for shape in shapes), default=None)


# ---- one run


def _document(result: Result, profile: pd.DataFrame, name: str) -> Document:
    manifest = result.manifest
    document = summary(result, name)
    everywhere = profile[profile["place"].isna()]
    series = [str(x) for x in manifest["windows"]]
    named = sorted(manifest["measures"], key=lambda m: FIRST.index(m) if m in FIRST else len(FIRST))
    others = {s: {"heads": heads(everywhere[everywhere["series"] == s])} for s in series if s != "main"}
    return {
        "summary": document,
        "reading": reading(document),
        "about": _about(manifest),
        "series": series,
        "measures": {name: _legend(name) for name in named},
        "others": others,
    }


def _legend(measure: str) -> Document:
    """What it is; nothing of one that this version does not know."""
    known = MEASURES.get(measure)
    return {"what": known.formula if known else "", "kind": known.kind if known else ""}


def _about(manifest: Document) -> Document:
    environment = manifest["environment"]["main"]
    of_the_command = manifest.get("plan") is not None
    return {
        "model": manifest.get("model"),
        "data": manifest.get("data"),
        "command": shlex.join(["outward", *environment["argv"]]) if of_the_command else None,
        "versions": manifest.get("versions"),
        "finished": environment["finished"],
        "windows": manifest["windows"],
        "documents": manifest["documents"],
    }
