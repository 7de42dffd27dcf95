"""The entropy of attention against the naive one, inside real transformers models."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from measures.naive import naive_entropy, naive_weights
from measures.test_bias import BATCH, MODELS, PADDING, TOKENS, calls_of, llama
from outward.attention.call import AttentionCall, scores
from outward.attention.visible import visible
from outward.measures import optional
from outward.measures.optional import entropy
from testing import budget

EPS = torch.finfo(torch.float32).eps


def as_captured(call: AttentionCall) -> AttentionCall:
    return call


def without_weights(call: AttentionCall) -> AttentionCall:
    return call if call.q is None else replace(call, weights=None)


def by_weights_alone(call: AttentionCall) -> AttentionCall:
    weights = naive_weights(call).float()
    return replace(call, q=None, k=None, lse=None, mask=shape_of(call), weights=weights)


def shape_of(call: AttentionCall) -> Tensor | None:
    """What is seen, without how much."""
    if call.mask is None or call.mask.dtype == torch.bool:
        return call.mask
    return (call.mask > -1e8).any(dim=1, keepdim=True)


WAYS = {"captured": as_captured, "no weights": without_weights, "weights alone": by_weights_alone}


@cache
def seen_in(name: str, padding: str) -> tuple[list[AttentionCall], Tensor]:
    return calls_of(MODELS[name](), padding)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", MODELS)
def test_entropy_is_that_of_the_weights(name: str, padding: str, way: str) -> None:
    calls, _ = seen_in(name, padding)
    assert len(calls) == 2
    for call in calls:
        known = WAYS[way](call)
        assert_entropy(entropy(known), known)


def assert_entropy(found: Tensor, call: AttentionCall) -> None:
    """The bound: what rounding does to it plainly, and, as a difference of a log-sum-exp and a mean
    score, two roundings of each of numbers as large as the scores.
    """
    kept = visible(call).has_others[:, None]
    exact = torch.where(kept, naive_entropy(call), 0)
    rough = torch.where(kept, naive_entropy(call, torch.float32), 0)
    size = 0.0
    if call.q is not None:
        s = scores(call, slice(None), torch.float64)
        size = s.masked_fill(s == -torch.inf, 0).abs().max().item()
    error = (torch.where(kept, found.double(), 0) - exact).abs().max().item()
    allowed = budget(exact, rough) + 4 * EPS * size
    assert error <= allowed, f"off by {error:.1e} nats, allowed {allowed:.1e}"


def with_its_sink(call: AttentionCall) -> Tensor:
    P = naive_weights(call)
    rest = (1 - P.sum(dim=-1)).clamp_min(1e-12)
    return naive_entropy(call) - rest * rest.log()


WRONG: dict[str, tuple[str, Callable[[AttentionCall], Tensor]]] = {
    "in bits": ("llama, sdpa", lambda c: entropy(c) / torch.log(torch.tensor(2.0))),
    "the mask forgotten": ("llama, sdpa", lambda c: entropy(replace(c, mask=None, causal=False))),
    "another scale": ("llama, sdpa", lambda c: entropy(replace(c, scale=c.scale * 1.001))),
    "the softcap forgotten": (
        "gemma2, softcap and window",
        lambda c: entropy(replace(c, softcap=None, weights=None, lse=None)),
    ),
    "sinks left out of the normalisation": (
        "gpt-oss, sinks and window",
        lambda c: entropy(replace(c, sinks=None, weights=None, lse=None)),
    ),
    "the sink as one more key": ("gpt-oss, sinks and window", with_its_sink),
    "the bias forgotten": (
        "t5, relative bias",
        lambda c: entropy(replace(c, mask=shape_of(c), weights=None, lse=None)),
    ),
    "heads in another order": ("gpt2, eager", lambda c: entropy(c).flip(1)),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_entropy_is_noticed(mistake: str) -> None:
    name, wrong = WRONG[mistake]
    calls, _ = seen_in(name, "right")
    call = without_weights(calls[1])
    assert_entropy(entropy(call), call)
    with pytest.raises(AssertionError, match="nats"):
        assert_entropy(wrong(call), call)


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", ["llama, sdpa", "bert", "mistral, window"])
def test_both_roads_to_the_entropy_agree(
    name: str, padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, _ = seen_in(name, padding)
    call = calls[1]
    assert optional._is_plain(call)
    monkeypatch.setattr(optional, "BLOCK", BATCH * call.y.shape[1] * TOKENS * 3)  # blocks of 3 queries
    for lse in (call.lse, None):
        assert_entropy(optional._by_blocks(replace(call, lse=lse)), call)
    assert_entropy(optional._by_flash(call), call)
    monkeypatch.setattr(optional, "_weights", lambda call, rows: naive_weights(call)[:, :, :3].float())
    with pytest.raises((AssertionError, RuntimeError)):
        assert_entropy(optional._by_blocks(call), call)


@pytest.mark.parametrize("kind", ["softcap", "sinks", "weights", "additive mask", "decoding"])
def test_the_short_road_is_for_plain_scores_only(kind: str) -> None:
    calls, _ = seen_in("llama, sdpa", "none")
    call = calls[0]
    assert optional._is_plain(call)
    others: dict[str, dict[str, Any]] = {
        "softcap": {"softcap": 2.0},
        "sinks": {"sinks": torch.zeros(call.y.shape[1])},
        "weights": {"weights": naive_weights(call).float()},
        "additive mask": {"mask": torch.zeros(1, 1, TOKENS, TOKENS)},
        "decoding": {"self_key": torch.arange(TOKENS).flip(0), "causal": True},
    }
    assert not optional._is_plain(replace(call, **others[kind]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_entropy_of_other_types_is_computed_wide(dtype: torch.dtype) -> None:
    """Half types are widened, not rounded on the way: the float32 bound holds."""
    model = llama("sdpa").to(dtype)
    calls, _ = calls_of(model, "right")
    call = calls[1]
    assert entropy(call).dtype == torch.promote_types(dtype, torch.float32)
    assert_entropy(entropy(call), call)
    if dtype != torch.float64:
        with pytest.raises(AssertionError, match="nats"):
            assert_entropy(entropy(call).to(dtype), call)


def test_a_query_that_sees_no_key_has_none() -> None:
    calls, _ = seen_in("llama, sdpa", "none")
    seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    seen[4] = False
    call = replace(calls[0], mask=seen[None, None], causal=False, lse=None)
    for road in (optional._by_flash, optional._by_blocks):
        assert (road(call).clamp_min(0)[:, :, 4] == 0).all()
        assert (road(call)[:, :, 5:] > 0).any()
    assert (entropy(call)[:, :, 4] == 0).all()
