"""What tests of whole runs share: a tiny model on disk, texts for it, and the command itself."""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import pyarrow.parquet as pq
from transformers.utils import logging

from outward.cli import main
from sources.tiny import llama, words

SOURCE = Path(__file__).parents[2] / "src"
LENGTH, SAMPLES, BATCH = 16, 30, 2  # 15 batches are 4 chunks, the last of them short


@cache
def scratch() -> Path:
    """A folder that is gone with the tests."""
    folder = Path(tempfile.mkdtemp(prefix="outward-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def tiny() -> Path:
    """A Llama of two layers with its tokenizer."""
    folder = scratch() / "tiny"
    logging.disable_progress_bar()
    for part in llama():
        part.save_pretrained(folder)
    return folder


@cache
def texts() -> Path:
    """Documents of several windows, and some of a single short one: their rows are padded."""
    folder = scratch() / "texts"
    folder.mkdir()
    for n in range(15):
        (folder / f"{n:02}.txt").write_text(words(10 if n % 5 == 4 else 50, offset=n * 50))
    return folder


WAITS = """
import os, time
from transformers import AutoModelForCausalLM, AutoTokenizer

passes = 0

def model():
    made = AutoModelForCausalLM.from_pretrained({folder!r})
    made.model.register_forward_pre_hook(lambda *_: wait())
    return made, AutoTokenizer.from_pretrained({folder!r})

def wait():
    global passes
    passes += 1
    place = os.environ.get("WAITS")
    if passes == 10 and place and not os.path.exists(place):
        with open(place, "x") as file:
            file.write(str(os.getpid()))
        time.sleep(100)
"""
"""Three passes prove the first batch, and four are a chunk: the tenth is of the second chunk."""


@cache
def waiting() -> str:
    """The same model, which waits once in the second chunk, where the environment says so."""
    file = scratch() / "waits.py"
    file.write_text(WAITS.format(folder=str(tiny())))
    return f"{file}:model"


def options(out: Path | None = None, *more: str, model: str = "") -> list[str]:
    """Of the run that most tests do."""
    args = ["measure", model or str(tiny()), str(texts()), "--threads", "1"]
    args += ["--length", str(LENGTH), "--samples", str(SAMPLES), "--batch", str(BATCH)]
    return [*args, *(["--out", str(out)] if out else []), *more]


def call(*args: str) -> int:
    """The command in this process: its exit code."""
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        main(list(args))
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def environment() -> dict[str, str]:
    """Of a process that imports outward from here, and asks no hub."""
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def begun(*args: str, under: tuple[str, ...] = (), waits: Path | None = None) -> subprocess.Popen[str]:
    """The command in a process of its own. waits: where a waiting model says that it does."""
    command = [sys.executable, *under, "-m", "outward", *args]
    if under:
        command = [sys.executable, *under, "--module", "outward", *args]
    env = environment() | ({} if waits is None else {"WAITS": str(waits)})
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def stuck(process: subprocess.Popen[str], waits: Path) -> int:
    """The id of the process, of this one's or itself, that waits by now."""
    while not (waits.is_file() and waits.read_text()):
        assert process.poll() is None, ended(process)
        time.sleep(0.05)
    return int(waits.read_text())


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def profile_bytes(out: Path) -> bytes:
    """What must be the same, whoever did the work."""
    return (out / "profile.parquet").read_bytes()


def finished_chunks(out: Path) -> list[str]:
    """Of a run that did not come to its end."""
    return sorted(file.name for file in (out / "chunks").glob("*.chunk"))


def rows(out: Path) -> int:
    """Of the profile: that two are equal says little of empty ones."""
    return int(pq.read_metadata(out / "profile.parquet").num_rows)
