"""The specification: every form of attention, once, as a reader of the papers would write it.

Plain eager torch, no shortcut, nothing fused, no look at the values; right in whatever precision
it is given, and meant to be read (and run) in float64. The fast code in this room never imports
this file, and this file never imports it: the tests hold one against the other.

Letters, for one head, with tokens i (query) and j (key):

    q_i, k_j, v_j   query, key and value vectors
    s_ij            score: scale * q_i·k_j + bias_ij, where bias_ij = -inf hides key j from query i
    P_ij            softmax of s_ij over j (the papers also write a_ij)
    y_i             sum over j of P_ij v_j: what standard attention returns
    v̂_i             v_i / |v_i|, and 0 where v_i = 0: a token without a value has no direction
    z_i             what the form returns, before the output projection W_O

Query i and key i are the same token. Leading axes (batch, head) are carried along untouched;
under grouped-query attention, repeat the heads of k and v first with `repeat_heads`.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def repeat_heads(
    x: Float[Tensor, "batch kv_head token dim"], group: int
) -> Float[Tensor, "batch head token dim"]:
    """Give each of `group` consecutive query heads its own copy of their shared k or v head."""
    return x.repeat_interleave(group, dim=1)


def weights(
    q: Float[Tensor, "*lead query dim"],
    k: Float[Tensor, "*lead key dim"],
    scale: float,
    bias: Float[Tensor, "*#lead query key"],
) -> Float[Tensor, "*lead query key"]:
    """P_ij = exp(s_ij) / sum_j exp(s_ij); a row that sees no key is all 0."""
    s = scale * q @ k.mT + bias
    sees_nothing = (s == -torch.inf).all(dim=-1, keepdim=True)
    return torch.softmax(s.masked_fill(sees_nothing, 0), dim=-1).masked_fill(sees_nothing, 0)


def standard(
    q: Float[Tensor, "*lead token dim"],
    k: Float[Tensor, "*lead token dim"],
    v: Float[Tensor, "*lead token value_dim"],
    scale: float,
    bias: Float[Tensor, "*#lead token token"],
) -> Float[Tensor, "*lead token value_dim"]:
    """y_i = sum_j P_ij v_j."""
    return weights(q, k, scale, bias) @ v


def unit(v: Float[Tensor, "*lead dim"]) -> Float[Tensor, "*lead dim"]:
    """v̂ = v / |v|, and 0 where v = 0. Divided by its largest entry first: |v|² cannot overflow."""
    largest = v.abs().amax(dim=-1, keepdim=True)
    u = v / torch.where(largest == 0, 1, largest)
    square = u.square().sum(dim=-1, keepdim=True)
    return u / torch.where(square == 0, 1, square).sqrt()


def exclude(y: Float[Tensor, "*lead dim"], v: Float[Tensor, "*lead dim"]) -> Float[Tensor, "*lead dim"]:
    """z = Π y = y - (y·v̂) v̂: what is left of y at right angles to v."""
    v_hat = unit(v)
    return y - (y * v_hat).sum(dim=-1, keepdim=True) * v_hat


def exclusive(
    q: Float[Tensor, "*lead token dim"],
    k: Float[Tensor, "*lead token dim"],
    v: Float[Tensor, "*lead token value_dim"],
    scale: float,
    bias: Float[Tensor, "*#lead token token"],
) -> Float[Tensor, "*lead token value_dim"]:
    """z_i = y_i - (y_i·v̂_i) v̂_i. Exclusive Self Attention: arXiv 2603.09078, eq. 2."""
    return exclude(standard(q, k, v, scale, bias), v)


def gated_exclusive(
    q: Float[Tensor, "*lead token dim"],
    k: Float[Tensor, "*lead token dim"],
    v: Float[Tensor, "*lead token value_dim"],
    scale: float,
    bias: Float[Tensor, "*#lead token token"],
    alpha: Float[Tensor, "*#lead #token"],
) -> Float[Tensor, "*lead token value_dim"]:
    """z_i = y_i - α (y_i·v̂_i) v̂_i, with a strength α for the head, or for each of its tokens."""
    y, v_hat = standard(q, k, v, scale, bias), unit(v)
    return y - alpha[..., None] * (y * v_hat).sum(dim=-1, keepdim=True) * v_hat


def gated(
    q: Float[Tensor, "*lead token dim"],
    k: Float[Tensor, "*lead token dim"],
    v: Float[Tensor, "*lead token value_dim"],
    scale: float,
    bias: Float[Tensor, "*#lead token token"],
    gate: Float[Tensor, "*#lead token #value_dim"],
) -> Float[Tensor, "*lead token value_dim"]:
    """z_i = y_i ⊙ σ(g_i), element by element or one gate for the head. arXiv 2505.06708."""
    return standard(q, k, v, scale, bias) * torch.sigmoid(gate)


def no_self(
    q: Float[Tensor, "*lead token dim"],
    k: Float[Tensor, "*lead token dim"],
    v: Float[Tensor, "*lead token value_dim"],
    scale: float,
    bias: Float[Tensor, "*#lead token token"],
) -> Float[Tensor, "*lead token value_dim"]:
    """Standard attention in which no token sees itself: bias_ii = -inf. Seeing nobody gives 0."""
    itself = torch.eye(q.shape[-2], dtype=torch.bool, device=q.device)
    return standard(q, k, v, scale, bias.masked_fill(itself, -torch.inf))


def random_direction(
    q: Float[Tensor, "*lead token dim"],
    k: Float[Tensor, "*lead token dim"],
    v: Float[Tensor, "*lead token value_dim"],
    scale: float,
    bias: Float[Tensor, "*#lead token token"],
    r: Float[Tensor, "*#lead value_dim"],
) -> Float[Tensor, "*lead token value_dim"]:
    """z_i = y_i - (y_i·r̂) r̂, with a fixed direction r for the head: a placebo."""
    y = standard(q, k, v, scale, bias)
    return exclude(y, r[..., None, :].expand_as(y))


def mean_direction(
    q: Float[Tensor, "*lead token dim"],
    k: Float[Tensor, "*lead token dim"],
    v: Float[Tensor, "*lead token value_dim"],
    scale: float,
    bias: Float[Tensor, "*#lead token token"],
) -> Float[Tensor, "*lead token value_dim"]:
    """z_i = y_i - (y_i·m̂_i) m̂_i, with m_i the mean of the values that token i sees: a placebo."""
    visible = (bias != -torch.inf).to(v.dtype)
    m = visible @ v / visible.sum(dim=-1, keepdim=True).clamp_min(1)
    return exclude(standard(q, k, v, scale, bias), m)
