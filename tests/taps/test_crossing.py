"""Cross-attention is told by the names of classes and parameters, whatever they are."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outward.taps import crossing as crossings
from outward.taps.capture import capture
from outward.taps.crossing import crossing_by_name
from taps import small


@pytest.mark.parametrize(
    "kind",
    ["CrossAttention", "CrossAttn", "cross_attn", "TextCrossattn", "XAttn", "x_attn", "ImageXAttn"],
)
def test_classes_that_are_cross_attention(kind: str) -> None:
    assert crossing_by_name(kind) == f"cross-attention ({kind})"


@pytest.mark.parametrize("kind", ["FlexAttn", "MaxAttn", "XAttention", "SelfAttn", "AcrossTokens"])
def test_classes_that_are_not(kind: str) -> None:
    assert crossing_by_name(kind) is None


class Reads(nn.Module):
    """Attention from x to the other states, or from x to itself with the other states added to y."""

    def __init__(self, reads_others: bool) -> None:
        super().__init__()
        self.reads_others = reads_others

    def attend(self, x: Tensor, other: Tensor) -> Tensor:
        keys = other if self.reads_others else x
        y = F.scaled_dot_product_attention(x[:, None], keys[:, None], keys[:, None])[:, 0]
        return y if self.reads_others else y + other


def reader_of(name: str, reads_others: bool) -> nn.Module:
    """Its forward has the parameters x and this one."""
    space: dict[str, Any] = {}
    exec(f"def forward(self, x, {name}):\n    return self.attend(x, {name})", space)
    kind = type("Reader", (Reads,), {"forward": space["forward"]})
    return kind(reads_others)


def reason(model: nn.Module, *args: Tensor) -> str | None:
    """Why the model was refused, or None: it was captured."""
    with torch.no_grad(), capture(model) as calls:
        model(*args)
    (row,) = calls.coverage
    assert (row.status == "captured") == (row.reason is None)
    return row.reason


NAMES = ["mem", "memory", "ctx", "context", "y_ctx", "cond", "enc_out", "encoder_output", "kv_x"]


@pytest.mark.parametrize("name", NAMES)
def test_states_of_others_are_refused_by_the_name_of_the_parameter(name: str) -> None:
    x = small.x_of()
    assert str(reason(reader_of(name, True), x, x + 1)).startswith("cross-attention (")
    assert name in str(reason(reader_of(name, True), x, x + 1))
    assert reason(reader_of(name, True), x, x) is None


def test_without_the_names_it_would_pass_as_self_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossings, "_OTHERS", ())
    assert reason(reader_of("mem", True), small.x_of(), small.x_of() + 1) is None


@pytest.mark.parametrize("name", ["residual", "position_embeddings", "pos", "bias", "rope", "mask"])
def test_further_states_of_self_attention_are_none(name: str) -> None:
    x = small.x_of()
    assert reason(reader_of(name, False), x, x + 1) is None


@pytest.mark.parametrize("shape", [(small.BATCH, 21), (small.BATCH, 1, 21)])
def test_one_vector_for_a_whole_text_is_no_text(shape: tuple[int, ...]) -> None:
    vector = torch.ones(*shape) if len(shape) == 3 else torch.ones(1, 21)
    assert reason(reader_of("cond", False), small.x_of(), vector) is None


def test_one_token_that_is_attended_to_is_cross_attention_by_its_shapes() -> None:
    x = small.x_of()
    assert "by its shapes" in str(reason(reader_of("mem", True), x, x[:, :1] + 1))
    assert "keys from mem" in str(reason(reader_of("mem", True), x[:, :1], x[:, :1] + 1))
