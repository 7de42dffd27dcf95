"""load_model: a name becomes a Source."""

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import torch

from outward.sources import hub
from outward.sources.checkpoints import (
    PICKLES,
    load_demo,
    load_folder,
    load_gguf,
    load_repository,
)
from outward.sources.errors import SourceError, first_line
from outward.sources.files import digest
from outward.sources.functions import load_function
from outward.sources.source import (
    Identity,
    Loaded,
    Options,
    Source,
    kind_of,
    weights_identity,
)
from outward.sources.vision_models import load_open_clip, load_timm

WEIGHTS = ("*.safetensors", *PICKLES)
DTYPES = ("auto", "float32", "bfloat16", "float16")
NAMES = (
    "smollm2, minilm, ORG/NAME[@REVISION], a model's folder, FILE.gguf, timm/NAME, "
    "open_clip:NAME[/WEIGHTS], FILE.py:FUNCTION"
)


def load_model(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    allow_pickle: bool = False,
    random_weights_seed: int | None = None,
) -> Source:
    """The model of that name, in eval mode and without gradients.

    dtype auto: as its weights were saved. random_weights_seed: the same architecture with fresh
    weights that depend on the seed only. Code that comes with a model is never run.
    """
    if dtype not in DTYPES:
        raise SourceError(f"dtype {dtype!r}: it must be one of {', '.join(DTYPES)}.")
    place = _device(device)
    options = Options(dtype, allow_pickle, random_weights_seed)
    loaded = _loader(name)(options)
    loaded.model.eval().requires_grad_(False)
    _move(name, loaded, place, dtype)
    return Source(
        name=name,
        kind=kind_of(name, loaded),
        model=loaded.model,
        body=loaded.body,
        processor=loaded.processor,
        identity=_identified(name, loaded).identity,
        max_length=loaded.max_length,
    )


def local_identity(name: str) -> Identity | None:
    """What tells a local model's files from others, before it is loaded; None of what is not local."""
    path = Path(name).expanduser()
    if ".py:" in name:
        file = Path(name.rpartition(":")[0]).expanduser()
        return {"code_sha256": digest([(file.name, file)])} if file.is_file() else None
    if path.is_dir():
        return weights_identity([p for p in path.iterdir() if p.is_file() and _is_read(p.name)])
    return weights_identity([path]) if path.suffix == ".gguf" and path.is_file() else None


def _is_read(name: str) -> bool:
    """Of a model's folder: its weights, its config, its tokenizer."""
    return any(fnmatch(name, pattern) for pattern in (*hub.SMALL_FILES, *WEIGHTS))


def _loader(name: str) -> Callable[[Options], Loaded]:
    """The loader that a name asks for."""
    path = Path(name).expanduser()
    if not name.strip():
        raise SourceError(f"The name of the model is empty. A model is one of: {NAMES}.")
    if name in ("smollm2", "minilm"):
        return partial(load_demo, name)
    if name.startswith("timm/"):
        return partial(load_timm, name)
    if name.startswith("open_clip:"):
        return partial(load_open_clip, name)
    if ".py:" in name:
        return partial(load_function, name)
    if path.is_dir():
        return partial(load_folder, name, path)
    if path.suffix == ".gguf":
        return partial(load_gguf, name, path)
    _refuse_paths(name, path)
    return partial(load_repository, name)


def _refuse_paths(name: str, path: Path) -> None:
    """What is, or looks like, a path that names no model is not asked of the hub."""
    if path.exists():
        raise SourceError(f"{name} is a file that is no model by itself. A model is one of: {NAMES}.")
    before, at, _ = name.rpartition("@")
    if at and Path(before).expanduser().is_dir():
        raise SourceError(f"{name}: a local folder has no revisions; leave out what follows the @.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise SourceError(f"{name}: there is no such file or folder. A model is one of: {NAMES}.")


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise SourceError(
            f"device {device!r} is none that torch knows; give auto, cpu or cuda."
        ) from error
    if place.type == "meta":
        raise SourceError("device 'meta' holds no numbers to measure; give auto, cpu or cuda.")
    return place


def _move(name: str, loaded: Loaded, device: torch.device, dtype: str) -> None:
    try:
        loaded.model.to(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SourceError(f"{name} cannot be moved to device {device}: {first_line(error)}") from error
    if dtype != "auto":
        loaded.model.to(getattr(torch, dtype))


def _identified(name: str, loaded: Loaded) -> Loaded:
    """With what every model has: its class, its size, its type."""
    parameters = list(loaded.model.parameters())
    common: Identity = {
        "id": name,
        "class": type(loaded.model).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
        "processor": type(loaded.processor).__name__ if loaded.processor is not None else None,
    }
    return replace(loaded, identity={**common, **loaded.identity})
