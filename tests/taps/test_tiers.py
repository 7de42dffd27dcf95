"""Each tier sees what it should: the same bits come out, and y follows from what was seen."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outward.attention.call import AttentionCall
from outward.taps.capture import capture
from outward.taps.proof import difference, tensors_in, y_error
from taps import small


def llama(**options: Any) -> tuple[nn.Module, Callable[[], Any]]:
    model = small.build("Llama", small.LLAMA, **options)
    return model, lambda: model(small.text())


def padded_bert() -> tuple[nn.Module, Callable[[], Any]]:
    model = small.build("Bert", small.BERT)
    mask = torch.ones(small.BATCH, small.TOKENS, dtype=torch.long)
    mask[1, -3:] = 0
    return model, lambda: model(small.text(), attention_mask=mask)


def bloom() -> tuple[nn.Module, Callable[[], Any]]:
    model = small.build("Bloom", small.BLOOM)
    return model, lambda: model(small.text())


def gemma2() -> tuple[nn.Module, Callable[[], Any]]:
    model = small.build("Gemma2", small.LLAMA | {"head_dim": 4, "sliding_window": 3})
    return model, lambda: model(small.text())


def gpt_oss() -> tuple[nn.Module, Callable[[], Any]]:
    few = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 4, "sliding_window": 3}
    few["intermediate_size"] = 24  # its experts want multiples of 16 bytes
    model = small.build("GptOss", small.LLAMA | few)
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.sinks.normal_()
    return model, lambda: model(small.text())


def by_hand(way: str) -> tuple[nn.Module, Callable[[], Any]]:
    model = small.SelfAttention(way).eval()
    return model, lambda: model(small.x_of())


def multi_head(need_weights: bool) -> tuple[nn.Module, Callable[[], Any]]:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(21, 3, batch_first=True).eval()
    x = small.x_of()
    return model, lambda: model(x, x, x, need_weights=need_weights)


def encoder() -> tuple[nn.Module, Callable[[], Any]]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(21, 3, 22, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    padding = torch.arange(small.TOKENS).expand(small.BATCH, -1) > 6
    return model, lambda: model(small.x_of(), src_key_padding_mask=padding)


MODELS = {
    "llama, fused": (llama, "interface", 2),
    "llama, eager": (lambda: llama(attn_implementation="eager"), "interface", 2),
    "bert with padding": (padded_bert, "interface", 2),
    "gemma2: softcap and window": (gemma2, "interface", 2),
    "gpt-oss: sinks": (gpt_oss, "interface", 2),
    "bloom: baddbmm, alibi": (bloom, "softmax", 2),
    "by hand, fused": (lambda: by_hand("fused"), "torch", 1),
    "by hand, a product": (lambda: by_hand("product"), "softmax", 1),
    "by hand, einsum": (lambda: by_hand("einsum"), "softmax", 1),
    "by hand, einsum with an ellipsis": (lambda: by_hand("einsum, ellipsis"), "softmax", 1),
    "nn.MultiheadAttention": (lambda: multi_head(False), "torch", 1),
    "nn.MultiheadAttention with weights": (lambda: multi_head(True), "torch", 1),
    "nn.TransformerEncoder": (encoder, "torch", 2),
}


@pytest.fixture(params=MODELS, ids=list(MODELS))
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Callable[[], Any], str, int]:
    make, tier, layers = MODELS[request.param]
    return *make(), tier, layers


@pytest.fixture(autouse=True)
def _one_road() -> Any:
    """torch's fused encoder layer rounds otherwise than the plain one, watched or not."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def outputs(run: Callable[[], Any]) -> list[Tensor]:
    return small.without_gradient(lambda: [x.clone() for x in tensors_in(run())])


def test_same_bits(case: tuple[nn.Module, Callable[[], Any], str, int]) -> None:
    model, run, _, _ = case
    plain = outputs(run)
    with capture(model):
        watched = outputs(run)
    assert plain
    assert difference(plain, watched) == 0


def test_everything_is_seen_and_y_follows(case: tuple[nn.Module, Callable[[], Any], str, int]) -> None:
    model, run, tier, layers = case
    with capture(model) as calls:
        outputs(run)
    assert [row.status for row in calls.coverage] == ["captured"] * layers
    assert {row.tier for row in calls.coverage} == {tier}
    assert [call.layer for call in calls] == list(range(layers))
    assert [call.module for call in calls] == calls.layers
    for call in calls:
        _, share = y_error(call)
        assert share <= 1, f"{call.module}: {share:.1e} times what rounding explains"


def test_gradients_flow_through_a_captured_model() -> None:
    model, run = by_hand("fused")
    run().sum().backward()
    plain = model.qkv.weight.grad.clone()
    model.zero_grad()
    with capture(model):
        run().sum().backward()
    assert torch.equal(model.qkv.weight.grad, plain)


def test_heads_share_values_by_group() -> None:
    model, run = llama()
    with capture(model) as calls:
        outputs(run)
    assert calls[0].q.shape[1] == calls[0].y.shape[1] == small.HEADS
    assert calls[0].k.shape[1] == calls[0].v.shape[1] == small.KV_HEADS
    assert calls[0].group == small.HEADS // small.KV_HEADS


def test_fused_kernels_tell_their_log_sum_exp() -> None:
    model, run = llama()
    with capture(model) as calls:
        outputs(run)
    assert all(call.lse is not None for call in calls)


# ---- wrong taps, which the tests above must catch


def test_the_assertion_of_same_bits_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tap that adds a thousandth to y."""
    from outward.taps import functions

    right = functions.attend

    def wrong(*args: Any, **kwargs: Any) -> Any:
        call = right(*args, **kwargs)
        object.__setattr__(call, "y", call.y + 1e-3)
        return call

    monkeypatch.setattr(functions, "attend", wrong)
    model, run = by_hand("fused")
    plain = outputs(run)
    with capture(model):
        watched = outputs(run)
    assert difference(plain, watched) > 1e-4


WRONG: dict[str, Callable[[AttentionCall], dict[str, Any]]] = {
    "y off by a little": lambda c: {"y": c.y + 1e-4 * c.y.abs().max()},
    "another scale": lambda c: {"scale": c.scale * 1.01},
    "the mask forgotten": lambda c: {"mask": None, "causal": False},
    "values of the next token": lambda c: {"v": c.v.roll(1, dims=2)},
    "heads in another order": lambda c: {"q": c.q.flip(1)},
    "keys and values swapped": lambda c: {"k": c.v, "v": c.k},
    "the log-sum-exp without its largest": lambda c: {"lse": c.lse - 0.01},
    "NaN": lambda c: {"y": c.y * torch.nan},
}


@pytest.mark.parametrize("mistake", WRONG.values(), ids=list(WRONG))
def test_recomputation_bites(mistake: Callable[[AttentionCall], dict[str, Any]]) -> None:
    from dataclasses import replace

    model, run = llama()
    with capture(model) as calls:
        outputs(run)
    call = calls[1]
    assert y_error(call)[1] <= 1
    assert y_error(replace(call, **mistake(call)))[1] > 1


def test_recomputation_bites_where_only_weights_were_seen() -> None:
    from dataclasses import replace

    model, run = bloom()
    with capture(model) as calls:
        outputs(run)
    assert y_error(calls[0])[1] <= 1
    assert y_error(replace(calls[0], v=calls[0].v.roll(1, dims=2)))[1] > 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_every_precision(dtype: torch.dtype, implementation: str) -> None:
    model, _ = llama(attn_implementation=implementation)
    model = model.to(dtype)
    with capture(model) as calls:
        small.without_gradient(lambda: model(small.text()))
    for call in calls:
        assert call.y.dtype == dtype
        assert y_error(call)[1] <= 1
