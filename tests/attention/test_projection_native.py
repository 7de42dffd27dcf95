"""The compiled kernel of the exclusion against its formula in float64, at every size and layout."""

import pytest
import torch
from torch import Tensor

import outward
from outward.attention import projection_native, reference
from outward.attention.native import NoCompilerError, library
from testing import BATCH, HEADS, KV_HEADS, TOKENS, assert_within, budget, qkv

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def inputs(dtype: torch.dtype, *, dim: int = 7, tokens: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    """(y, v, gz), laid out as projections leave them."""
    y, _, v = qkv(dtype, dim=dim, tokens=tokens, interleaved=True)
    gz, _, _ = qkv(dtype, dim=dim, tokens=tokens, seed=1)
    return y, v, gz


def run(y: Tensor, v: Tensor, gz: Tensor, strength: Tensor | float) -> tuple[Tensor, ...]:
    """z, gy, gv, and gα if it is learned, by the kernel."""
    learned = (strength,) if isinstance(strength, Tensor) else ()
    leaves = [x.detach().clone().requires_grad_() for x in (y, v, *learned)]
    alpha = leaves[2] if learned else strength
    z = outward.exclude_self(leaves[0], leaves[1], strength=alpha, impl="compiled")
    return z.detach(), *torch.autograd.grad(z, leaves, gz)


def formula(y: Tensor, v: Tensor, gz: Tensor, strength: Tensor | float) -> tuple[Tensor, ...]:
    """The same by the specification, in the precision of its arguments."""
    learned = (strength,) if isinstance(strength, Tensor) else ()
    leaves = [x.detach().clone().requires_grad_() for x in (y, v, *learned)]
    wide = reference.repeat_heads(leaves[1], y.shape[1] // v.shape[1])
    part = leaves[0] - reference.exclude(leaves[0], wide)
    alpha = strength
    if learned:
        alpha = leaves[2].view(1, -1, 1, 1) if leaves[2].ndim == 1 else leaves[2][..., None]
    z = leaves[0] - alpha * part
    return z.detach(), *torch.autograd.grad(z, leaves, gz)


STRENGTHS = {
    "whole": lambda dtype: 1.0,
    "a number": lambda dtype: 0.3,
    "per head": lambda dtype: torch.linspace(-1, 2, HEADS, dtype=dtype),
    "per token": lambda dtype: torch.linspace(-1, 2, BATCH * HEADS * TOKENS, dtype=dtype).view(
        BATCH, HEADS, TOKENS
    ),
}


@pytest.mark.unhooked
@DTYPES
@pytest.mark.parametrize("dim", [2, 7, 64, 83, 128])
@pytest.mark.parametrize("strength", STRENGTHS)
def test_equals_the_formula(dtype: torch.dtype, dim: int, strength: str) -> None:
    given = (*inputs(dtype, dim=dim), STRENGTHS[strength](torch.float32))
    exact = formula(*(x.double() if isinstance(x, Tensor) else x for x in given))
    rough = formula(*(x.to(dtype) if isinstance(x, Tensor) else x for x in given))
    for got, want, near in zip(run(*given), exact, rough, strict=True):
        assert_within(got, want, budget(want, near))


@pytest.mark.unhooked
def test_the_comparison_bites() -> None:
    """Half of the part left in is seen."""
    y, v, gz = inputs(torch.float32)
    exact, rough = formula(y.double(), v.double(), gz.double(), 1.0), formula(y, v, gz, 1.0)
    for got, want, near in zip(run(y, v, gz, 0.5), exact, rough, strict=True):
        with pytest.raises(AssertionError, match="off by"):
            assert_within(got, want, budget(want, near))


@pytest.mark.unhooked
@DTYPES
@pytest.mark.parametrize("exponent", [-120, -70, -39, 39, 63, 100])
def test_no_size_under_or_overflows(dtype: torch.dtype, exponent: int) -> None:
    """Powers of two round nothing, so what is right at size 1 is right to the bit at any other.

    gv goes as 1/|v|, and is a number wherever float32 has one.
    """
    y, v, gz = inputs(dtype, dim=64)
    factor = 2.0**exponent
    z, gy, gv = run(y, v, gz, 1.0)
    got = run(y, v * factor, gz, 1.0)
    for a, b in zip(got, (z, gy, gv / factor), strict=True):
        assert_within(a, b.double(), 4 * torch.finfo(dtype).eps * b.abs().max().item())
    got = run(y * factor, v, gz, 1.0)
    for a, b in zip(got, (z * factor, gy, gv * factor), strict=True):
        assert_within(a, b.double(), 4 * torch.finfo(dtype).eps * b.abs().max().item())


@pytest.mark.unhooked
@DTYPES
def test_special_rows(dtype: torch.dtype) -> None:
    y, v, gz = inputs(dtype, dim=64)
    v = v.clone()
    v[:, :, 3] = 0
    z, gy, gv = run(y, v, gz, 1.0)
    assert torch.equal(z[:, :, 3], y[:, :, 3])
    assert torch.equal(gy[:, :, 3], gz[:, :, 3])
    assert not gv[:, :, 3].any()
    wide = reference.repeat_heads(v, HEADS // KV_HEADS)
    for factor in (2.0**-130, 2.0**-60, 1.0, 2.0**100):
        same = (wide * factor).to(dtype)
        assert not outward.exclude_self(same, same, impl="compiled").any()
    y[0, 1, 2, 5] = torch.nan
    z, *_ = run(y, v, gz, 1.0)
    broken = z.isnan().any(dim=-1)
    assert broken[0, 1, 2]
    assert broken.sum() == 1


@pytest.mark.unhooked
@DTYPES
def test_strided_and_empty_inputs(dtype: torch.dtype) -> None:
    y, v, gz = inputs(dtype)
    want = run(y, v, gz, 1.0)
    strided = [x.mT.contiguous().mT for x in (y, v, gz)]
    assert strided[0].stride(-1) != 1
    for a, b in zip(run(*strided, 1.0), want, strict=True):
        assert torch.equal(a, b)
    for tokens in (0, 1):
        z, gy, gv = run(*inputs(dtype, tokens=tokens), 1.0)
        assert z.shape == gy.shape == (BATCH, HEADS, tokens, 7)
        assert gv.shape == (BATCH, KV_HEADS, tokens, 7)


@pytest.mark.unhooked
def test_threads_share_the_work_without_changing_a_bit() -> None:
    y, v, gz = inputs(torch.float32, tokens=211)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = run(y, v, gz, 0.7)
        torch.set_num_threads(3)
        for a, b in zip(run(y, v, gz, 0.7), alone, strict=True):
            assert torch.equal(a, b)
    finally:
        torch.set_num_threads(before)


def test_it_knows_what_it_does_not_know() -> None:
    y, _, v = (x.unsqueeze(2) for x in qkv(torch.float32))
    assert projection_native.fits(y, v)
    assert not projection_native.fits(y.double(), v.double())
    assert not projection_native.fits(y.half(), v.half())
    assert not projection_native.fits(y, v.bfloat16())
    assert not projection_native.fits(y.to("meta"), v.to("meta"))
    assert not projection_native.fits(torch.zeros(1, 1, 1, 1, 1025), torch.zeros(1, 1, 1, 1, 1025))


@pytest.mark.unhooked
def test_without_a_compiler_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    library.cache_clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    y, _, v = qkv(torch.float32)
    with pytest.raises(NoCompilerError, match=r"no C\+\+ compiler.*CXX"):
        outward.exclude_self(y, v, impl="compiled")
    library.cache_clear()
