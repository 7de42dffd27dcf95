"""C++ beside the Python: compiled at first use by the machine's own compiler, and kept.

Nothing but time depends on it: whatever is computed so is computed by torch too, and tested to agree.
"""

import atexit
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

FLAGS = (
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-shared",
    "-fPIC",
    "-std=c++17",
)
COMPILERS = ("c++", "g++", "clang++")


class NoCompilerError(RuntimeError):
    """C++ cannot be compiled on this machine, and why."""


@cache
def library(source: Path, *flags: str) -> ctypes.CDLL:
    """The compiled library of a .cpp file."""
    found = compiler()
    if found is None:
        raise NoCompilerError(
            f"there is no C++ compiler (CXX, {', '.join(COMPILERS)}); install one, g++ say"
        )
    file = _folder() / f"{source.stem}-{_digest(found, source, flags)}.so"
    try:
        return ctypes.CDLL(str(file))
    except OSError:  # it is not there, or damaged
        return _compile(found, source, flags, file)


def compiler() -> str | None:
    """What compiles C++ here: what the variable CXX says, or one of the usual names."""
    return next((c for c in (os.environ.get("CXX"), *COMPILERS) if c and shutil.which(c)), None)


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
    """Where no cache can be kept: gone with the process."""
    folder = tempfile.mkdtemp(prefix="outward-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _digest(found: str, source: Path, flags: tuple[str, ...]) -> str:
    version = subprocess.run([found, "--version"], capture_output=True, check=False).stdout
    said = repr(FLAGS + flags).encode()
    parts = (source.read_bytes(), said, version, _processor().encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def _processor() -> str:
    """-march=native makes code for this very processor: a shared home must not mix them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    kept = [x for x in lines if x.startswith(("model name", "flags", "Features"))]
    return "\n".join(dict.fromkeys(kept)) or f"{platform.machine()} {platform.processor()}"


def _compile(found: str, source: Path, flags: tuple[str, ...], file: Path) -> ctypes.CDLL:
    """Kept only if it can be loaded."""
    handle, name = tempfile.mkstemp(dir=file.parent, suffix=".so")
    os.close(handle)
    command = [found, *FLAGS, *flags, str(source), "-o", name]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        loaded = ctypes.CDLL(name)
    except OSError as error:
        Path(name).unlink()
        first = next(iter(made.stderr.splitlines()), str(error))
        raise NoCompilerError(f"{found} could not compile {source.name}: {first}") from error
    os.replace(name, file)
    return loaded


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
