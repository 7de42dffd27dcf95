from collections.abc import Callable
from pathlib import Path

import pytest
from transformers.utils import logging

from sources.tiny import MAKERS


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model, by kind; written once."""
    made: dict[str, Path] = {}

    def of(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            logging.disable_progress_bar()
            for part in MAKERS[kind]():
                part.save_pretrained(made[kind])
        return made[kind]

    return of
