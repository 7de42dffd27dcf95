"""The library of native.cpp: compiled at first use. bias.py and tally.py compute the same."""

import ctypes
from pathlib import Path

from outward.attention import native
from outward.attention.native import NoCompilerError, in_parts

__all__ = ["NoCompilerError", "in_parts", "library", "missing"]

SOURCE = Path(__file__).with_suffix(".cpp")
# Sums may be reordered into vectors; NaN and infinity must stay what they are.
FLAGS = ("-fassociative-math", "-fno-signed-zeros")


def library() -> ctypes.CDLL:
    """The compiled kernel."""
    return native.library(SOURCE, *FLAGS)


def missing() -> str | None:
    """Why the kernel cannot be had here, or None; the first answer takes the time of compiling it."""
    try:
        library()
    except (NoCompilerError, OSError) as error:
        return str(error)
    return None
