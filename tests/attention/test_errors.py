"""Bad input: one message that names the thing, the rule and the way out.

Without the type hook, which would speak first: these are the messages that users see.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import outward
from outward.attention.masks import window_mask
from outward.attention.modules import Strength
from testing import qkv

pytestmark = pytest.mark.unhooked

q, k, v = qkv(torch.float32)
y = q.clone()
mask4 = torch.ones(1, 1, 11, 11, dtype=torch.bool)
nan = v.clone()
nan[1, 2, 3, 4] = torch.nan
Attend = outward.exclusive_attention
x = torch.randn(2, 11, 30)


valid = torch.ones(2, 11, dtype=torch.bool)
right_padded = valid.clone()
right_padded[1, 7:] = False
layer_of_cache = outward.ExclusiveAttention(30, 5)


def layer(**options: object) -> torch.nn.Module:
    return outward.ExclusiveAttention(30, 5, **options)


def gap() -> object:
    """A row that stops and goes on."""
    cache = used_cache()
    layer_of_cache(x[:, :1], valid=torch.tensor([[True], [False]]), cache=cache)
    return layer_of_cache(x[:, :1], valid=valid[:, :1], cache=cache)


def mha(query: Tensor, key: Tensor, **options: object) -> object:
    return outward.ExclusiveMultiheadAttention(30, 5, batch_first=True)(query, key, key, **options)


def used_cache(**options: object) -> outward.KVCache:
    cache = outward.KVCache(**options)
    layer_of_cache(x, cache=cache)
    return cache


def full_cache() -> object:
    cache = outward.KVCache(max_tokens=12)
    attention = layer()
    attention(x, cache=cache)
    return attention(x, cache=cache)


MESSAGES: dict[str, tuple[Callable[[], object], type[Exception], list[str]]] = {
    "three axes": (
        lambda: Attend(q[0], k, v),
        ValueError,
        ["q (15, 11, 7)", "(batch, head, token, dim)"],
    ),
    "heads do not divide": (
        lambda: Attend(q[:, :14], k, v),
        ValueError,
        ["q (2, 14, 11, 7)", "14 query heads", "5 value heads"],
    ),
    "no heads": (lambda: Attend(q, k[:, :0], v[:, :0]), ValueError, ["0 value heads"]),
    "k and v differ": (
        lambda: Attend(q, k, v[:, :, :10]),
        ValueError,
        ["k (2, 5, 11, 7)", "v (2, 5, 10, 7)", "tokens"],
    ),
    "dims differ": (lambda: Attend(q[..., :6], k, v), ValueError, ["q (2, 15, 11, 6)", "dim"]),
    "batches differ": (lambda: Attend(q[:1], k, v), ValueError, ["q (1, 15, 11, 7)", "batch"]),
    "values without a dim": (lambda: Attend(q, k, v[..., :0]), ValueError, ["last axis is empty"]),
    "types differ": (
        lambda: Attend(q, k.double(), v),
        TypeError,
        ["q torch.float32 on cpu", "k torch.float64", ".to("],
    ),
    "devices differ": (
        lambda: Attend(q, k.to("meta"), v),
        TypeError,
        ["k torch.float32 on meta", "same type and device"],
    ),
    "integers": (lambda: Attend(q.long(), k, v), TypeError, ["q is torch.int64", "floating-point"]),
    "y and v of other tokens": (
        lambda: outward.exclude_self(y, v[:, :, :10]),
        ValueError,
        ["y (2, 15, 11, 7)", "v (2, 5, 10, 7)", "self_key"],
    ),
    "y and v of other types": (
        lambda: outward.exclude_self(y.double(), v),
        TypeError,
        ["y torch.float64", "v torch.float32"],
    ),
    "y and v of other heads": (
        lambda: outward.exclude_self(y[:, :7], v),
        ValueError,
        ["7 query heads", "5 value heads", "grouped-query"],
    ),
    "NaN in v": (
        lambda: outward.exclude_self(y, nan),
        ValueError,
        ["v holds NaN or infinity", "3 token rows", "padding"],
    ),
    "NaN in y": (lambda: outward.exclude_self(y * torch.nan, v), ValueError, ["y holds NaN"]),
    "infinity in y": (
        lambda: outward.exclude_self(y * torch.inf, v),
        ValueError,
        ["y holds NaN or inf"],
    ),
    "NaN in attention": (lambda: Attend(q, k, nan, causal=True), ValueError, ["holds NaN"]),
    "strength of another shape": (
        lambda: outward.exclude_self(y, v, strength=torch.ones(5)),
        ValueError,
        ["strength (5,)", "(15,)", "(2, 15, 11)"],
    ),
    "strength elsewhere": (
        lambda: outward.exclude_self(y, v, strength=torch.ones(15, device="meta")),
        TypeError,
        ["strength is on meta"],
    ),
    "unknown impl": (
        lambda: outward.exclude_self(y, v, impl="fast"),
        ValueError,
        ["impl='fast'", "eager", "compiled"],
    ),
    "cross-attention": (
        lambda: Attend(q[:, :, :6], k, v),
        ValueError,
        ["6 queries, 11 keys", "self_key", "Cross-attention", "standard_attention"],
    ),
    "cache without a word on whose key is whose": (
        lambda: Attend(q[:, :, :6], k, v, causal=True),
        ValueError,
        ["cannot be told from shapes", "mask of one row per query"],
    ),
    "a mask that is not causal": (
        lambda: Attend(q[:, :, :6], k, v, causal=True, mask=mask4[:, :, :6]),
        ValueError,
        ["(1, 1, 6, 11)", "not causal"],
    ),
    "one mask row for many queries": (
        lambda: Attend(q[:, :, :6], k, v, causal=True, mask=mask4[:, :, :1]),
        ValueError,
        ["(1, 1, 1, 11)", "one row for 6 queries"],
    ),
    "own key by a mask that differs by head": (
        lambda: Attend(q[:, :, :6], k, v, causal=True, mask=mask4[:, :, :6].expand(1, 15, 6, 11)),
        ValueError,
        ["differs by head", "self_key"],
    ),
    "self_key out of range": (
        lambda: Attend(q[:, :, :2], k, v, self_key=torch.tensor([10, 11])),
        ValueError,
        ["10 to 11", "11 keys, 0 to 10"],
    ),
    "self_key before the start": (
        lambda: Attend(q[:, :, :2], k, v, self_key=torch.tensor([-1, 0])),
        ValueError,
        ["-1 to 0"],
    ),
    "self_key of another shape": (
        lambda: Attend(q, k, v, self_key=torch.arange(3)),
        ValueError,
        ["self_key (3,)", "(11,)", "(2, 11)"],
    ),
    "self_key of another type": (
        lambda: Attend(q, k, v, self_key=torch.arange(11.0)),
        TypeError,
        ["self_key is torch.float32", "int64"],
    ),
    "a mask that does not fit": (
        lambda: Attend(q, k, v, mask=mask4[..., :10]),
        ValueError,
        ["mask (1, 1, 11, 10)", "(2, 15, 11, 11)"],
    ),
    "a mask of integers": (
        lambda: Attend(q, k, v, mask=mask4.long()),
        TypeError,
        ["mask is torch.int64", "bool (True: visible)"],
    ),
    "a mask with NaN": (
        lambda: Attend(q, k, v, mask=torch.full((11, 11), torch.nan)),
        ValueError,
        ["mask (11, 11) holds NaN", "-inf"],
    ),
    "dropout beyond one": (lambda: Attend(q, k, v, dropout=1.5), ValueError, ["dropout 1.5", "0"]),
    "a gate that does not fit": (
        lambda: outward.gated_attention(q, k, v, gate=q[..., :3]),
        ValueError,
        ["gate (2, 15, 11, 3)", "(2, 15, 11, 7)"],
    ),
    "directions that do not fit": (
        lambda: outward.random_direction_attention(q, k, v, direction=torch.ones(5, 7)),
        ValueError,
        ["direction (5, 7)", "(15, 7)"],
    ),
    "a window of nothing": (
        lambda: window_mask(torch.arange(3), 3, size=0),
        ValueError,
        ["window size 0"],
    ),
    "a width that does not divide": (
        lambda: outward.ExclusiveAttention(31, 5),
        ValueError,
        ["width 31", "5 heads", "head_dim"],
    ),
    "layer heads that do not divide": (
        lambda: layer(num_kv_heads=2),
        ValueError,
        ["5 query heads", "2 heads of k and v"],
    ),
    "rotary with an odd dim": (
        lambda: layer(head_dim=7),
        ValueError,
        ["head dim 7 is odd", "rotary_base=None"],
    ),
    "an input of another width": (
        lambda: layer()(torch.randn(2, 11, 31)),
        ValueError,
        ["x (2, 11, 31)", "width 30"],
    ),
    "a full cache": (full_cache, ValueError, ["11 of 12 tokens", "max_tokens=22"]),
    "a cache of two kinds": (
        lambda: outward.KVCache(max_tokens=3, window=2),
        ValueError,
        ["max_tokens", "window"],
    ),
    "a cache that forgets what the layer sees": (
        lambda: layer()(x, cache=outward.KVCache(window=4)),
        ValueError,
        ["window of 4", "all of them"],
    ),
    "a cache where all see all": (
        lambda: layer(causal=False)(x, cache=outward.KVCache()),
        ValueError,
        ["causal=False", "without a cache"],
    ),
    "a cache of nothing": (
        lambda: outward.KVCache(max_tokens=0),
        ValueError,
        ["max_tokens=0", "at least one token"],
    ),
    "a cache of no window": (lambda: outward.KVCache(window=0), ValueError, ["window=0"]),
    "a layer of no window": (lambda: layer(window=0), ValueError, ["window=0", "1 or more"]),
    "a layer of no heads": (
        lambda: outward.ExclusiveAttention(30, 0),
        ValueError,
        ["num_heads=0", "1 or more"],
    ),
    "a layer of no value heads": (
        lambda: layer(num_kv_heads=0),
        ValueError,
        ["num_kv_heads=0", "1 or more"],
    ),
    "another batch in the cache": (
        lambda: layer_of_cache(x[:1], cache=used_cache()),
        ValueError,
        ["k (1, 5, 11, 6)", "the cache holds k (2, 5, 11, 6)", "another cache"],
    ),
    "another type in the cache": (
        lambda: used_cache().append(*(t.double() for t in used_cache()._kept[:2]), valid),
        ValueError,
        ["torch.float64", "torch.float32"],
    ),
    "another dim in the cache": (
        lambda: used_cache().append(torch.ones(2, 5, 1, 7), torch.ones(2, 5, 1, 6), valid[:, :1]),
        ValueError,
        ["k (2, 5, 1, 7)", "the cache holds k (2, 5, 11, 6)"],
    ),
    "one cache for two layers": (
        lambda: layer()(x, cache=used_cache()),
        ValueError,
        ["another layer", "one for each layer"],
    ),
    "padding on the right of a prompt": (
        lambda: layer()(x, valid=right_padded, cache=outward.KVCache()),
        ValueError,
        ["Pad prompts on the left", "positions"],
    ),
    "padding between tokens": (gap, ValueError, ["Pad prompts on the left"]),
    "valid as numbers": (
        lambda: layer()(x, valid=valid.float()),
        ValueError,
        ["valid (2, 11), torch.float32", "(batch, token) = (2, 11)", ".bool()"],
    ),
    "valid as integers": (lambda: layer()(x, valid=valid.long()), ValueError, [".bool()"]),
    "valid of one column": (
        lambda: layer()(x, valid=valid[:, :1]),
        ValueError,
        ["valid (2, 1)", "(2, 11)"],
    ),
    "valid of one axis": (lambda: layer()(x, valid=valid[0]), ValueError, ["valid (11,)", "(2, 11)"]),
    "documents of one axis": (
        lambda: layer()(x, document=torch.arange(11)),
        ValueError,
        ["document (11,)", "(2, 11)"],
    ),
    "a strength that is no number": (
        lambda: outward.exclude_self(y, v, strength=float("nan")),
        ValueError,
        ["strength nan", "finite"],
    ),
    "strengths that are no numbers": (
        lambda: outward.exclude_self(y, v, strength=torch.full((15,), torch.nan)),
        ValueError,
        ["strength (15,)", "NaN"],
    ),
    "a self_key that is a number": (
        lambda: Attend(q[:, :, :1], k, v, self_key=9),
        TypeError,
        ["self_key is 9", "a tensor of indices"],
    ),
    "a strength per nothing": (
        lambda: outward.GatedExclusiveAttention(30, 5, per="tokens"),
        ValueError,
        ["per='tokens'", "head, token"],
    ),
    "a gate per nothing": (
        lambda: outward.GatedAttention(30, 5, per="token"),
        ValueError,
        ["per='token'", "element, head"],
    ),
    "keys of another width in the drop-in": (
        lambda: outward.ExclusiveMultiheadAttention(30, 5, kdim=32),
        ValueError,
        ["kdim=32", "embed_dim, 30", "vdim"],
    ),
    "integer masks in the drop-in": (
        lambda: mha(x, x, attn_mask=torch.ones(11, 11).long()),
        TypeError,
        ["attn_mask is torch.int64", "True hides"],
    ),
    "integer padding in the drop-in": (
        lambda: mha(x, x, key_padding_mask=valid.long()),
        TypeError,
        ["key_padding_mask is torch.int64"],
    ),
    "a mask of another length in the drop-in": (
        lambda: mha(x, x, attn_mask=torch.ones(1, 11).bool()),
        ValueError,
        ["attn_mask (1, 11)", "(11, 11) or (10, 11, 11)"],
    ),
    "a mask of too few heads in the drop-in": (
        lambda: mha(x, x, attn_mask=torch.ones(5, 11, 11).bool()),
        ValueError,
        ["attn_mask (5, 11, 11)"],
    ),
    "padding of one row in the drop-in": (
        lambda: mha(x, x, key_padding_mask=valid[:1]),
        ValueError,
        ["key_padding_mask (1, 11)", "(2, 11)"],
    ),
    "a strength out of reach": (
        lambda: Strength(5, by="sigmoid", initial=0.0),
        ValueError,
        ["initial strength 0.0 by sigmoid", "(0.0, 1.0)"],
    ),
    "a strength made by magic": (
        lambda: Strength(5, by="magic", initial=0.0),
        ValueError,
        ["'magic'", "tanh, sigmoid, raw"],
    ),
    "cross-attention in the drop-in": (
        lambda: mha(x, x.clone()),
        ValueError,
        ["cross-attention", "same object", "nn.MultiheadAttention"],
    ),
    "a hint without a mask": (lambda: mha(x, x, is_causal=True), ValueError, ["pass the mask"]),
    "nested tensors": (
        lambda: mha(n := torch.nested.nested_tensor([x[0], x[1, :5]], layout=torch.jagged), n),
        ValueError,
        ["nested tensors", "enable_nested_tensor=False"],
    ),
    "a name that is not there": (
        lambda: outward.nothing,
        AttributeError,
        ["'nothing'", "exclude_self"],
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_the_message_names_the_thing_the_rule_and_the_way_out(name: str) -> None:
    call, kind, words = MESSAGES[name]
    with pytest.raises(kind) as raised:
        call()
    message = str(raised.value)
    for word in words:
        assert word in message, message
    assert "\n" not in message


def test_a_failed_append_leaves_the_cache_as_it_was() -> None:
    cache, attention = outward.KVCache(max_tokens=12), layer()
    attention(x, cache=cache)
    with pytest.raises(ValueError, match="do not fit"):
        attention(x, cache=cache)
    assert cache.num_tokens == 11
    attention(x[:, :1], cache=cache)
    assert cache.num_tokens == 12


@pytest.mark.parametrize("options", [{}, {"max_tokens": 15}, {"window": 4}], ids=str)
def test_whatever_fails_leaves_the_cache_as_it_was(options: dict[str, int]) -> None:
    """Among it what is found only when the new tokens are in: NaN, which the next step would see."""
    attention = layer(window=options.get("window")).eval()
    cache, untouched = outward.KVCache(**options), outward.KVCache(**options)
    for c in (cache, untouched):
        attention(x, cache=c)
    for wrong in (x[:, :2] * torch.nan, x[:1], x[..., :29], x.double()):
        with pytest.raises((ValueError, RuntimeError)):
            attention(wrong, cache=cache)
        assert cache.num_tokens == 11
    for step in (x[:, :1], x[:, 3:5]):
        assert torch.equal(attention(step, cache=cache), attention(step, cache=untouched))


def test_a_failed_first_call_leaves_a_cache_to_any_layer() -> None:
    cache = outward.KVCache(max_tokens=12)
    with pytest.raises(ValueError, match="NaN"):
        layer()(x * torch.nan, cache=cache)
    fresh = outward.KVCache(max_tokens=12)
    assert torch.equal(layer_of_cache(x, cache=cache), layer_of_cache(x, cache=fresh))


def test_padding_where_it_is_harmless() -> None:
    """On the left, in pieces; behind a row that is done; on the right where there are no positions."""
    cache, left = outward.KVCache(), valid.clone()
    left[1, :4] = False
    for part, seen in zip(x.split([3, 8], 1), left.split([3, 8], 1), strict=True):
        layer_of_cache(part, valid=seen, cache=cache)
    for _ in range(2):
        layer_of_cache(x[:, :1], valid=torch.tensor([[True], [False]]), cache=cache)
    layer(rotary_base=None)(x, valid=right_padded, cache=outward.KVCache())
    layer_of_cache(x, valid=right_padded)
