"""Rooms import downwards only: the architecture, executable."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "outward"
LEVEL = {
    "attention": 0,
    "stats": 0,
    "results": 0,
    "environment": 0,
    "glossary": 0,
    "measures": 1,
    "taps": 1,
    "sources": 1,
    "report": 1,
    "adapters": 2,
    "probe": 2,
    "run": 2,
    "engines": 3,
    "training": 3,
    "retrofit": 4,
    "explorer": 4,
    "voice": 4,
    "studies": 5,
    "cli": 6,
    "__main__": 7,
    "__init__": 7,
}
ONLY_TORCH = {"attention"}  # beside the standard library, and jaxtyping for shapes
WITHOUT_TORCH = {"results", "report", "glossary"}


def imports(path: Path) -> Iterator[list[str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = (node.module or "").split(".")
            yield from ([*module, alias.name] for alias in node.names)


def violations(source: Path) -> Iterator[str]:
    for path in sorted(source.rglob("*.py")):
        room = path.relative_to(source).parts[0].removesuffix(".py")
        if room not in LEVEL:
            yield f"{path.name}: no level is set for the room {room}"
            continue
        for name in imports(path):
            target = name[1] if name[0] == "outward" and len(name) > 1 else room
            if target not in LEVEL:
                yield f"{path.name}: {room} imports {target}, which is no room"
            elif target != room and LEVEL[target] >= LEVEL[room]:
                yield f"{path.name}: {room} (level {LEVEL[room]}) imports {target} ({LEVEL[target]})"
            third_party = name[0] in {"torch", "numpy", "transformers", "pandas", "pyarrow", "rich"}
            if room in ONLY_TORCH and third_party and name[0] != "torch":
                yield f"{path.name}: {room} imports {name[0]}"
            if room in WITHOUT_TORCH and name[0] == "torch":
                yield f"{path.name}: {room} imports torch"
            if {path.stem, name[-1]} == {"reference", "exclusive"} or (
                path.stem == "reference" and name[0] == "outward"
            ):
                yield f"{path.name}: the specification and the fast code do not know each other"


def test_rooms_import_downwards_only() -> None:
    assert not list(violations(SOURCE))


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        (
            "attention/planted.py",
            "from outward.taps import capture",
            "(level 0) imports taps",
        ),
        ("attention/planted.py", "import outward.probe", "attention (level 0) imports probe (2)"),
        ("measures/planted.py", "from outward.taps.hooks import x", "measures (level 1) imports taps"),
        ("attention/planted.py", "import numpy as np", "attention imports numpy"),
        ("report/planted.py", "def f():\n    import torch", "report imports torch"),
        ("drawer/planted.py", "x = 1", "no level is set for the room drawer"),
        ("cli.py", "from outward.utils import x", "imports utils, which is no room"),
        (
            "attention/reference.py",
            "from outward.attention.exclusive import exclude_self",
            "do not know each other",
        ),
        (
            "attention/exclusive.py",
            "from outward.attention import reference",
            "do not know each other",
        ),
    ],
)
def test_a_planted_import_is_caught(tmp_path: Path, file: str, line: str, complaint: str) -> None:
    planted = tmp_path / file
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(line)
    (found,) = violations(tmp_path)
    assert complaint in found


def test_a_relative_import_is_caught(tmp_path: Path) -> None:
    (tmp_path / "cli.py").write_text("from . import attention")
    with pytest.raises(AssertionError, match="relative import"):
        list(violations(tmp_path))
