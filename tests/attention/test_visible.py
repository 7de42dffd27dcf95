"""Which additive masks hide, and which are biases, where it is counted what a token sees."""

import pytest
import torch
from torch import Tensor

import outward
from outward.attention import visible as visibles
from outward.attention.call import AttentionCall
from outward.attention.visible import Visible, visible

BATCH, HEADS, TOKENS, DIM = 2, 3, 11, 7


def seen(mask: Tensor) -> Visible:
    v = torch.ones(BATCH, HEADS, TOKENS, DIM)
    return visible(AttentionCall(layer=0, module="m", tier="torch", v=v, y=v, mask=mask))


def low(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """The sum of a causal mask, and of two tokens of padding, each of 0 and its value."""
    past = torch.ones(TOKENS, TOKENS).tril().bool()
    padding = (torch.arange(TOKENS) < TOKENS - 2).expand(TOKENS, -1)
    masks = [torch.zeros(TOKENS, TOKENS, dtype=torch.float64)]
    masks += [(~x).double() * value for x, value in zip((past, padding), values, strict=False)]
    return sum(masks, torch.zeros(())).to(dtype)[None, None]


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("value", [-1e3, -1e4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_of_two_values_hide(value: float, dtype: torch.dtype) -> None:
    counts = torch.arange(TOKENS) + 1
    assert torch.equal(seen(low(value, dtype=dtype)).count[0], counts)
    both = seen(low(value, value, dtype=dtype))
    expected = counts.clamp_max(TOKENS - 2) * both.valid[0]
    assert torch.equal(both.count[0], expected)
    assert both.valid[0].tolist() == [True] * (TOKENS - 2) + [False] * 2


def test_beside_what_hides_in_any_case_too() -> None:
    mask = low(-1e4)
    mask[..., 0] = -torch.inf
    assert torch.equal(seen(mask).count[0, 1:], torch.arange(TOKENS)[1:])


def alibi(slope: float) -> Tensor:
    at = torch.arange(TOKENS)
    return -slope * (at[:, None] - at).abs().float()[None, None]


BIASES = {
    "ALiBi": alibi(0.5),
    "ALiBi, steep": alibi(1e3),
    "two small values": low(-999.0),
    "a third value": low(-1e4, -3e4),
    "relative": torch.randn(1, 1, TOKENS, TOKENS, generator=torch.Generator().manual_seed(1)) - 2e3,
}


@pytest.mark.parametrize("name", BIASES)
def test_biases_stay_biases(name: str) -> None:
    assert (seen(BIASES[name]).count == TOKENS).all()


def test_without_the_rule_all_keys_would_be_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visibles, "hides_by_two_values", lambda mask: False)
    assert (seen(low(-1e4)).count == TOKENS).all()


def test_the_forms_add_what_they_are_given() -> None:
    """There a mask of -1e4 is a bias: of a row that has nothing else, a softmax sees no difference."""
    q = torch.randn(BATCH, HEADS, TOKENS, DIM, generator=torch.Generator().manual_seed(2)).double()
    mask = torch.full((1, 1, 1, TOKENS), -1e4, dtype=torch.float64)
    off = outward.standard_attention(q, q, q, mask=mask) - outward.standard_attention(q, q, q)
    eps = torch.finfo(torch.float64).eps  # each score is rounded to 1e4 eps / 2; both ends of a ratio
    assert off.abs().max() <= 2 * 1e4 * eps * q.abs().max()
