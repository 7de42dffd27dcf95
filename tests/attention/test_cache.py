"""Decoding: the own key comes from the cache's slots or the mask, never from the tail of the keys."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import outward
from outward.attention.inputs import own_keys, own_values
from outward.attention.masks import causal_mask, padding_mask, window_mask
from testing import FORMS, HEADS, TOKENS, Form, assert_within, qkv, rounding

BUFFER = 17  # a static cache, longer than the 11 tokens that will fill it
CHUNKS = {
    "step by step": [1] * TOKENS,
    "prefill, then steps": [TOKENS - 3, 1, 1, 1],
    "chunks": [3, 5, 3],
    "all at once": [TOKENS],
}
BOUND = rounding(terms=3 * TOKENS, size=10.0, dtype=torch.float64)
Attention = Callable[..., Tensor]


def static(x: Tensor, end: int) -> Tensor:
    """The buffer of a static cache: filled up to `end`, zeros after."""
    buffer = x.new_zeros(*x.shape[:2], BUFFER, x.shape[3])
    buffer[:, :, :end] = x[:, :, :end]
    return buffer


def decode(attention: Attention, chunks: list[int], *, kind: str, say: str, window: int = 4) -> Tensor:
    """Attention over a cache of some kind, told by self_key or by the mask which key is whose."""
    q, k, v = qkv()
    out, start = [], 0
    for length in chunks:
        end = start + length
        first = 0
        if kind == "dynamic":
            keys, values = k[:, :, :end], v[:, :, :end]
        elif kind == "static":
            keys, values = static(k, end), static(v, end)
        else:
            first = max(0, start - (window - 1))
            keys, values = k[:, :, first:end], v[:, :, first:end]
        self_key = torch.arange(start - first, end - first)
        mask = window_mask(self_key, keys.shape[2], size=window) if kind == "sliding" else None
        if say == "mask":
            rows = causal_mask(self_key, keys.shape[2])
            mask, self_key = rows if mask is None else rows & mask, None
        out.append(
            attention(q[:, :, start:end], keys, values, causal=True, mask=mask, self_key=self_key)
        )
        start = end
    return torch.cat(out, dim=2)


FORMS_THAT_DECODE = {n: f for n, f in FORMS.items() if not set(f.arguments) - {"direction"}} | {
    "gated exclusive, one number": Form(
        lambda *x, **o: outward.gated_exclusive_attention(*x, strength=0.7, **o),
        FORMS["standard"].plain,
    )
}


@pytest.mark.parametrize("say", ["self_key", "mask"])
@pytest.mark.parametrize("kind", ["dynamic", "static", "sliding"])
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS.keys())
@pytest.mark.parametrize("name", FORMS_THAT_DECODE)
def test_decoding_equals_prefill(name: str, chunks: list[int], kind: str, say: str) -> None:
    attention = FORMS_THAT_DECODE[name].with_arguments(torch.float64)
    place = torch.arange(TOKENS)
    mask = window_mask(place, TOKENS, size=4) if kind == "sliding" else None
    whole = attention(*qkv(), causal=True, mask=mask)
    limit = 1e-7 if name == "no self" else BOUND  # its identity keeps half of the digits
    assert_within(decode(attention, chunks, kind=kind, say=say), whole, limit)


def test_the_tail_of_the_keys_is_the_wrong_own_value() -> None:
    """On a static cache the last keys are zeros, and exclusion by them does nothing, silently."""

    def by_tail(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        y = outward.standard_attention(q, k, v, **options)
        return outward.exclude_self(y, v[:, :, -q.shape[2] :])

    whole = outward.exclusive_attention(*qkv(), causal=True)
    for kind, right in (("dynamic", True), ("sliding", False), ("static", False)):
        got = decode(by_tail, CHUNKS["chunks"], kind=kind, say="self_key")
        assert torch.allclose(got, whole) == right
    standard = outward.standard_attention(*qkv(), causal=True)
    assert torch.allclose(decode(by_tail, CHUNKS["chunks"], kind="static", say="self_key"), standard)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
def test_left_padding(dtype: torch.dtype) -> None:
    """Each row decodes as it would alone: slots, not position ids, say whose key is whose."""
    q, k, v = qkv()
    pad = 4
    valid = torch.ones(2, TOKENS, dtype=torch.bool)
    valid[1, :pad] = False
    alone = outward.exclusive_attention(*(x[1:, :, pad:] for x in (q, k, v)), causal=True)
    out, start = [], 0
    for length in CHUNKS["chunks"]:
        end = start + length
        mask = causal_mask(torch.arange(start, end), end) & padding_mask(valid[:, :end])
        if dtype != torch.bool:
            mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
        out.append(
            outward.exclusive_attention(
                q[:, :, start:end], k[:, :, :end], v[:, :, :end], causal=True, mask=mask
            )
        )
        start = end
    assert_within(torch.cat(out, dim=2)[1:, :, pad:], alone, BOUND)


def test_own_values_by_row() -> None:
    _, _, v = qkv()
    self_key = torch.tensor([[3, 1], [0, 10]])
    own = own_values(v, self_key)
    for b in range(2):
        for i in range(2):
            assert torch.equal(own[b, :, i], v[b, :, self_key[b, i]])
    assert own_values(v, None) is v


def test_a_row_that_sees_nothing_counts_as_no_row() -> None:
    q, k, _ = qkv()
    mask = causal_mask(torch.arange(2, TOKENS), TOKENS).clone()
    mask[:, :, 3] = False
    got = own_keys(q[:, :, 2:], k, causal=True, mask=mask, self_key=None)
    assert got is not None
    assert got[0].tolist() == [2, 3, 4, 0, 6, 7, 8, 9, 10]


# ---- the layers and their cache


def layer(name: str, **options: object) -> torch.nn.Module:
    kind = getattr(outward, name)
    return kind(30, HEADS // 3, num_kv_heads=1, head_dim=6, **options).double().eval()


LAYERS = [
    "StandardAttention",
    "ExclusiveAttention",
    "GatedExclusiveAttention",
    "GatedAttention",
    "NoSelfAttention",
    "RandomDirectionAttention",
    "MeanDirectionAttention",
]


@pytest.mark.parametrize("cache", ["grows", "fixed", "slides"])
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS.keys())
@pytest.mark.parametrize("name", LAYERS)
def test_layers_decode_as_they_prefill(name: str, chunks: list[int], cache: str) -> None:
    more = {"initial_strength": 0.6} if name == "GatedExclusiveAttention" else {}
    attention = layer(name, window=4 if cache == "slides" else None, **more)
    x = torch.randn(2, TOKENS, 30, dtype=torch.float64)
    kept = {
        "grows": outward.KVCache(),
        "fixed": outward.KVCache(max_tokens=BUFFER),
        "slides": outward.KVCache(window=4),
    }[cache]
    steps = torch.cat([attention(part, cache=kept) for part in x.split(chunks, dim=1)], dim=1)
    assert_within(steps, attention(x), 1e-7 if name == "NoSelfAttention" else BOUND)
    assert kept.num_tokens == TOKENS


def test_a_fixed_cache_without_its_slots_would_do_nothing() -> None:
    """The sibling: the same layer on the same cache, with the own key taken from the tail."""
    attention = layer("ExclusiveAttention")
    standard = layer("StandardAttention")
    standard.load_state_dict(attention.state_dict())
    x = torch.randn(2, TOKENS, 30, dtype=torch.float64)

    class Tail(outward.KVCache):
        def append(self, *new: Tensor) -> tuple[Tensor, ...]:
            k, v, valid, self_key = super().append(*new)
            return k, v, valid, self_key * 0 + BUFFER - 1

    right = attention(x[:, :1], cache=outward.KVCache(max_tokens=BUFFER))
    wrong = attention(x[:, :1], cache=Tail(max_tokens=BUFFER))
    assert not torch.allclose(right, wrong)


def test_left_padded_layers() -> None:
    attention = layer("ExclusiveAttention")
    x = torch.randn(2, TOKENS, 30, dtype=torch.float64)
    valid = torch.ones(2, TOKENS, dtype=torch.bool)
    valid[1, :4] = False
    cache = outward.KVCache()
    parts = zip(x.split([5, 1, 5], 1), valid.split([5, 1, 5], 1), strict=True)
    steps = torch.cat([attention(part, valid=seen, cache=cache) for part, seen in parts], dim=1)
    assert_within(steps[1:, 4:], attention(x[1:, 4:]), BOUND)
    assert_within(steps[:1], attention(x[:1]), BOUND)
