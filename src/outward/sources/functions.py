"""module.py:function: a model that a function of yours returns."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from outward.sources.errors import SourceError, first_line
from outward.sources.files import digest
from outward.sources.source import Identity, Loaded, Options


def load_function(name: str, options: Options) -> Loaded:
    """Call the function; it returns a module, or (module, tokenizer or processor)."""
    if options.seed is not None:
        refuse_fresh(name)
    file, _, function = name.rpartition(":")
    path = Path(file).expanduser()
    with _blamed(name, path):
        module = _run(name, path)
        called = _function(name, module, function)
        made = called()
    model, processor = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise SourceError(
            f"{name} returned {type(made).__name__}: it must return a torch.nn.Module, or "
            "(module, tokenizer or processor)."
        )
    identity: Identity = {"code_sha256": digest([(path.name, path)])}
    return Loaded(model, _body(model), processor, identity, _max_length(model, processor))


def refuse_fresh(name: str) -> None:
    """Fresh weights are drawn only where the architecture is known without running code."""
    if ".py:" in name:
        raise SourceError(
            f"{name} makes its own weights, which cannot be drawn afresh from outside: name a function "
            "that returns the model with random weights."
        )


@contextmanager
def _blamed(name: str, path: Path) -> Iterator[None]:
    """What a file of the user raises, with its line; anything may come out of code that is not ours."""
    try:
        yield
    except SourceError:
        raise
    except (Exception, SystemExit) as error:
        line = _line(error, path)
        at = f"{path}, line {line}" if line is not None else str(path)
        said = first_line(error)
        kind = type(error).__name__
        raise SourceError(
            f"{name} made no model: {at}: {kind}{'' if said == kind else f': {said}'}. Mend the file; "
            "--debug shows where it comes from."
        ) from error


def _line(error: BaseException, path: Path) -> int | None:
    """The last line of the file that the error came through, or that is no Python."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno for f in reversed(frames) if f.filename == str(path)), None)


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
