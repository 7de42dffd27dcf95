"""What the tests share: inputs of awkward sizes, the forms beside their references, error budgets."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

import outward
from outward.attention import reference

BATCH, HEADS, KV_HEADS, TOKENS, DIM = 2, 15, 5, 11, 7  # pairwise different; axes cannot be mixed up
GROUP = HEADS // KV_HEADS
SCALE = DIM**-0.5


def qkv(
    dtype: torch.dtype = torch.float64,
    *,
    batch: int = BATCH,
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    tokens: int = TOKENS,
    dim: int = DIM,
    interleaved: bool = False,
    common: float = 0.5,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k, v; values share a common part, as trained ones do.

    interleaved: laid out in memory as (batch, token, head, dim), as projections leave them.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(num_heads: int, offset: float) -> Tensor:
        x = torch.randn(batch, num_heads, tokens, dim, generator=generator, dtype=torch.float64)
        x = (x + offset).to(dtype)
        return x.transpose(1, 2).contiguous().transpose(1, 2) if interleaved else x

    return draw(heads, 0.0), draw(kv_heads, 0.0), draw(kv_heads, common)


def causal_bias(tokens: int = TOKENS, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.zeros(tokens, tokens, dtype=dtype).masked_fill(~past(tokens), -torch.inf)


def past(tokens: int = TOKENS) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


def repeated(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    group = q.shape[1] // k.shape[1]
    return q, reference.repeat_heads(k, group), reference.repeat_heads(v, group)


@dataclass(frozen=True)
class Form:
    """A fast form, its reference, and the arguments that it takes beside the common ones."""

    fast: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    arguments: dict[str, Callable[[torch.dtype], Tensor]] = field(default_factory=dict)
    plain_name: dict[str, str] = field(default_factory=dict)

    def both(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, **options: object
    ) -> tuple[Tensor, Tensor]:
        """(fast, reference) with the same arguments."""
        extra = {name: make(q.dtype) for name, make in self.arguments.items()}
        fast = self.fast(q, k, v, scale=SCALE, **options, **extra)
        plain = {self.plain_name.get(name, name): x for name, x in extra.items()}
        if "alpha" in plain and plain["alpha"].ndim == 1:
            plain["alpha"] = plain["alpha"][:, None]
        return fast, self.plain(*repeated(q, k, v), SCALE, bias.to(q.dtype), **plain)

    def with_arguments(self, dtype: torch.dtype) -> Callable[..., Tensor]:
        extra = {name: make(dtype) for name, make in self.arguments.items()}
        return lambda q, k, v, **options: self.fast(q, k, v, **options, **extra)


def _random(*shape: int) -> Callable[[torch.dtype], Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return x.to


FORMS = {
    "standard": Form(outward.standard_attention, reference.standard),
    "exclusive": Form(outward.exclusive_attention, reference.exclusive),
    "gated exclusive, per head": Form(
        outward.gated_exclusive_attention,
        reference.gated_exclusive,
        {"strength": _random(HEADS)},
        {"strength": "alpha"},
    ),
    "gated exclusive, per token": Form(
        outward.gated_exclusive_attention,
        reference.gated_exclusive,
        {"strength": _random(BATCH, HEADS, TOKENS)},
        {"strength": "alpha"},
    ),
    "gated, per element": Form(
        outward.gated_attention, reference.gated, {"gate": _random(BATCH, HEADS, TOKENS, DIM)}
    ),
    "gated, per head": Form(
        outward.gated_attention, reference.gated, {"gate": _random(BATCH, HEADS, TOKENS, 1)}
    ),
    "no self": Form(outward.no_self_attention, reference.no_self),
    "random direction": Form(
        outward.random_direction_attention,
        reference.random_direction,
        {"direction": _random(HEADS, DIM)},
        {"direction": "r"},
    ),
    "mean direction": Form(outward.mean_direction_attention, reference.mean_direction),
}
"""Every form; a per-token argument fits the sizes above and no others."""


def budget(exact: Tensor, rough: Tensor) -> float:
    """How far a fast result may be from the exact one, in the precision of `rough`.

    `rough` is the reference run plainly in that precision: an independent sample of what its
    rounding does. Twice its error, plus one rounding of the largest entry, because two runs that
    round in another order differ by as much again, and because `rough` may be exact by luck.
    """
    eps = torch.finfo(rough.dtype).eps
    error = (rough.to(exact.dtype) - exact).abs().max().item() if exact.numel() else 0.0
    size = exact.abs().max().item() if exact.numel() else 0.0
    return 2 * (error + eps * size)


def rounding(*, terms: int, size: float, dtype: torch.dtype) -> float:
    """The bound of a sum of `terms` products of size up to `size`: each is rounded once or twice."""
    return 2 * terms * torch.finfo(dtype).eps * size


def assert_within(actual: Tensor, exact: Tensor, tolerance: float) -> None:
    assert actual.shape == exact.shape
    assert not actual.isnan().any()
    error = (actual.to(exact.dtype) - exact).abs().max().item() if exact.numel() else 0.0
    assert error <= tolerance, f"off by {error:.3e}, allowed {tolerance:.3e}"
