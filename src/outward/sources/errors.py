"""The one exception of this room, and packages that are installed on request only."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any


class SourceError(Exception):
    """A model or data that cannot be used as asked; it names the thing, the rule and the way out."""


def first_line(error: BaseException) -> str:
    """The first line that says something, or the name of the exception."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def require(package: str, *, extra: str, user: str) -> Any:
    """The imported package, or an error that names who needs it and what installs it."""
    if find_spec(package) is None:
        raise SourceError(f"{user} needs the package {package}: pip install 'outward[{extra}]'.")
    try:
        return import_module(package)
    except (ImportError, OSError, RuntimeError) as error:
        raise SourceError(
            f"{user} needs the package {package}, which is installed but cannot be imported: "
            f"{first_line(error)}. Reinstall it in versions that fit: pip install 'outward[{extra}]'."
        ) from error
