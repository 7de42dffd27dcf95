"""The package from outside: what importing it costs, how it reads, that the README is true."""

import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import outward

ROOT = Path(__file__).parents[1]
NAMES = list(outward._HOME)
HEAVY = ("torch._dynamo", "torch._inductor", "transformers", "starlette", "uvicorn", "pandas", "rich")


def imported_by(code: str) -> set[str]:
    """What a fresh interpreter imports for it."""
    command = [sys.executable, "-X", "importtime", "-c", code]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {line.rsplit("|", 1)[1].strip() for line in log.splitlines() if "|" in line}


def heavy(modules: set[str]) -> set[str]:
    return {m for m in modules if m.startswith(HEAVY)}


def test_importing_outward_imports_nothing_heavy() -> None:
    names = imported_by("import outward")
    assert "outward" in names
    assert "torch" not in names
    assert not heavy(names)


def test_using_it_imports_torch_and_nothing_heavy() -> None:
    names = imported_by("import outward; outward.exclude_self; outward.ExclusiveAttention")
    assert "torch" in names
    assert not heavy(names)


def test_the_measurement_of_imports_bites() -> None:
    assert heavy(imported_by("import outward, torch._dynamo"))


def test_help_reads_well() -> None:
    """One page that names everything, and no more."""
    text = pydoc.plain(pydoc.render_doc(outward))
    assert "z_i = y_i - (y_i·v̂_i) v̂_i" in text
    assert len(text.splitlines()) < 80
    for name in NAMES:
        assert name in text, f"{name} is public, and help(outward) does not say so"
        assert name in dir(outward)
    function = pydoc.plain(pydoc.render_doc(outward.exclude_self))
    assert "take from each output its component along its own value" in function


def test_every_public_name_says_what_it_is() -> None:
    for name in NAMES:
        assert getattr(outward, name).__doc__, name


@pytest.mark.parametrize("page", ["README.md", "DESIGN.md", "CONTRIBUTING.md"])
def test_the_examples_run(page: str) -> None:
    text = (ROOT / page).read_text()
    for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(code, page, "exec"), {})


def test_the_tree_in_the_readme_is_the_tree() -> None:
    tree = (ROOT / "README.md").read_text()
    for path in sorted((ROOT / "src" / "outward").rglob("*.py")):
        if path.name != "__init__.py":
            assert path.name in tree, f"README's tree does not show {path.name}"
    for name in re.findall(r"^ +(\w+\.py) ", tree, flags=re.MULTILINE):
        assert list((ROOT / "src").rglob(name)), f"README's tree shows {name}, which is not there"


def test_the_project_speaks_of_itself_alone() -> None:
    """No path of anybody's machine, no host of a package registry."""
    command = ["git", "ls-files", "-z"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    forbidden = re.compile(r"/(?:tmp|work|opt|farm|root|home)/[a-z]|pypi\.org|pythonhosted|npmjs")
    here = Path(__file__).name
    for name in filter(None, tracked.split("\0")):
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".lock", ".json", ""} and path.name != here:
            found = forbidden.search(path.read_text())
            assert found is None, f"{name}: {found}"


def test_the_explorer_is_there_for_its_widget() -> None:
    assert outward.explorer.widget is not None
