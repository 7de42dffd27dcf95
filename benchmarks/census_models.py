"""The architectures of each library: their names, and for each a small random model and a run of it."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import tiny, tiny_inputs
from outward.taps.proof import tensors_in

Forward = Callable[[], Any]
PICTURES = (224, 256)
"""Sizes to try before the one that a model is made for, if that is larger."""


def transformers_names() -> list[str]:
    from transformers.models.auto import configuration_auto

    return list(vars(configuration_auto)["CONFIG_MAPPING_NAMES"])


def of_transformers(name: str) -> tuple[nn.Module, Forward]:
    """The smallest model that runs, and its inputs."""
    import transformers

    transformers.logging.set_verbosity(logging.CRITICAL)
    said = ""
    for model in tiny.small_models(name):
        for inputs in tiny_inputs.inputs_of(model):
            run = partial(_fresh, model, inputs)
            try:
                with torch.no_grad():
                    outputs = [x for x in tensors_in(run()) if x.is_floating_point()]
            except Exception as error:  # not these inputs, then
                said = said or tiny.one_line(error)
                continue
            if not all(x.isfinite().all() for x in outputs[:1]):
                tiny.calm(model)
            return model, run
    raise LookupError(f"no inputs fit: {said}" if said else f"not built: {tiny.why_not(name)}")


def _fresh(model: nn.Module, inputs: dict[str, Any]) -> Any:
    """With inputs that nobody has written into."""
    return model(**{n: x.clone() if isinstance(x, Tensor) else x for n, x in inputs.items()})


def timm_names() -> list[str]:
    """The smallest variant, by its name, of every module of timm."""
    import timm

    names = []
    for module in timm.list_modules():
        found = timm.list_models(module=module)
        if found:
            names.append(min(found, key=_size_in_name))
    return names


_SIZES = (
    "atto",
    "femto",
    "pico",
    "nano",
    "xxt",
    "xxs",
    "xt",
    "xs",
    "tiny",
    "_t",
    "small",
    "_s",
    "mini",
)


def _size_in_name(name: str) -> tuple[int, int]:
    return next((i for i, s in enumerate(_SIZES) if s in name), len(_SIZES)), len(name)


def of_timm(name: str) -> tuple[nn.Module, Forward]:
    """Two blocks deep, with pictures no larger than need be, where the architecture can be told so."""
    import timm

    made_for = timm.get_pretrained_cfg(name)
    if made_for is None:
        raise LookupError(f"timm does not say what size {name} is made for")
    channels, *_, width = made_for.test_input_size or made_for.input_size
    said = ""
    for size in dict.fromkeys([*(s for s in PICTURES if s < width), width]):
        tries: list[dict[str, Any]] = [
            {"depth": 2, "img_size": size},
            {"depth": 2},
            {"img_size": size},
            {},
        ]
        for options in tries:
            torch.manual_seed(0)
            try:
                model = timm.create_model(name, pretrained=False, **options).eval()
                run = partial(model, torch.randn(2, channels, size, size))
                with torch.no_grad():
                    run()
            except Exception as error:  # it knows no such option, or no other size than its own
                said = tiny.one_line(error)
                continue
            return model, run
    raise LookupError(f"no size fits: {said}")


def open_clip_names() -> list[str]:
    return [
        "ViT-S-32-alt",
        "ViT-B-32",
        "ViT-B-32-quickgelu",
        "ViT-B-32-plus-256",
        "RN50",
        "coca_base",
        "EVA02-B-16",
        "ViTamin-B",
        "ViT-B-16-SigLIP",
        "ViT-B-32-SigLIP2-256",
        "convnext_base",
        "swin_base_patch4_window7_224",
        "MobileCLIP-S1",
        "MobileCLIP-B",
        "nllb-clip-base",
        "roberta-ViT-B-32",
    ]


def of_open_clip(name: str) -> tuple[nn.Module, Forward]:
    """Both towers, two layers of each; the tower of texts is left out where a hub has its shape."""
    import open_clip

    torch.manual_seed(0)
    config = open_clip.get_model_config(name)
    custom = config.pop("custom_text", False) or "multimodal_cfg" in config
    for part in ("vision_cfg", "text_cfg", "multimodal_cfg"):
        _shrink_tower(config.get(part, {}))
    size = config["vision_cfg"]["image_size"]
    pictures = torch.randn(2, 3, size, size)
    if "hf_model_name" in config["text_cfg"]:
        vision = open_clip.model.CLIPVisionCfg(**config["vision_cfg"])
        tower = open_clip.model._build_vision_tower(64, vision, config.get("quick_gelu", False))
        return tower.eval(), partial(tower, pictures)
    kind = open_clip.CoCa if "multimodal_cfg" in config else open_clip.CustomTextCLIP
    model = (kind if custom else open_clip.CLIP)(**config).eval()
    texts = torch.randint(1, 255, (2, config["text_cfg"]["context_length"]))
    return model, partial(model, pictures, texts)


def _shrink_tower(config: dict[str, Any]) -> None:
    """In place, of open_clip's configurations; towers of timm stay as they are."""
    for name, most in (("layers", 2), ("vocab_size", 256)):
        if isinstance(config.get(name), int):
            config[name] = min(config[name], most)


def torch_names() -> list[str]:
    return [
        "MultiheadAttention, weights",
        "MultiheadAttention",
        "TransformerEncoder",
        "Transformer",
        "vit_b_32",
        "swin_t",
        "swin_v2_t",
        "maxvit_t",
    ]


def of_torch(name: str) -> tuple[nn.Module, Forward]:
    """torch's own layers, and torchvision's models."""
    torch.manual_seed(0)
    x = torch.randn(2, 9, 32)
    if name.startswith("MultiheadAttention"):
        attention = nn.MultiheadAttention(32, 4, batch_first=True).eval()
        return attention, partial(attention, x, x, x, need_weights="weights" in name)
    if name == "TransformerEncoder":
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        return encoder, partial(encoder, x, src_key_padding_mask=torch.arange(9).expand(2, 9) > 6)
    if name == "Transformer":
        both = nn.Transformer(32, 4, 2, 2, 64, batch_first=True).eval()
        return both, partial(both, x, x[:, :5])
    import torchvision

    model = torchvision.models.get_model(name, weights=None).eval()
    return model, partial(model, torch.randn(2, 3, 224, 224))


LIBRARIES: dict[str, tuple[Callable[[], list[str]], Callable[[str], tuple[nn.Module, Forward]]]] = {
    "transformers": (transformers_names, of_transformers),
    "timm": (timm_names, of_timm),
    "open_clip": (open_clip_names, of_open_clip),
    "torch": (torch_names, of_torch),
}
