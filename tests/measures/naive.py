"""Every measure as one would write it from its formula: float64, T x T, loops over tokens."""

import torch
from torch import Tensor

from outward.attention.call import AttentionCall, own_slots, shown
from outward.measures.bias import PER_TOKEN
from outward.measures.optional import FLOOR, REFERENCES


def naive_weights(call: AttentionCall, dtype: torch.dtype = torch.float64) -> Tensor:
    """P, sinks taken out of it."""
    if call.weights is not None:
        return call.weights.to(dtype)
    assert call.q is not None
    assert call.k is not None
    s = call.scale * call.q.to(dtype) @ repeated(call, call.k, dtype).mT
    if call.softcap is not None:
        s = call.softcap * (s / call.softcap).tanh()
    if call.mask is not None and call.mask.dtype != torch.bool:
        s = s + call.mask.to(dtype)
    seen = shown(call)
    if seen is not None:
        s = s.masked_fill(~seen, -torch.inf)
    if call.sinks is not None:
        sink = call.sinks.to(dtype)[:, None, None].expand(*s.shape[:3], 1)
        return torch.cat((s, sink), dim=-1).softmax(dim=-1)[..., :-1]
    return s.softmax(dim=-1).nan_to_num(0)


def repeated(call: AttentionCall, x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    return x.to(dtype).repeat_interleave(call.group, dim=1)


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
        off = ~torch.eye(T, dtype=torch.bool)
        out[b] = G[:, off].sum(-1) / (T * (T - 1))
    return out


def naive_entropy(call: AttentionCall, dtype: torch.dtype = torch.float64) -> Tensor:
    """-Σ P ln P over the keys, (batch, head, query)."""
    P = naive_weights(call, dtype)
    return -torch.where(P > 0, P * P.clamp_min(torch.finfo(dtype).tiny).log(), 0).sum(dim=-1)


def naive_orthogonal(call: AttentionCall, documents: Tensor) -> Tensor:
    """The four measures of pairs, (4, batch, head, document). documents: of each token; -1: padding."""
    y, v = call.y.double(), repeated(call, call.v)
    own = own_slots(call).expand(len(y), -1)
    out = torch.full((4, *y.shape[:2], int(documents.max()) + 1), torch.nan, dtype=torch.float64)
    for b in range(len(y)):
        for d in range(out.shape[3]):
            at = (documents[b] == d).nonzero()[:, 0]
            alone = torch.tensor([sees_only_itself(call, b, int(i)) for i in at])
            for h in range(y.shape[1]):
                if len(at) > 2:
                    out[:, b, h, d] = of_document(v[b, h, own[b, at]], y[b, h, at], alone)
    return out


def sees_only_itself(call: AttentionCall, b: int, i: int) -> bool:
    seen = shown(call)
    return seen is not None and int(seen.expand(len(call.y), -1, -1, -1)[b, 0, i].sum()) == 1


def of_document(v: Tensor, y: Tensor, alone: Tensor) -> Tensor:
    n = len(v)
    every = (
        range(n) if n <= REFERENCES else [int((r + 0.5) * n / REFERENCES) for r in range(REFERENCES)]
    )
    orthogonal = [mean_cosine(without(torch.cat((v[:i], v[i + 1 :])), v[i])) for i in every]
    z = torch.stack([without(y[i : i + 1], v[i])[0] for i in range(n)])
    z[alone] = 0
    rho = mean_cosine(v)
    found = [sum(orthogonal) / len(orthogonal), mean_cosine(without(v, v.mean(dim=0))), mean_cosine(z)]
    return torch.stack([*found, rho / (1 + rho)])


def without(x: Tensor, u: Tensor) -> Tensor:
    """Each x_j - (x_j·û) û, and 0 where all but nothing is left."""
    size = u.norm()
    left = x - (x @ u / size)[:, None] * u / size if size > 0 else x
    return left.masked_fill((left.norm(dim=-1) <= FLOOR * x.norm(dim=-1))[:, None], 0)


def mean_cosine(x: Tensor) -> Tensor:
    """Over all pairs, one by one; nothing is alike to 0."""
    G = torch.nn.functional.cosine_similarity(x[:, None], x[None], dim=-1)
    n = len(x)
    return (G.sum() - G.diagonal().sum()) / (n * (n - 1))
