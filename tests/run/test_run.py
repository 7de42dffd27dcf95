"""A run as a user holds it: frames, arrays, a notebook's table, saved and read again."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from engines.command import LENGTH
from outward.engines.direct import measure
from outward.measures.bias import DEFAULT, PER_TOKEN
from outward.report.terminal import COLUMNS
from outward.results import ResultError
from outward.run import Run, load
from outward.sources.batch import Batch
from sources.tiny import llama

LAYERS, HEADS, WINDOWS = 2, 4, 5
PROFILE = ["series", "layer", "module", "head", "measure", "place", "n", "mean", "std", "min", "max"]
SAMPLES = ["series", "document", "window", "layer", "head", "measure", "mean", "n"]


@pytest.fixture(scope="module")
def run() -> Run:
    """Three documents, of two, two and one window."""
    ids = torch.randint(100, 1000, (WINDOWS, LENGTH), generator=torch.Generator().manual_seed(0))
    batch = Batch((ids,), {}, ["a", "a", "b", "b", "c<i>"], [0, 1, 0, 1, 0])
    return measure(llama()[0].model, [batch])


def test_layers_and_heads_are_frames(run: Run) -> None:
    assert run.layers.index.tolist() == [0, 1]
    assert run.heads.index.tolist() == [(n, h) for n in range(LAYERS) for h in range(HEADS)]
    for frame in (run.layers, run.heads):
        assert [c for c in frame if c in DEFAULT] == list(DEFAULT)
        assert frame["module"].iloc[-1] == "layers.1.self_attn"
    names = list(DEFAULT)
    means = run.heads.groupby("layer")[names].mean()
    between = run.layers[["self_similarity_low", "self_similarity", "self_similarity_high"]].to_numpy()
    assert (np.diff(between) >= 0).all()
    pd.testing.assert_frame_equal(run.layers[names], means, rtol=4 * np.finfo(float).eps)


def test_the_profile_is_tidy(run: Run) -> None:
    assert list(run.profile)[: len(PROFILE)] == PROFILE
    assert {"q05", "q50", "q95"} <= set(run.profile)
    keys = ["series", "layer", "head", "measure", "place"]
    assert not run.profile.duplicated(keys).any()
    everywhere = run.profile[run.profile["place"].isna()]
    assert len(everywhere) == LAYERS * HEADS * len(DEFAULT)
    tokens = everywhere[everywhere["measure"] == "self_weight"]
    assert (tokens["n"] == WINDOWS * (LENGTH - 1)).all()
    for row in everywhere.to_dict("records")[::7]:
        known = run.heads.loc[(row["layer"], row["head"]), row["measure"]]
        assert known == row["mean"]
        assert row["min"] <= row["q05"] <= row["q50"] <= row["q95"] <= row["max"]


def test_samples_are_tidy(run: Run) -> None:
    assert list(run.samples) == SAMPLES
    assert not run.samples.duplicated(SAMPLES[:-2]).any()
    weights = run.samples[run.samples["measure"] == "self_weight"]
    assert (weights["n"] == LENGTH - 1).all()  # the first token sees only itself
    assert len(run.samples) == WINDOWS * LAYERS * HEADS * len(DEFAULT)
    assert list(run.samples["document"].unique()) == ["a", "b", "c<i>"]
    means = run.samples[run.samples["measure"] == "self_weight"].groupby(["layer", "head"])["mean"]
    # Windows of equal lengths: the mean over windows is that over tokens, summed in another order.
    tolerance = 2 * WINDOWS * LENGTH * np.finfo(float).eps
    np.testing.assert_allclose(means.mean(), run.heads["self_weight"], rtol=tolerance)


def test_arrays_are_histograms(run: Run) -> None:
    assert set(run.arrays) == {f"main.layer{n}.histogram" for n in range(LAYERS)}
    counts = run.arrays["main.layer1.histogram"]
    assert counts.shape[:2] == (len(DEFAULT), HEADS)
    sums = counts.sum(axis=-1)
    assert (sums[DEFAULT.index("self_weight")] == WINDOWS * (LENGTH - 1)).all()
    assert (sums[DEFAULT.index("value_similarity")] == WINDOWS).all()
    assert set(run.arrow) == {"profile", "samples"}


def test_a_notebook_shows_it(run: Run) -> None:
    shown = run._repr_html_()
    assert shown.count("<tr>") == 1 + LAYERS
    assert all(title in shown for name, title in COLUMNS.items() if name in PER_TOKEN)
    assert f"{run.layers.loc[1, 'self_weight']:.4g}" in shown
    assert shown.count("<li>") == len(run.reading)
    text = str(run)
    assert f"{run.layers.loc[1, 'self_similarity']:.3f}" in text
    assert all(f"• {sentence}" in text for sentence in run.reading)


def test_sentences_are_no_html(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outward.report.cells.reading", lambda document: ["<script>"])
    assert "<script>" not in run._repr_html_()
    assert "&lt;script&gt;" in run._repr_html_()


def test_what_is_saved_is_what_is_read(run: Run, tmp_path: Path) -> None:
    saved = run.save(tmp_path / "run")
    again = load(str(tmp_path / "run"))
    assert (run.path, saved.path, again.path) == (None, tmp_path / "run", tmp_path / "run")
    assert run.document["run"] is None
    assert again.document == {**run.document, "run": str(tmp_path / "run")}
    assert again.reading == run.reading
    for name in ("layers", "heads", "profile", "samples"):
        pd.testing.assert_frame_equal(getattr(again, name), getattr(run, name), check_exact=True)
    assert set(again.arrays) == set(run.arrays)
    for name, array in run.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
    assert again.manifest["windows"] == {"main": WINDOWS}
    assert again.manifest["documents"] == {"main": 3}


def test_another_run_is_another(run: Run, tmp_path: Path) -> None:
    ids = torch.arange(100, 100 + LENGTH)[None]
    other = measure(llama()[0].model, [ids], out=tmp_path / "other", verify=False)
    assert other.path == tmp_path / "other"
    assert load(tmp_path / "other").document == other.document
    with pytest.raises(AssertionError):
        pd.testing.assert_frame_equal(other.heads, run.heads)


def test_what_is_no_run_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="no such run directory"):
        load(tmp_path / "none")
    with pytest.raises(ResultError, match=r"it has no run\.json"):
        load(tmp_path)
