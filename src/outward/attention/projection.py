"""The arithmetic of taking a direction out: z = y - α a v with a = (y·v)/(v·v), and its gradient

    gy = gz - α b v,    gv = -α (b z₁ + a g₁),    gα = -a b (v·v),    with b = (gz·v)/(v·v),

where z₁ = y - a v and g₁ = gz - b v are the fully projected y and gz, and v = 0 gives a = b = 0.
What is kept of the forward pass is a; or c = a s, with s the power of two that brings v into range,
where v is so small or large that a might not be a number: on the scaled road c everywhere.

A query head of y is paired with its value head by grouping, never by copying: in this file y is
(batch, kv_head, group, token, dim) and v is (batch, kv_head, 1, token, dim). Half types are
computed in float32 and rounded once, at the end. There are two roads to bitwise the same z:

* the *scaled* one brings y and v into range by powers of two, so that no size of y or v under- or
  overflows; it never looks at a value, so it runs anywhere: compiled, on accelerators, under
  `torch.func`;
* the *blocked* one, for the CPU in eager mode, multiplies as it is, in blocks that stay in the
  cache, and sends down the scaled road only the rows whose dot products left the safe range.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from outward.attention import projection_native

Impl = Literal["eager", "compiled"]
"""Who does the arithmetic in eager mode: torch's own operations, or one compiled kernel."""
Strength = Tensor | float
"""α: a number, or a tensor of as many axes as y, of size 1 where it is shared."""
WHOLE: Strength = 1.0
"""The strength that takes out the whole component."""

# With |v|² between these bounds, and a dot product x·v that is 0 or between the wider ones, nothing
# was lost to under- or overflow on the way, nor will be in (x·v)/|v|² v: float32 reaches from 2^-126
# to 2^128. A gradient may underflow, as everywhere: there the lower of the wider bounds is 0.
SQUARES = 2.0**-40, 2.0**40
DOTS = 2.0**-80, 2.0**80
# Elements of y in a block: 1 MiB in float32. Larger blocks leave the cache, smaller are all overhead.
BLOCK = 2**18


def project(
    y: Tensor, v: Tensor, strength: Strength, *, impl: Impl, in_place: bool
) -> tuple[Tensor, Tensor]:
    """(z, a or c), with z in the place of y if asked for. Not differentiable."""
    if torch.compiler.is_compiling():  # the compiler decides what is written where
        return project_rows(y, v, strength)
    if impl == "compiled" and projection_native.fits(y, v):
        return projection_native.project(y.detach(), v.detach(), strength, in_place=in_place)
    if impl == "compiled":
        inputs = y.detach(), v.detach(), _as_tensor(strength, y)
        return (
            (y, compiled(_project_in_place)(*inputs)) if in_place else compiled(project_rows)(*inputs)
        )
    if y.device.type != "cpu":
        return (y, _project_in_place(y, v, strength)) if in_place else project_rows(y, v, strength)
    z = y if in_place else torch.empty_like(y)
    return z, project_blocked(y, v, strength, z)


def gradient(
    gz: Tensor, z1: Tensor, a: Tensor, v: Tensor, strength: Strength, *, impl: Impl
) -> tuple[Tensor, Tensor, Tensor]:
    """(gy, gv summed over the group, gα per row), in the types of gz, v and a. Not differentiable."""
    if torch.compiler.is_compiling():
        return gradient_summed(gz, z1, a, v, strength)
    if impl == "compiled" and projection_native.fits(z1, v):
        return projection_native.gradient(gz.detach(), z1.detach(), a, v.detach(), strength)
    if impl == "compiled":
        inputs = (x.detach() for x in (gz, z1, a, v))  # the compiler asks non-leaves for their .grad
        return compiled(gradient_summed)(*inputs, _as_tensor(strength, a))
    return (gradient_blocked if gz.device.type == "cpu" else gradient_summed)(gz, z1, a, v, strength)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile at the first use, because the compiler takes a second to import."""
    return torch.compile(function)


def _as_tensor(strength: Strength, like: Tensor) -> Strength:
    """A number that may change from step to step must not be compiled in."""
    if isinstance(strength, Tensor):
        return strength.detach()
    inner = torch.promote_types(like.dtype, torch.float32)
    return strength if _is_whole(strength) else torch.tensor(strength, dtype=inner, device=like.device)


def widen(x: Tensor) -> Tensor:
    """Half types to float32; float32 and float64 as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


# ---- the scaled road


@torch.no_grad()
def power_of_two(x: Tensor) -> tuple[Tensor, Tensor]:
    """Per row, a power of two near sum |x|, and its exact inverse; both normal numbers.

    The sum serves as well as the largest |x| and is far cheaper; where it overflows, the clamp sees
    to it. Made from the exponent bits, because log2 and exp2 are not exact on every device.
    """
    integer, shift, bias = (
        (torch.int32, 23, 127) if x.dtype == torch.float32 else (torch.int64, 52, 1023)
    )
    exponent = x.abs().sum(dim=-1, keepdim=True).view(integer) >> shift
    exponent = exponent.clamp(1, 2 * bias - 1)
    return (exponent << shift).view(x.dtype), ((2 * bias - exponent) << shift).view(x.dtype)


def scaled_coefficient(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(c, u, 1/s): u = v/s is of size 1, and c u = (x·u)/(u·u) u is the part of x along v."""
    (x_size, x_inverse), (_, v_inverse) = power_of_two(x), power_of_two(v)
    u = v * v_inverse
    uu = (u * u).sum(dim=-1, keepdim=True)
    xu = (x * x_inverse * u).sum(dim=-1, keepdim=True)
    return xu / torch.where(uu == 0, 1, uu) * x_size, u, v_inverse


def project_rows(y: Tensor, v: Tensor, strength: Strength) -> tuple[Tensor, Tensor]:
    """(z, c), by differentiable operations that a compiler can fuse."""
    wide = widen(y)
    c, u, _ = scaled_coefficient(wide, widen(v))
    return torch.addcmul(wide, strength * c, u, value=-1).to(y.dtype), c


def gradient_rows(
    gz: Tensor, z1: Tensor, c: Tensor, v: Tensor, strength: Strength
) -> tuple[Tensor, Tensor, Tensor]:
    """(gy, gv, gα per row) in float32 or wider; gv not yet summed over the group."""
    gz, z1, v = widen(gz), widen(z1), widen(v)
    b, u, v_inverse = scaled_coefficient(gz, v)
    gv = -(strength * v_inverse) * (b * z1 + c * (gz - b * u))
    return gz - (strength * b) * u, gv, -c * b * (u * u).sum(dim=-1, keepdim=True)


def gradient_summed(
    gz: Tensor, z1: Tensor, c: Tensor, v: Tensor, strength: Strength
) -> tuple[Tensor, Tensor, Tensor]:
    """`gradient_rows` with gv summed over the group, in the types of gz, v and c."""
    gy, gv, g_strength = gradient_rows(gz, z1, c, v, strength)
    return gy.to(gz.dtype), gv.sum(dim=-3, keepdim=True).to(v.dtype), g_strength


def _project_in_place(y: Tensor, v: Tensor, strength: Strength) -> Tensor:
    z, c = project_rows(y, v, strength)
    y.copy_(z)
    return c


# ---- the blocked road


def project_blocked(y: Tensor, v: Tensor, strength: Strength, out: Tensor) -> Tensor:
    """Write z to `out`, which may be y itself, and return a; c in rows where |v|² is out of range."""
    a = torch.empty_like(y[..., :1], dtype=torch.promote_types(y.dtype, torch.float32))
    for t in blocks(y):
        a[..., t, :] = _project_block(y[..., t, :], v[..., t, :], _part(strength, t), out[..., t, :])
    return a


def gradient_blocked(
    gz: Tensor, z1: Tensor, a: Tensor, v: Tensor, strength: Strength
) -> tuple[Tensor, Tensor, Tensor]:
    """`gradient_summed`, block by block."""
    gy, gv, g_strength = torch.empty_like(gz), torch.empty_like(v), torch.empty_like(a)
    for t in blocks(gz):
        g_strength[..., t, :] = _gradient_block(
            gz[..., t, :],
            z1[..., t, :],
            a[..., t, :],
            v[..., t, :],
            _part(strength, t),
            gy[..., t, :],
            gv[..., t, :],
        )
    return gy, gv, g_strength


def blocks(y: Tensor) -> Iterator[slice]:
    """Cut the token axis (-2) so that a block has about BLOCK elements."""
    tokens = y.shape[-2]
    step = max(1, BLOCK * tokens // max(y.numel(), 1))
    return (slice(start, start + step) for start in range(0, tokens, step))


def _part(strength: Strength, t: slice) -> Strength:
    if isinstance(strength, float) or strength.shape[-2] == 1:
        return strength
    return strength[..., t, :]


def _project_block(y: Tensor, v: Tensor, strength: Strength, out: Tensor) -> Tensor:
    y, v = widen(y), widen(v)
    dots, squares = _dot(y, v), _dot(v, v)
    a, odd = dots / squares, _odd_rows(dots, squares, forward=True)
    if odd is not None:
        _refuse_non_finite(y=y[odd], v=v.expand_as(y)[odd])
        z_odd, c = project_rows(y[odd], v.expand_as(y)[odd], _rows(strength, odd))
        a[odd] = c * _kept_scale(v.expand_as(y)[odd], squares.expand_as(a)[odd])
    z = torch.addcmul(y, strength * a, v, value=-1, out=_if_alike(out, y))
    if odd is not None:
        z[odd] = z_odd
    if z.dtype != out.dtype:
        out.copy_(z)
    return a


def _gradient_block(
    gz: Tensor,
    z1: Tensor,
    a: Tensor,
    v: Tensor,
    strength: Strength,
    gy_out: Tensor,
    gv_out: Tensor,
) -> Tensor:
    """Write gy and gv, and return gα per row."""
    gz, z1, v = widen(gz), widen(z1), widen(v)
    dots, squares = _dot(gz, v), _dot(v, v)
    b, odd = dots / squares, _odd_rows(dots, squares, forward=False)
    g1 = torch.addcmul(gz, b, v, value=-1, out=_if_alike(gy_out, gz))
    gv = (-strength * b * z1).addcmul_(-strength * a, g1)
    gy = g1 if _is_whole(strength) else torch.addcmul(gz, strength * b, v, value=-1)
    g_strength = -a * dots
    if odd is not None:
        v_odd = v.expand_as(gz)[odd]
        c = a[odd] / _kept_scale(v_odd, squares.expand_as(a)[odd])
        gy[odd], gv[odd], g_strength[odd] = gradient_rows(
            gz[odd], z1[odd], c, v_odd, _rows(strength, odd)
        )
    if gy is not gy_out:
        gy_out.copy_(gy)
    gv_out.copy_(gv if gz.shape[-3] == 1 else gv.sum(dim=-3, keepdim=True))
    return g_strength


def _if_alike(out: Tensor, x: Tensor) -> Tensor | None:
    """Write straight to `out` where no rounding to a half type stands between."""
    return out if out.dtype == x.dtype else None


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """Row-wise dot product, laid out in memory as x is: a third of the time where heads interleave."""
    product = x * y
    if product.stride(-1) != 1:  # summed in another order, y·v would differ from v·v where y = v
        product = product.contiguous()
    return torch.sum(product, dim=-1, keepdim=True, out=torch.empty_like(product[..., :1]))


def _odd_rows(dots: Tensor, squares: Tensor, *, forward: bool) -> Tensor | None:
    """The rows with a dot product out of the safe range, NaN included; None if there are none."""
    sizes = dots.abs()
    safe = _in_range(squares) & (sizes <= DOTS[1])
    if forward:
        safe &= (sizes >= DOTS[0]) | (sizes == 0)
    return None if safe.all() else ~safe[..., 0]


def _in_range(squares: Tensor) -> Tensor:
    return (squares >= SQUARES[0]) & (squares <= SQUARES[1])


def _kept_scale(v: Tensor, squares: Tensor) -> Tensor:
    """What c is multiplied by to be kept: 1/s, which makes it a, or 1 where a might overflow."""
    _, inverse = power_of_two(v)
    return torch.where(_in_range(squares), inverse, 1)


def _is_whole(strength: Strength) -> bool:
    return isinstance(strength, float) and strength == WHOLE


def _rows(strength: Strength, chosen: Tensor) -> Strength:
    if isinstance(strength, float):
        return strength
    return strength.expand(*chosen.shape, 1)[chosen]


def _refuse_non_finite(**rows: Tensor) -> None:
    for name, x in rows.items():
        if not x.isfinite().all():
            raise ValueError(
                f"{name} holds NaN or infinity in {int((~x.isfinite()).any(-1).sum())} token rows; "
                "nothing can be projected off that. If they are rows of padding that see no key, "
                "set them to 0 first; otherwise look for the first module that returns them."
            )
