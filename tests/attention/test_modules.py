"""The layers: parameters, options, strengths, and what the optimizer gets."""

import inspect
import math
import pydoc

import pytest
import torch
from torch import Tensor, nn

import outward
from outward.attention.modules import Strength, rotate
from testing import TOKENS, assert_within, rounding

WIDTH, HEADS = 30, 5
BOUND = rounding(terms=3 * TOKENS, size=10.0, dtype=torch.float64)


def hidden(batch: int = 2, tokens: int = TOKENS) -> Tensor:
    return torch.randn(batch, tokens, WIDTH, dtype=torch.float64)


def test_exclusive_layer_is_its_parts() -> None:
    layer = outward.ExclusiveAttention(WIDTH, HEADS, num_kv_heads=1, rotary_base=None).double()
    x = hidden()

    def heads(linear: nn.Linear) -> Tensor:
        return linear(x).unflatten(-1, (-1, 6)).transpose(1, 2)

    q, k, v = heads(layer.query), heads(layer.key), heads(layer.value)
    assert v.shape[1] == 1
    z = outward.exclusive_attention(q, k, v, causal=True)
    assert_within(layer(x), layer.output(z.transpose(1, 2).flatten(2)), BOUND)


def test_forms_without_parameters_share_their_checkpoints() -> None:
    standard = outward.StandardAttention(WIDTH, HEADS).double()
    x = hidden()
    for kind in (outward.ExclusiveAttention, outward.NoSelfAttention, outward.MeanDirectionAttention):
        other = kind(WIDTH, HEADS).double()
        other.load_state_dict(standard.state_dict(), strict=True)
        assert not torch.allclose(other(x), standard(x))


def test_strength_zero_starts_as_standard() -> None:
    standard = outward.StandardAttention(WIDTH, HEADS).double()
    gated = outward.GatedExclusiveAttention(WIDTH, HEADS).double()
    gated.load_state_dict(standard.state_dict(), strict=False)
    x = hidden()
    assert_within(gated(x), standard(x), BOUND)
    gated(x).square().sum().backward()
    assert gated.strength.offset.grad is not None
    assert gated.strength.offset.grad.abs().min() > 0, "it can leave 0 by training"


@pytest.mark.parametrize(
    ("by", "initial"), [("tanh", 0.0), ("tanh", -0.3), ("sigmoid", 0.9), ("raw", 1.0), ("raw", 1.7)]
)
def test_the_initial_strength_is_the_strength(by: str, initial: float) -> None:
    for inputs in (0, WIDTH):
        strength = Strength(HEADS, by=by, initial=initial, inputs=inputs)
        alpha = strength(hidden().float())
        assert alpha.shape == ((HEADS,) if inputs == 0 else (2, HEADS, TOKENS))
        assert torch.allclose(alpha, torch.full_like(alpha, initial), atol=1e-6)


def test_token_dependent_strength_depends_on_the_token() -> None:
    layer = outward.GatedExclusiveAttention(WIDTH, HEADS, per="token").double()
    nn.init.normal_(layer.strength.weight)
    alpha = layer.strength(hidden())
    assert alpha.std(dim=-1).min() > 0.01


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).unbind()
    place = torch.arange(TOKENS)
    turned_q, turned_k = (rotate(x.expand(1, 1, TOKENS, 8), place, 100.0) for x in (q, k))
    scores = (turned_q @ turned_k.mT)[0, 0]
    for i in range(TOKENS - 1):
        assert_within(scores[i + 1, 1:], scores[i, :-1], rounding(terms=8, size=9.0, dtype=q.dtype))
    assert (scores[0] - scores[0, 0]).abs().max() > 0.1
    angle = rotate(torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([1]), 1e4)[0, 0, 0]
    assert torch.allclose(angle, torch.tensor([math.cos(1.0), math.sin(1.0)]))


def test_packed_rows_and_padding() -> None:
    layer = outward.ExclusiveAttention(WIDTH, HEADS, window=4).double()
    x = hidden(batch=1)
    document = torch.tensor([[0] * 4 + [1] * 7])
    separate = torch.cat([layer(x[:, :4]), layer(x[:, 4:])], dim=1)
    assert_within(layer(x, document=document), separate, BOUND)
    assert not torch.allclose(layer(x), separate)
    valid = torch.arange(TOKENS)[None] < 8
    assert_within(layer(x, valid=valid)[:, :8], layer(x[:, :8]), BOUND)


def test_dropout_only_in_training() -> None:
    layer = outward.ExclusiveAttention(WIDTH, HEADS, dropout=0.5).double()
    x = hidden()
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_random_directions_are_fixed_by_their_seed() -> None:
    one, same, other = (outward.RandomDirectionAttention(WIDTH, HEADS, seed=s) for s in (3, 3, 4))
    assert torch.equal(one.direction, same.direction)
    assert not torch.equal(one.direction, other.direction)
    assert "direction" in one.state_dict()
    assert torch.allclose(one.direction.norm(dim=-1), torch.ones(HEADS))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("GatedExclusiveAttention", {"by": "tanh", "initial_strength": 0.5}),
        ("GatedExclusiveAttention", {"by": "sigmoid", "initial_strength": 0.5, "per": "token"}),
        ("RandomDirectionAttention", {}),
        ("ExclusiveAttention", {}),
    ],
)
def test_layers_without_storage(name: str, options: dict[str, object]) -> None:
    """For models too large to be made twice: torch.device("meta")."""
    with torch.device("meta"):
        layer = getattr(outward, name)(WIDTH, HEADS, **options)
    assert {t.device.type for t in (*layer.parameters(), *layer.buffers())} == {"meta"}


@pytest.mark.parametrize("name", [n for n in outward._HOME if n.endswith("Attention")])
def test_help_shows_every_option(name: str) -> None:
    kind = getattr(outward, name)
    if issubclass(kind, nn.MultiheadAttention):
        return
    text = pydoc.plain(pydoc.render_doc(kind))
    assert "**options" not in str(inspect.signature(kind))
    for option in ("num_kv_heads", "head_dim", "causal", "rotary_base", "window", "bias", "dropout"):
        assert option in inspect.signature(kind).parameters
        assert f"{option}: " in text
    kind(WIDTH, HEADS, num_kv_heads=1, window=3)


def model() -> nn.Sequential:
    return nn.Sequential(
        nn.Embedding(13, WIDTH),
        nn.LayerNorm(WIDTH),
        outward.GatedExclusiveAttention(WIDTH, HEADS, per="token", initial_strength=0.5, bias=True),
        outward.GatedExclusiveAttention(WIDTH, HEADS, initial_strength=0.5),
    )


def test_parameter_groups_hold_each_parameter_once() -> None:
    net = model()
    net[1].bias.requires_grad_(False)
    groups = outward.parameter_groups(net, weight_decay=0.1)
    assert {g["name"]: g["weight_decay"] for g in groups} == {
        "decay": 0.1,
        "no_decay": 0.0,
        "strength": 0.0,
    }
    held = [id(p) for g in groups for p in g["params"]]
    assert sorted(held) == sorted(id(p) for p in net.parameters() if p.requires_grad)
    strengths = {n for n, p in net.named_parameters() for q in groups[2]["params"] if p is q}
    assert strengths == {"2.strength.offset", "2.strength.weight", "3.strength.offset"}


def test_weight_decay_leaves_a_strength_alone_and_would_not() -> None:
    """No gradient at all: whatever moves the strength is weight decay."""

    def after(groups: list[dict[str, object]] | None) -> Tensor:
        net = model()
        given = outward.parameter_groups(net, weight_decay=0.5) if groups is None else net.parameters()
        optimizer = torch.optim.AdamW(given, lr=0.1, weight_decay=0.5)
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        for _ in range(20):
            optimizer.step()
        return net[3].strength(hidden().float()).detach()

    assert torch.allclose(after(None), torch.full((HEADS,), 0.5))
    assert (after([]) < 0.25).all(), "without the groups, decay would drive it to 0"
