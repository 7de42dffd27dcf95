"""Decoding with a cache: whose key is whose own."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, StaticCache

from outward.attention.call import AttentionCall, own_slots
from outward.taps.capture import capture
from outward.taps.proof import y_error
from taps import small

STEPS = 4
WINDOW = 3


def llama() -> nn.Module:
    return small.build("Llama", small.LLAMA)


def mistral() -> nn.Module:
    return small.build("Mistral", small.LLAMA, sliding_window=WINDOW)


CACHES = {
    "dynamic": (llama, lambda config: DynamicCache(config=config)),
    "static": (llama, lambda config: StaticCache(config=config, max_cache_len=16)),
    "dynamic, sliding": (mistral, lambda config: DynamicCache(config=config)),
    "static, sliding": (mistral, lambda config: StaticCache(config=config, max_cache_len=16)),
}


def decode(model: nn.Module, cache: Any, ids: Tensor, mask: Tensor | None) -> list[AttentionCall]:
    """The first tokens at once, then one by one; the calls of the first layer."""
    start = ids.shape[1] - STEPS
    with torch.no_grad(), capture(model) as calls:
        parts = [slice(0, start), *(slice(i, i + 1) for i in range(start, ids.shape[1]))]
        for part in parts:
            given = None if mask is None else mask[:, : part.stop]
            model(ids[:, part], attention_mask=given, past_key_values=cache)
    assert [row.status for row in calls.coverage] == ["captured"] * 2
    return [c for c in calls if c.layer == 0]


def own_values(call: AttentionCall) -> Tensor:
    slots = own_slots(call).expand(small.BATCH, -1)
    index = slots[:, None, :, None].expand(-1, call.v.shape[1], -1, call.v.shape[3])
    return call.v.gather(2, index)


def values_of(model: nn.Module, ids: Tensor, mask: Tensor | None) -> Tensor:
    """Of every token, as the first layer has them without a cache."""
    with torch.no_grad(), capture(model) as calls:
        model(ids, attention_mask=mask, use_cache=False)
    return calls[0].v


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded on the left"])
@pytest.mark.parametrize("kind", list(CACHES))
def test_own_values_are_those_without_a_cache(kind: str, padded: bool) -> None:
    make, cache_of = CACHES[kind]
    model, ids = make(), small.text(tokens=11)
    mask = torch.ones_like(ids) if padded else None
    if mask is not None:
        mask[1, :2] = 0
    calls = decode(model, cache_of(model.config), ids, mask)
    v = torch.cat([own_values(c) for c in calls], dim=2)
    right = values_of(model, ids, mask)
    if padded:  # what padding has for its own is nobody's business
        v[1, :, :2] = right[1, :, :2]
    torch.testing.assert_close(v, right, rtol=1e-5, atol=1e-5)
    assert all(y_error(c)[1] <= 1 for c in calls)


def test_the_comparison_of_own_values_bites() -> None:
    """The last slot is not the own one where a cache has room left."""
    model, ids = llama(), small.text(tokens=11)
    calls = decode(model, StaticCache(config=model.config, max_cache_len=16), ids, None)
    last = torch.cat([c.v[:, :, -c.y.shape[2] :] for c in calls], dim=2)
    right = values_of(model, ids, None)
    assert last.shape == right.shape
    assert not torch.allclose(last, right, rtol=1e-2, atol=1e-2)


def test_calls_of_a_static_cache_keep_what_they_saw() -> None:
    """Its buffers are written into at the next step."""
    model, ids = llama(), small.text(tokens=11)
    calls = decode(model, StaticCache(config=model.config, max_cache_len=16), ids, None)
    assert all((c.v[:, :, 8:] == 0).all() for c in calls[:1])
    assert (calls[-1].v[:, :, 8:11] != 0).any()


def test_hand_written_attention_decodes_too() -> None:
    model, ids = small.build("Bloom", small.BLOOM), small.text(tokens=11)
    calls = decode(model, DynamicCache(config=model.config), ids, None)
    v = torch.cat([own_values(c) for c in calls], dim=2)
    torch.testing.assert_close(v, values_of(model, ids, None), rtol=1e-5, atol=1e-5)


def test_generation() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=small.VOCABULARY, **small.LLAMA)
    model = LlamaForCausalLM(config).eval()
    with capture(model) as calls:
        model.generate(small.text(tokens=5), max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert [c.y.shape[2] for c in calls if c.layer == 0] == [5, 1, 1]
    assert [int(own_slots(c).flatten()[-1]) for c in calls if c.layer == 0] == [4, 5, 6]
