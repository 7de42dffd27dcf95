"""The proof holds where the taps are right, and fails, by name, where they are not."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outward.taps import functions, proof
from outward.taps.capture import capture
from outward.taps.proof import ProofError, difference, prove, tensors_in, y_error
from taps import small


def model_of(way: str = "fused") -> nn.Module:
    return small.SelfAttention(way).eval()


def test_what_was_checked() -> None:
    model = small.build("Llama", small.LLAMA)
    found = prove(model, lambda: model(small.text()))
    assert (found.calls, found.repeats, found.identical) == (2, True, True)
    assert found.output_difference == 0
    assert 0 < found.y_error < 1e-5
    assert 0 < found.y_share <= 1
    assert found.module.startswith("layers.")
    assert json.loads(json.dumps(asdict(found))) == asdict(found)


def test_the_fused_encoder_layer_is_off_for_the_proof_and_on_again() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(21, 3, 22, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    before = small.touched(model)
    assert before[-1]
    assert prove(model, lambda: model(small.x_of())).identical
    assert small.touched(model) == before


class Shifted(nn.Module):
    """Returns something else when watched."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.attention = small.SelfAttention("fused")
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attention(x)
        return y + self.by if self._forward_hooks else y


def test_an_output_that_changes_is_caught() -> None:
    model = Shifted(1e-6).eval()
    with pytest.raises(ProofError, match="watched, the model returns something else than plain"):
        prove(model, lambda: model(small.x_of()))
    unchanged = Shifted(0.0).eval()
    assert prove(unchanged, lambda: unchanged(small.x_of())).identical


class Noisy(nn.Module):
    """Differs from itself, and from more than that when watched."""

    def __init__(self, when_watched: float) -> None:
        super().__init__()
        self.attention = small.SelfAttention("fused")
        self.when_watched = when_watched
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attention(x)
        size = self.when_watched if self._forward_hooks else 1e-4
        return y + size * torch.randn(y.shape, generator=self.generator)


def test_a_model_that_differs_from_itself_is_said_to() -> None:
    model = Noisy(1e-4).eval()
    found = prove(model, lambda: model(small.x_of()))
    assert (found.repeats, found.identical) == (False, False)
    assert 0 < found.output_difference < 1e-2
    further = Noisy(1e-2).eval()
    with pytest.raises(ProofError, match="two plain runs differ by"):
        prove(further, lambda: further(small.x_of()))


def test_models_that_draw_from_the_common_generator_repeat() -> None:
    class Draws(Noisy):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.attention(x)
            return y + torch.rand_like(y)

    model = Draws(0.0).eval()
    state = torch.get_rng_state()
    assert prove(model, lambda: model(small.x_of())).repeats
    assert torch.equal(torch.get_rng_state(), state)


def test_a_wrong_reading_is_caught_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    right = functions.attend

    def wrong(*args: Any, **kwargs: Any) -> Any:
        call = right(*args, **kwargs)
        object.__setattr__(call, "scale", call.scale * 1.1)
        return call

    monkeypatch.setattr(functions, "attend", wrong)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deep = model_of()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.deep(x)
            return y

    model = Model().eval()
    with pytest.raises(ProofError, match=r"^deep: its attention output does not follow.*tier torch"):
        prove(model, lambda: model(small.x_of()))


def test_no_calls_is_an_error_that_lists_the_reasons() -> None:
    layer = nn.MultiheadAttention(21, 3, batch_first=True).eval()
    x = small.x_of()
    with pytest.raises(ProofError, match=r"the model \(MultiheadAttention\): cross-attention"):
        prove(layer, lambda: layer(x, x + 1, x))
    plain = nn.Linear(21, 3)
    with pytest.raises(ProofError, match="no module of the model calls itself attention"):
        prove(plain, lambda: plain(x))


def test_an_exception_of_the_model_is_its_own_and_leaves_nothing_behind() -> None:
    model = model_of()
    before = small.touched(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        prove(model, lambda: model(small.x_of(width=20)))
    assert small.touched(model) == before


@pytest.mark.parametrize("way", ["fused", "product"])
def test_long_texts_in_blocks_and_in_part(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks say the same as one; of many queries, some are looked at."""
    model = model_of(way)
    whole = prove(model, lambda: model(small.x_of(tokens=40)))
    monkeypatch.setattr(proof, "BLOCK", 100)
    blocks = prove(model, lambda: model(small.x_of(tokens=40)))
    assert blocks.y_error == pytest.approx(whole.y_error, rel=0.5)
    monkeypatch.setattr(proof, "ROWS", 7)
    assert prove(model, lambda: model(small.x_of(tokens=40))).y_error <= whole.y_error * 2


def test_padded_queries_are_left_out() -> None:
    """Whatever stands there."""
    model = model_of()
    with torch.no_grad(), capture(model) as calls:
        model(small.x_of())
    valid = torch.arange(small.TOKENS).expand(small.BATCH, -1) < 5
    wrong = replace(calls[0], y=calls[0].y.masked_fill(~valid[:, None, :, None], 7.0))
    assert y_error(replace(wrong, valid=valid))[1] <= 1
    assert y_error(wrong)[1] > 1


def test_a_model_that_makes_nan_is_read_rightly() -> None:
    model = model_of()
    x = small.x_of()
    x[1, 4:] = torch.nan
    assert prove(model, lambda: model(x)).identical


def test_rows_that_see_nobody_are_left_out() -> None:
    layer = nn.MultiheadAttention(21, 3, batch_first=True).eval()
    hidden = torch.eye(small.TOKENS).bool()
    hidden[2] = True
    x = small.x_of()

    def run() -> Any:
        return layer(x, x, x, attn_mask=hidden, need_weights=False)[0]

    assert prove(layer, run).y_share <= 1


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.0])], 0.0),
        ([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.5])], 0.25),
        ([torch.tensor([torch.nan])], [torch.tensor([torch.nan])], 0.0),
        ([torch.tensor([torch.nan])], [torch.tensor([1.0])], float("inf")),
        ([torch.tensor([1])], [torch.tensor([2])], float("inf")),
        ([torch.tensor([1.0])], [torch.tensor([1.0]).double()], float("inf")),
        ([torch.ones(2)], [torch.ones(1, 2)], float("inf")),
        ([torch.ones(2)], [], float("inf")),
    ],
)
def test_difference(a: list[Tensor], b: list[Tensor], expected: float) -> None:
    assert difference(a, b) == expected


def test_every_tensor_of_an_output_is_found() -> None:
    class Holder:
        def __init__(self) -> None:
            self.inner = {"a": (torch.ones(1), [torch.ones(2), None]), "b": "text"}
            self.itself = self

    found = list(tensors_in([Holder(), torch.ones(3), 4]))
    assert [len(x) for x in found] == [1, 2, 3]
