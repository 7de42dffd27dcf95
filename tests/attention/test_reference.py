"""The specification itself: numbers that a person can check, and the published formulas."""

import math

import torch
from torch import Tensor

from outward.attention import reference
from testing import SCALE, TOKENS, assert_within, causal_bias, qkv, repeated, rounding


def column(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_two_tokens_by_hand() -> None:
    """Scores 0 and ln 3 give the weights 1/4 and 3/4."""
    q = column((0.0, 0.0), (1.0, 0.0))
    k = column((0.0, 5.0), (math.log(3.0), 0.0))
    v = column((4.0, 0.0), (0.0, 4.0))
    bias = causal_bias(2)
    P = reference.weights(q, k, 1.0, bias)
    assert torch.allclose(P, column((1.0, 0.0), (0.25, 0.75)))
    assert torch.allclose(reference.standard(q, k, v, 1.0, bias), column((4.0, 0.0), (1.0, 3.0)))
    assert torch.allclose(reference.exclusive(q, k, v, 1.0, bias), column((0.0, 0.0), (1.0, 0.0)))
    assert torch.allclose(reference.no_self(q, k, v, 1.0, bias), column((0.0, 0.0), (4.0, 0.0)))
    half = torch.tensor([0.5], dtype=torch.float64)
    gated = reference.gated_exclusive(q, k, v, 1.0, bias, half)
    assert torch.allclose(gated, column((2.0, 0.0), (1.0, 1.5)))
    gate = torch.zeros(2, 1, dtype=torch.float64)
    assert torch.allclose(reference.gated(q, k, v, 1.0, bias, gate), column((2.0, 0.0), (0.5, 1.5)))
    r = column((0.0, 7.0))[0]
    assert torch.allclose(
        reference.random_direction(q, k, v, 1.0, bias, r), column((4.0, 0.0), (1.0, 0.0))
    )
    # the second token sees values with the mean (2, 2): of (1, 3) half the difference stays
    assert torch.allclose(reference.mean_direction(q, k, v, 1.0, bias), column((0.0, 0.0), (-1.0, 1.0)))


def test_the_published_form_of_the_projection() -> None:
    """Algorithm 1 of the paper: normalise V, subtract (Y·Vn) Vn."""
    q, k, v = repeated(*qkv())
    y = reference.standard(q, k, v, SCALE, causal_bias())
    v_n = torch.nn.functional.normalize(v, dim=-1)
    published = y - (y * v_n).sum(dim=-1, keepdim=True) * v_n
    bound = rounding(terms=TOKENS + v.shape[-1], size=y.abs().max().item(), dtype=y.dtype)
    assert_within(reference.exclusive(q, k, v, SCALE, causal_bias()), published, bound)


def test_no_value_no_direction() -> None:
    assert not reference.unit(torch.zeros(3)).any()
    assert torch.equal(reference.exclude(torch.ones(3), torch.zeros(3)), torch.ones(3))
    assert not torch.equal(reference.exclude(torch.ones(3), torch.ones(3)), torch.ones(3))


def test_a_row_that_sees_nothing_is_zero() -> None:
    q, k, _ = qkv()
    bias = causal_bias()
    bias[2] = -torch.inf
    P = reference.weights(*repeated(q, k, k)[:2], SCALE, bias)
    assert not P[:, :, 2].any()
    assert torch.allclose(P[:, :, 3].sum(-1), torch.ones_like(P[:, :, 3, 0]))
