"""What cannot be measured is named and left out, and the rest is measured."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from engines.command import call, tiny
from outward.run import load
from sources.tiny import vit, words

BAD = "texts.jsonl:3"
OTHERS = [f"texts.jsonl:{n}" for n in (1, 2, 4, 5)]
Said = pytest.CaptureFixture[str]


def written(folder: Path, *, bad: bool) -> Path:
    """Texts of 17 words; w850 is in the third only."""
    texts = [words(17, offset=n * 17) for n in range(5)]
    texts[2] = texts[2].replace("w40", "w850")
    file = folder / "texts.jsonl"
    file.write_text("\n".join(json.dumps({"text": t}) for n, t in enumerate(texts) if bad or n != 2))
    return file


def without_w850(folder: Path) -> Path:
    """The tiny model, with 900 rows of embeddings: w799 has the last."""
    return changed(folder, lambda table: table[:900].clone(), vocab_size=900)


def with_nan(folder: Path) -> Path:
    """The tiny model, in which w850 is NaN."""
    return changed(folder, lambda table: table.index_fill(0, torch.tensor([950]), torch.nan))


def changed(folder: Path, change: Any, **config: Any) -> Path:
    shutil.copytree(tiny(), folder)
    weights = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = change(weights[name])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(known | config))
    return folder


def measured(model: Path, data: Path, out: Path, batch: int) -> int:
    args = ("--length", "17", "--threads", "1", "--batch", str(batch))
    return call("measure", str(model), str(data), "--out", str(out), *args)


def numbers(out: Path) -> pd.DataFrame:
    """Every number of every window, without the names of the documents."""
    return load(out).samples.drop(columns=["document"])


REASONS = [(without_w850, "index out of range"), (with_nan, "layers.0.self_attn")]


@pytest.mark.parametrize(("make", "reason"), REASONS)
def test_a_bad_text_is_left_out(make: Any, reason: str, tmp_path: Path, capsys: Said) -> None:
    model, out = make(tmp_path / "model"), tmp_path / "run"
    assert measured(model, written(tmp_path, bad=True), out, 3) == 3
    said = capsys.readouterr()
    assert f"1 left out, the first: {BAD}, window 0: " in said.out
    run = load(out)
    (skipped,) = run.manifest["skipped"]
    assert reason in skipped
    assert list(run.samples["document"].unique()) == OTHERS
    assert run.manifest["windows"] == {"main": 4}
    assert run.profile["mean"].notna().all()


@pytest.mark.parametrize(("make", "reason"), REASONS)
def test_the_others_are_as_without_it(make: Any, reason: str, tmp_path: Path) -> None:
    model, whole, rest = make(tmp_path / "model"), tmp_path / "whole", tmp_path / "rest"
    assert measured(model, written(tmp_path, bad=True), whole, 1) == 3
    assert measured(model, written(tmp_path, bad=False), rest, 1) == 0
    pd.testing.assert_frame_equal(numbers(whole), numbers(rest), check_exact=True)
    off = numbers(rest).assign(mean=lambda x: x["mean"] * (1 + 2**-52))  # by one bit
    with pytest.raises(AssertionError):
        pd.testing.assert_frame_equal(numbers(whole), off, check_exact=True)


def test_where_the_model_knows_the_word_nothing_is_left_out(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert measured(tiny(), written(tmp_path, bad=True), out, 3) == 0
    assert load(out).manifest["skipped"] == []
    assert BAD in set(load(out).samples["document"])


def test_nothing_but_bad_texts_is_an_error(tmp_path: Path, capsys: Said) -> None:
    model = changed(tmp_path / "model", lambda table: table * torch.nan)
    out = tmp_path / "run"
    assert measured(model, written(tmp_path, bad=True), out, 3) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "outward: nothing could be measured. texts.jsonl:1, window 0: NaN or infinity comes out of "
        "layers.0.self_attn"
    ]


def test_lines_that_are_no_json_are_left_out(tmp_path: Path, capsys: Said) -> None:
    file = written(tmp_path, bad=False)
    file.write_text(file.read_text() + '\n{"text": \n{"text": 7}\n')
    assert measured(tiny(), file, tmp_path / "run", 2) == 3
    assert load(tmp_path / "run").manifest["windows"] == {"main": 4}
    assert "2 left out, the first: texts.jsonl:5 is no JSON" in capsys.readouterr().out


# ---- pictures


def test_a_corrupt_picture_is_left_out(tmp_path: Path, capsys: Said) -> None:
    model, pictures, out = tmp_path / "model", tmp_path / "pictures", tmp_path / "run"
    for part in vit():
        part.save_pretrained(model)
    pictures.mkdir()
    for n in range(5):
        Image.effect_noise((37, 41), 10 + 20 * n).convert("RGB").save(pictures / f"{n}.png")
    args = ("measure", str(model), str(pictures), "--batch", "2", "--threads", "1", "--json")
    assert call(*args) == 0
    assert not [w for w in json.loads(capsys.readouterr().out)["warnings"] if "left out, the" in w]

    whole = (pictures / "2.png").read_bytes()
    (pictures / "2.png").write_bytes(whole[: len(whole) // 2])
    assert call(*args, "--out", str(out)) == 3
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert [w for w in warnings if w.startswith("1 left out, the first: 2.png cannot be read")]
    assert list(load(out).samples["document"].unique()) == ["0.png", "1.png", "3.png", "4.png"]
