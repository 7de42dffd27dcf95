"""One invocation of self-attention, as it was seen in a model."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from outward.attention.inputs import Mask, SelfKey, is_visible
from outward.attention.masks import causal_mask


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """q, k, v, what attention returned (y, per head, before the output projection), who saw whom.

    Scores are s_ij = scale * q_i·k_j, bounded by softcap if there is one, plus the mask. Their weights
    are P_ij = exp(s_ij - lse_i), with lse_i the log of the sum over j of exp(s_ij), and over the sink
    of the head if it has one: a score that no value belongs to.

    `weights` is P itself, where the model made it. q and k are None where only the weights were seen;
    then nothing but them is known of the scores.
    """

    layer: int
    module: str
    tier: str
    v: Float[Tensor, "batch kv_head key value_dim"]
    y: Float[Tensor, "batch head query value_dim"]
    q: Float[Tensor, "batch head query dim"] | None = None
    k: Float[Tensor, "batch kv_head key dim"] | None = None
    scale: float = 1.0
    causal: bool = False
    mask: Mask | None = None
    self_key: SelfKey | None = None
    softcap: float | None = None
    sinks: Float[Tensor, " head"] | None = None
    weights: Float[Tensor, "batch head query key"] | None = None
    lse: Float[Tensor, "batch head query"] | None = None
    valid: Bool[Tensor, "batch query"] | None = None

    @property
    def group(self) -> int:
        """How many consecutive query heads share a head of k and v."""
        return self.y.shape[1] // self.v.shape[1]


def own_slots(call: AttentionCall) -> SelfKey:
    """Where among the keys each query's own key is."""
    if call.self_key is not None:
        return call.self_key
    return torch.arange(call.y.shape[2], device=call.y.device)


def shown(call: AttentionCall) -> Bool[Tensor, "#batch #head query key"] | None:
    """Which keys each query sees, as one boolean mask; None where it sees them all."""
    queries, keys = call.y.shape[2], call.v.shape[2]
    visible = None if call.mask is None else is_visible(call.mask)
    if call.causal:
        past = causal_mask(own_slots(call), keys)
        visible = past if visible is None else visible & past
    return None if visible is None else visible.expand(-1, -1, queries, keys)


def scores(
    call: AttentionCall, rows: slice, dtype: torch.dtype
) -> Float[Tensor, "batch head rows key"]:
    """s_ij of some queries, mask included, in `dtype`: the specification of what a call computed."""
    assert call.q is not None
    assert call.k is not None
    q = call.q[:, :, rows].to(dtype)
    k = call.k.to(dtype).repeat_interleave(q.shape[1] // call.k.shape[1], dim=1)
    s = call.scale * q @ k.mT
    if call.softcap is not None:
        s = call.softcap * torch.tanh(s / call.softcap)
    if call.mask is not None and call.mask.dtype != torch.bool:
        s = s + _rows(call.mask, rows).to(dtype)
    visible = shown(call)
    return s if visible is None else s.masked_fill(~_rows(visible, rows), -torch.inf)


def log_sum_exp(
    s: Float[Tensor, "batch head rows key"], sinks: Float[Tensor, " head"] | None
) -> Float[Tensor, "batch head rows"]:
    """lse_i of scores, and of the sinks; 0 in rows that see no key, as torch's kernels have it."""
    lse = s.logsumexp(dim=-1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.to(s.dtype)[:, None])
    return lse.masked_fill(lse == -torch.inf, 0)


def _rows(mask: Tensor, rows: slice) -> Tensor:
    return mask if mask.shape[2] == 1 else mask[:, :, rows]
