"""What a capture covers, whom it leaves alone, and that it leaves nothing behind."""

import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outward.attention.call import AttentionCall
from outward.taps import interface
from outward.taps.capture import capture
from outward.taps.coverage import is_attention
from taps import small


def run(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return model(*args, **kwargs)


def llama(**options: Any) -> nn.Module:
    return small.build("Llama", small.LLAMA, **options)


# ---- nothing is left behind


def models() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(21, 3, 22, batch_first=True)
    return {
        "llama": (llama(), small.text()),
        "by hand": (small.SelfAttention("product").eval(), small.x_of()),
        "nn.TransformerEncoderLayer": (layer.eval(), small.x_of()),
    }


@pytest.mark.parametrize("name", list(models()))
def test_restored_after_the_block(name: str) -> None:
    model, x = models()[name]
    before = small.touched(model)
    with capture(model) as calls:
        assert small.touched(model) != before
        run(model, x)
    assert len(calls) > 0
    assert small.touched(model) == before
    assert not interface._listeners


@pytest.mark.parametrize("name", list(models()))
def test_restored_after_an_exception_in_the_block(name: str) -> None:
    model, x = models()[name]
    before = small.touched(model)

    def fails() -> None:
        with capture(model):
            run(model, x)
            raise KeyError("in the block")

    with pytest.raises(KeyError, match="in the block"):
        fails()
    assert small.touched(model) == before
    assert not interface._listeners


class Fails(nn.Module):
    """Attention, and then an exception: every second time."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = small.SelfAttention("fused")
        self.times = 0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attention(x)
        self.times += 1
        if self.times % 2:
            raise KeyError("in the model")
        return y


def test_a_model_that_raises_is_captured_again_and_restored() -> None:
    model = Fails().eval()
    before = small.touched(model)
    with capture(model) as calls:
        with pytest.raises(KeyError, match="in the model"):
            run(model, small.x_of())
        run(model, small.x_of())
        assert [(c.layer, c.module) for c in calls] == [(0, "attention")] * 2
        assert not calls._running
    assert small.touched(model) == before


@pytest.mark.parametrize("name", list(models()))
def test_an_observer_that_raises_leaves_the_capture_working(name: str) -> None:
    model, x = models()[name]
    before, seen = small.touched(model), []

    def observe(call: Any) -> None:
        seen.append(call.module)
        if len(seen) == 1:
            raise KeyError("the first")

    with capture(model, observe):
        with pytest.raises(KeyError, match="the first"):
            run(model, x)
        run(model, x)
    assert len(seen) > 1
    assert small.touched(model) == before


def test_the_check_of_what_is_touched_bites() -> None:
    """A hook left behind, a mode left on, a function left replaced."""
    model = llama()
    before = small.touched(model)
    handle = model.register_forward_hook(lambda *_: None)
    assert small.touched(model) != before
    handle.remove()
    assert small.touched(model) == before
    original = torch.nn.functional.scaled_dot_product_attention
    torch.nn.functional.scaled_dot_product_attention = lambda *_: None
    try:
        assert small.touched(model) != before
    finally:
        torch.nn.functional.scaled_dot_product_attention = original


# ---- what the observer does is not the model's


@pytest.mark.parametrize("name", list(models()))
def test_attention_in_the_observer_is_not_captured(name: str) -> None:
    model, x = models()[name]
    seen = []

    def observe(call: Any) -> None:
        seen.append(call.module)
        own = torch.softmax(call.v @ call.v.mT, dim=-1) @ call.v
        torch.nn.functional.scaled_dot_product_attention(own, own, own)

    with capture(model, observe) as calls:
        run(model, x)
    assert len(seen) == len(calls.layers) == len(set(seen))
    assert len(calls) == 0


# ---- others are left alone


def test_two_models_at_once_see_their_own_calls() -> None:
    one, other = llama(), small.build("Bert", small.BERT)
    with capture(one) as first, capture(other) as second:
        run(one, small.text())
        run(other, small.text())
    assert {c.module for c in first} == {"layers.0.self_attn", "layers.1.self_attn"}
    assert {c.module.split(".")[0] for c in second} == {"encoder"}
    assert len(first) == len(second) == 2


@pytest.mark.parametrize("way", ["fused", "product", "einsum"])
def test_two_models_of_torch_at_once(way: str) -> None:
    one, other = small.SelfAttention(way).eval(), small.SelfAttention(way).eval()
    layer = nn.MultiheadAttention(21, 3, batch_first=True).eval()
    x = small.x_of()
    with capture(one) as first, capture(other) as second, capture(layer) as third:
        run(one, x)
        run(layer, x, x, x)
    assert (len(first), len(second), len(third)) == (1, 0, 1)


def test_a_model_and_a_part_of_it_at_once() -> None:
    layer = nn.TransformerEncoderLayer(21, 3, 22, batch_first=True).eval()
    with capture(layer) as whole, capture(layer.self_attn) as part:
        run(layer, small.x_of())
    assert len(whole) == len(part) == 1


def test_another_model_is_not_seen() -> None:
    watched, other = llama(), llama()
    with capture(watched) as calls:
        run(other, small.text())
    assert len(calls) == 0
    assert {row.status for row in calls.coverage} == {"not called"}


def test_two_threads_with_two_models() -> None:
    found: dict[str, Any] = {}
    meet = threading.Barrier(2)

    def watch(name: str, model: nn.Module, *args: Tensor) -> None:
        with capture(model) as calls:
            meet.wait()
            for _ in range(5):
                run(model, *args)
            meet.wait()
        found[name] = [c.module for c in calls]

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(21, 3, 22, batch_first=True).eval()
    threads = [
        threading.Thread(target=watch, args=("llama", llama(), small.text())),
        threading.Thread(target=watch, args=("layer", layer, small.x_of())),
    ]
    before = small.touched(layer)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found["llama"] == ["layers.0.self_attn", "layers.1.self_attn"] * 5
    assert found["layer"] == ["self_attn"] * 5
    assert small.touched(layer) == before


def test_the_same_model_in_another_thread_is_not_seen() -> None:
    model = llama()
    with capture(model) as calls:
        thread = threading.Thread(target=run, args=(model, small.text()))
        thread.start()
        thread.join()
    assert len(calls) == 0


# ---- compiled models


def test_a_model_wrapped_by_the_compiler_is_refused_by_name() -> None:
    model = llama()
    with pytest.raises(ValueError, match=r"the model is wrapped by torch\.compile.*_orig_mod"):
        capture(torch.compile(model))
    model.layers[1] = torch.compile(model.layers[1])
    with pytest.raises(ValueError, match=r"its module 'layers\.1' is wrapped"):
        capture(model)


def test_a_model_compiled_in_place_runs_as_written_and_stays_compiled() -> None:
    model = small.SelfAttention("fused").eval()
    model.compile(backend="eager")
    compiled = model._compiled_call_impl
    with capture(model) as calls:
        assert model._compiled_call_impl is None
        run(model, small.x_of())
    assert len(calls) == 1
    assert model._compiled_call_impl is compiled is not None


# ---- self and cross


def statuses(calls: Any) -> dict[str, tuple[str, str | None]]:
    return {row.module: (row.status, row.reason) for row in calls.coverage}


def test_t5() -> None:
    model = small.build("T5", small.T5)
    with capture(model) as calls:
        run(model, small.text(), decoder_input_ids=small.text())  # as many queries as keys
    for name, (status, reason) in statuses(calls).items():
        if "EncDec" in name:
            assert (status, reason) == ("refused", "cross-attention (keys from key_value_states)")
        else:
            assert status == "captured"
    assert len(calls) == 4


def test_bart() -> None:
    model = small.build("Bart", small.BART)
    with capture(model) as calls:
        run(model, small.text(), decoder_input_ids=small.text())
    cross = {n: reason for n, (status, reason) in statuses(calls).items() if status == "refused"}
    assert sorted(cross) == ["decoder.layers.0.encoder_attn", "decoder.layers.1.encoder_attn"]
    assert set(cross.values()) == {"cross-attention (keys from key_value_states)"}
    assert len(calls) == 4


def test_whisper() -> None:
    model = small.build("Whisper", small.BART | {"num_mel_bins": 5, "max_source_positions": 9})
    with capture(model) as calls:
        run(model, torch.randn(2, 5, 18), decoder_input_ids=small.text())
    found = statuses(calls)
    assert all(("encoder_attn" in name) == (row[0] == "refused") for name, row in found.items())
    assert len(calls) == 4


def test_multi_head_attention_to_others() -> None:
    layer = nn.MultiheadAttention(21, 3, batch_first=True).eval()
    x = small.x_of()
    with capture(layer) as calls:
        run(layer, x, x + 1, x + 1)
    assert len(calls) == 0
    assert "cross-attention" in calls.coverage[0].reason


def test_multi_head_attention_to_an_equal_copy_is_to_itself() -> None:
    layer = nn.MultiheadAttention(21, 3, batch_first=True).eval()
    x = small.x_of()
    with capture(layer) as calls:
        run(layer, x, x.clone(), x)
    assert len(calls) == 1


# ---- layers, coverage, valid tokens


def test_a_shared_module_is_one_layer_per_run() -> None:
    albert = {"hidden_size": 21, "embedding_size": 8, "num_hidden_layers": 3}
    model = small.build("Albert", albert | {"num_attention_heads": 3, "intermediate_size": 22})
    with capture(model) as calls:
        run(model, small.text())
        run(model, small.text())
    assert [c.layer for c in calls] == [0, 1, 2, 0, 1, 2]
    assert len({c.module for c in calls}) == 1
    assert len(calls.layers) == 3


class Gate(nn.Module):
    """Says that it is attention, and is none."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x).cumsum(dim=1)


class LinearAttention(Gate):
    """Named for the test of coverage."""


class ChannelAttention(nn.Module):
    """A softmax over channels, as in XCiT."""

    def forward(self, x: Tensor) -> Tensor:
        c = x.mT
        return (torch.softmax(c @ c.mT, dim=-1) @ c).mT


class TalkingAttention(nn.Module):
    """Weights that are mixed across heads after the softmax, as in CaiT."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (3, 7)).transpose(1, 2)
        P = torch.softmax(heads @ heads.mT, dim=-1)
        P = self.mix(P.movedim(1, -1)).movedim(-1, 1)
        return (P @ heads).transpose(1, 2).flatten(2)


class BlurredAttention(nn.Module):
    """Weights go where nobody follows."""

    def forward(self, x: Tensor) -> Tensor:
        P = torch.softmax(x @ x.mT, dim=-1)
        return torch.flip(P, dims=(1,)) @ x


class AttentionOverQueries(nn.Module):
    """A softmax over the queries, as in slot attention."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.mT, dim=-2) @ x


class PoolAttention(nn.Module):
    """One query, of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x[:, :1] @ x.mT, dim=-1) @ x


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (LinearAttention(), "no softmax ran in it: it works by cumulative sums, sigmoids"),
        (ChannelAttention(), "over channels"),
        (TalkingAttention(), "no softmax over keys: after it they go through linear"),
        (BlurredAttention(), "was not seen to meet values: its weights went into flip"),
        (AttentionOverQueries(), "their sum exceeds 1"),
        (PoolAttention(), "cross-attention by its shapes"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "",
)
def test_what_is_no_self_attention_is_named_and_not_captured(model: nn.Module, reason: str) -> None:
    with capture(model.eval()) as calls:
        run(model, small.x_of(tokens=5))
    assert len(calls) == 0
    (row,) = calls.coverage
    assert row.status == "refused"
    assert reason in row.reason


class Streams(nn.Module):
    """A layer that mixes its streams by a softmax, and has attention inside."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = small.SelfAttention("fused")

    def forward(self, x: Tensor) -> Tensor:
        s = torch.stack((x, -x), dim=2)
        s = torch.softmax(s @ s.mT, dim=-1) @ s
        y: Tensor = self.attention(s[:, :, 0])
        return y


def test_a_softmax_around_attention_is_not_attention() -> None:
    model = Streams().eval()
    with capture(model) as calls:
        run(model, small.x_of())
    assert [c.module for c in calls] == ["attention"]


def test_dropped_out_weights_are_refused() -> None:
    model = llama(attention_dropout=0.5).train()
    layer = nn.MultiheadAttention(21, 3, dropout=0.5, batch_first=True).train()
    x = small.x_of()
    with capture(model) as calls, capture(layer) as others:
        run(model, small.text())
        run(layer, x, x, x, need_weights=False)
    assert len(calls) == len(others) == 0
    assert {row.reason for row in (*calls.coverage, *others.coverage)} == {
        "its weights are dropped out at random: call model.eval() first"
    }


def test_weights_asked_for_in_training_leave_the_random_numbers_as_they_were() -> None:
    """They are computed once more without, and that must draw nothing."""
    layer = nn.MultiheadAttention(21, 3, dropout=0.5, batch_first=True).train()
    x = small.x_of()
    torch.manual_seed(0)
    plain = run(layer, x, x, x)[0], torch.rand(3)
    torch.manual_seed(0)
    with capture(layer):
        watched = run(layer, x, x, x)[0], torch.rand(3)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_no_calls_no_layers() -> None:
    model = nn.Linear(3, 3)
    with capture(model) as calls:
        run(model, torch.ones(1, 3))
    assert len(calls) == len(calls.layers) == len(calls.coverage) == 0


@pytest.mark.parametrize(
    ("kind", "yes"),
    [
        ("LlamaAttention", True),
        ("MultiheadAttention", True),
        ("CausalSelfAttn", True),
        ("BertSelfOutput", False),
        ("AttentionNorm", False),
        ("AttentionBlock", False),
        ("Linear", False),
    ],
)
def test_names_of_attention(kind: str, yes: bool) -> None:
    assert is_attention(kind) is yes


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_padding(side: str, implementation: str) -> None:
    model = llama(attn_implementation=implementation)
    mask = torch.ones(small.BATCH, small.TOKENS, dtype=torch.long)
    mask[1, slice(0, 4) if side == "left" else slice(-4, None)] = 0
    with capture(model) as calls:
        run(model, small.text(), attention_mask=mask)
    for call in calls:
        assert call.valid.equal(mask.bool())
        assert call.self_key is None


def test_valid_tokens_of_a_decoder_are_its_own() -> None:
    model = small.build("Bart", small.BART)
    ours, theirs = torch.ones(2, 9).long(), torch.ones(2, 9).long()
    ours[0, -2:], theirs[1, -5:] = 0, 0
    with capture(model) as calls:
        run(
            model,
            small.text(),
            attention_mask=theirs,
            decoder_input_ids=small.text(),
            decoder_attention_mask=ours,
        )
    for call in calls:
        assert call.valid.equal((ours if call.module.startswith("decoder") else theirs).bool())


def test_what_the_caller_says_is_valid_counts_more() -> None:
    model = small.SelfAttention("fused").eval()
    with capture(model) as calls:
        calls.valid = torch.arange(small.TOKENS).expand(small.BATCH, -1) < 4
        run(model, small.x_of())
    assert calls[0].valid.equal(calls.valid)


def test_settled_captures_see_the_same() -> None:
    model = llama()
    with capture(model) as calls:
        run(model, small.text())
        calls.settle()
        run(model, small.text())
    assert [c.layer for c in calls] == [0, 1, 0, 1]


def test_an_observer_computes_without_the_models_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> set[torch.dtype]:
        found = set()

        def observe(call: AttentionCall) -> None:
            v = call.v.float()
            found.add((v @ v.mT).dtype)

        model = llama()
        with torch.autocast("cpu", torch.bfloat16), capture(model, observe):
            run(model, small.text())
        return found

    assert seen() == {torch.float32}
    monkeypatch.setattr("outward.taps.capture._without_autocast", lambda _: nullcontext())
    assert seen() == {torch.bfloat16}
