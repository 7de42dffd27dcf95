"""The forms of attention side by side, on values that share a common part and tokens that look
at themselves: what each returns of the token's own value, and of the others.

    python examples/forms.py
"""

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

import outward
from outward.attention import reference

BATCH, HEADS, TOKENS, DIM = 4, 8, 128, 32

generator = torch.Generator().manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


# A token's key is a noisy copy of its query, so that it attends to itself more than to others; the
# values lie around a common mean, as those of trained models do.
q = 1.2 * random(BATCH, HEADS, TOKENS, DIM)
k = 0.6 * q + 0.8 * random(BATCH, HEADS, TOKENS, DIM)
v = random(BATCH, HEADS, TOKENS, DIM) + 0.5 * random(1, HEADS, 1, DIM)

y = outward.standard_attention(q, k, v, causal=True)
bias = torch.zeros(TOKENS, TOKENS).masked_fill(~torch.ones(TOKENS, TOKENS).tril().bool(), -torch.inf)
self_weight = reference.weights(q, k, DIM**-0.5, bias).diagonal(dim1=-2, dim2=-1)[..., 1:].mean()
fair_share = (1 / torch.arange(2, TOKENS + 1)).mean()  # what each of i visible tokens would get
news = outward.no_self_attention(q, k, v, causal=True)  # what the other tokens alone would bring

forms = {
    "standard": ("y = Σ P v", y),
    "exclusive": ("y - (y·v̂) v̂", outward.exclusive_attention(q, k, v, causal=True)),
    "gated exclusive, α = 0.5": (
        "y - α (y·v̂) v̂",
        outward.gated_exclusive_attention(q, k, v, strength=0.5, causal=True),
    ),
    "gated, σ(g) = 0.5": (
        "y ⊙ σ(g)",
        outward.gated_attention(q, k, v, gate=torch.zeros(BATCH, HEADS, TOKENS, 1), causal=True),
    ),
    "no self": ("Σ P v, P_ii = 0", news),
    "random direction (placebo)": (
        "y - (y·r̂) r̂",
        outward.random_direction_attention(q, k, v, direction=random(HEADS, DIM), causal=True),
    ),
    "mean direction (placebo)": (
        "y - (y·m̂) m̂",
        outward.mean_direction_attention(q, k, v, causal=True),
    ),
}


def cosine(a: Tensor, b: Tensor) -> str:
    """The mean over tokens but the first, which sees nobody else."""
    mean = F.cosine_similarity(a[:, :, 1:], b[:, :, 1:], dim=-1).mean().item()
    return f"{0.0 if abs(mean) < 5e-4 else mean:+.3f}"  # no -0.000


table = Table("form", "returns", "cos(z, own value)", "cos(z, what others bring)", "|z| / |y|")
for name, (formula, z) in forms.items():
    size = (z[:, :, 1:].norm(dim=-1) / y[:, :, 1:].norm(dim=-1)).mean().item()
    table.add_row(name, formula, cosine(z, v), cosine(z, news), f"{size:.3f}")

console = Console(width=110, highlight=False)
console.print(
    f"{BATCH} texts, {HEADS} heads, {TOKENS} tokens, causal. "
    f"A token gives itself {self_weight:.0%} of its attention, "
    f"{self_weight / fair_share:.0f} times a fair share.",
    soft_wrap=True,
)
console.print(table)
