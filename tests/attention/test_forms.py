"""Every form against its reference: all masks, gradients, and no look into the future."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import outward
from outward.attention import forms, reference
from outward.attention.masks import causal_mask, document_mask, padding_mask, window_mask
from testing import (
    BATCH,
    DIM,
    FORMS,
    HEADS,
    SCALE,
    TOKENS,
    Form,
    assert_within,
    budget,
    causal_bias,
    past,
    qkv,
    repeated,
    rounding,
)

EVERY_FORM = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
PLACE = torch.arange(TOKENS)
LENGTHS = torch.tensor([TOKENS, TOKENS - 4])
LEFT_PADDED = PLACE[None] >= TOKENS - LENGTHS[:, None]
DOCUMENT = torch.tensor([[0] * 4 + [1] * 5 + [2] * 2, [0] * 1 + [1] * 3 + [2] * 7])

MASKS = {
    "none": None,
    "window": window_mask(PLACE, TOKENS, size=3),
    "padding on the right": padding_mask(PLACE[None] < LENGTHS[:, None]),
    "padding on the left": padding_mask(LEFT_PADDED),
    "packed documents": document_mask(DOCUMENT),
    "window of packed documents": document_mask(DOCUMENT) & window_mask(PLACE, TOKENS, size=3),
    "differs by head": torch.rand(1, HEADS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(5))
    < 0.7,
    "two axes": past(),
}


def as_bias(mask: Tensor | None, causal: bool) -> Tensor:
    bias = causal_bias() if causal else torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    return bias if mask is None else bias.masked_fill(~mask, -torch.inf)


def bound(exact: Tensor) -> float:
    """Float64: a softmax, a sum over tokens, dot products of dim, and a division by what is left."""
    return rounding(
        terms=4 * (TOKENS + DIM), size=max(1.0, exact.abs().max().item()), dtype=exact.dtype
    )


def limit(form: Form, exact: Tensor) -> float:
    """`bound`; but no self without gradients goes by an identity that keeps half of the digits."""
    if form.fast is not outward.no_self_attention:
        return bound(exact)
    return torch.finfo(exact.dtype).eps ** 0.5 * exact.abs().max().item()


@EVERY_FORM
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_matches_its_reference(form: Form, mask: Tensor | None, causal: bool) -> None:
    fast, exact = form.both(*qkv(), as_bias(mask, causal), causal=causal, mask=mask)
    assert_within(fast, exact, limit(form, exact))


@EVERY_FORM
@pytest.mark.parametrize("causal", [True, False])
def test_additive_masks_hide_and_shift(form: Form, causal: bool) -> None:
    """-inf hides, the lowest number of the type hides (transformers), other numbers are added."""
    generator = torch.Generator().manual_seed(2)
    bias = torch.randn(BATCH, HEADS, TOKENS, TOKENS, dtype=torch.float64, generator=generator)
    bias[..., 3] = -torch.inf
    inputs = [x.requires_grad_() for x in qkv()]
    fast, exact = form.both(*inputs, as_bias(None, causal) + bias, causal=causal, mask=bias)
    assert_within(fast, exact, bound(exact))
    lowest = bias.masked_fill(bias == -torch.inf, torch.finfo(torch.float64).min)
    again, _ = form.both(*inputs, bias, causal=causal, mask=lowest)
    assert_within(again, exact, bound(exact))


@EVERY_FORM
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_lower_precision(form: Form, dtype: torch.dtype) -> None:
    inputs = [x.requires_grad_() for x in qkv(dtype, interleaved=True)]
    fast, rough = form.both(*inputs, causal_bias(dtype=dtype), causal=True)
    exact_form = {n: (lambda d, m=m: m(dtype).double()) for n, m in form.arguments.items()}
    exact_inputs = [x.detach().double() for x in inputs]
    _, exact = Form(form.fast, form.plain, exact_form, form.plain_name).both(
        *exact_inputs, causal_bias(), causal=True
    )
    assert_within(fast, exact, budget(exact, rough))


@EVERY_FORM
def test_gradients(form: Form) -> None:
    """Of q, k and v, and of what the form learns, by differences."""
    inputs = [x.requires_grad_() for x in qkv(heads=4, kv_heads=2, tokens=3, dim=5, batch=1)]
    shapes = {"strength": (4,), "gate": (1, 4, 3, 5), "direction": (4, 5)}
    names = list(form.arguments)
    learned = [torch.rand(shapes[n], dtype=torch.float64, requires_grad=True) for n in names]

    def run(q: Tensor, k: Tensor, v: Tensor, *extra: Tensor) -> Tensor:
        return form.fast(q, k, v, causal=True, **dict(zip(names, extra, strict=True)))

    assert gradcheck(run, (*inputs, *learned))


@EVERY_FORM
def test_gradients_match_the_reference_under_a_mask(form: Form) -> None:
    mask = MASKS["padding on the left"]
    inputs = [x.requires_grad_() for x in qkv()]
    fast, exact = form.both(*inputs, as_bias(mask, causal=True), causal=True, mask=mask)
    out = torch.randn_like(fast)
    for got, want in zip(
        torch.autograd.grad(fast, inputs, out), torch.autograd.grad(exact, inputs, out), strict=True
    ):
        assert_within(got, want, bound(want))


@EVERY_FORM
@pytest.mark.parametrize("mask", ["none", "packed documents"])
@pytest.mark.parametrize("with_gradient", [False, True])
def test_no_form_sees_the_future(form: Form, mask: str, with_gradient: bool) -> None:
    q, k, v = (x.requires_grad_(with_gradient) for x in qkv())
    run = form.with_arguments(torch.float64)
    z = run(q, k, v, causal=True, mask=MASKS[mask])
    for i in (0, 3, TOKENS - 2):
        other = [x.detach().clone() for x in (q, k, v)]
        for x, y in zip(other, qkv(seed=1), strict=True):
            x[:, :, i + 1 :] = y[:, :, i + 1 :]
        again = run(*(x.requires_grad_(with_gradient) for x in other), causal=True, mask=MASKS[mask])
        # rows that no_self recomputes are chosen by their weight: equal to rounding, not to the bit
        assert_within(
            again[:, :, : i + 1],
            z[:, :, : i + 1],
            limit(form, z) if form.fast is outward.no_self_attention else 0.0,
        )


def test_the_look_into_the_future_is_seen() -> None:
    q, k, v = qkv()
    other = v.clone()
    other[:, :, -1] += 1

    def leaking(v: Tensor) -> Tensor:
        y = outward.standard_attention(q, k, v, causal=True)
        return y - v.mean(dim=2, keepdim=True).repeat_interleave(3, dim=1)

    assert not torch.equal(leaking(other)[:, :, 0], leaking(v)[:, :, 0])


@EVERY_FORM
def test_packed_documents_equal_separate_ones(form: Form) -> None:
    if set(form.arguments) - {"direction"}:
        run = {
            "strength": lambda *x, **o: form.fast(*x, strength=0.7, **o),
            "gate": lambda *x, **o: form.fast(*x, gate=x[0] * 0 + 1.5, **o),
        }[next(iter(form.arguments))]
    else:
        run = form.with_arguments(torch.float64)
    q, k, v = (x[:1] for x in qkv())
    packed = run(q, k, v, causal=True, mask=MASKS["packed documents"][:1])
    alone = [
        run(*(x[:, :, DOCUMENT[0] == d] for x in (q, k, v)), causal=True) for d in DOCUMENT[0].unique()
    ]
    separate = torch.cat(alone, dim=2)
    assert_within(packed, separate, limit(form, separate))
    mixed = run(q, k, v, causal=True)
    assert (mixed - separate).abs().max() > 1e-2, "without the mask, documents do mix"


@EVERY_FORM
def test_a_query_that_sees_nothing_gets_zero(form: Form) -> None:
    for with_gradient in (False, True):
        q, k, v = (x.requires_grad_(with_gradient) for x in qkv())
        mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
        mask[4] = False
        z = form.with_arguments(torch.float64)(q, k, v, mask=mask)
        assert not z[:, :, 4].any()
        assert z.isfinite().all()
        if with_gradient:
            assert all(g.isfinite().all() for g in torch.autograd.grad(z.sum(), (q, k, v)))


# ---- no self by the identity

KV = 5


def sharp(dtype: torch.dtype, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """q = k times a factor: the own key has the largest score, up to P_ii = 1."""
    _, k, v = qkv(dtype, heads=KV, kv_heads=KV)
    return k * factor, k, v


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [0.0, 1.0, 3.0, 30.0])
def test_no_self_keeps_half_of_the_digits(dtype: torch.dtype, factor: float) -> None:
    q, k, v = sharp(dtype, factor)
    exact = reference.no_self(q.double(), k.double(), v.double(), SCALE, causal_bias())
    size = v.double().abs().max().item()
    # and where the own key is masked, the scores are rounded, at up to |s| eps each
    scores = (SCALE * q.double() @ k.double().mT).abs().max().item()
    inner = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    limit = (torch.finfo(dtype).eps ** 0.5 + 2 * inner * scores) * size
    for z in (
        outward.no_self_attention(q, k, v, causal=True),
        outward.no_self_attention(q.requires_grad_(), k, v, causal=True),
    ):
        assert_within(z, exact, limit)


def test_the_identity_alone_is_not_enough() -> None:
    q, k, v = sharp(torch.float32, 3.0)
    y = outward.standard_attention(q, k, v, causal=True)
    P = reference.weights(q, k, SCALE, causal_bias(dtype=torch.float32))
    z = forms.without_self(y, v, P.diagonal(dim1=-2, dim2=-1))
    exact = reference.no_self(q.double(), k.double(), v.double(), SCALE, causal_bias())
    error = (z.double() - exact).abs().nan_to_num(torch.inf).amax(dim=-1)
    limit = torch.finfo(torch.float32).eps ** 0.5 * v.abs().max().item()
    lse = torch.logsumexp(SCALE * q @ k.mT + causal_bias(dtype=torch.float32), dim=-1)
    score = SCALE * (q * k).sum(dim=-1)
    safe = forms.keeps_half(z, y, v, score, lse)
    assert safe.any()
    assert (error[safe] <= limit).all(), "the derived bound keeps what it promises"
    assert (error[~safe] > limit).any(), "and rows beyond it need it"


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.bfloat16, 1e3), (torch.float32, 1e8), (torch.float64, 1e17)]
)
@pytest.mark.parametrize("masked", [False, True])
def test_no_self_of_a_value_that_drowns_the_others(
    dtype: torch.dtype, size: float, masked: bool
) -> None:
    """What is left of y without it is rounding, however small its weight."""
    q, k, v = qkv(dtype, heads=KV, kv_heads=KV, tokens=40)
    v[:, :, 20] *= size
    bias = torch.zeros(40, 40, dtype=dtype).masked_fill(torch.arange(40) == 20, -torch.inf)
    bias[20] = 0  # nobody but the token itself sees the large one
    exact = reference.no_self(q.double(), k.double(), v.double(), SCALE, bias.double())[:, :, 20]
    mask = bias if masked else torch.isfinite(bias)
    z = outward.no_self_attention(q, k, v, mask=mask)[:, :, 20]
    assert_within(z, exact, torch.finfo(dtype).eps ** 0.5 * exact.abs().max().item())


@EVERY_FORM
@pytest.mark.parametrize("causal", [True, False])
def test_no_queries(form: Form, causal: bool) -> None:
    _, k, v = qkv()
    q, none = qkv()[0][:, :, :0], torch.zeros(0, dtype=torch.long)
    sizes = {"strength": (HEADS,), "gate": (BATCH, HEADS, 0, DIM), "direction": (HEADS, DIM)}
    extra = {n: torch.ones(sizes[n], dtype=torch.float64) for n in form.arguments}
    for keys, values in ((k, v), (k[:, :, :0], v[:, :, :0])):
        z = form.fast(q, keys, values, causal=causal, self_key=none, **extra)
        assert z.shape == (BATCH, HEADS, 0, DIM)


def test_no_self_of_a_key_score_of_zero() -> None:
    """A log-sum-exp of 0 is a number like any other."""
    q, k, v = qkv(tokens=2)
    z = outward.no_self_attention(torch.zeros_like(q), k, v, causal=True)
    exact = reference.no_self(*repeated(torch.zeros_like(q), k, v), SCALE, causal_bias(2))
    assert_within(z, exact, bound(exact))


# ---- shared options


def test_scale_is_one_over_root_dim_unless_given() -> None:
    q, k, v = qkv()
    z = outward.exclusive_attention(q, k, v)
    assert_within(outward.exclusive_attention(q, k, v, scale=DIM**-0.5), z, bound(z))
    assert (outward.exclusive_attention(q, k, v, scale=1.0) - z).abs().max() > 1e-2


def test_value_dim_may_differ_from_key_dim() -> None:
    q, k, _ = qkv()
    _, _, v = qkv(dim=13)
    exact = reference.exclusive(*repeated(q, k, v), SCALE, causal_bias())
    assert_within(outward.exclusive_attention(q, k, v, causal=True), exact, bound(exact))


def test_visible_mean_of_each_kind_of_mask() -> None:
    q, k, v = qkv()
    for causal in (True, False):
        for mask in (None, MASKS["packed documents"], MASKS["padding on the left"]):
            m = forms.visible_mean(q, k, v, causal=causal, mask=mask, self_key=None)
            seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool) if not causal else past()
            seen = seen if mask is None else seen & mask
            exact = (seen.double() @ v) / seen.sum(-1, keepdim=True).clamp_min(1)
            assert_within(m, exact.expand_as(m), bound(exact))


@pytest.mark.parametrize("make", [causal_mask, lambda s, n: window_mask(s, n, size=2)])
def test_masks_follow_the_self_key(make: Callable[[Tensor, int], Tensor]) -> None:
    mask = make(torch.tensor([[2, 4], [0, 1]]), 5)
    assert mask.shape == (2, 1, 2, 5)
    own = mask.gather(3, torch.tensor([[2, 4], [0, 1]])[:, None, :, None])
    assert own.all()
    assert not mask[1, 0, 0, 2:].any()
