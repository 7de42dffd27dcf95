"""Who sees whom in a call, in numbers per query: what the measures need of a mask of any kind.

Most masks (causal, windows, packed documents, prefixes, padding) show each query one unbroken run of
keys: then sums over what a query sees are differences of running sums, and no T x T matrix is made.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outward.attention.call import AttentionCall, own_slots, shown
from outward.attention.inputs import hides_by_two_values

STEP = 16  # keys in a block of running sums


@dataclass(frozen=True, eq=False)
class Visible:
    """Per row of the batch (1: the same for all) and query.

    first, end: the run of visible keys, [first, end); both 0 where there is none.
    count: how many keys are visible. Less than end - first where `mask` is needed to say which.
    own: the slot of the own key. sees_itself: whether it is visible.
    document: the number of the own document in the row. start: the slot of its first key.
    valid: whether the query is a token, and no padding.
    """

    first: Int[Tensor, "rows query"]
    end: Int[Tensor, "rows query"]
    count: Int[Tensor, "rows query"]
    own: Int[Tensor, "rows query"]
    sees_itself: Bool[Tensor, "rows query"]
    document: Int[Tensor, "rows query"]
    start: Int[Tensor, "rows query"]
    valid: Bool[Tensor, "rows query"]
    mask: Bool[Tensor, "rows 1 query key"] | None

    @property
    def has_others(self) -> Bool[Tensor, "rows query"]:
        """Valid tokens that see another than themselves: all per-token averages are over these."""
        return self.valid & (self.count - self.sees_itself.long() > 0)

    @property
    def is_alone(self) -> Bool[Tensor, "rows query"]:
        """Valid tokens that see themselves and nobody else: there y = v, whatever the model learned."""
        return self.valid & self.sees_itself & (self.count == 1)

    @property
    def place(self) -> Int[Tensor, "rows query"]:
        """How many tokens of the document stand before this one."""
        return self.own - self.start

    @cached_property
    def documents(self) -> int:
        """How many documents a row holds at most."""
        return int(self.document.max()) + 1 if self.document.numel() else 0

    @cached_property
    def shares_one_run(self) -> bool:
        """Whether every query of a row sees the same keys."""
        same = (self.first == self.first[:, :1]) & (self.end == self.end[:, :1])
        return self.mask is None and bool(same.all())

    @cached_property
    def shares_the_past(self) -> bool:
        """Whether every query sees the keys from the first on to its own, and no other."""
        past = (self.first == 0) & (self.end == self.own + 1)
        return self.mask is None and bool(past.all())


def visible(call: AttentionCall) -> Visible:
    """Read it off a call's mask, whatever its kind. A mask that differs by head is refused.

    An additive mask of only 0 and -1e4, or another number at or below -1000, hides by that number. With
    a bias added to it, it has many values, and is read as a bias.
    """
    queries, keys = call.y.shape[2], call.v.shape[2]
    own = own_slots(call).long().view(-1, queries)
    if call.mask is None and call.self_key is None:
        return _without_mask(call, own)
    if call.mask is not None and hides_by_two_values(call.mask):
        call = replace(call, mask=call.mask == 0)
    seen = shown(call)
    if seen is None:
        seen = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=own.device)
    if seen.shape[1] > 1:
        if not (seen == seen[:, :1]).all():
            raise ValueError(
                f"{call.module}: its mask shows different keys to different heads, and no measure of "
                "what a token sees is defined for that."
            )
        seen = seen[:, :1]
    return _of_mask(call, seen, own.expand(max(len(own), len(seen)), -1))


def _without_mask(call: AttentionCall, own: Tensor) -> Visible:
    zero = torch.zeros_like(own)
    end = own + 1 if call.causal else zero + call.v.shape[2]
    valid = torch.ones_like(own, dtype=torch.bool)
    if call.valid is not None:
        valid = call.valid
        if not valid.all():
            return _of_mask(call, _padded(call, own), own.expand(len(valid), -1))
    return Visible(zero, end, end, own, valid, zero, zero, valid, None)


def _padded(call: AttentionCall, own: Tensor) -> Tensor:
    """No mask was given, but some tokens are padding: what the model in truth let them see."""
    keys = torch.arange(call.v.shape[2], device=own.device)
    seen = (keys <= own[..., None]) if call.causal else torch.ones_like(keys + own[..., None]) > 0
    return seen[:, None]


def _of_mask(call: AttentionCall, seen: Tensor, own: Tensor) -> Visible:
    keys = seen.shape[3]
    rows = seen[:, 0].expand(len(own), -1, -1)
    valid = _valid(call, rows, own)
    count = rows.sum(dim=-1) * valid  # what padding sees is nobody's business
    first = torch.where(count > 0, rows.byte().argmax(dim=-1), 0)  # of equal ones the first
    end = torch.where(count > 0, keys - rows.flip(-1).byte().argmax(dim=-1), 0)
    sees_itself = rows.gather(2, own[..., None])[..., 0]
    document, start = _documents(first, end, count)
    broken = bool((count != end - first).any())
    mask = seen.expand(len(own), -1, -1, -1) if broken else None
    return Visible(first, end, count, own, sees_itself, document, start, valid, mask)


def _valid(call: AttentionCall, rows: Tensor, own: Tensor) -> Tensor:
    """A token whose key nobody sees is padding; what the caller says is padding is padding too."""
    noticed = rows.any(dim=1).gather(1, own)
    if call.valid is None:
        return noticed
    return noticed & call.valid


def _documents(first: Tensor, end: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """(number, start) of each query's document: one begins where a run shares nothing with the last."""
    begins = (count > 0) & (first >= torch.nn.functional.pad(end[:, :-1], (1, 0)))
    number = begins.long().cumsum(dim=1)
    at = torch.where(begins, torch.arange(begins.shape[1], device=first.device), 0)
    start = first.gather(1, at.cummax(dim=1).values)
    return (number - 1).clamp_min(0), start


def sums_of_visible(
    x: Float[Tensor, "batch head key dim"], see: Visible
) -> Float[Tensor, "batch head query dim"]:
    """The sum over the keys that each query sees of x_j: exact for every kind of mask."""
    if see.mask is not None:
        return see.mask.to(x.dtype) @ x
    if see.shares_one_run:
        return _sum_of_one_run(x, see)
    running = running_sums(x)
    if see.shares_the_past and running.shape[2] == see.own.shape[1]:
        return running
    running = torch.nn.functional.pad(running, (0, 0, 1, 0))
    return _take(running, see.end) - _take(running, see.first)


def running_sums(x: Float[Tensor, "*lead key dim"]) -> Float[Tensor, "*lead key dim"]:
    """x.cumsum(dim=-2), in blocks by products with a triangle: several times faster on CPUs."""
    keys = x.shape[-2]
    if keys <= STEP or x.device.type != "cpu":
        return x.cumsum(dim=-2)
    blocks = torch.nn.functional.pad(x, (0, 0, 0, -keys % STEP)).unflatten(-2, (-1, STEP))
    inside = x.new_ones(STEP, STEP).tril() @ blocks
    before = inside[..., -1, :].cumsum(dim=-2)
    inside[..., 1:, :, :] += before[..., :-1, None, :]
    return inside.flatten(-3, -2)[..., :keys, :]


def _sum_of_one_run(x: Tensor, see: Visible) -> Tensor:
    keys = torch.arange(x.shape[2], device=x.device)
    inside = (keys >= see.first[:, :1]) & (keys < see.end[:, :1])
    if inside.all():
        return x.sum(dim=2, keepdim=True).expand(-1, -1, see.own.shape[1], -1)
    total = inside.to(x.dtype)[:, None, None, :] @ x
    return total.expand(-1, -1, see.own.shape[1], -1)


def _take(running: Tensor, at: Tensor) -> Tensor:
    index = at[:, None, :, None].expand(running.shape[0], running.shape[1], -1, running.shape[3])
    return running.gather(2, index)
