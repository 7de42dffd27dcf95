"""Softmaxes that look like attention and are none, attention that looks like none, and their names."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outward.taps import capture as capturing
from outward.taps.capture import Capture, capture
from outward.taps.layouts import NotMeasurableError, find_self_key
from outward.taps.proof import y_error
from outward.taps.transformers_call import from_interface
from taps import small

HEADS, DIM = 3, 7
WINDOW = 2
TOKENS = 14


def watched(model: nn.Module, *args: Tensor) -> Capture:
    with torch.no_grad(), capture(model.eval()) as calls:
        model(*args)
    return calls


# ---- y that the model writes into


class AddsAttention(nn.Module):
    """Adds to what attention returned, in place, as Nyströmformer does."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.softmax(x @ x.mT, dim=-1) @ x
        y += 1
        return y


def test_kept_calls_keep_the_y_of_attention() -> None:
    (call,) = watched(AddsAttention(), small.x_of())
    assert y_error(call)[1] <= 1


def test_without_a_copy_it_would_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "_for_keeps", lambda call: call)
    (call,) = watched(AddsAttention(), small.x_of())
    assert y_error(call)[1] > 1
    assert y_error(replace(call, y=call.y - 1))[0] < 1e-4


# ---- channels and windows


class Heads(nn.Module):
    """Attention over channels, or over tokens in windows: the same shapes if a head has as many."""

    def __init__(self, over_channels: bool) -> None:
        super().__init__()
        self.over_channels, self.num_heads = over_channels, HEADS

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)  # (batch, head, token, dim)
        heads = heads.mT if self.over_channels else heads.unflatten(2, (-1, WINDOW))
        y = torch.softmax(heads @ heads.mT, dim=-1) @ heads
        y = y.mT if self.over_channels else y.flatten(2, 3)
        return y.transpose(1, 2).flatten(2)


class HeadsAttention(Heads):
    """The same, with a name that says what it is."""


def test_windows_of_heads_as_wide_as_there_are_tokens_are_no_channels() -> None:
    calls = watched(HeadsAttention(over_channels=False), small.x_of(TOKENS, HEADS * TOKENS))
    assert [row.status for row in calls.coverage] == ["captured"]
    assert calls[0].y.shape == (small.BATCH * HEADS, TOKENS // WINDOW, WINDOW, TOKENS)
    assert y_error(calls[0])[1] <= 1


def test_channels_are_refused() -> None:
    calls = watched(HeadsAttention(over_channels=True), small.x_of(TOKENS, HEADS * DIM))
    (row,) = calls.coverage
    assert (row.status, row.reason) == ("refused", "its softmax is over channels, not over keys")


# ---- reasons


class GatedAttention(nn.Module):
    """A softmax that multiplies features, and sums nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.softmax(x, dim=-1)


class UnseenAttention(nn.Module):
    """Weights that a part of it returns, and that meet the values where the taps do not look."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.dropout(torch.softmax(x @ x.mT, dim=-1))
        return torch.einsum("bij,bjd,b->bid", weights, x, x[:, 0, 0])


class AssignAttention(nn.Module):
    """Hard weights from a softmax, of queries that are other tokens than the keys."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        soft = torch.softmax(query @ key.mT, dim=-1)
        hard = torch.zeros_like(soft).scatter_(-1, soft.argmax(dim=-1, keepdim=True), 1.0)
        return (hard - soft.detach() + soft) @ key


class HandmadeAttention(nn.Module):
    """A softmax by exp and logsumexp."""

    def forward(self, x: Tensor) -> Tensor:
        s = x @ x.mT
        return (s - s.logsumexp(dim=-1, keepdim=True)).exp() @ x


class BranchAttention(nn.Module):
    """Weighs two branches of features against each other, as selective kernels do."""

    branches = 2

    def forward(self, x: Tensor) -> Tensor:
        x = torch.stack([x + n for n in range(self.branches)], dim=1)
        return (x * torch.softmax(x.mean(dim=2, keepdim=True), dim=1)).sum(dim=1)


class TurnedAttention(nn.Module):
    """Self-attention with its keys on an axis before that of the queries, and a product by hand."""

    def forward(self, x: Tensor) -> Tensor:
        s = (x @ x.mT)[:, :, :, None]  # (batch, key, query, 1)
        return (torch.softmax(s, dim=1) * x[:, :, None]).sum(dim=1)


class IdleCrossAttention(nn.Module):
    """Cross-attention that was given nothing to attend to."""

    def forward(self, x: Tensor) -> Tensor:
        return x


X, OTHER = small.x_of(), small.x_of() + 1
REASONS: list[tuple[Any, tuple[Tensor, ...], str]] = [
    (GatedAttention(), (X,), "its softmax is no softmax over keys but a gate"),
    (UnseenAttention(), (X,), "a softmax ran in it and was not seen to meet values"),
    (AssignAttention(), (X, OTHER), "cross-attention (key is not the same states as the queries)"),
    (AssignAttention(), (X, X), "a softmax ran in it and was not seen to meet values"),
    (HandmadeAttention(), (X,), "a softmax ran in it that is written out by hand (logsumexp)"),
    (BranchAttention(), (X,), "its softmax is no softmax over keys: it weighs branches"),
    (TurnedAttention(), (X,), "a softmax ran in it and was not seen to meet values"),
    (IdleCrossAttention(), (X,), "cross-attention (IdleCrossAttention)"),
]


@pytest.mark.parametrize(("model", "args", "reason"), REASONS, ids=[x[2] for x in REASONS])
def test_reasons(model: nn.Module, args: tuple[Tensor, ...], reason: str) -> None:
    calls = watched(model, *args)
    assert len(calls) == 0
    (row,) = calls.coverage
    assert row.status == "refused"
    assert str(row.reason).startswith(reason)


class Compressed(nn.Module):
    """Its keys end in blocks of tokens, as in DeepSeek-V4."""

    head_dim = DIM

    def __init__(self, compressor: nn.Module | None) -> None:
        super().__init__()
        self.compressor = compressor


def read(module: nn.Module) -> dict[str, Any]:
    """One token that sees five keys of a cache."""
    q, k = torch.randn(1, HEADS, 1, DIM), torch.randn(1, HEADS, 5, DIM)
    y = torch.softmax(q @ k.mT / DIM**0.5, dim=-1) @ k
    return from_interface(module, (q, k, k, None), {}, (y.transpose(1, 2), None), [], True)


def test_compressed_keys_are_refused() -> None:
    assert int(read(Compressed(None))["self_key"]) == 4
    with pytest.raises(NotMeasurableError, match="blocks of tokens"):
        read(Compressed(nn.Identity()))


def test_masks_that_do_not_order_the_keys_are_refused() -> None:
    q, v = torch.randn(1, HEADS, 3, DIM), torch.randn(1, HEADS, 5, DIM)
    ordered = torch.ones(3, 5).tril(2).bool()[None, None]
    own = find_self_key(q, v, ordered, cached=True)
    assert isinstance(own, Tensor)
    assert own.tolist() == [[2, 3, 4]]
    with pytest.raises(NotMeasurableError, match="3 queries, 5 keys, and a mask that does not order"):
        find_self_key(q, v, ordered.flip(2), cached=True)
