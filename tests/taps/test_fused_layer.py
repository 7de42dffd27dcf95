"""nn.TransformerEncoder's fused layer: watched, the plain one runs, which differs by rounding only."""

import torch
from torch import Tensor, nn

from outward.taps.capture import capture
from taps import small
from testing import budget

WIDTH, HEADS = 20, 4  # the fused layer wants an even number of heads


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 22, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def output(model: nn.Module, x: Tensor, *, fused: bool) -> Tensor:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fused)
    try:
        y: Tensor = small.without_gradient(lambda: model(x))
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    return y


def test_watched_it_is_the_plain_layer_to_the_bit() -> None:
    model, x = encoder(), small.x_of(width=WIDTH)
    plain = output(model, x, fused=False)
    with capture(model) as calls:
        watched = output(model, x, fused=True)
    assert watched.equal(plain)
    assert [row.status for row in calls.coverage] == ["captured"] * 2


def test_the_fused_layer_rounds_otherwise_and_no_more() -> None:
    model, x = encoder(), small.x_of(width=WIDTH)
    fused, plain = (output(model, x, fused=way) for way in (True, False))
    exact = output(model.double(), x.double(), fused=False)
    assert not fused.equal(plain)  # or the test above would show nothing
    assert (fused.double() - exact).abs().max() <= budget(exact, plain)
