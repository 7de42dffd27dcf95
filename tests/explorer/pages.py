"""The page as a browser has it: a server with tiny models, and what its views are called."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from browser import Browser, Page, until, watched
from engines.command import scratch
from explorer.serving import Served, served
from explorer.serving import run as tiny_run
from outward.explorer.live import Live
from outward.sources.models import load_model
from sources.tiny import SMALL, vit, word_tokenizer

SETTLED = "main:not([aria-busy]) h1"
SENTENCE = "w1 w2 w3 w1 w4 w2 w5 w1"
LONG = 1024


@cache
def seeing() -> Path:
    """A ViT of two layers: 16 patches and a [CLS]."""
    folder = scratch() / "vit"
    logging.disable_progress_bar()
    for part in vit():
        part.save_pretrained(folder)
    return folder


@cache
def long_reader() -> Path:
    """A Llama that takes long texts."""
    folder = scratch() / "long"
    torch.manual_seed(1)
    config = LlamaConfig(**SMALL, num_key_value_heads=2, vocab_size=1000, max_position_embeddings=4096)
    logging.disable_progress_bar()
    for part in (LlamaForCausalLM(config), word_tokenizer(special=False)):
        part.save_pretrained(folder)
    return folder


@cache
def live(folder: Path, max_tokens: int = 2048) -> Live:
    """A model that is loaded, with attention that is not all but uniform."""
    source = load_model(str(folder))
    torch.manual_seed(5)
    for name, p in source.model.named_parameters():
        if p.ndim == 2 and "embed" not in name:
            p.normal_(std=1.5 / p.shape[1] ** 0.5)
    return Live(source, max_tokens=max_tokens, max_seconds=60.0)


def picture() -> bytes:
    """A PNG with corners of different colours."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:16, :, 0], pixels[:, :16, 1] = 255, 200
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@contextmanager
def site(model: Path | None = None, runs: tuple[Path, ...] | None = None) -> Iterator[Served]:
    """A real server: a run of a tiny model, and a model that is loaded."""
    with served((tiny_run(),) if runs is None else runs, live=model and live(model)) as made:
        yield made


def origin(server: Served) -> str:
    return f"http://127.0.0.1:{server.access.port}/"


@contextmanager
def opened(
    browser: Browser,
    server: Served,
    hash_: str = "",
    *,
    expected: tuple[str, ...] = (),
    **options: Any,
) -> Iterator[Page]:
    """A watched page of the explorer, at that address."""
    with watched(browser, origin(server), expected=expected, **options) as page:
        page.goto(f"{origin(server)}?token={server.access.token}{hash_}")
        page.wait_for_selector(SETTLED, state="attached")
        yield page
        assert not server.told


def run_id(server: Served) -> str:
    found: str = server.ask("/api/runs").json["runs"][0]["id"]
    return found


def drawn(page: Page) -> None:
    """Until the matrices of a head are on the screen."""
    until(page, "performance.getEntriesByName('outward-head').length > 0")


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def tab_to(page: Page, selector: str, most: int = 60) -> None:
    """By Tab alone."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("(s) => document.activeElement.matches(s)", selector):
            return
    raise AssertionError(f"Tab does not reach {selector}")
