"""Context similarity of the two packaged models: the command, and loops in float64."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.command import call
from measures.test_context import expect_distinct, naive
from outward.attention.call import AttentionCall
from outward.engines.work import threads
from outward.measures.context import Options, Text
from test_packaged_models import LENGTH, TEXT, WINDOWS, minilm, projected, rotated, smollm2, split

LAYERS = {"minilm": (0, 2, 5), "smollm2": (0, 11, 29)}
MODELS = ["minilm", pytest.param("smollm2", marks=pytest.mark.slow)]
SIGNS = {"minilm": (1012, 1025, 1029, 999, 1024), "smollm2": (30, 43, 47, 17, 42)}  # . ; ? ! :


def by_hand(name: str, threshold: float) -> list[list[dict[str, Any]]]:
    """By layer of LAYERS and head: the means over texts."""
    model, ids, modules = {"minilm": minilm, "smollm2": smollm2}[name]()
    dim = model.config.hidden_size // model.config.num_attention_heads
    causal = name == "smollm2"
    separator = torch.isin(ids, torch.tensor(SIGNS[name]))
    if not causal:
        separator[:, [0, -1]] = True  # [CLS] and [SEP]
    sentence = separator.cumsum(1) - separator.long()
    text = Text(ids, separator, sentence, torch.ones_like(separator))
    options = Options(similarity_thresholds=(threshold,))
    found = []
    for number in LAYERS[name]:
        q, k, v = (split(x, dim) for x in projected(model, ids, modules)[number])
        if causal:
            q, k = rotated(q, 100_000.0), rotated(k, 100_000.0)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        s = q @ k.mT / dim**0.5
        if causal:
            s = s.masked_fill(torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), -torch.inf)
        P = s.softmax(dim=-1)
        call_ = AttentionCall(number, "m", "hand", v, P @ v, weights=P, causal=causal)
        rows = [[naive(call_, text, b, h, options) for h in range(q.shape[1])] for b in range(len(ids))]
        for row in rows:
            expect_distinct(row)
        found.append([_mean([row[h] for row in rows]) for h in range(q.shape[1])])
    return found


def _mean(each: list[dict[str, Any]]) -> dict[str, float]:
    names = [n for n, x in each[0].items() if isinstance(x, int | float) and n not in ("focal", "tied")]
    return {n: sum(e[n] for e in each) / len(each) for n in names}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("outward.cli.progress.EVERY", float("inf"))
    with threads(1):
        yield


@pytest.mark.parametrize("name", MODELS)
def test_the_command_and_loops_agree(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ishmael.txt"
    file.write_text(TEXT)
    sizes = ("--length", str(LENGTH), "--samples", str(WINDOWS), "--batch", "2", "--threads", "1")
    assert call("context", name, str(file), "--json", *sizes) == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    heads = {(h["layer"], h["head"]): h for h in document["heads"]}

    def error(threshold: float) -> dict[str, float]:
        off: dict[str, float] = {}
        for number, layer in zip(LAYERS[name], by_hand(name, threshold), strict=True):
            for head, expected in enumerate(layer):
                for measure, x in expected.items():
                    apart = abs(heads[number, head][measure] - x) / max(1.0, abs(x))
                    off[measure] = max(off.get(measure, 0.0), apart)
        return off

    right = error(0.8)
    # Float32 makes C to some 1e-6: a pair so close to the threshold would count otherwise. None is.
    assert {m for m, x in right.items() if x > 2e-5} == set()
    assert {"high_pairs", "mask_size", "focal_expected", "gini", "separator_share"} <= set(right)
    wrong = error(0.7)
    assert wrong["high_pairs"] > 0.1
    assert wrong["mean_distance"] > 1e-2
