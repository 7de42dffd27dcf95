"""module.py:function: a model that a function of yours returns."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from outward.sources.errors import SourceError
from outward.sources.files import digest
from outward.sources.source import Identity, Loaded, Options


def load_function(name: str, options: Options) -> Loaded:
    """Call the function; it returns a module, or (module, tokenizer or processor)."""
    if options.seed is not None:
        raise SourceError(
            f"{name} makes its own weights, which cannot be drawn afresh from outside: name a function "
            "that returns the model with random weights."
        )
    file, _, function = name.rpartition(":")
    path = Path(file).expanduser()
    made = _function(name, _run(name, path), function)()
    model, processor = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise SourceError(
            f"{name} returned {type(made).__name__}: it must return a torch.nn.Module, or "
            "(module, tokenizer or processor)."
        )
    identity: Identity = {"code_sha256": digest([(path.name, path)])}
    return Loaded(model, _body(model), processor, identity, _max_length(model, processor))


def _run(name: str, path: Path) -> ModuleType:
    spec = spec_from_file_location(f"outward_model_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise SourceError(f"{name}: there is no file {path}. Give FILE.py:FUNCTION.")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look their module up there
    spec.loader.exec_module(module)
    return module


def _function(name: str, module: ModuleType, function: str) -> Any:
    found = getattr(module, function, None)
    if not callable(found):
        own = [k for k, v in vars(module).items() if callable(v) and v.__module__ == module.__name__]
        raise SourceError(
            f"{name}: the file has no function {function!r}; it has: {', '.join(own) or 'none'}."
        )
    return found


def _body(model: nn.Module) -> nn.Module:
    body = getattr(model, "base_model", model)
    return body if isinstance(body, nn.Module) else model


def _max_length(model: nn.Module, processor: Any) -> int | None:
    stated = getattr(model, "max_length", None)
    if isinstance(stated, int):
        return stated
    return getattr(getattr(model, "config", None), "max_position_embeddings", None)
