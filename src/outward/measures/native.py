"""The library of native.cpp: compiled at first use by the machine's own compiler, and kept.

Nothing but time depends on it: bias.py and tally.py compute the same.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

SOURCE = Path(__file__).with_suffix(".cpp")
# Sums may be reordered into vectors; NaN and infinity must stay what they are.
FLAGS = (
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fassociative-math",
    "-fno-signed-zeros",
    "-shared",
    "-fPIC",
    "-std=c++17",
)


class NoCompilerError(Exception):
    """The kernel cannot be made on this machine, and why."""


@cache
def library() -> ctypes.CDLL:
    """The compiled kernel."""
    compiler = next(
        (c for c in (os.environ.get("CXX"), "c++", "g++", "clang++") if c and shutil.which(c)), None
    )
    if compiler is None:
        raise NoCompilerError("there is no C++ compiler (CXX, c++, g++, clang++)")
    file = _folder() / f"measures-{_digest(compiler)}.so"
    if not file.is_file():
        _compile(compiler, file)
    return ctypes.CDLL(str(file))


def missing() -> str | None:
    """Why the kernel cannot be had here, or None; the first answer takes the time of compiling it."""
    try:
        library()
    except (NoCompilerError, OSError) as error:
        return str(error)
    return None


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "outward"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(_temporary())


@cache
def _temporary() -> str:
    return tempfile.mkdtemp(prefix="outward-")


def _digest(compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    parts = (SOURCE.read_bytes(), repr(FLAGS).encode(), version, _processor().encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def _processor() -> str:
    """-march=native makes code for this very processor: a shared home must not mix them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    kept = [x for x in lines if x.startswith(("model name", "flags", "Features"))]
    return "\n".join(dict.fromkeys(kept)) or f"{platform.machine()} {platform.processor()}"


def _compile(compiler: str, file: Path) -> None:
    handle, name = tempfile.mkstemp(dir=file.parent, suffix=".so")
    os.close(handle)
    made = subprocess.run(
        [compiler, *FLAGS, str(SOURCE), "-o", name], capture_output=True, text=True, check=False
    )
    if made.returncode:
        Path(name).unlink()
        first = next(iter(made.stderr.splitlines()), f"{compiler} failed")
        raise NoCompilerError(f"{compiler} could not compile the kernel: {first}")
    os.replace(name, file)


def in_parts(function: Callable[..., None], argument: ctypes.Structure, parts: int) -> None:
    """Parts in as many threads as torch has; ctypes lets go of the interpreter meanwhile."""
    workers = min(torch.get_num_threads(), parts)
    cuts = [parts * n // workers for n in range(workers + 1)] if workers else []

    def one(n: int) -> None:
        function(ctypes.byref(argument), ctypes.c_int64(cuts[n]), ctypes.c_int64(cuts[n + 1]))

    if workers == 1:
        one(0)
    elif workers > 1:
        list(_pool(workers).map(one, range(workers)))


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="outward")
