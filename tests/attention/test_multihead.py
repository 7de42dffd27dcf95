"""The drop-in: torch's own parameters and call, with the output made exclusive."""

import pytest
import torch
from torch import Tensor, nn

import outward
from testing import TOKENS, assert_within, rounding

WIDTH, HEADS = 30, 5
BOUND = rounding(terms=3 * TOKENS, size=10.0, dtype=torch.float64)
CONFIGURATIONS = [
    {},
    {"bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"vdim": 14},
    {"batch_first": True},
]
EVERY_CONFIGURATION = pytest.mark.parametrize(
    "options", CONFIGURATIONS, ids=lambda o: ", ".join(o) or "plain"
)


def pair(**options: object) -> tuple[nn.MultiheadAttention, outward.ExclusiveMultiheadAttention]:
    """The original and the drop-in, with the same random parameters."""
    original = nn.MultiheadAttention(WIDTH, HEADS, **options).double().eval()
    for p in original.parameters():
        nn.init.normal_(p, std=0.3)
    drop_in = outward.ExclusiveMultiheadAttention(WIDTH, HEADS, **options).double().eval()
    drop_in.load_state_dict(original.state_dict(), strict=True)
    return original, drop_in


def hidden(width: int = WIDTH) -> Tensor:
    return torch.randn(2, TOKENS, width, dtype=torch.float64)


def masks() -> dict[str, dict[str, object]]:
    later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    padded = torch.zeros(2, TOKENS, dtype=torch.bool)
    padded[1, 7:] = True
    by_head = torch.rand(2 * HEADS, TOKENS, TOKENS) < 0.3
    by_head.diagonal(dim1=1, dim2=2).fill_(False)
    added = torch.randn(TOKENS, TOKENS, dtype=torch.float64)
    return {
        "none": {},
        "causal": {"attn_mask": later},
        "hinted": {"attn_mask": later, "is_causal": True},
        "padded": {"key_padding_mask": padded},
        "both": {"attn_mask": later, "key_padding_mask": padded},
        "by head": {"attn_mask": by_head},
        "added": {"attn_mask": added},
    }


@EVERY_CONFIGURATION
def test_state_dicts_load_both_ways(options: dict[str, object]) -> None:
    original, drop_in = pair(**options)
    original.load_state_dict(drop_in.state_dict(), strict=True)
    assert isinstance(drop_in, nn.MultiheadAttention)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        original.load_state_dict({**drop_in.state_dict(), "strength": torch.zeros(1)}, strict=True)


@EVERY_CONFIGURATION
@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize("need_weights", [True, False])
def test_without_exclusion_it_is_the_original(
    options: dict[str, object], mask: str, need_weights: bool
) -> None:
    """At strength 0: outputs and weights of torch, under every mask that torch takes."""
    original, drop_in = pair(**options)
    drop_in.strength = 0.0
    added_keys = any(o.startswith("add_") for o in options)
    x, value = hidden(), hidden(options.get("vdim", WIDTH))
    if not options.get("batch_first"):
        x, value = x.transpose(0, 1), value.transpose(0, 1)
    call = {"need_weights": need_weights, **masks()[mask]}
    if mask == "hinted" and not need_weights and added_keys:
        # torch hides the added keys there, and only there: a hint that changes the result
        with pytest.raises(ValueError, match="the added keys come last"):
            drop_in(x, x, value, **call)
        return
    (want, want_weights), (got, weights) = (m(x, x, value, **call) for m in (original, drop_in))
    assert_within(got, want, BOUND)
    if need_weights:
        assert_within(weights, want_weights, BOUND)
    else:
        assert weights is None


@EVERY_CONFIGURATION
def test_the_output_per_head_is_exclusive(options: dict[str, object]) -> None:
    """With W_O the identity, each head's slice of the output is at right angles to its value."""
    original, drop_in = pair(**options)
    for m in (original, drop_in):
        m.out_proj.weight.data = torch.eye(WIDTH, dtype=torch.float64)
        if m.out_proj.bias is not None:
            nn.init.zeros_(m.out_proj.bias)
    x = hidden()
    value = hidden(options["vdim"]) if "vdim" in options else x
    weight = drop_in.v_proj_weight if "vdim" in options else drop_in.in_proj_weight[-WIDTH:]
    bias = None if drop_in.in_proj_bias is None else drop_in.in_proj_bias[-WIDTH:]
    v = nn.functional.linear(value, weight, bias).unflatten(-1, (HEADS, -1))

    def turned(t: Tensor) -> Tensor:
        return t if options.get("batch_first") else t.transpose(0, 1)

    given, other = turned(x), turned(value)
    for need_weights in (True, False):
        z, y = (m(given, given, other, need_weights=need_weights)[0] for m in (drop_in, original))
        z, y = (turned(t).unflatten(-1, (HEADS, -1)) for t in (z, y))
        assert (z * v).sum(dim=-1).abs().max() < BOUND
        assert torch.cosine_similarity(y, v, dim=-1).abs().max() > 0.1


def test_unbatched_and_averaged() -> None:
    original, drop_in = pair()
    drop_in.strength = 0.0
    x = hidden()[0]
    for average in (True, False):
        want, got = (m(x, x, x, average_attn_weights=average) for m in (original, drop_in))
        assert_within(got[0], want[0], BOUND)
        assert_within(got[1], want[1], BOUND)


def test_a_token_that_sees_nothing_gets_the_bias_alone() -> None:
    _, drop_in = pair(batch_first=True)
    x, mask = hidden(), torch.zeros(TOKENS, TOKENS, dtype=torch.bool)
    mask[3] = True
    for need_weights in (True, False):
        out, _ = drop_in(x, x, x, attn_mask=mask, need_weights=need_weights)
        assert_within(out[:, 3], drop_in.out_proj.bias.expand(2, -1), BOUND)


@pytest.mark.parametrize("value", [-torch.inf, torch.finfo(torch.float64).min, -1e9])
def test_weights_asked_for_or_not_the_result_is_one(value: float) -> None:
    """Rows that see nothing too, whichever number hides."""
    _, drop_in = pair(batch_first=True)
    x = hidden()
    later = torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    later = later.masked_fill(torch.ones(TOKENS, TOKENS).triu(1) > 0, value)
    padding = torch.zeros(2, TOKENS, dtype=torch.float64)
    padding[1, :3] = value
    call = {"attn_mask": later, "key_padding_mask": padding}
    with_weights, weights = drop_in(x, x, x, **call)
    without, _ = drop_in(x, x, x, need_weights=False, **call)
    assert_within(without, with_weights, BOUND)
    assert not weights[1, :3].any()
    assert_within(with_weights[1, :3], drop_in.out_proj.bias.expand(3, -1), BOUND)


@pytest.mark.parametrize("shape", [(), (HEADS,)])
def test_a_strength_that_learns(shape: tuple[int, ...]) -> None:
    original, drop_in = pair()
    drop_in.strength = nn.Parameter(torch.full(shape, 0.5, dtype=torch.float64))
    assert set(drop_in.state_dict()) - set(original.state_dict()) == {"strength"}
    x = hidden()
    drop_in(x, x, x)[0].square().sum().backward()
    assert drop_in.strength.grad is not None
    assert drop_in.strength.grad.all()


@EVERY_CONFIGURATION
def test_parameters_may_be_drawn_again(options: dict[str, object]) -> None:
    """As by initialisers of models; the fast path of torch's encoder stays shut."""
    _, drop_in = pair(**options)
    before = {n: p.detach().clone() for n, p in drop_in.named_parameters()}
    drop_in._reset_parameters()
    name = "v_proj_weight" if "vdim" in options else "in_proj_weight"
    assert not torch.equal(getattr(drop_in, name), before[name])
    assert not drop_in._qkv_same_embed_dim


@pytest.mark.parametrize("padded", [False, True])
def test_inside_an_encoder_inference_takes_no_other_road(padded: bool) -> None:
    """nn.TransformerEncoderLayer in eval mode bypasses attention modules that look like torch's."""
    layer = nn.TransformerEncoderLayer(WIDTH, 6, batch_first=True, dropout=0.0).double()
    layer.self_attn = outward.ExclusiveMultiheadAttention(WIDTH, 6, batch_first=True).double()
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    mask = torch.arange(TOKENS)[None] >= torch.tensor([[TOKENS], [7]]) if padded else None
    x = hidden()
    training = encoder(x, src_key_padding_mask=mask)
    encoder.eval()
    with torch.no_grad():
        inference = encoder(x, src_key_padding_mask=mask)
    seen = torch.ones(2, TOKENS, dtype=torch.bool) if mask is None else ~mask
    assert_within(inference[seen], training[seen], BOUND)
    for part in encoder.layers:
        part.self_attn.strength = 0.0
    with torch.no_grad():
        assert not torch.allclose(encoder(x, src_key_padding_mask=mask)[seen], inference[seen])
