"""timm and open_clip: fresh weights, weights from files and from the cache, and what is refused."""

import logging
import sys
from pathlib import Path

import open_clip
import pytest
import timm
import torch
from safetensors.torch import save_file

from outward.sources.batches import batches
from outward.sources.errors import SourceError
from outward.sources.models import load_model
from outward.sources.source import Source

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TIMM = "test_vit"  # timm's own smallest, for tests
CLIP = "tiny-test"


@pytest.fixture(autouse=True)
def _tiny_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CLIP small enough to make in no time, under a name that open_clip then knows."""
    tower = {"layers": 2, "width": 32}
    config = {
        "embed_dim": 16,
        "vision_cfg": {**tower, "image_size": 32, "patch_size": 8, "head_width": 16},
        "text_cfg": {**tower, "heads": 2, "context_length": 8, "vocab_size": 50},
    }
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, CLIP, config)


def cached(cache: Path, repository: str, file: str, weights: dict[str, torch.Tensor]) -> None:
    home = cache / f"models--{repository.replace('/', '--')}"
    snapshot = home / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT)
    save_file({name: x.contiguous() for name, x in weights.items()}, snapshot / file)


def same(a: Source, b: Source) -> bool:
    pairs = zip(a.model.parameters(), b.model.parameters(), strict=True)
    return all(x.equal(y) for x, y in pairs)


@pytest.mark.parametrize("name", [f"timm/{TIMM}", f"open_clip:{CLIP}"])
def test_fresh_weights_depend_on_the_seed_only(name: str) -> None:
    state = torch.random.get_rng_state()
    one, again, other = (load_model(name, random_weights_seed=seed) for seed in (1, 1, 2))
    assert torch.random.get_rng_state().equal(state)
    assert same(one, again)
    assert not same(one, other)
    assert (one.kind, one.identity["weights"], one.identity["seed"]) == ("image", "random", 1)
    assert not one.model.training


@pytest.mark.parametrize("name", [f"timm/{TIMM}", f"open_clip:{CLIP}"])
def test_the_image_tower_runs_alone(name: str) -> None:
    source = load_model(name, random_weights_seed=0, dtype="bfloat16")
    for batch in batches(source, None, samples=3, batch=2):
        assert batch.inputs == {}
        assert batch.args[0].dtype == torch.bfloat16
        assert source.body(*batch.args).shape[0] == len(batch.documents)
    assert source.body is (source.model.visual if "clip" in name else source.model)


def test_pretrained_timm_weights_come_from_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    there = load_model(f"timm/{TIMM}", random_weights_seed=5)
    repository = timm.models.get_pretrained_cfg(TIMM).hf_hub_id
    cached(tmp_path, repository, "model.safetensors", there.model.state_dict())
    found = load_model(f"timm/{TIMM}")
    assert same(found, there)
    assert found.identity["revision"] == COMMIT


def test_pretrained_open_clip_weights_come_from_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    tag = {"hf_hub": "org/clip/", "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "quick_gelu": True}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, CLIP, {"some": tag})
    there = load_model(f"open_clip:{CLIP}", random_weights_seed=5)
    cached(tmp_path, "org/clip", "open_clip_model.safetensors", there.model.state_dict())
    found = load_model(f"open_clip:{CLIP}/some")
    assert same(found, there)
    assert found.identity["revision"] == COMMIT
    assert "QuickGELU" in str(found.body)
    (batch,) = batches(found, None, samples=1)
    assert 0 <= batch.args[0].min() < batch.args[0].max() <= 1  # as mean 0 and std 1 leave it


def test_open_clip_weights_from_a_file(tmp_path: Path) -> None:
    there = load_model(f"open_clip:{CLIP}", random_weights_seed=5)
    save_file(there.model.state_dict(), tmp_path / "a.safetensors")
    torch.save(there.model.state_dict(), tmp_path / "a.pt")
    assert same(load_model(f"open_clip:{CLIP}/{tmp_path}/a.safetensors"), there)
    with pytest.raises(SourceError, match=r"a\.pt is a pickle"):
        load_model(f"open_clip:{CLIP}/{tmp_path}/a.pt")
    assert same(load_model(f"open_clip:{CLIP}/{tmp_path}/a.pt", allow_pickle=True), there)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("timm/test_vitt", "timm has no such model; near to it: test_vit"),
        (f"timm/{TIMM}", "not in the local cache and HF_HUB_OFFLINE is set"),
        ("timm/vit_base_patch16_224.nonesuch", "Invalid pretrained tag"),
        ("open_clip:ViT-B-33", "no model 'ViT-B-33'; near to it: ViT-B-32"),
        ("open_clip:ViT-B-32/nonesuch", "'nonesuch' is neither a file nor a tag"),
        ("open_clip:ViT-B-32/openai", "HF_HUB_OFFLINE is set"),
    ],
)
def test_what_cannot_be_had_is_one_clear_error(name: str, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        load_model(name)


def test_models_without_published_weights_are_refused() -> None:
    with pytest.raises(SourceError, match=r"no pretrained weights for it.*FILE.py:FUNCTION"):
        load_model("timm/vit_base_patch16_18x2_224")


@pytest.mark.parametrize(("name", "package"), [("timm/a", "timm"), ("open_clip:a", "open_clip")])
def test_the_packages_are_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SourceError, match=rf"needs the package {package}.*outward\[vision\]"):
        load_model(name)


def test_a_package_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> object:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("outward.sources.errors.import_module", fail)
    with pytest.raises(SourceError, match=r"timm, which is installed but cannot be imported: operator"):
        load_model("timm/a")


def test_logging_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    load_model(f"open_clip:{CLIP}")
    assert logging.root.handlers == []
