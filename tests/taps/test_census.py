"""The census of supported models: a few of each library here, all of them in the slow test."""

from typing import Any

import pytest
import torch
from benchmarks.census import architectures_of, run_census
from benchmarks.census_row import Row, census, is_right
from benchmarks.census_text import document, line, record, summary
from torch import Tensor, nn

from outward.taps import functions
from outward.taps.capture import Capture
from outward.taps.coverage import ModuleCoverage
from taps import small

FEW = {
    "transformers": (
        "llama",
        "gemma2",
        "gpt_oss",
        "bert",
        "t5",
        "bart",
        "whisper",
        "bloom",
        "nystromformer",
    ),
    "timm": ("deit_tiny_patch16_224", "edgenext_base"),
    "open_clip": ("RN50",),
    "torch": ("MultiheadAttention, weights", "TransformerEncoder", "Transformer"),
}


@pytest.fixture(scope="module")
def few() -> dict[str, Row]:
    architectures = [(library, name) for library, names in FEW.items() for name in names]
    return {row.name: row for row in run_census(architectures, lambda row: None, workers=1)}


def test_a_few_of_each_library_run_and_return_the_same_bits(few: dict[str, Row]) -> None:
    assert {name: row.error for name, row in few.items() if not row.ran} == {}
    assert [name for name, row in few.items() if not (row.identical and row.repeats)] == []


def test_a_few_of_each_library_are_captured_whole(few: dict[str, Row]) -> None:
    assert [line(row) for row in few.values() if not row.whole] == []
    assert [name for name, row in few.items() if not row.has_attention] == ["edgenext_base"]
    assert all("over channels" in x for x in few["edgenext_base"].refused)


@pytest.mark.parametrize("name", ["t5", "bart", "whisper", "Transformer"])
def test_both_self_attentions_are_captured_and_cross_attention_is_named(
    few: dict[str, Row], name: str
) -> None:
    row = few[name]
    assert (row.captured, row.called) == (4, 6)
    assert all("cross-attention" in reason for reason in row.refused)


@pytest.mark.slow
def test_all_of_them() -> None:
    """The targets: the same bits for every model, and 95 of 100 that attend captured whole."""
    rows = run_census(architectures_of(["transformers", "timm", "open_clip", "torch"]), print)
    found = summary(rows)
    assert [line(r) for r in rows if r.ran and not r.identical] == []
    assert [line(r) for r in rows if r.y_share > 1] == []
    assert found.whole >= 0.95 * found.attending
    assert found.attending >= MANY  # taps that see nothing would refuse everything, by some name


MANY = 500
"""Architectures with softmax attention, at least: fewer, and the census or the taps have gone blind."""


# ---- wrong taps and wrong models, which the rows must show


def row_of(model: nn.Module, *args: Tensor) -> Row:
    return census("by hand", "model", model.eval(), lambda: model(*args))


def test_the_row_of_a_right_one() -> None:
    row = row_of(small.SelfAttention("product"), small.x_of())
    assert row.whole
    assert row.identical
    assert row.has_attention
    assert 0 < row.y_share <= 1


def test_a_blind_tap_is_not_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions.WatchFunctions, "_follow", lambda *_: None)
    row = row_of(small.SelfAttention("product"), small.x_of())
    assert (row.captured, row.whole, row.has_attention) == (0, False, True)
    assert "not seen to meet values" in row.missed[0]


@pytest.mark.parametrize("tap", ["fused_call", "interface_call"])
def test_blind_taps_of_fused_attention_are_not_whole(tap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Capture, tap, lambda *_, **__: None)
    by_hand = tap == "fused_call"
    model = small.SelfAttention("fused") if by_hand else small.build("Llama", small.LLAMA)
    row = row_of(model, small.x_of() if by_hand else small.text())
    assert (row.captured, row.whole) == (0, False)


def test_a_wrong_reading_is_not_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    right = functions.attend

    def wrong(*args: Any, **kwargs: Any) -> Any:
        call = right(*args, **kwargs)
        object.__setattr__(call, "scale", call.scale * 1.1)
        return call

    monkeypatch.setattr(functions, "attend", wrong)
    row = row_of(small.SelfAttention("fused"), small.x_of())
    assert row.y_share > 1
    assert not row.whole


class Shifted(nn.Module):
    """Returns something else when watched."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = small.SelfAttention("fused")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attention(x)
        return y + 1e-6 if self._forward_hooks else y


def test_another_output_is_not_identical() -> None:
    row = row_of(Shifted(), small.x_of())
    assert (row.repeats, row.identical) == (True, False)
    assert "DIFFERS" in line(row)


def test_cross_attention_that_is_captured_is_not_whole() -> None:
    model = nn.Sequential()
    model.add_module("crossattention", small.SelfAttention("fused"))
    row = row_of(model, small.x_of())
    assert not row.whole
    assert "captured as self" in row.missed[0]


@pytest.mark.parametrize(
    ("kind", "reason", "right"),
    [
        ("A", "cross-attention (keys from memory)", True),
        ("A", "no softmax ran in it: it works by cumulative sums", True),
        ("A", "its softmax is over channels, not over keys", True),
        ("A", "no softmax ran in it: it works by nothing that the taps know", False),
        ("A", "a softmax ran in it and was not seen to meet values", False),
        ("A", "a softmax ran in it that is written out by hand (logsumexp)", False),
        ("A", "its weights are dropped out at random: call model.eval() first", False),
        ("HaloAttn", "cross-attention by its shapes (16 queries, 144 keys)", False),
    ],
)
def test_which_refusals_are_right(kind: str, reason: str, right: bool) -> None:
    assert is_right(ModuleCoverage("module", kind, "refused", None, reason)) is right


# ---- what is said


def rows_of_all_kinds() -> list[Row]:
    ran = {"repeats": True, "identical": True, "called": 2}
    return [
        Row("torch", "whole", **ran, captured=2, calls=2, tiers=["torch"], y_error=1e-7, y_share=0.1),
        Row("torch", "missed", **ran, captured=1, calls=1, missed=["1 x A: why | not"]),
        Row("torch", "other", **ran, refused=["2 x B: its softmax is over channels"]),
        Row("torch", "none", repeats=True, identical=True),
        Row("torch", "differs", **{**ran, "identical": False}, captured=2, calls=2),
        Row("torch", "silent", error="LookupError: no inputs fit"),
    ]


def test_figures() -> None:
    found = summary(rows_of_all_kinds())
    assert (found.architectures, found.ran, found.identical) == (6, 5, 4)
    assert (found.attending, found.whole, found.other, found.without) == (3, 2, 1, 1)


def test_the_page_has_a_row_for_each_that_ran_and_names_the_others() -> None:
    page = document(rows_of_all_kinds(), "python -m benchmarks.census")
    for name in ("whole", "missed", "other", "none", "differs"):
        assert f"\n| {name} |" in page
    assert "\n| silent |" not in page
    assert "silent.\n" in page
    assert "**missed**: 1 x A: why / not" in page
    assert "| differs | **no** |" in page


def test_records_leave_out_what_is_nothing() -> None:
    whole, *_, silent = rows_of_all_kinds()
    assert record(silent) == {"name": "silent", "error": "LookupError: no inputs fit"}
    assert record(whole)["y_error"] == 1e-7
    assert "refused" not in record(whole)


def test_a_model_that_takes_its_process_with_it_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = run_census([("torch", "no such model")], lambda row: None, workers=1)
    assert not row.ran
    assert row.error
    assert torch.get_num_threads() >= 1
