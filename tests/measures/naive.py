"""Every measure as one would write it from its formula: float64, T x T, loops over tokens."""

import torch
from torch import Tensor

from outward.attention.call import AttentionCall, own_slots, shown
from outward.measures.bias import PER_TOKEN


def naive_weights(call: AttentionCall) -> Tensor:
    """P, sinks taken out of it."""
    if call.weights is not None:
        return call.weights.double()
    assert call.q is not None
    assert call.k is not None
    s = call.scale * call.q.double() @ repeated(call, call.k).mT
    if call.softcap is not None:
        s = call.softcap * (s / call.softcap).tanh()
    if call.mask is not None and call.mask.dtype != torch.bool:
        s = s + call.mask.double()
    seen = shown(call)
    if seen is not None:
        s = s.masked_fill(~seen, -torch.inf)
    if call.sinks is not None:
        sink = call.sinks.double()[:, None, None].expand(*s.shape[:3], 1)
        return torch.cat((s, sink), dim=-1).softmax(dim=-1)[..., :-1]
    return s.softmax(dim=-1).nan_to_num(0)


def repeated(call: AttentionCall, x: Tensor) -> Tensor:
    return x.double().repeat_interleave(call.group, dim=1)


def naive_bias(call: AttentionCall, starts: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """(measure, batch, head, query), NaN where a token does not count; value_similarity (batch, head).

    starts: the slot of the first token of each query's document; the rows have one document each.
    """
    P, v, y = naive_weights(call), repeated(call, call.v), call.y.double()
    batch, heads, queries = y.shape[:3]
    seen = shown(call)
    own = own_slots(call).expand(batch, -1) if call.self_key is not None else None
    out = torch.full((len(PER_TOKEN), batch, heads, queries), torch.nan, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                j = int(own[b, i]) if own is not None else i
                keys = torch.arange(v.shape[2])
                if seen is not None:
                    rows = seen.expand(batch, heads, -1, -1)
                    keys = keys[rows[b, h, i]]
                others = keys[keys != j]
                if len(others) and valid[b, i]:
                    values = one(P[b, h, i], y[b, h, i], v[b, h], j, keys, others, int(starts[b, i]))
                    out[:, b, h, i] = torch.stack(values)
    return out, naive_value_similarity(v, valid, own)


def one(
    P: Tensor, y: Tensor, v: Tensor, j: int, keys: Tensor, others: Tensor, start: int
) -> list[Tensor]:
    cos = torch.nn.functional.cosine_similarity
    zero = torch.zeros((), dtype=torch.float64)
    itself = cos(y, v[j], dim=0)
    null = cos(y[None], v[others], dim=1).mean()
    self_part = P[j] * v[j].norm() / y.norm()
    mean_other = v[others].mean(dim=0)
    common = (1 - P[j]) * (mean_other @ v[j]) / v[j].norm() / y.norm()
    m = v[keys].mean(dim=0)
    centred = cos(y - m, v[j] - m, dim=0) if len(keys) > 2 else zero * torch.nan
    previous = P[j - 1] if j - 1 in keys.tolist() and j > start else zero
    return [
        P[j],
        P[j] * len(keys),
        itself,
        null,
        itself - null,
        self_part,
        common,
        itself - self_part - common,
        itself - self_part,
        centred,
        itself**2,
        P[start],
        previous,
    ]


def naive_value_similarity(v: Tensor, valid: Tensor, own: Tensor | None) -> Tensor:
    out = torch.full(v.shape[:2], torch.nan, dtype=torch.float64)
    for b in range(len(v)):
        at = torch.arange(v.shape[2]) if own is None else own[b]
        x = torch.nn.functional.normalize(v[b][:, at[valid[b]]], dim=-1)
        G = x @ x.mT
        T = G.shape[-1]
        out[b] = (G.sum((1, 2)) - T) / (T * (T - 1))
    return out
