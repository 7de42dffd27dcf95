"""Every form on every kind of device that this machine has, against the reference in float64.

On a machine with a CPU alone that is the CPU; with an accelerator it is both.
"""

import pytest
import torch
from torch import Tensor

import outward
from testing import (
    BATCH,
    DIM,
    FORMS,
    HEADS,
    TOKENS,
    assert_within,
    budget,
    causal_bias,
    qkv,
)

DEVICES = [torch.device("cpu")]
if torch.accelerator.is_available():
    DEVICES.append(torch.accelerator.current_accelerator())
HALF_OR_SINGLE = [torch.float32, torch.bfloat16, torch.float16]

pytestmark = pytest.mark.parametrize("device", DEVICES, ids=str)


def exact_and_rough(name: str, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Output and gradients of the reference, in float64 and in `dtype`."""
    out = torch.randn(BATCH, HEADS, TOKENS, DIM, dtype=torch.float64)
    results = []
    for t in (torch.float64, dtype):
        inputs = [x.to(t).requires_grad_() for x in qkv(dtype)]
        _, plain = FORMS[name].both(*inputs, causal_bias(), causal=True)
        results.append([plain, *torch.autograd.grad(plain, inputs, out.to(dtype).to(t))])
    return results[0], results[1]


@pytest.mark.parametrize("dtype", HALF_OR_SINGLE)
@pytest.mark.parametrize("name", list(FORMS))
def test_every_form_and_its_gradients(name: str, dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(3)
    exact, rough = exact_and_rough(name, dtype)
    torch.manual_seed(3)
    out = torch.randn(BATCH, HEADS, TOKENS, DIM, dtype=torch.float64).to(dtype).to(device)
    inputs = [x.to(device).requires_grad_() for x in qkv(dtype)]
    extra = {n: make(dtype).to(device) for n, make in FORMS[name].arguments.items()}
    z = FORMS[name].fast(*inputs, scale=DIM**-0.5, causal=True, **extra)
    got = [z, *torch.autograd.grad(z, inputs, out)]
    for g, e, r in zip(got, exact, rough, strict=True):
        assert g.device == inputs[0].device
        assert_within(g.cpu(), e, budget(e, r))


@pytest.mark.parametrize("dtype", HALF_OR_SINGLE)
def test_a_copy_of_the_own_value_leaves_nothing(dtype: torch.dtype, device: torch.device) -> None:
    """The first causal token: y = v, and exactly 0 behind it; no value, no change."""
    _, _, v = (x.to(device) for x in qkv(dtype, kv_heads=HEADS))
    v = v * torch.logspace(-3, 3, TOKENS, device=device, dtype=dtype)[:, None]
    assert (outward.exclude_self(v, v) == 0).all()
    assert torch.equal(outward.exclude_self(v, torch.zeros_like(v)), v)
    assert not (outward.exclude_self(v, v.flip(2)) == 0).all()


@pytest.mark.parametrize("fixed", [False, True])
def test_decoding_equals_prefill(fixed: bool, device: torch.device) -> None:
    layer = outward.ExclusiveAttention(30, 5, num_kv_heads=5).to(device)
    x = torch.randn(2, 7, 30, device=device)
    cache = outward.KVCache(max_tokens=13 if fixed else None)
    steps = torch.cat([layer(t, cache=cache) for t in x.split(1, dim=1)], dim=1)
    whole = layer(x)
    plain = layer.double()(x.double())
    assert_within(steps, plain, budget(plain, whole))
