"""What a mask hides is hidden in every form, in whatever way the mask says it."""

import pytest
import torch
from torch import Tensor

import outward
from outward.attention.inputs import LOWEST_BIAS, check_mask, is_visible, own_keys
from testing import DIM, FORMS, SCALE, TOKENS, Form, assert_within, causal_bias, past, qkv, rounding

EVERY_FORM = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
LONG = 40  # the flash kernel takes another road for keys by the block


def bound(exact: Tensor) -> float:
    return rounding(
        terms=4 * (TOKENS + DIM), size=max(1.0, exact.abs().max().item()), dtype=exact.dtype
    )


def limit(form: Form, exact: Tensor) -> float:
    """No self without gradients goes by an identity that keeps half of the digits."""
    half = form.fast is outward.no_self_attention
    return torch.finfo(exact.dtype).eps ** 0.5 * exact.abs().max().item() if half else bound(exact)


def low(value: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Causal, with the future at a low number instead of -inf."""
    return torch.zeros(TOKENS, TOKENS, dtype=dtype).masked_fill(~past(), value)


@EVERY_FORM
@pytest.mark.parametrize("with_gradient", [False, True])
@pytest.mark.parametrize("value", [torch.finfo(torch.float64).min, -1e9, -1e8])
def test_a_low_number_hides_as_infinity_does(form: Form, value: float, with_gradient: bool) -> None:
    """The first token sees itself alone: without it, the lowest numbers must not become weights."""
    inputs = [x.requires_grad_(with_gradient) for x in qkv()]
    fast, exact = form.both(*inputs, causal_bias(), mask=low(value))
    assert_within(fast, exact, limit(form, exact))


@EVERY_FORM
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_of_the_lowest_number_sees_nothing(form: Form, dtype: torch.dtype) -> None:
    mask = torch.zeros(TOKENS, TOKENS, dtype=dtype)
    mask[4] = torch.finfo(dtype).min
    z = form.with_arguments(dtype)(*qkv(dtype), mask=mask)
    assert not z[:, :, 4].any()
    assert z[:, :, 5].any()


def test_what_is_low_is_decided_in_one_place() -> None:
    """Biases of ALiBi at a million tokens are biases; what a row has in common changes nothing."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        lowest = torch.finfo(dtype).min
        values = torch.tensor([0.0, -1e4, lowest, -torch.inf], dtype=dtype)
        assert is_visible(values).tolist() == [True, True, False, False]
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        values = torch.tensor([-1e6, -1e8, -1e9], dtype=dtype)
        assert is_visible(values).tolist() == [True, False, False]
    assert torch.tensor(LOWEST_BIAS) + 1 == LOWEST_BIAS, "a score added to it is lost"
    q, k, v = qkv()
    shift = torch.full((TOKENS, TOKENS), -1e6, dtype=torch.float64)
    shifted = outward.exclusive_attention(q, k, v, causal=True, mask=shift)
    tolerance = rounding(terms=TOKENS, size=1e6, dtype=torch.float64)
    assert_within(shifted, outward.exclusive_attention(q, k, v, causal=True), tolerance)


@EVERY_FORM
@pytest.mark.parametrize("with_gradient", [False, True])
def test_float32_masks_beside_float64(form: Form, with_gradient: bool) -> None:
    """The flash kernel reads the bytes of a mask in another type, and says nothing."""
    inputs = [x.requires_grad_(with_gradient) for x in qkv()]
    fast, exact = form.both(*inputs, causal_bias(), mask=causal_bias(dtype=torch.float32))
    assert_within(fast, exact, limit(form, exact))


@pytest.mark.parametrize("attention", [outward.exclusive_attention, outward.no_self_attention])
def test_float32_masks_leak_nothing_of_the_future(attention) -> None:  # type: ignore[no-untyped-def]
    q, k, v = qkv(tokens=LONG)
    mask = causal_bias(LONG, torch.float32)
    z = attention(q, k, v, mask=mask)
    other = v.clone()
    other[:, :, -1] += 1
    assert_within(attention(q, k, other, mask=mask)[:, :, :-1], z[:, :, :-1], 1e-7)
    assert_within(z, attention(q, k, v, causal=True), 1e-7)


@EVERY_FORM
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("additive", [True, False])
def test_one_column_speaks_of_every_key(form: Form, causal: bool, additive: bool) -> None:
    rows = torch.ones(TOKENS, 1, dtype=torch.bool)
    rows[3] = False
    mask = torch.zeros(TOKENS, 1, dtype=torch.float64).masked_fill(~rows, -torch.inf)
    bias = mask + (causal_bias() if causal else 0)
    given = mask if additive else rows
    fast, exact = form.both(*qkv(), bias.expand(TOKENS, TOKENS), causal=causal, mask=given)
    assert_within(fast, exact, limit(form, exact))


def test_one_column_and_the_last_visible_key() -> None:
    q, k, _ = qkv()
    mask = check_mask(torch.ones(1, 1, 1, 1, dtype=torch.bool), q[:, :, :1], k)
    got = own_keys(q[:, :, :1], k, causal=True, mask=mask, self_key=None)
    assert got is not None
    assert got.tolist() == [[TOKENS - 1]] * 2


def test_masks_are_not_written_to() -> None:
    mask = low(-1e9)
    before = mask.clone()
    outward.exclusive_attention(*qkv(), mask=mask, scale=SCALE)
    assert torch.equal(mask, before)
