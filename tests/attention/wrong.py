"""What others have shipped as Exclusive Self Attention and is not. The tests must reject each.

All take q, k, v and are causal.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import outward
from testing import causal_bias, repeated


def _parts(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """P, y and the repeated v."""
    q, k, v = repeated(q, k, v)
    s = q.shape[-1] ** -0.5 * q @ k.mT + causal_bias(q.shape[2], q.dtype)
    P = s.softmax(dim=-1)
    return P, P @ v, v


def flattened_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One coefficient for all heads and tokens of a sample."""
    _, y, v = _parts(q, k, v)
    y1, v1 = y.flatten(1), v.flatten(1)
    return (y1 - (y1 * v1).sum(1, keepdim=True) / (v1 * v1).sum(1, keepdim=True) * v1).view_as(y)


def concatenated_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One coefficient for the heads of a token together."""
    _, y, v = _parts(q, k, v)
    over = (1, 3)
    return y - (y * v).sum(over, keepdim=True) / (v * v).sum(over, keepdim=True) * v


def subtracted_share(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """y_i - v_i / T."""
    _, y, v = _parts(q, k, v)
    return y - v / v.shape[2]


def after_output_projection(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Projected in the hidden space, behind W_O; brought back by the inverse of an orthogonal W_O."""
    _, y, v = _parts(q, k, v)
    y1, v1 = (x.transpose(1, 2).flatten(2) for x in (y, v))
    noise = torch.randn(y1.shape[-1], y1.shape[-1], generator=torch.Generator().manual_seed(1))
    W_O = torch.linalg.qr(noise.double())[0].to(y.dtype)
    out = y1 @ W_O
    v_hat = F.normalize(v1, dim=-1)
    out = out - (out * v_hat).sum(-1, keepdim=True) * v_hat
    return (out @ W_O.mT).unflatten(-1, (y.shape[1], -1)).transpose(1, 2)


def diagonal_only(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """y_i - P_ii v_i: what the token gave itself directly, and nothing of what lies along v_i."""
    P, y, v = _parts(q, k, v)
    return y - P.diagonal(dim1=-2, dim2=-1)[..., None] * v


def mean_subtracted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Off the mean of all values, the future's too."""
    _, y, v = _parts(q, k, v)
    m = F.normalize(v.mean(dim=2, keepdim=True), dim=-1)
    return y - (y * m).sum(-1, keepdim=True) * m


def added_epsilon(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An epsilon added to |v|²: small values keep their bias."""
    _, y, v = _parts(q, k, v)
    return y - (y * v).sum(-1, keepdim=True) / ((v * v).sum(-1, keepdim=True) + 1e-6) * v


def tiled_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Grouped-query heads paired with the wrong value heads: 0 1 2 0 1 2 for 0 0 1 1 2 2."""
    _, y, _ = _parts(q, k, v)
    return outward.exclude_self(y, v.repeat(1, y.shape[1] // v.shape[1], 1, 1))


def normalised_over_tokens(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The wrong axis: v normalised along the sequence."""
    _, y, v = _parts(q, k, v)
    v_hat = F.normalize(v, dim=-2)
    return y - (y * v_hat).sum(-1, keepdim=True) * v_hat


def half_arithmetic(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Computed in bfloat16: one percent of the bias stays."""
    _, y, v = _parts(q, k, v)
    z = outward.exclude_self(y, v)
    v_hat = F.normalize(v.bfloat16(), dim=-1)
    rough = y.bfloat16() - (y.bfloat16() * v_hat).sum(-1, keepdim=True) * v_hat
    return torch.where(z == 0, z, rough.to(z.dtype))


WRONG: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    f.__name__: f
    for f in (
        flattened_heads,
        concatenated_heads,
        subtracted_share,
        after_output_projection,
        diagonal_only,
        mean_subtracted,
        added_epsilon,
        tiled_heads,
        normalised_over_tokens,
        half_arithmetic,
    )
}
