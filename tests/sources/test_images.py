"""Pictures: which, in which order, prepared how; and those that cannot be read."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from outward.sources.errors import SourceError
from outward.sources.images import generated_image, image_batches, image_size
from outward.sources.models import load_model
from outward.sources.source import Source

Folder = Callable[[str], Path]
COLOURS = {
    "b.png": (255, 0, 0),
    "a/z.JPG": (0, 255, 0),
    "c.webp": (0, 0, 255),
    "d.bmp": (255, 255, 255),
}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Four pictures of one colour each, of several sizes and kinds, and a text."""
    (tmp_path / "a").mkdir()
    for i, (name, colour) in enumerate(COLOURS.items()):
        Image.new("RGB", (40 + i, 30), colour).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    return tmp_path


@pytest.fixture
def vit(folder: Folder) -> Source:
    return load_model(str(folder("vit")))


def values(source: Source, data: Path | None, **options: object) -> dict[str, Tensor]:
    made = image_batches(source, data, **{"samples": 10, "batch": 3, "seed": 0, **options})
    return {n: x for b in made for n, x in zip(b.documents, b.inputs["pixel_values"], strict=True)}


def test_pictures_come_sorted_and_as_they_are(vit: Source, pictures: Path) -> None:
    found = values(vit, pictures)
    assert list(found) == sorted(COLOURS)
    for name, pixels in found.items():
        assert pixels.shape == (3, 32, 32)
        colour = torch.tensor(COLOURS[name])[:, None, None] / 127.5 - 1
        assert (pixels - colour).abs().max() < 0.05  # JPEG and WebP lose a little


def test_no_more_than_asked_for_are_read(vit: Source, pictures: Path) -> None:
    assert list(values(vit, pictures, samples=2)) == ["a/z.JPG", "b.png"]


def test_broken_pictures_are_named_and_left_out(vit: Source, pictures: Path) -> None:
    content = (pictures / "b.png").read_bytes()
    (pictures / "b.png").write_bytes(content[: len(content) // 2])
    (pictures / "c.webp").write_text("no picture")
    skipped: list[str] = []
    assert list(values(vit, pictures, skipped=skipped)) == ["a/z.JPG", "d.bmp"]
    assert [line.split()[0] for line in skipped] == ["b.png", "c.webp"]
    assert all("cannot be read as a picture" in line for line in skipped)


def test_a_folder_without_pictures_is_an_error(vit: Source, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"holds no picture that can be read \(bmp, jpeg"):
        values(vit, tmp_path)
    (tmp_path / "a.png").write_text("no picture")
    with pytest.raises(SourceError, match=r"holds no picture.* a\.png cannot be read"):
        values(vit, tmp_path)


def test_a_file_is_no_folder(vit: Source, pictures: Path) -> None:
    with pytest.raises(SourceError, match=r"b\.png is no folder"):
        values(vit, pictures / "b.png")


def test_without_a_processor_pictures_go_from_minus_one_to_one(folder: Folder, pictures: Path) -> None:
    (pictures / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (pictures / "model" / name).write_bytes((folder("vit") / name).read_bytes())
    source = load_model(str(pictures / "model"))
    assert source.processor is None
    found = values(source, pictures)
    assert found["b.png"].shape == (3, 32, 32)
    assert found["b.png"].amax((1, 2)).tolist() == [1, -1, -1]
    assert found["d.bmp"].unique().tolist() == [1]


def flat(image: Tensor) -> bool:
    """Whether there is nothing at some scale: no slow change, or no fast one."""
    coarse = nn.functional.avg_pool2d(image[None], 16)[0]
    fine = image - nn.functional.avg_pool2d(image[None], 5, 1, 2, count_include_pad=False)[0]
    return bool(coarse.std() < 0.05 or fine.std() < 0.01)


def test_generated_pictures_have_something_at_every_scale() -> None:
    seen = [generated_image(96, 64, seed=seed) for seed in range(8)]
    assert not any(flat(image) for image in seen)
    assert all(image.shape == (3, 96, 64) and 0 <= image.min() < image.max() <= 1 for image in seen)
    assert not any(a.equal(b) for a, b in pairwise(seen))
    assert seen[3].equal(generated_image(96, 64, seed=3))


@pytest.mark.parametrize("image", [torch.rand(3, 96, 64), torch.linspace(0, 1, 64).expand(3, 96, 64)])
def test_mere_noise_or_a_mere_gradient_would_be_seen(image: Tensor) -> None:
    assert flat(image)


def test_the_size_is_the_models() -> None:
    def source(**said: object) -> Source:
        body = nn.Module()
        for name, value in said.items():
            setattr(body, name, value)
        return Source("mine", "image", body, body, None, {}, None)

    assert image_size(source(image_size=48)) == (48, 48)
    assert image_size(source(image_size=(48, 24))) == (48, 24)
    assert image_size(source(pretrained_cfg={"input_size": (3, 96, 64)})) == (96, 64)
    assert image_size(source()) == (224, 224)
