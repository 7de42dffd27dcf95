"""How long looking takes: the explorer's page in headless Chromium, and the report.

    python -m benchmarks.seeing [--json] [--out DIR] [--only head,list,report] [--quick]

head    from the bytes of one head, as fetch hands them over, until the browser has painted it: both
        matrices, the tokens, the lists; by the page's own performance.measure. Milliseconds on the
        wall; not what the model or the server take, which has a column of its own.
list    from the request for the page until the list of runs is painted, each time in a fresh context
        without a cache; with so many runs in the folder.
report  `outward report` as a command, of a run of 36 layers and 16 heads with baselines and lengths.

Needs playwright, and chromium where OUTWARD_CHROMIUM says or at /usr/bin/chromium.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

import torch
from playwright.sync_api import Browser, Page, sync_playwright
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from benchmarks import tables
from benchmarks.tables import Row
from outward import measure
from outward.engines.finish import finish
from outward.engines.plan import Plan, begin
from outward.engines.work import Share, facts_of, work
from outward.explorer.runs import Runs
from outward.explorer.server import access_to, address, app, listening, server_for
from outward.sources.models import load_model

if TYPE_CHECKING:
    from outward.explorer.live import Live

WORDS = 900
HEADS, LAYERS, WIDTH = 4, 2, 32
ARGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
PAINTED = """new Promise((done) => {
    const painted = () => setTimeout(() => done(performance.now()));
    const look = () => requestAnimationFrame(
        document.querySelector("main:not([aria-busy]) h1") ? painted : look);
    look();
})"""


def head(quick: bool) -> Iterator[Row]:
    """From the bytes of a head to its picture, milliseconds on the wall"""
    with tempfile.TemporaryDirectory() as folder, _browser() as browser:
        live = _live(Path(folder))
        with _served((), live) as start:
            for tokens in (64,) if quick else (256, 512, 1024, 2048):
                yield {"tokens": tokens} | _heads(browser, start, tokens, 3 if quick else 20)


def _heads(browser: Browser, start: str, tokens: int, rounds: int) -> Row:
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.goto(f"{start}#live")
    _measured(page, 1)
    page.get_by_label("Your text").fill(" ".join(f"w{i % WORDS}" for i in range(tokens)))
    page.evaluate("performance.clearMeasures()")
    page.get_by_role("button", name="Run").click()
    first = _measured(page, 1)[0]
    chooser = page.locator("label.choose", has_text="Head").locator("select")
    waited = []
    for n in range(rounds):
        began = time.perf_counter()
        chooser.select_option(str((n + 1) % HEADS))
        _measured(page, n + 2)
        waited.append(1000 * (time.perf_counter() - began))
    took = _measured(page, rounds + 1)[1:]
    moves = _moves(page, rounds)
    page.close()
    return {
        "first head, ms": first,
        "next heads, ms": median(took),
        "slowest, ms": max(took),
        "with fetching, ms": median(waited),
        "another token, ms": moves,
    }


def _moves(page: Page, rounds: int) -> float:
    """What a key costs that chooses another token, until it is painted."""
    page.locator(".tokens").focus()
    script = """() => new Promise((done) => {
        const began = performance.now();
        const key = new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true });
        document.activeElement.dispatchEvent(key);
        requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
    })"""
    return median(float(page.evaluate(script)) for _ in range(rounds))


def _measured(page: Page, many: int) -> list[float]:
    """Waits for so many heads to be painted: milliseconds of each."""
    end = time.monotonic() + 60
    while True:
        found: list[float] = page.evaluate(
            "performance.getEntriesByName('outward-head').map((entry) => entry.duration)"
        )
        if len(found) >= many:
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"{many} heads should have been painted, {len(found)} were")
        page.wait_for_timeout(5)


def runs(quick: bool) -> Iterator[Row]:
    """From the request to the list of runs, milliseconds on the wall"""
    with tempfile.TemporaryDirectory() as folder, _browser() as browser:
        one = Path(folder) / "run000"
        model = LlamaForCausalLM(_config())
        measure(model, [torch.randint(0, WORDS, (2, 32))], out=one, verify=False)
        for many in (2,) if quick else (1, 10, 100):
            for n in range(1, many):
                copy = Path(folder) / f"run{n:03}"
                if not copy.exists():
                    shutil.copytree(one, copy)
            with _served((Path(folder),), None) as start:
                took = [_first_view(browser, start) for _ in range(3 if quick else 15)]
                low, _, high = quantiles(took, n=4)
                yield {
                    "runs": many,
                    "median, ms": median(took),
                    "middle half": f"{low:.0f} to {high:.0f}",
                    "slowest, ms": max(took),
                }


def report(quick: bool) -> Iterator[Row]:
    """`outward report` of a large run, seconds on the wall of a process of its own"""
    with tempfile.TemporaryDirectory() as folder:
        run, page = Path(folder) / "run", Path(folder) / "report.html"
        layers, heads = (2, 2) if quick else (36, 16)
        _large_run(Path(folder), run, layers, heads)
        took = []
        for _ in range(2 if quick else 5):
            began = time.perf_counter()
            command = [sys.executable, "-m", "outward", "report", str(run), "-o", str(page)]
            subprocess.run(command, check=True, capture_output=True)
            took.append(time.perf_counter() - began)
        yield {
            "layers x heads": f"{layers} x {heads}",
            "median, s": median(took),
            "slowest, s": max(took),
            "size, MB": page.stat().st_size / 1e6,
        }


def _large_run(folder: Path, run: Path, layers: int, heads: int) -> None:
    """Of a tiny model with as many heads as large ones have."""
    config = LlamaConfig(
        hidden_size=8 * heads,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        vocab_size=WORDS,
    )
    _save(config, folder / "model")
    texts = folder / "texts.jsonl"
    lines = (" ".join(f"w{(7 * n + i) % WORDS}" for i in range(300)) for n in range(32))
    texts.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    plan = Plan(
        str(folder / "model"),
        str(texts),
        length=256,
        baselines=("random-weights", "shuffled-tokens"),
        lengths=(64, 128),
    )
    begin(plan, run, resume=False, shared=False, facts=facts_of(plan))
    work(plan, Share(), run, verify=False, progress=lambda *_: None)
    finish(run)


def _first_view(browser: Browser, start: str) -> float:
    """From the start of the navigation, whose clock performance.now is, to the list on the screen."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(start, wait_until="commit")
    took = float(page.evaluate(PAINTED))
    context.close()
    return took


@contextmanager
def _browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = os.environ.get("OUTWARD_CHROMIUM") or "/usr/bin/chromium"
        browser = playwright.chromium.launch(executable_path=path, args=ARGS)
        yield browser
        browser.close()


@contextmanager
def _served(folders: tuple[Path, ...], live: "Live | None") -> Iterator[str]:
    """A server in a thread of this process: the address to open."""
    opened = listening("127.0.0.1", 0)
    access = access_to(opened, ())
    server = server_for(app(Runs(folders), live, access, print), debug=False)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    try:
        yield address(access, "127.0.0.1")
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        opened.close()


def _config() -> LlamaConfig:
    return LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        vocab_size=WORDS,
        max_position_embeddings=4096,
    )


def _live(folder: Path) -> "Live":
    """A tiny Llama whose tokens are words w0 w1 w2 ..."""
    from outward.explorer.live import Live

    _save(_config(), folder / "model")
    return Live(load_model(str(folder / "model")), max_tokens=2048, max_seconds=60.0)


def _save(config: LlamaConfig, folder: Path) -> None:
    torch.manual_seed(0)
    logging.disable_progress_bar()
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for part in (LlamaForCausalLM(config), PreTrainedTokenizerFast(tokenizer_object=tokenizer)):
        part.save_pretrained(folder)


if __name__ == "__main__":
    sections = {"head": head, "list": runs, "report": report}
    tables.run("benchmarks.seeing", __doc__, sections, clock="the wall")
