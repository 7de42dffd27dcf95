"""Single attention weights, P_ij for one j per query, without the T x T matrix.

P_ij = exp(s_ij - lse_i): one dot product per query, given the log-sum-exp of its row. The fused
kernels know it; where nobody kept it, it is computed again, exactly, in blocks of queries.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outward.attention.call import AttentionCall, log_sum_exp, scores
from outward.attention.visible import Visible

BLOCK = 2**22
"""Scores at a time where the log-sum-exp must be made: 16 MiB in float32."""


def row_lse(call: AttentionCall) -> Float[Tensor, "batch head query"]:
    """The log-sum-exp of each row, sinks included."""
    if call.lse is not None:
        return call.lse
    rows = call.y.shape[0] * call.y.shape[1] * call.v.shape[2]
    step = max(1, BLOCK // max(rows, 1))
    dtype = torch.promote_types(call.y.dtype, torch.float32)
    starts = range(0, call.y.shape[2], step)
    parts = [
        log_sum_exp(scores(call, slice(i, min(i + step, call.y.shape[2])), dtype), call.sinks)
        for i in starts
    ]
    return torch.cat(parts, dim=2)


def weights_at(
    call: AttentionCall,
    see: Visible,
    slots: Int[Tensor, "rows query"],
    lse: Float[Tensor, "batch head query"] | None,
) -> Float[Tensor, "batch head query"]:
    """P_ij at j = slots_i; 0 where the query does not see that key, or there is none (-1)."""
    keys = call.v.shape[2]
    inside = slots.clamp(0, keys - 1)
    if call.weights is not None:
        index = inside[:, None, :, None].expand(*call.weights.shape[:3], 1)
        found = call.weights.gather(3, index)[..., 0]
        found = found.to(torch.promote_types(found.dtype, torch.float32))
    else:
        assert lse is not None
        found = (_scores_at(call, inside) - lse).exp()
    return torch.where(_is_seen(see, slots)[:, None], found, 0)


def _is_seen(see: Visible, slots: Tensor) -> Tensor:
    seen = (slots >= see.first) & (slots < see.end)
    if see.mask is None:
        return seen
    index = slots.clamp_min(0)[:, None, :, None]
    rows = max(len(see.mask), len(slots))
    at = see.mask.expand(rows, -1, -1, -1).gather(3, index.expand(rows, -1, -1, -1))
    return seen & at[:, 0, :, 0]


def _scores_at(call: AttentionCall, slots: Tensor) -> Tensor:
    s = call.scale * _dots_at(call, slots)
    if call.softcap is not None:
        s = call.softcap * torch.tanh(s / call.softcap)
    if call.mask is not None and call.mask.dtype != torch.bool:
        full = call.mask.expand(-1, -1, slots.shape[1], call.v.shape[2])
        rows = max(len(full), len(slots))
        index = slots[:, None, :, None].expand(rows, full.shape[1], -1, 1)
        s = s + full.expand(rows, -1, -1, -1).gather(3, index)[..., 0].to(s.dtype)
    return s


def _dots_at(call: AttentionCall, slots: Tensor) -> Tensor:
    """q_i · k_slot, with k taken by views where slots are in order."""
    assert call.q is not None
    assert call.k is not None
    pairs = call.q.unflatten(1, (call.k.shape[1], -1))
    k = call.k.unsqueeze(2)
    if len(slots) == 1 and bool((slots[0] == slots[0, 0]).all()):
        j = int(slots[0, 0])
        return _dot(pairs, k[:, :, :, j : j + 1]).flatten(1, 2)
    if len(slots) == 1 and slots.shape[1] > 1 and _in_order(slots[0, 1:]):  # the first may be cut off
        j, n = int(slots[0, 1]), slots.shape[1] - 1
        i = int(slots[0, 0])
        first = _dot(pairs[:, :, :, :1], k[:, :, :, i : i + 1])
        return torch.cat((first, _dot(pairs[:, :, :, 1:], k[:, :, :, j : j + n])), dim=3).flatten(1, 2)
    index = slots[:, None, None, :, None].expand(len(k), k.shape[1], 1, -1, k.shape[4])
    return _dot(pairs, k.gather(3, index)).flatten(1, 2)


def _in_order(slots: Tensor) -> bool:
    return bool((slots.diff() == 1).all())


def _dot(a: Tensor, b: Tensor) -> Tensor:
    wide = torch.promote_types(a.dtype, torch.float32)
    return (a.to(wide) * b.to(wide)).sum(dim=-1)
