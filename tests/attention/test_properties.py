"""What Exclusive Self Attention must satisfy, and that these properties reject what it is not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import outward
from attention.wrong import WRONG
from outward.attention import reference
from testing import GROUP, SCALE, TOKENS, causal_bias, qkv, repeated, rounding

Op = Callable[[Tensor, Tensor, Tensor], Tensor]


def right(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return outward.exclusive_attention(q, k, v, causal=True)


def by_two_steps(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return outward.exclude_self(outward.standard_attention(q, k, v, causal=True), v)


def orthogonality(op: Op) -> None:
    """|z·v| is rounding: dim products of the size of |y| |v|."""
    q, k, v = qkv()
    z = op(q, k, v)
    own = reference.repeat_heads(v, GROUP)
    y = outward.standard_attention(q, k, v, causal=True)
    size = (y.norm(dim=-1) * own.norm(dim=-1)).max().item()
    bound = rounding(terms=v.shape[-1], size=size, dtype=v.dtype)
    assert (z * own).sum(dim=-1).abs().max().item() <= bound


def output_without_diagonal(op: Op) -> None:
    """z = Π applied to the sum over the *other* tokens: what lay on the diagonal is gone."""
    q, k, v = qkv()
    q1, k1, v1 = repeated(q, k, v)
    P = reference.weights(q1, k1, SCALE, causal_bias())
    others = P - torch.diag_embed(P.diagonal(dim1=-2, dim2=-1))
    exact = reference.exclude(others @ v1, v1)
    bound = rounding(terms=TOKENS + v.shape[-1], size=v.abs().max().item(), dtype=v.dtype)
    assert (op(q, k, v) - exact).abs().max().item() <= bound


def scale_invariance(op: Op) -> None:
    """Values a million times smaller, in float32: z as much smaller, to rounding."""
    q, k, v = qkv(torch.float32)
    for factor in (2.0**-20, 2.0**-10, 2.0**20):
        bound = rounding(terms=TOKENS + v.shape[-1], size=v.abs().max().item(), dtype=v.dtype)
        assert (op(q, k, factor * v) / factor - op(q, k, v)).abs().max().item() <= bound


def grouped_equals_repeated(op: Op) -> None:
    q, k, v = qkv()
    bound = rounding(terms=TOKENS + v.shape[-1], size=v.abs().max().item(), dtype=v.dtype)
    assert (op(q, k, v) - op(*repeated(q, k, v))).abs().max().item() <= bound


def no_leak_of_the_future(op: Op) -> None:
    """What comes after a token changes nothing about it, not one bit."""
    q, k, v = qkv()
    z = op(q, k, v)
    for i in (0, 4, TOKENS - 2):
        other = [x.clone() for x in (q, k, v)]
        for x, y in zip(other, qkv(seed=1), strict=True):
            x[:, :, i + 1 :] = y[:, :, i + 1 :]
        assert torch.equal(op(*other)[:, :, : i + 1], z[:, :, : i + 1])


def samples_do_not_meet(op: Op) -> None:
    q, k, v = qkv()
    other = [x.clone() for x in (q, k, v)]
    for x, y in zip(other, qkv(seed=1), strict=True):
        x[1] = y[1]
    assert torch.equal(op(*other)[0], op(q, k, v)[0])


def first_token_is_zero(op: Op) -> None:
    """The first causal token sees itself alone: y = v, so nothing is left."""
    assert not op(*qkv())[:, :, 0].any()


PROPERTIES: list[Callable[[Op], None]] = [
    orthogonality,
    output_without_diagonal,
    scale_invariance,
    grouped_equals_repeated,
    no_leak_of_the_future,
    samples_do_not_meet,
    first_token_is_zero,
]
# The implementation that each property must reject, of those that it is there for.
REJECTS = {
    "orthogonality": "concatenated_heads",
    "output_without_diagonal": "diagonal_only",
    "scale_invariance": "added_epsilon",
    "grouped_equals_repeated": "tiled_heads",
    "no_leak_of_the_future": "flattened_heads",
    "samples_do_not_meet": "whole_batch",
    "first_token_is_zero": "subtracted_share",
}


def whole_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Centred on the batch."""
    z = right(q, k, v)
    return z - z.mean(dim=0)


@pytest.mark.parametrize("op", [right, by_two_steps])
@pytest.mark.parametrize("holds", PROPERTIES)
def test_exclusive_attention_holds(holds: Callable[[Op], None], op: Op) -> None:
    holds(op)


@pytest.mark.parametrize("holds", PROPERTIES)
def test_each_property_bites(holds: Callable[[Op], None]) -> None:
    wrong = {**WRONG, "whole_batch": whole_batch}[REJECTS[holds.__name__]]
    with pytest.raises(AssertionError):
        holds(wrong)


@pytest.mark.parametrize("name", WRONG)
def test_known_wrong_implementations_are_rejected(name: str) -> None:
    rejected = []
    for holds in PROPERTIES:
        try:
            holds(WRONG[name])
        except AssertionError:
            rejected.append(holds.__name__)
    assert rejected, f"{name} passes for exclusive attention"


def test_idempotence() -> None:
    _, _, v = qkv()
    y = torch.randn(qkv()[0].shape, dtype=v.dtype, generator=torch.Generator().manual_seed(3))
    once = outward.exclude_self(y, v)
    bound = rounding(terms=v.shape[-1], size=y.abs().max().item(), dtype=v.dtype)
    assert (outward.exclude_self(once, v) - once).abs().max().item() <= bound
    halved = outward.exclude_self(y, v, strength=0.5)
    assert (outward.exclude_self(halved, v, strength=0.5) - halved).abs().max().item() > bound
