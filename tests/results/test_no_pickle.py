"""Nothing here is pickled, and nothing that could be a pickle is read as one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "outward"
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
ERRORS = {"UnpicklingError"}  # may be caught: a checkpoint that is a broken pickle


def pickling(code: str) -> Iterator[str]:
    """Uses of pickle in a file: what is imported of it, and torch.load or numpy's without the guard."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield from (
                f"from {node.module} import {a.name}" for a in node.names if a.name not in ERRORS
            )
        if isinstance(node, ast.Attribute) and _is_module(node.value) and node.attr not in ERRORS:
            yield ast.unparse(node)
        if isinstance(node, ast.Import):
            yield from (
                a.name
                for a in node.names
                if a.name in MODULES - {"pickle"} or (a.asname and a.name in MODULES)
            )
        if isinstance(node, ast.Call):
            yield from _loads(node)


def _is_module(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in MODULES


def _loads(node: ast.Call) -> Iterator[str]:
    given = {k.arg: ast.unparse(k.value) for k in node.keywords}
    called = ast.unparse(node.func)
    if called == "torch.load" and given.get("weights_only") != "True":
        yield "torch.load without weights_only=True"
    if called in ("np.load", "numpy.load") and given.get("allow_pickle", "False") != "False":
        yield "numpy.load with pickles"
    if called in ("torch.save", "np.save", "numpy.save"):
        yield called
    if called.endswith("from_pretrained") and given.get("weights_only", "True") != "True":
        yield "from_pretrained that unpickles"


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_file_pickles(file: Path) -> None:
    assert not list(pickling(file.read_text()))


@pytest.mark.parametrize(
    "code",
    [
        "import pickle\npickle.loads(x)",
        "import pickle as p\np.loads(x)",
        "from pickle import loads",
        "from pickle import UnpicklingError, dumps",
        "import dill",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import torch\ntorch.save(x, path)",
        "np.load(path, allow_pickle=True)",
        "Auto.from_pretrained(path, weights_only=False)",
    ],
)
def test_a_planted_pickle_is_found(code: str) -> None:
    assert len(list(pickling(code))) == 1


def test_catching_its_error_and_loading_weights_only_are_allowed() -> None:
    fine = "import pickle\ntry: torch.load(p, weights_only=True)\nexcept pickle.UnpicklingError: pass"
    assert not list(pickling(fine))
