"""timm and open_clip models, their weights from safetensors."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from outward.sources import hub
from outward.sources.checkpoints import explained
from outward.sources.errors import SourceError, require
from outward.sources.source import Identity, Loaded, Options, random_identity, seeded, weights_identity

WAY_OUT = "For fresh weights, name a FILE.py:FUNCTION that returns the model."
SAFETENSORS = ["model.safetensors", "open_clip_model.safetensors"]


def load_timm(name: str, options: Options) -> Loaded:
    """timm/NAME or timm/NAME.TAG, with the image transform that its weights were trained for."""
    timm = require("timm", extra="vision", user=name)
    architecture = name.removeprefix("timm/")
    if not timm.is_model(architecture):
        raise SourceError(f"{name}: timm has no such model{_near(architecture, timm.list_models())}.")
    with explained(name):
        if options.seed is not None:
            identity = random_identity(options.seed)
            with seeded(options.seed):
                model = timm.create_model(architecture, pretrained=False)
        else:
            path, identity = _timm_weights(timm, name, architecture)
            overlay = {"file": str(path)}
            model = timm.create_model(architecture, pretrained=True, pretrained_cfg_overlay=overlay)
        settings = timm.data.resolve_model_data_config(model)
        transform = timm.data.create_transform(**settings, is_training=False)
    return Loaded(model, model, transform, identity)


def load_open_clip(name: str, options: Options) -> Loaded:
    """open_clip:NAME, with fresh weights, or open_clip:NAME/WEIGHTS, a tag or a local file."""
    open_clip = require("open_clip", extra="vision", user=name)
    architecture, _, weights = name.removeprefix("open_clip:").partition("/")
    if architecture not in open_clip.list_models():
        near = _near(architecture, open_clip.list_models())
        raise SourceError(f"{name}: open_clip has no model {architecture!r}{near}.")
    tag = open_clip.get_pretrained_cfg(architecture, weights) if weights else {}
    path, identity = None, random_identity(options.seed or 0)
    if weights and options.seed is None:
        path, identity = _open_clip_weights(name, weights, tag, options)
    with explained(name), seeded(options.seed or 0), _unlogged():
        model, _, transform = open_clip.create_model_and_transforms(
            architecture,
            pretrained=str(path) if path is not None else None,
            pretrained_text=False,
            force_quick_gelu=bool(tag.get("quick_gelu")),
            **{f"image_{key}": tag.get(key) for key in ("mean", "std", "interpolation", "resize_mode")},
        )
    return Loaded(model, model.visual, transform, identity)


@contextmanager
def _unlogged() -> Iterator[None]:
    """open_clip warns of fresh weights, which are meant; with no handler, that would set up logging."""
    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)


def _timm_weights(timm: Any, name: str, architecture: str) -> tuple[Path, Identity]:
    config = timm.models.get_pretrained_cfg(architecture)
    if config is None or not config.hf_hub_id:
        raise SourceError(f"{name}: timm has no pretrained weights for it. {WAY_OUT}")
    return _from_hub(name, config.hf_hub_id)


def _open_clip_weights(
    name: str, weights: str, tag: dict[str, Any], options: Options
) -> tuple[Path, Identity]:
    path = Path(weights).expanduser()
    if path.is_file():
        if path.suffix != ".safetensors" and not options.allow_pickle:
            raise SourceError(
                f"{name}: {path.name} is a pickle, which can carry code: convert it to safetensors, or "
                "allow it with --allow-pickle."
            )
        return path, weights_identity([path])
    if not tag.get("hf_hub"):
        raise SourceError(f"{name}: {weights!r} is neither a file nor a tag with weights on the hub.")
    return _from_hub(name, tag["hf_hub"].rpartition("/")[0])


def _from_hub(name: str, repository: str) -> tuple[Path, Identity]:
    """The safetensors file of a repository of the hub."""
    folder, commit = hub.fetch(repository, None, SAFETENSORS)
    files = [folder / file for file in SAFETENSORS if (folder / file).is_file()]
    if not files:
        raise SourceError(f"{name}: {repository} has no weights as safetensors. {WAY_OUT}")
    return files[0], {"revision": commit, **weights_identity(files[:1])}


def _near(name: str, names: list[str]) -> str:
    close = get_close_matches(name, names, n=3)
    return f"; near to it: {', '.join(close)}" if close else ""
