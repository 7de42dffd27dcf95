"""Runs of context similarity: kept, resumed, shared out, merged; nulls, thresholds, and bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.command import call, profile_bytes, texts, tiny
from outward.results import load as load_result
from outward.run import load
from sources.tiny import vit

Said = pytest.CaptureFixture[str]
HEADS, LAYERS, WINDOWS = 4, 2, 30


def options(out: Path | None = None, *more: str, data: str = "") -> list[str]:
    args = ["context", str(tiny()), data or str(texts()), "--threads", "1", "--length", "16"]
    args += ["--samples", str(WINDOWS), "--batch", "2"]
    return [*args, *(["--out", str(out)] if out else []), *more]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    assert call(*options(out, "--baseline", "shuffled-tokens,rotated-values,exclusive-form")) == 0
    return out


def test_the_document_has_layers_with_nulls_and_heads(whole: Path, capsys: Said) -> None:
    assert call("merge", str(whole), "--json") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert len(document["layers"]) == LAYERS
    assert len(document["heads"]) == LAYERS * HEADS
    layer = document["layers"][0]
    for name in (
        "mask_size",
        "separator_share",
        "high_pairs",
        "mean_distance",
        "same_sentence_share",
        "focal_tokens",
    ):
        assert layer[name] is not None
        assert {"chance", "shuffled-tokens", "rotated-values", "exclusive-form"} == set(
            layer["null"][name]
        )
    assert layer["null"]["mask_size"]["rotated-values"] == layer["mask_size"]  # the same weights
    assert layer["null"]["high_pairs"]["rotated-values"] != layer["high_pairs"]
    assert layer["null"]["high_pairs"]["exclusive-form"] != layer["high_pairs"]
    assert 1 <= layer["focal_tokens"] <= HEADS


def test_focal_tokens_are_counted_per_text(whole: Path) -> None:
    result = load_result(whole)
    focal = result.arrays["main.layer1.focal"]
    assert focal.shape == (WINDOWS, HEADS)
    expected = np.mean([len(set(row[row >= 0])) for row in focal])
    assert load(whole).layers.loc[1, "focal_tokens"] == pytest.approx(expected)
    pairs = result.tables["samples"].to_pandas()
    high = pairs[(pairs["series"] == "main") & (pairs["measure"] == "high_pairs")]
    by_head = high[high["layer"] == 1].groupby("head")["mean"].sum()
    assert result.arrays["main.layer1.distances"].sum(axis=1).tolist() == by_head.tolist()


def test_shards_and_resume_make_the_same_bytes(tmp_path: Path) -> None:
    assert call(*options(tmp_path / "one")) == 0
    for n in ("1/3", "2/3", "3/3"):
        assert call(*options(tmp_path / "many", "--shard", n)) == 0
    (tmp_path / "many" / "chunks" / "main.000002.chunk").unlink()
    assert call(*options(tmp_path / "many", "--resume")) == 0
    assert profile_bytes(tmp_path / "one") == profile_bytes(tmp_path / "many")
    a, b = (load_result(tmp_path / x).arrays for x in ("one", "many"))
    assert set(a) == set(b)
    for name, x in a.items():
        np.testing.assert_array_equal(x, b[name])
    assert call(*options(tmp_path / "other", "--similarity", "cosine")) == 0
    assert profile_bytes(tmp_path / "other") != profile_bytes(tmp_path / "one")


def test_a_table_and_a_reading(capsys: Said) -> None:
    assert call(*options()) == 0
    said = capsys.readouterr()
    assert "High pairs are" in said.out
    assert "different focal tokens in a text" in said.out
    assert "no null was made" in said.out


def test_thresholds_in_steps(capsys: Said) -> None:
    sweep = ("--similarity-threshold", "0.5:0.95", "--mask-threshold", "0.1:0.5")
    assert call(*options(None, "--json", "--agreement", *sweep)) == 0
    layer = json.loads(capsys.readouterr().out)["layers"][1]
    names = [n for n in layer if n.startswith("high_pairs")]
    assert names == ["high_pairs", *(f"high_pairs@{t}" for t in (0.5, 0.6, 0.7, 0.9, 0.95))]
    falling = [layer[f"high_pairs@{t}"] for t in (0.5, 0.6, 0.7)] + [layer["high_pairs"]]
    assert falling == sorted(falling, reverse=True)
    assert layer["mask_size@0.1"] >= layer["mask_size"] >= layer["mask_size@0.5"]
    assert -1 <= layer["rank_correlation"] <= 1


def test_short_texts_are_padded_or_dropped_by_name(capsys: Said) -> None:
    assert call(*options(None, "--json")) == 0
    padded = json.loads(capsys.readouterr().out)
    assert call(*options(None, "--json", "--short", "drop")) == 3
    dropped = json.loads(capsys.readouterr().out)
    assert any("04.txt has" in w and "fewer than 16" in w for w in dropped["warnings"])
    assert dropped["layers"][0]["high_pairs"] != padded["layers"][0]["high_pairs"]


def test_two_tokens_are_one_pair(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "a.txt").write_text("w1 w2 w3 w4 w5 w6")
    assert call(*options(None, "--json", "--length", "2", data=str(tmp_path / "a.txt"))) == 0
    layer = json.loads(capsys.readouterr().out)["layers"][0]
    assert layer["mean_distance"] in (1.0, None)
    assert layer["high_pairs"] <= 1


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--length", "1"], 2, "a pair takes two tokens"),
        (["--similarity-threshold", "0"], 2, "a number between 0 and 1"),
        (["--similarity-threshold", "0.9:0.5"], 2, "smaller first"),
        (["--mask-threshold", "x"], 2, "a number between 0 and 1"),
        (["--baseline", "nonsense"], 2, "rotated-values, exclusive-form"),
    ],
)
def test_what_makes_no_sense_is_said(more: list[str], code: int, message: str, capsys: Said) -> None:
    assert call(*options(None, *more)) == code
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_nulls_of_context_are_none_of_measure(capsys: Said) -> None:
    assert call("measure", str(tiny()), str(texts()), "--baseline", "rotated-values") == 2
    assert "no baseline rotated-values" in capsys.readouterr().err


def test_a_model_of_pictures_is_refused(tmp_path: Path, capsys: Said) -> None:
    for part in vit():
        part.save_pretrained(tmp_path / "vit")
    assert call("context", str(tmp_path / "vit"), "--samples", "2") == 1
    assert "context similarity is of texts" in capsys.readouterr().err


def test_other_commands_say_that_it_is_none_of_theirs(
    whole: Path, tmp_path: Path, capsys: Said
) -> None:
    assert call("report", str(whole), "-o", str(tmp_path / "r.html")) == 2
    assert "is a run of context" in capsys.readouterr().err
    assert call("merge", str(whole), "--measures", "self_weight") == 2
    assert "is a run of context, not of measure" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()
