"""Every attention module of a model: captured, or refused and why."""

from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from outward.taps.crossing import crossing_by_name
from outward.taps.functions import BRANCHES, LOG_SUM_EXP, SOFTMAX


@dataclass(frozen=True)
class ModuleCoverage:
    """What became of one attention module; of a captured one, `reason` is how its mask was inferred."""

    module: str
    kind: str
    status: Literal["captured", "refused", "not called"]
    tier: str | None = None
    reason: str | None = None


@dataclass
class Seen:
    """What a capture saw of modules, by name."""

    called: set[str] = field(default_factory=set)
    tiers: dict[str, str] = field(default_factory=dict)
    inferred: set[str] = field(default_factory=set)  # their masks, from weights
    refused: dict[str, str] = field(default_factory=dict)
    operations: dict[str, set[str]] = field(default_factory=dict)
    lost: dict[str, set[str]] = field(default_factory=dict)
    crossing: dict[str, str | None] = field(default_factory=dict)
    gates: set[str] = field(default_factory=set)  # they return weights, of the shape of their input


MASK_INFERRED = "no mask was seen: keys without weight in every head count as hidden"
NOT_FOLLOWED = "a softmax ran in it and was not seen to meet values"


def coverage(model: nn.Module, seen: Seen) -> list[ModuleCoverage]:
    """One row for each innermost module that calls itself attention, or was seen to be one."""
    named = {name: type(m).__name__ for name, m in model.named_modules()}
    attention = [n for n in named if is_attention(named[n])]
    rows = []
    for name in named:
        if name in seen.tiers:
            how = MASK_INFERRED if name in seen.inferred else None
            rows.append(ModuleCoverage(name, named[name], "captured", seen.tiers[name], how))
        elif name in seen.refused:
            rows.append(ModuleCoverage(name, named[name], "refused", None, seen.refused[name]))
        elif name in attention and not _stands_for_another(name, attention, seen):
            called = name in seen.called
            reason = _without_product(name, named[name], seen) if called else "it did not run"
            status: Literal["refused", "not called"] = "refused" if called else "not called"
            rows.append(ModuleCoverage(name, named[name], status, None, reason))
    return rows


def is_attention(kind: str) -> bool:
    """Whether the name of a class says attention, and not a part or an ornament of it."""
    lowered = kind.lower()
    says_so = "attention" in lowered or "attn" in lowered
    parts = ("output", "mask", "norm", "dropout", "pool", "embedding", "bias", "block", "layer", "gate")
    return says_so and not any(lowered.endswith(p) for p in parts)


def is_shell(module: nn.Module) -> bool:
    """Whether a module only has attention inside: a block, a layer."""
    if is_attention(type(module).__name__):
        return False
    return any(is_attention(type(m).__name__) for m in module.modules())


def _stands_for_another(name: str, attention: list[str], seen: Seen) -> bool:
    """A shell around attention, or a part of it: the one inside or outside speaks for it."""
    return any(_is_inside(n, name) for n in (*attention, *seen.tiers, *seen.refused)) or any(
        _is_inside(name, n) for n in (*seen.tiers, *seen.refused)
    )


def _inside(name: str, found: dict[str, set[str]]) -> set[str]:
    """Of a module and of those inside."""
    return set().union(*(x for n, x in found.items() if n == name or _is_inside(n, name)))


def _is_inside(name: str, outer: str) -> bool:
    return name != outer and (not outer or name.startswith(f"{outer}."))


_MIXES = {"linear", "conv1d", "conv2d", "conv3d", "batch_norm", "layer_norm"}


def _without_product(name: str, kind: str, seen: Seen) -> str:
    """Why no call came of a module that ran."""
    operations, lost = _inside(name, seen.operations), _inside(name, seen.lost)
    crosses = seen.crossing.get(name) or crossing_by_name(kind)
    if crosses is not None:
        return crosses
    if "grid_sample" in operations:
        return (
            "deformable attention: its values are sampled between tokens (grid_sample), and are no keys"
        )
    if lost & _MIXES:
        return (
            f"its weights are no softmax over keys: after it they go through {', '.join(sorted(lost))}"
        )
    if name in seen.gates and not lost:
        return "its softmax is no softmax over keys but a gate: what it weighs is not summed"
    return _unknown(operations, lost)


def _unknown(operations: set[str], lost: set[str]) -> str:
    if SOFTMAX in operations:
        where = f": its weights went into {', '.join(sorted(lost))}" if lost else ""
        return f"{NOT_FOLLOWED}{where}"
    if BRANCHES in operations:
        return (
            "its softmax is no softmax over keys: it weighs branches, and there is no axis of queries"
        )
    if LOG_SUM_EXP in operations:
        return (
            "a softmax ran in it that is written out by hand (logsumexp), which the taps do not follow"
        )
    mixing = ", ".join(sorted(operations)) or "nothing that the taps know"
    return f"no softmax ran in it: it works by {mixing}"
