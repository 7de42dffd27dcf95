"""Where weights are all that was seen: the mask that is inferred of them, and what spoils them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outward.taps import functions, torch_call
from outward.taps.capture import Capture, capture
from outward.taps.coverage import MASK_INFERRED
from outward.taps.layouts import DROPPED_OUT
from taps import small

HALVES = [torch.float16, torch.bfloat16, torch.float32]


def watched(model: nn.Module, x: Tensor) -> Capture:
    with torch.no_grad(), capture(model) as calls:
        model(x)
    return calls


# ---- the mask


def hidden(dtype: torch.dtype, causal: bool = True) -> Any:
    """What the only call of a model in this type was seen to hide."""
    (call,) = watched(small.SelfAttention("product", causal).eval().to(dtype), small.x_of().to(dtype))
    return None if call.mask is None else ~call.mask


@pytest.mark.parametrize("dtype", HALVES)
def test_a_causal_mask_is_inferred_in_every_precision(dtype: torch.dtype) -> None:
    assert torch.equal(hidden(dtype)[0, 0], torch.ones(small.TOKENS, small.TOKENS).triu(1).bool())
    assert hidden(dtype, causal=False) is None


def test_a_bound_that_is_0_in_float16_would_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_call, "_has_weight", lambda P: P >= 2.0**-126)
    assert hidden(torch.float16) is None
    assert hidden(torch.float32) is not None


def test_subnormal_weights_of_float16_are_weights() -> None:
    smallest = torch.tensor([2.0**-24, 0.0], dtype=torch.float16)
    assert torch_call._has_weight(smallest).tolist() == [True, False]
    assert torch_call._has_weight(smallest.float()).tolist() == [True, False]
    assert torch_call._has_weight(torch.tensor([2.0**-126, 2.0**-127])).tolist() == [True, False]


def test_what_was_inferred_is_said() -> None:
    x = small.x_of()
    for way, causal, reason in (
        ("product", True, MASK_INFERRED),
        ("product", False, None),
        ("fused", True, None),
    ):
        (row,) = watched(small.SelfAttention(way, causal).eval(), x).coverage
        assert (row.status, row.reason) == ("captured", reason)


# ---- dropout


class DropAttention(nn.Module):
    """Drops weights at random, with one of torch's dropouts, and then one of three products."""

    def __init__(self, drop: Any, product: str = "matmul") -> None:
        super().__init__()
        self.drop, self.product = drop, product

    def forward(self, x: Tensor) -> Tensor:
        P = self.drop(torch.softmax(x @ x.mT, dim=-1)) * 1
        if self.product == "einsum":
            return torch.einsum("bij,bjd->bid", P, x)
        return (x.mT @ P.mT).mT if self.product == "from the right" else P @ x


DROPS = {
    "nn.Dropout": nn.Dropout(0.3),
    "F.dropout": lambda P: F.dropout(P, 0.3),
    "F.dropout, by keywords": lambda P: F.dropout(input=P, p=0.3, training=True),
    "F.dropout, in place": lambda P: F.dropout(P, 0.3, True, True),
    "torch.dropout": lambda P: torch.dropout(P, 0.3, train=True),
}


@pytest.mark.parametrize("name", DROPS)
@pytest.mark.parametrize("product", ["matmul", "from the right", "einsum"])
def test_weights_dropped_by_hand_are_refused(name: str, product: str) -> None:
    calls = watched(DropAttention(DROPS[name], product).train(), small.x_of())
    assert len(calls) == 0
    (row,) = calls.coverage
    assert (row.status, row.reason) == ("refused", DROPPED_OUT)


KEEPS = {
    "nn.Dropout that evaluates": nn.Dropout(0.3).eval(),
    "nn.Dropout of nothing": nn.Dropout(0.0),
    "F.dropout, not in training": lambda P: F.dropout(P, 0.3, training=False),
    "F.dropout of nothing": lambda P: F.dropout(P, 0.0),
}


@pytest.mark.parametrize("name", KEEPS)
def test_dropouts_that_drop_nothing_are_followed(name: str) -> None:
    calls = watched(DropAttention(KEEPS[name]), small.x_of())
    assert [row.status for row in calls.coverage] == ["captured"]


def test_without_following_dropouts_the_reason_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "_drops", lambda *_: False)
    (row,) = watched(DropAttention(DROPS["nn.Dropout"]).train(), small.x_of()).coverage
    assert row.reason != DROPPED_OUT  # by luck no row may sum to more than 1: then it is captured
