"""What became of one architecture: run plain, plain again, and watched, and compared."""

import re
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from benchmarks.census_models import Forward
from outward.taps.capture import Capture, capture
from outward.taps.coverage import ModuleCoverage
from outward.taps.proof import NOISE, Recomputation, difference, same_road, tensors_in

NOT_SELF_ATTENTION = (
    "cross-attention",
    "no softmax",
    "deformable",
    "over channels",
    "mixes no tokens",
)
"""A refusal is right where it says one of these, and what ran in its place."""
UNNAMED = "nothing that the taps know"
OWN_KEYS = {"LongT5LocalAttention", "HaloAttn"}
"""Attention of blocks to their neighbours: more keys than queries, among them the own ones. Whoever
refuses these as cross-attention is wrong."""
CROSS = r"cross_?att|crossattn|encoder_attn|encdecattention"
"""Names of modules that must not be captured."""


@dataclass(frozen=True)
class Row:
    """What became of one architecture. `error` says why there is nothing more to say.

    repeats: two plain runs return the same bits; identical: so does the watched one (within their
    noise, where they differ). Of attention modules that ran: how many were called and captured, in
    which tiers, which were refused rightly, and which were missed. y_error and y_share: the worst
    y, relative to the largest, and as a share of what rounding explains.
    """

    library: str
    name: str
    error: str | None = None
    repeats: bool = False
    identical: bool = False
    called: int = 0
    captured: int = 0
    calls: int = 0
    tiers: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    y_error: float = 0.0
    y_share: float = 0.0

    @property
    def ran(self) -> bool:
        """Whether a model was built and a run of it went through."""
        return self.error is None

    @property
    def whole(self) -> bool:
        """Whether all that is softmax over keys was captured, nothing else was, and y follows."""
        return not self.missed and self.y_share <= 1

    @property
    def has_attention(self) -> bool:
        """Whether softmax over keys was seen, or missed."""
        return bool(self.captured or self.missed)


def census(library: str, name: str, model: nn.Module, run: Forward) -> Row:
    """Run a model twice plain and once watched, keep its calls, and compute y of each again."""
    with same_road(), torch.no_grad():
        first = _outputs(run)
        own = difference(first, _outputs(run))
        with capture(model) as calls:
            watched = difference(first, _outputs(run))
    check = Recomputation()
    for call in calls:  # afterwards: what was kept must not have been written into
        check(call)
    return _row(library, name, own, watched, calls, check)


def _row(
    library: str, name: str, own: float, watched: float, calls: Capture, check: Recomputation
) -> Row:
    rows = [r for r in calls.coverage if r.status != "not called"]
    captured = [r for r in rows if r.status == "captured"]
    refused = [r for r in rows if r.status == "refused" and is_right(r)]
    missed = [r for r in rows if r.status == "refused" and not is_right(r)]
    wrong = [r for r in captured if re.search(CROSS, r.module.lower())]
    return Row(
        library,
        name,
        repeats=own == 0,
        identical=watched == 0 if own == 0 else watched <= NOISE * own,
        called=len(rows),
        captured=len(captured),
        calls=check.calls,
        tiers=sorted({str(r.tier) for r in captured}),
        refused=_reasons(refused),
        missed=_reasons(missed) + [f"{r.kind}: cross-attention, captured as self" for r in wrong],
        y_error=check.error,
        y_share=check.share,
    )


def is_right(row: ModuleCoverage) -> bool:
    """Whether a refusal names an operation that is no softmax over keys, or cross-attention."""
    reason = str(row.reason)
    if UNNAMED in reason or row.kind in OWN_KEYS:
        return False
    return any(said in reason for said in NOT_SELF_ATTENTION)


def _reasons(rows: list[ModuleCoverage]) -> list[str]:
    counted = Counter(f"{r.kind}: {r.reason}" for r in rows)
    return [f"{n} x {what}" for what, n in sorted(counted.items())]


def _outputs(run: Forward) -> list[Tensor]:
    with torch.random.fork_rng(devices=[]):
        return [x.detach().clone() for x in tensors_in(run())]
