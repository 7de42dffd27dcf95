"""The model hub without a network: a cache as its client leaves it, and what the hub may answer."""

import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors

from outward.sources.errors import SourceError
from outward.sources.models import load_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds org/tiny at one commit, named main."""
    repository = tmp_path / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    shutil.copytree(folder("llama"), repository / "snapshots" / COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return repository / "snapshots" / COMMIT


@pytest.mark.parametrize("name", ["org/tiny", "org/tiny@main", f"org/tiny@{COMMIT}"])
def test_a_cached_model_is_loaded_and_its_commit_known(name: str, cache: Path) -> None:
    source = load_model(name)
    assert source.identity["revision"] == COMMIT
    assert source.identity["id"] == name
    assert source.kind == "text"


def test_a_cached_pickle_is_refused(cache: Path) -> None:
    (cache / "model.safetensors").rename(cache / "pytorch_model.bin")
    with pytest.raises(SourceError, match="only as a pickle"):
        load_model("org/tiny")


@pytest.mark.parametrize("name", ["org/other", "org/tiny@v2"])
def test_offline_is_said(name: str, cache: Path) -> None:
    with pytest.raises(SourceError, match="not in the local cache and HF_HUB_OFFLINE is set"):
        load_model(name)


def answer(kind: type[Exception]) -> Exception:
    error = kind.__new__(kind)
    error.args = ("401 Client Error\nRequest ID: 1",)
    return error


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (errors.GatedRepoError, "org/tiny is gated: accept its terms.*hf auth login"),
        (errors.RepositoryNotFoundError, "neither a local path nor a model that the hub shows"),
        (errors.RevisionNotFoundError, "org/tiny has no revision 'v2'"),
        (errors.LocalEntryNotFoundError, "not in the local cache and the hub cannot be reached"),
        (errors.HfHubHTTPError, "org/tiny cannot be downloaded: 401 Client Error$"),
        (ConnectionError, "org/tiny cannot be downloaded: 401 Client Error$"),
    ],
)
def test_what_the_hub_answers_is_one_clear_error(
    kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> str:
        raise answer(kind)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(SourceError, match=said):
        load_model("org/tiny@v2")


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, {"model.safetensors"}),
        ({"allow_pickle": True}, {"model.safetensors", "pytorch_model.bin"}),
        ({"random_weights_seed": 0}, set()),
    ],
)
def test_only_what_is_needed_is_downloaded(
    options: dict[str, object], weights: set[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[str]] = {}

    def download(name: str, **options: list[str]) -> str:
        asked.update(options)
        return str(cache)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    load_model("org/tiny", **options)
    files = [
        "config.json",
        "model.safetensors",
        "pytorch_model.bin",
        "onnx/model.safetensors",
        "own.py",
    ]
    wanted = huggingface_hub.utils.filter_repo_objects(
        files, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert set(wanted) == {"config.json"} | weights


def test_telemetry_is_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", False)
    load_model("org/tiny")
    assert huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY
