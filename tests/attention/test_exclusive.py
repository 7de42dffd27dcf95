"""`exclude_self` and `exclusive_attention` against the reference: values, gradients, edges, memory."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import outward
from outward.attention import exclusive, projection, reference
from testing import (
    BATCH,
    DIM,
    GROUP,
    HEADS,
    KV_HEADS,
    SCALE,
    TOKENS,
    assert_within,
    budget,
    causal_bias,
    past,
    qkv,
    repeated,
    rounding,
)

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def output_and_values(dtype: torch.dtype = torch.float64, **sizes: int) -> tuple[Tensor, Tensor]:
    """A y that no attention need have made, and v."""
    q, _, v = qkv(dtype, **sizes)
    return q + 0.3 * reference.repeat_heads(v, q.shape[1] // v.shape[1]), v


def gradients(f: Callable[..., Tensor], *inputs: Tensor, out: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(f(*leaves), leaves, out)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return reference.exclusive(*repeated(q, k, v), SCALE, causal_bias(q.shape[2], q.dtype))


def fast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return outward.exclusive_attention(q, k, v, causal=True)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_matches_the_reference_forward_and_backward(dtype: torch.dtype, interleaved: bool) -> None:
    inputs = qkv(dtype, interleaved=interleaved)
    exact_inputs = [x.double() for x in inputs]
    out = torch.randn(BATCH, HEADS, TOKENS, DIM, dtype=torch.float64).to(dtype)

    exact, rough = plain(*exact_inputs), plain(*inputs)
    assert_within(fast(*inputs), exact, allowed(exact, rough))

    exact_gradients = gradients(plain, *exact_inputs, out=out.double())
    rough_gradients = gradients(plain, *inputs, out=out)
    for got, exact, rough in zip(
        gradients(fast, *inputs, out=out), exact_gradients, rough_gradients, strict=True
    ):
        assert_within(got, exact, allowed(exact, rough))


def allowed(exact: Tensor, rough: Tensor) -> float:
    """`budget`; in float64, which has nothing to be compared with, the bound of the sums."""
    if rough.dtype == torch.float64:
        return rounding(terms=TOKENS + DIM, size=exact.abs().max().item(), dtype=torch.float64)
    return budget(exact, rough)


def test_the_comparison_bites() -> None:
    inputs = qkv(torch.float32)
    exact, rough = plain(*(x.double() for x in inputs)), plain(*inputs)
    with pytest.raises(AssertionError, match="off by"):
        assert_within(fast(*inputs) + 1e-4, exact, budget(exact, rough))


@pytest.mark.parametrize("size", [(2, 3), (5, 1), (1, 3)])
def test_exclude_self_has_the_gradient_of_its_formula(size: tuple[int, int]) -> None:
    kv_heads, group = size
    y, v = output_and_values(heads=kv_heads * group, kv_heads=kv_heads, batch=1, tokens=2, dim=7)
    y, v = y.requires_grad_(), v.requires_grad_()
    per_head = torch.rand(kv_heads * group, dtype=torch.float64, requires_grad=True)
    per_token = torch.rand(y.shape[:3], dtype=torch.float64, requires_grad=True)
    one = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert gradcheck(outward.exclude_self, (y, v), check_forward_ad=True)
    for strength in (per_head, per_token, one):
        assert gradcheck(
            lambda y, v, s: outward.exclude_self(y, v, strength=s),
            (y, v, strength),
            check_forward_ad=True,
        )


def small() -> list[Tensor]:
    return [x.requires_grad_() for x in qkv(heads=4, kv_heads=2, tokens=5, dim=3, batch=1)]


def test_second_derivatives_and_torch_func() -> None:
    inputs = small()
    assert gradcheck(fast, inputs, check_forward_ad=True)
    assert gradgradcheck(fast, inputs)
    assert gradgradcheck(outward.exclude_self, (inputs[0], inputs[2]))
    backward = torch.func.jacrev(fast, argnums=(0, 1, 2))(*inputs)
    forward = torch.func.jacfwd(fast, argnums=(0, 1, 2))(*inputs)
    plainly = torch.func.jacrev(plain_small, argnums=(0, 1, 2))(*inputs)
    for got, other, exact in zip(backward, forward, plainly, strict=True):
        bound = rounding(terms=5 * 3, size=exact.abs().max().item(), dtype=torch.float64)
        assert_within(got, exact, bound)
        assert_within(other, exact, bound)


def plain_small(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = causal_bias(q.shape[2])
    return reference.exclusive(*repeated(q, k, v), q.shape[3] ** -0.5, bias)


def test_gradcheck_bites() -> None:
    """A gradient with the sign of one term changed is caught."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y: Tensor, v: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            ctx.save_for_backward(y, v)
            return outward.exclude_self(y, v)

        @staticmethod
        def backward(ctx, gz: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
            y, v = ctx.saved_tensors
            with torch.enable_grad():
                gy, gv = gradients(outward.exclude_self, y, v, out=gz)
            return gy, -gv

    y, v = (x.requires_grad_() for x in output_and_values(heads=2, kv_heads=2, tokens=3))
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        gradcheck(Wrong.apply, (y, v))


def test_batched_gradients_of_the_old_kind_are_refused_by_name() -> None:
    inputs = [x.requires_grad_() for x in qkv(heads=2, kv_heads=2, tokens=3)]
    for f in (fast, lambda q, k, v: outward.exclude_self(q, v)):
        with pytest.raises(RuntimeError, match=r"use torch\.func\.jacrev"):
            torch.autograd.functional.jacobian(f, tuple(inputs), vectorize=True)


# ---- numbers at the edge


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e4, "tiny", "huge"])
def test_y_equal_to_v_gives_exactly_zero(dtype: torch.dtype, size: float | str) -> None:
    _, _, v = qkv(dtype)
    largest = torch.finfo(dtype).max / 8
    factor = {"tiny": torch.finfo(dtype).tiny / 4, "huge": largest / 4}.get(size, size)
    v = (v.double() * factor).clamp(-largest, largest).to(dtype)
    assert not outward.exclude_self(v.clone(), v).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_value_leaves_y_as_it_is(dtype: torch.dtype) -> None:
    y, v = output_and_values(dtype)
    v[:, 1, 3] = 0
    z = outward.exclude_self(y, v)
    assert torch.equal(z[:, GROUP : 2 * GROUP, 3], y[:, GROUP : 2 * GROUP, 3])
    assert not torch.equal(z[:, :, 4], y[:, :, 4])
    gy, gv = gradients(outward.exclude_self, y, v, out=torch.ones_like(y))
    assert torch.equal(gy[:, GROUP : 2 * GROUP, 3], torch.ones_like(y[:, GROUP : 2 * GROUP, 3]))
    assert not gv[:, 1, 3].any()
    assert gv.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_y_parallel_to_v_gives_zero_within_rounding(dtype: torch.dtype) -> None:
    """y = c v: y is rounded once, and the result: eps of |y| each, dim times in the dot products."""
    _, _, v = qkv(dtype, heads=KV_HEADS)
    y = (1.7 * v.double()).to(dtype)
    size = y.double().norm(dim=-1).max().item()
    inner = torch.promote_types(dtype, torch.float32)
    bound = torch.finfo(dtype).eps * size + rounding(terms=DIM + 2, size=size, dtype=inner)
    assert outward.exclude_self(y, v).double().norm(dim=-1).max().item() <= bound


@pytest.mark.parametrize("exponent", [-120, -90, -60, -30, -20, 0, 20, 30, 60, 120])
def test_no_size_of_v_or_y_under_or_overflows(exponent: int) -> None:
    """z for a v of any size is bitwise the z for v: a power of two changes no rounding."""
    y, v = output_and_values(torch.float32)
    z = outward.exclude_self(y, v)
    assert torch.equal(outward.exclude_self(y, v * 2.0**exponent), z)
    small = max(-90, min(exponent, 100))  # where z itself is a normal number
    assert torch.equal(outward.exclude_self(y * 2.0**small, v), z * 2.0**small)
    assert torch.equal(outward.exclude_self(y * 2.0**small, v * 2.0**exponent), z * 2.0**small)


def test_plain_arithmetic_does_not_survive_these_sizes() -> None:
    y, v = output_and_values(torch.float32)
    for exponent in (-90, 90):
        w = v * 2.0**exponent
        own = reference.repeat_heads(w, GROUP)
        z = y - (y * own).sum(-1, keepdim=True) / (own * own).sum(-1, keepdim=True) * own
        assert not torch.equal(z, outward.exclude_self(y, v))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_both_roads_give_the_same_bits(dtype: torch.dtype, interleaved: bool) -> None:
    q, _, v = qkv(dtype, interleaved=interleaved)
    v[0, 0, 0], v[1, 2, 3], q[0, 4, 5] = 0, v[1, 2, 3] * 2.0**-14, 0
    y, values = exclusive.pair(q, v)
    z = torch.empty_like(y)
    a = projection.project_blocked(y, values, 1.0, z)
    scaled_z, scaled_c = projection.project_rows(y, values, 1.0)
    assert torch.equal(z, scaled_z)
    # what is kept is a on the one road, and c = a s on the other; both where |v|² is out of range
    scale = projection.power_of_two(projection.widen(values))[0].expand_as(a)
    squares = projection.widen(values).square().sum(-1, keepdim=True).expand_as(a)
    safe = (squares >= projection.SQUARES[0]) & (squares <= projection.SQUARES[1])
    assert torch.equal(torch.where(safe, a * scale, a), scaled_c)


def test_blocks_cut_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    y, v = output_and_values(torch.float32)
    out = torch.randn_like(y)
    strength = torch.rand(y.shape[:3])
    whole = outward.exclude_self(y, v, strength=strength)
    g_whole = gradients(lambda *x: outward.exclude_self(*x, strength=strength), y, v, out=out)
    for block in (1, 2 * y.numel() // TOKENS, 4 * y.numel() // TOKENS + 1):
        monkeypatch.setattr(projection, "BLOCK", block)
        assert torch.equal(outward.exclude_self(y, v, strength=strength), whole)
        g = gradients(lambda *x: outward.exclude_self(*x, strength=strength), y, v, out=out)
        assert all(torch.equal(a, b) for a, b in zip(g, g_whole, strict=True))


def test_bfloat16_leaves_no_bias() -> None:
    """max |cos(z, v)| at most 2e-3 at T = 1024: computed in float32, rounded once."""
    q, k, v = qkv(torch.bfloat16, batch=1, heads=12, kv_heads=12, tokens=1024, dim=64)
    z = outward.exclusive_attention(q, k, v, causal=True)[:, :, 1:].float()
    assert torch.cosine_similarity(z, v[:, :, 1:].float(), dim=-1).abs().max().item() <= 2e-3
    y = outward.standard_attention(q, k, v, causal=True)[:, :, 1:]
    v_hat = torch.nn.functional.normalize(v[:, :, 1:], dim=-1)
    rough = (y - (y * v_hat).sum(-1, keepdim=True) * v_hat).float()
    cosine = torch.cosine_similarity(rough, v[:, :, 1:].float(), dim=-1)
    assert cosine.abs().max().item() > 2e-3, "arithmetic in bfloat16 should fail this"


@pytest.mark.parametrize("strength", [0.0, torch.tensor(0.0), torch.zeros(HEADS)])
def test_strength_zero_changes_no_bit(strength: float | Tensor) -> None:
    y, v = output_and_values(torch.float32)
    v[0, 0, 0] = 0
    assert torch.equal(outward.exclude_self(y, v, strength=strength), y)
    assert torch.equal(outward.exclude_self(y, v, strength=1), outward.exclude_self(y, v))


# ---- shapes and layouts


@pytest.mark.parametrize("tokens", [0, 1])
def test_empty_and_single_token_sequences(tokens: int) -> None:
    q, k, v = (x.requires_grad_() for x in qkv(tokens=tokens))
    for z in (fast(q, k, v), outward.exclusive_attention(q, k, v)):
        assert z.shape == (BATCH, HEADS, tokens, DIM)
        assert not z.any()
        assert all(g.isfinite().all() for g in torch.autograd.grad(z.sum(), (q, k, v)))
    q, k, v = qkv(batch=0)
    assert fast(q, k, v).shape == (0, HEADS, TOKENS, DIM)


def test_strided_inputs_of_any_kind() -> None:
    q, k, v = qkv()
    exact = fast(q, k, v)

    def strided(x: Tensor) -> Tensor:
        wide = torch.full((*x.shape, 2), torch.nan, dtype=x.dtype)
        wide[..., 0] = x
        return wide[..., 0]

    bound = rounding(terms=TOKENS, size=1.0, dtype=torch.float64)
    assert_within(fast(strided(q), strided(k), strided(v)), exact, bound)
    assert_within(outward.exclude_self(strided(exact), strided(v)), exact, bound)
    expanded = v[:, :1].expand(-1, KV_HEADS, -1, -1)
    assert_within(
        outward.exclude_self(exact, expanded), outward.exclude_self(exact, expanded.clone()), bound
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_result_is_laid_out_as_attention_lays_it_out(interleaved: bool) -> None:
    q, k, v = qkv(interleaved=interleaved)
    y = outward.standard_attention(q, k, v, causal=True)
    assert fast(q, k, v).stride() == y.stride()
    assert outward.exclude_self(q, v).stride() == q.stride()


def test_no_input_is_written_to() -> None:
    inputs = [x.requires_grad_() for x in qkv()]
    before = [x.detach().clone() for x in inputs]
    fast(*inputs).sum().backward()
    outward.exclude_self(inputs[0], inputs[2]).sum().backward()
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


def test_grouped_heads_are_not_copied() -> None:
    """In the fused node and in `exclude_self`, no tensor of v's with the heads of q is kept."""
    q, k, v = (x.requires_grad_() for x in qkv(torch.float32))
    kept = saved_by(lambda: fast(q, k, v))
    assert all(x.shape[1] != HEADS or x.shape[-1] != DIM or x is not v for x in kept)
    assert sum(x.numel() for x in kept) <= 2 * q.numel() + 2 * v.numel() + 2 * q.numel() // DIM


# ---- memory


def saved_by(run: Callable[[], Tensor]) -> list[Tensor]:
    """The tensors that autograd keeps for the backward pass, each storage once."""
    kept: dict[int, Tensor] = {}

    def pack(x: Tensor) -> Tensor:
        kept.setdefault(x.untyped_storage().data_ptr(), x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        z = run()
    assert z.requires_grad
    return list(kept.values())


def saved_bytes(run: Callable[[], Tensor]) -> int:
    return sum(x.untyped_storage().nbytes() for x in saved_by(run))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_little_is_saved_for_backward(dtype: torch.dtype) -> None:
    """Beyond standard attention and its output projection, in units of one output tensor."""
    sizes = {"batch": 1, "heads": 12, "kv_heads": 12, "tokens": 128, "dim": 64}
    q, k, v = (x.requires_grad_() for x in qkv(dtype, **sizes))
    W_O = torch.randn(64, 64, dtype=dtype, requires_grad=True)
    unit = q.numel() * q.element_size()

    def extra(attention: Callable[..., Tensor]) -> float:
        standard = saved_bytes(lambda: outward.standard_attention(q, k, v, causal=True) @ W_O)
        return (saved_bytes(lambda: attention(q, k, v) @ W_O) - standard) / unit

    def two_steps(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return outward.exclude_self(outward.standard_attention(q, k, v, causal=True), v)

    def as_published(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = outward.standard_attention(q, k, v, causal=True)
        v_hat = torch.nn.functional.normalize(v, dim=-1)
        return y - (y * v_hat).sum(dim=-1, keepdim=True) * v_hat

    assert extra(fast) <= 0.05
    assert extra(two_steps) <= 1.0
    assert extra(as_published) > 1.5, "the measurement sees what plain autograd keeps"


# ---- autocast


def test_autocast_does_as_torch_attention_does() -> None:
    q, k, v = qkv(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        z = fast(q, k, v)
        y = outward.standard_attention(q, k, v, causal=True)
    assert z.dtype == y.dtype == torch.bfloat16
    exact = fast(q.bfloat16().double(), k.bfloat16().double(), v.bfloat16().double())
    rough = plain(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert_within(z, exact, budget(exact, rough))


def test_a_mask_that_learns_gets_its_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in qkv(heads=2, kv_heads=2, tokens=5, batch=1))
    bias = torch.randn(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda *x: outward.exclusive_attention(*x[:3], mask=x[3]), (q, k, v, bias))


def test_dropout_is_applied_to_the_weights() -> None:
    q, k, v = qkv()
    torch.manual_seed(1)
    dropped = outward.exclusive_attention(q, k, v, dropout=0.5)
    torch.manual_seed(1)
    y = outward.standard_attention(q, k, v, dropout=0.5)
    assert torch.equal(dropped, outward.exclude_self(y, v))
    assert not torch.equal(dropped, outward.exclusive_attention(q, k, v))


def test_the_visible_past_helper_is_causal() -> None:
    assert past(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]
