"""Similarity without a direction, against all pairs one by one, inside real transformers models."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from measures.naive import naive_orthogonal
from measures.test_bias import BATCH, MODELS, PADDING, TOKENS, VOCABULARY, llama
from measures.test_entropy import assert_entropy, seen_in
from outward.attention.call import AttentionCall
from outward.attention.exclusive import exclude_self
from outward.attention.inputs import own_values
from outward.attention.visible import visible
from outward.measures import optional
from outward.measures.bias import bias
from outward.measures.optional import (
    FLOOR,
    OPTIONAL,
    REQUESTS,
    entropy,
    extra,
    orthogonal,
    references,
    requests_for,
)
from outward.taps.capture import capture
from testing import rounding

NAMES = REQUESTS["orthogonal_similarity"]


def documents_of(valid: Tensor) -> Tensor:
    return torch.where(valid, 0, -1)


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", MODELS)
def test_similarities_are_those_of_all_pairs(name: str, padding: str) -> None:
    calls, valid = seen_in(name, padding)
    for call in calls:
        found = stacked(call)
        last = found.shape[3] - 1  # left padding: tokens before are no document
        assert_pairs(found[..., last:], naive_orthogonal(call, documents_of(valid)), call)


def stacked(call: AttentionCall) -> Tensor:
    found = orthogonal(call, bias(call))
    assert tuple(found) == NAMES
    return torch.stack(list(found.values()))


def assert_pairs(found: Tensor, exact: Tensor, call: AttentionCall) -> None:
    """The first two are made in float64, of vectors divided by no less than FLOOR, squared. z is in
    float32, known to 2 d eps |y|, and divided by |z|: twice the mean of that, as a pair has two. The
    last is of a mean over pairs in float32, with a slope of up to 4 (ρ is -1/2 or more).
    """
    assert torch.equal(found.isnan(), exact.isnan())
    assert (~exact.isnan()).any()
    wide = FLOOR**-2 * torch.finfo(torch.float64).eps
    z = exclude_self(call.y.double(), own_values(call.v, call.self_key).double())
    y_size, z_size = call.y.double().norm(dim=-1), z.norm(dim=-1)
    valid = visible(call).valid.expand(len(z), -1)[:, None].expand(z_size.shape)
    condition = torch.where(z_size > FLOOR * y_size, y_size / z_size, 0)[valid].mean().item()
    allowed = (wide, wide, 2 * rounding(terms=z.shape[3], size=condition, dtype=torch.float32))
    for n, (name, bound) in enumerate(zip(NAMES, (*allowed, 4e-6), strict=True)):
        error = (found[n] - exact[n]).nan_to_num(0).abs().max().item()
        assert error <= bound, f"{name} is off by {error:.1e}, allowed {bound:.1e}"


def whole_rows(*_: Any) -> Any:
    return iter([(b, 0, torch.arange(TOKENS)) for b in range(BATCH)])


def values_of_others(y: Tensor, v: Tensor) -> Tensor:
    return exclude_self(y, v.roll(1, dims=2))


MISTAKES: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "padding counts": ("orthogonal", "_documents", whole_rows),
    "one reference": ("orthogonal", "references", lambda n: torch.tensor([0])),
    "nothing is taken out of y": ("exclusive", "exclude_self", lambda y, v: y),
    "the value of another is taken out of y": ("exclusive", "exclude_self", values_of_others),
    "everything is counted as a pair with itself, too": (
        "orthogonal",
        "_mean_over_pairs",
        lambda total, directed, counted: total.square().sum(dim=-1) / counted**2,
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_similarity_is_noticed(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, *change = MISTAKES[mistake]
    calls, valid = seen_in("llama, sdpa", "right")
    exact = naive_orthogonal(calls[1], documents_of(valid))
    assert_pairs(stacked(calls[1]), exact, calls[1])
    monkeypatch.setattr(optional, *change)
    with pytest.raises(AssertionError, match=f"{name}_similarity is off"):
        assert_pairs(stacked(calls[1]), exact, calls[1])


# ---- rows of several documents, long ones, repeated tokens


LENGTHS = (5, 11, 2, 19)


def packed() -> tuple[list[AttentionCall], Tensor]:
    """A row of four documents, told apart by their positions, as transformers does it."""
    total = sum(LENGTHS)
    ids = torch.randint(3, VOCABULARY, (1, total), generator=torch.Generator().manual_seed(2))
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    with torch.no_grad(), capture(llama("sdpa")) as calls:
        calls.model(input_ids=ids, position_ids=positions, use_cache=False)
    documents = torch.cat([torch.full((n,), i) for i, n in enumerate(LENGTHS)])[None]
    return list(calls), documents


def test_documents_of_a_packed_row_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, documents = packed()
    for call in calls:
        exact = naive_orthogonal(call, documents)
        assert exact.isnan().any(dim=(0, 1, 2)).tolist() == [False, False, True, False]
        assert_pairs(stacked(call), exact, call)
        assert_entropy(entropy(call), call)
    whole = naive_orthogonal(call, torch.zeros_like(documents)).expand(-1, -1, -1, len(LENGTHS))
    with pytest.raises(AssertionError, match="is off"):
        assert_pairs(stacked(call), whole.where(~exact.isnan(), torch.nan), call)


def test_references_are_evenly_spaced_and_the_same_every_time() -> None:
    assert references(13).tolist() == list(range(13))
    assert references(16).tolist() == list(range(16))
    assert references(160).tolist() == list(range(5, 160, 10))
    for many in (17, 37, 1000):
        steps = references(many).diff()
        assert len(references(many)) == 16
        assert steps.min() >= 1
        assert steps.max() - steps.min() <= 1


def synthetic(v: Tensor, y: Tensor) -> AttentionCall:
    return AttentionCall(0, "made", "none", v=v, y=y, q=y, k=v, causal=True)


def random_call(tokens: int) -> AttentionCall:
    generator = torch.Generator().manual_seed(6)
    v = torch.randn(BATCH, 3, tokens, 7, generator=generator) + 0.7
    y = torch.randn(BATCH, 6, tokens, 7, generator=generator) + 0.3
    y[:, :, 0] = v[:, :, 0].repeat_interleave(2, dim=1)
    return synthetic(v, y)


@pytest.mark.parametrize("tokens", [3, 16, 17, 41])
def test_any_length(tokens: int) -> None:
    call = random_call(tokens)
    exact = naive_orthogonal(call, torch.zeros(BATCH, tokens, dtype=torch.long))
    assert_pairs(stacked(call), exact, call)


def test_two_tokens_say_nothing() -> None:
    assert stacked(random_call(2)).isnan().all()
    assert not stacked(random_call(3)).isnan().any()


def repeats() -> AttentionCall:
    """A value that comes again and again, at other lengths, and one that is 0; a y that is 0, and one
    along its own value.
    """
    call = random_call(23)
    call.v[:, :, 5:9] = call.v[:, :, 4:5] * torch.tensor([1.0, 3.0, -0.3, 1e-3])[:, None]
    call.v[:, :, 11] = 0
    call.y[:, :, 13] = 0
    call.y[:, :, 14] = call.v[:, :, 14].repeat_interleave(2, dim=1) * 0.3
    return call


def test_what_is_all_along_the_direction_has_none_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that repeat, as those of repeated tokens do in a first layer, are no noise of rounding."""
    call = repeats()
    exact = naive_orthogonal(call, torch.zeros(BATCH, 23, dtype=torch.long))
    found = stacked(call)
    assert_three(found, exact, call)
    monkeypatch.setattr(optional, "FLOOR", 0.0)
    with pytest.raises(AssertionError):  # infinite shares, or the noise of rounding as directions
        assert_three(stacked(call), exact, call)


def test_what_has_no_direction_stays_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    call = repeats()
    exact = naive_orthogonal(call, torch.zeros(BATCH, 23, dtype=torch.long))
    right = optional._mean_over_pairs
    for wrong in (
        lambda total, directed, counted: right(total, counted, counted),  # a cosine of 1 with itself
        lambda total, directed, counted: right(total, directed, directed),  # left out
    ):
        monkeypatch.setattr(optional, "_mean_over_pairs", wrong)
        with pytest.raises(AssertionError, match="orthogonal_similarity is off"):
            assert_three(stacked(call), exact, call)


def assert_three(found: Tensor, exact: Tensor, call: AttentionCall) -> None:
    """But for the one that is made of value_similarity."""
    assert_pairs(torch.cat((found[:3], exact[3:])), exact, call)


def test_equal_correlation_gives_what_it_says() -> None:
    """Of values with the same cosine everywhere, taking one out leaves ρ / (1 + ρ)."""
    common = torch.full((9, 1), 0.8)
    v = torch.cat((torch.eye(9), common), dim=1).expand(BATCH, 3, -1, -1).contiguous()
    found = dict(zip(NAMES, stacked(synthetic(v, torch.randn(BATCH, 6, 9, 10))), strict=True))
    rho = 0.64 / 1.64
    bound = rounding(terms=10, size=1, dtype=torch.float32)
    assert (found["orthogonal_similarity"] - rho / (1 + rho)).abs().max() < bound
    assert (found["equicorrelated_similarity"] - rho / (1 + rho)).abs().max() < bound
    assert (found["mean_removed_similarity"] - rho / (1 + rho)).abs().min() > bound


def test_sizes_of_values_make_no_difference_but_to_their_mean() -> None:
    call = random_call(19)
    size = 2.0 ** (torch.arange(19) * 5 % 41 - 20)[:, None]  # powers of two round nothing
    change = (stacked(replace(call, v=call.v * size)) - stacked(call)).abs().amax(dim=(1, 2, 3))
    bound = FLOOR**-2 * torch.finfo(torch.float64).eps
    assert change[NAMES.index("orthogonal_similarity")] < bound
    assert change[NAMES.index("exclusive_similarity")] < rounding(terms=7, size=1, dtype=torch.float32)
    assert change[NAMES.index("mean_removed_similarity")] > 1e-3


# ---- requests


def test_a_request_brings_its_measures_and_no_others() -> None:
    calls, _ = seen_in("llama, sdpa", "none")
    measured = bias(calls[0])
    nothing = extra(calls[0], measured, ())
    assert (nothing.tokens, nothing.pairs) == ({}, {})
    one = extra(calls[0], measured, ("entropy",))
    assert (tuple(one.tokens), one.pairs) == (("entropy",), {})
    both = extra(calls[0], measured, requests_for(OPTIONAL))
    assert (*both.tokens, *both.pairs) == OPTIONAL


def test_any_of_its_measures_asks_for_a_request() -> None:
    assert requests_for(["self_weight"]) == ()
    assert requests_for(["mean_removed_similarity", "self_weight"]) == ("orthogonal_similarity",)
    assert requests_for(["orthogonal_similarity", "entropy"]) == ("entropy", "orthogonal_similarity")
