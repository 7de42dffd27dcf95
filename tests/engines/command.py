"""What tests of whole runs share: a tiny model on disk, texts for it, and the command itself."""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
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


def options(out: Path | None = None, *more: str) -> list[str]:
    """Of the run that most tests do."""
    args = ["measure", str(tiny()), str(texts()), "--threads", "1"]
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


def begun(*args: str, under: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    command = [sys.executable, *under, "-m", "outward", *args]
    if under:
        command = [sys.executable, *under, "--module", "outward", *args]
    return subprocess.Popen(
        command, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def profile_bytes(out: Path) -> bytes:
    """What must be the same, whoever did the work."""
    return (out / "profile.parquet").read_bytes()


def rows(out: Path) -> int:
    """Of the profile: that two are equal says little of empty ones."""
    return int(pq.read_metadata(out / "profile.parquet").num_rows)
