"""A repository of the model hub becomes a local folder, so that all that follows reads local files."""

from pathlib import Path

import huggingface_hub
from huggingface_hub import errors as hub_errors
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

from outward.sources.errors import SourceError, first_line

SMALL_FILES = ["*.json", "*.txt", "*.model", "*.jinja"]
SAFE_WEIGHTS = ["model.safetensors", "model-*.safetensors"]
PICKLED_WEIGHTS = ["pytorch_model.bin", "pytorch_model-*.bin"]
HUB_ERRORS = (OSError, ValueError, HTTPError)


def fetch(repository: str, revision: str | None, patterns: list[str]) -> tuple[Path, str]:
    """(folder, commit) with the top-level files that match; from the cache where they are in it."""
    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        folder = huggingface_hub.snapshot_download(
            repository, revision=revision, allow_patterns=patterns, ignore_patterns=["*/*"]
        )
    except HUB_ERRORS as error:
        raise _explained(repository, revision, error) from error
    return Path(folder), Path(folder).name


def _explained(repository: str, revision: str | None, error: Exception) -> SourceError:
    if isinstance(error, hub_errors.GatedRepoError):
        return SourceError(
            f"{repository} is gated: accept its terms on its page, log in with `hf auth login`, "
            "and try again."
        )
    if isinstance(error, hub_errors.RepositoryNotFoundError):
        return SourceError(
            f"{repository} is neither a local path nor a model that the hub shows you. Check the name; "
            "if it is private, log in with `hf auth login`."
        )
    if isinstance(error, hub_errors.RevisionNotFoundError):
        return SourceError(
            f"{repository} has no revision {revision!r}: after the @ comes a branch, tag or commit."
        )
    if isinstance(error, hub_errors.HFValidationError):
        return SourceError(f"{repository!r} is neither a local path nor a name on the hub (ORG/NAME).")
    return _unreachable(repository, error)


def _unreachable(repository: str, error: Exception) -> SourceError:
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return SourceError(
            f"{repository} is not in the local cache and HF_HUB_OFFLINE is set: unset it to download, "
            "or give a local folder."
        )
    if isinstance(error, hub_errors.LocalEntryNotFoundError):
        return SourceError(
            f"{repository} is not in the local cache and the hub cannot be reached: check the "
            "connection, or give a local folder."
        )
    return SourceError(f"{repository} cannot be downloaded: {first_line(error)}")
