"""Captures that are entered again, batches that run parts of a model, and buffers that are reused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outward.probe.loop import Probe
from outward.sources.batch import Batch
from outward.taps import capture as capturing
from outward.taps.capture import Capture, capture
from outward.taps.proof import y_error
from taps import small

BATCHES, LAYERS = 5, 3


# ---- entered again


def test_a_running_capture_is_not_entered_again() -> None:
    model = small.SelfAttention("fused").eval()
    before = small.touched(model)
    with capture(model) as calls:
        with pytest.raises(RuntimeError, match="this capture is running already"):
            calls.__enter__()
        model(small.x_of())
        assert len(calls) == 1
    assert small.touched(model) == before


def test_a_capture_that_was_left_is_entered_again() -> None:
    model = small.SelfAttention("fused").eval()
    before = small.touched(model)
    calls = capture(model)
    for _ in range(2):
        with calls:
            model(small.x_of())
    assert [c.layer for c in calls] == [0, 0]
    assert small.touched(model) == before


# ---- a run of parts


class Encoder(nn.Module):
    """Runs by `encode`, one layer after another, and never as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([small.SelfAttention("fused") for _ in range(LAYERS)])

    def encode(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def layers_of_batches(begin: Any) -> list[int]:
    model = Encoder().eval()
    with torch.no_grad(), capture(model) as calls:
        for _ in range(BATCHES):
            begin(calls)
            model.encode(small.x_of())
    return [c.layer for c in calls]


def test_layers_of_a_batch_are_those_of_the_batch_before() -> None:
    assert layers_of_batches(Capture.begin) == list(range(LAYERS)) * BATCHES


def test_without_a_beginning_they_would_be_others() -> None:
    assert layers_of_batches(lambda calls: None) == list(range(LAYERS * BATCHES))


def windows_of_the_second_layer() -> int:
    """How many a probe measured that is to measure this layer alone."""
    model = Encoder().eval()
    batches = [
        Batch((small.x_of(),), {}, [f"{n}, {row}" for row in range(small.BATCH)], [0] * small.BATCH)
        for n in range(BATCHES)
    ]
    with Probe(model, lambda batch: model.encode(batch.args[0]), layers=(1,)) as probe:
        (tally,) = probe.measure(batches).layers
    return len(tally.means)


def test_a_probe_begins_each_batch() -> None:
    assert windows_of_the_second_layer() == BATCHES * small.BATCH


def test_a_probe_that_did_not_would_find_the_layer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Capture, "begin", lambda self: None)
    with pytest.raises(ValueError, match="their attention layers differ"):
        windows_of_the_second_layer()


# ---- buffers


class OneBuffer(nn.Module):
    """Every layer writes its q, k and v where the last one did."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Buffered() for _ in range(LAYERS)])

    def forward(self, x: Tensor) -> Tensor:
        buffer = torch.empty(*x.shape[:2], 3 * x.shape[2])
        for layer in self.layers:
            x = layer(x, buffer)
        return x


class Buffered(small.SelfAttention):
    """Attention by torch's kernel, from a buffer that it is given."""

    def __init__(self) -> None:
        super().__init__("fused")
        nn.init.normal_(self.qkv.weight)

    def forward(self, x: Tensor, buffer: Tensor) -> Tensor:  # type: ignore[override]
        buffer.copy_(self.qkv(x))
        q, k, v = buffer.unflatten(-1, (3, 3, 7)).permute(2, 0, 3, 1, 4).unbind(0)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def shares() -> list[float]:
    model = OneBuffer().eval()
    with torch.no_grad(), capture(model) as calls:
        model(small.x_of())
    return [y_error(call)[1] for call in calls]


def test_kept_calls_do_not_lie_in_the_buffers_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(shares()) == LAYERS
    assert max(shares()) <= 1
    monkeypatch.setattr(capturing, "_for_keeps", lambda call: call)
    assert min(shares()[:-1]) > 1
