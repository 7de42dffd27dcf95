"""What exclusion costs: a training step, the operation alone, memory, and what bfloat16 leaves.

    python -m benchmarks.exclusion [--json] [--out DIR] [--only step,operation,memory,leak] [--quick]

Candidates:
    standard            torch's scaled_dot_product_attention
    exclusive           outward.exclusive_attention
    exclusive, kernel   the same with impl="compiled": one compiled kernel for the exclusion
    published           as the paper's Algorithm 1 is written in public code: F.normalize, v repeated
                        for the query heads that share it, plain autograd
"""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import outward
from benchmarks.tables import Row, run
from benchmarks.timing import Clock, interleaved, ratio
from outward.attention import projection

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def standard(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def exclusive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return outward.exclusive_attention(q, k, v, causal=True)


def exclusive_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return outward.exclusive_attention(q, k, v, causal=True, impl="compiled")


def published_exclusion(y: Tensor, v: Tensor) -> Tensor:
    if v.shape[1] != y.shape[1]:
        v = v.repeat_interleave(y.shape[1] // v.shape[1], dim=1)
    v_n = F.normalize(v, dim=-1)
    return y - (y * v_n).sum(dim=-1, keepdim=True) * v_n


def published(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return published_exclusion(standard(q, k, v), v)


FORMS: dict[str, Attention] = {
    "standard": standard,
    "exclusive": exclusive,
    "exclusive, kernel": exclusive_kernel,
    "published": published,
}


# ---- a training step


class Block(nn.Module):
    """A block of GPT-2, with the attention as a function of q, k and v."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, attention: Attention) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        x = x + self.out(attention(q, k, v).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """GPT-2 small: 12 layers, width 768, 12 heads, 50257 tokens, tied unembedding."""

    def __init__(self, *, layers: int = 12, vocabulary: int = 50257, tokens: int = 1024) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, 768), nn.Embedding(tokens, 768)
        self.blocks = nn.ModuleList(Block(768, 12) for _ in range(layers))
        self.norm = nn.LayerNorm(768)
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids: Tensor, attention: Attention) -> Tensor:
        x = self.embed(ids[:, :-1]) + self.place.weight[: ids.shape[1] - 1]
        for block in self.blocks:
            x = block(x, attention)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def training_step(quick: bool) -> Iterator[Row]:
    """Forward, backward and fused AdamW of a GPT-2 small at T = 1024, batch 1."""
    tokens, rounds = (256, 3) if quick else (1024, 9)
    torch.manual_seed(0)
    model = GPT2(tokens=tokens, **({"layers": 2, "vocabulary": 512} if quick else {}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(model.embed.num_embeddings, (1, tokens + 1))

    def step(attention: Attention, autocast: bool) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(ids, attention)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for name in DTYPES:
        steps = {n: partial(step, f, name == "bfloat16") for n, f in FORMS.items()}
        times = interleaved(steps, rounds=rounds, warmup=1)
        for form in FORMS:
            r = ratio(times, form, "standard")
            yield {"dtype": name, "tokens": tokens, "form": form, "over standard": r, "s": r.seconds}
    yield from direct_share(step, rounds=min(rounds, 5))


def direct_share(step: Callable[[Attention, bool], None], *, rounds: int) -> Iterator[Row]:
    """The same from inside: time within the exclusion's own arithmetic, over the rest of its step.

    Free of the noise of the step, and of what the exclusion may save or cost elsewhere.
    """
    for name in DTYPES:
        for form in ("exclusive", "exclusive, kernel"):
            clock, shares = Clock(), []
            project, gradient = clock.around(projection.project), clock.around(projection.gradient)
            inside = "outward.attention.exclusive"
            with patch(f"{inside}.project", project), patch(f"{inside}.gradient", gradient):
                for _ in range(rounds):
                    total, spent = clock.step(partial(step, FORMS[form], name == "bfloat16"))
                    shares.append(spent / (total - spent))
            yield {
                "dtype": name,
                "form": f"{form}: direct share",
                "over standard": f"1 + {median(shares):.4f} [{min(shares):.4f}, {max(shares):.4f}]",
            }


# ---- the operation alone


def heads(num_heads: int, tokens: int, dtype: torch.dtype, *, requires_grad: bool = True) -> Tensor:
    """(1, head, token, 64), laid out in memory as a projection leaves it."""
    x = torch.randn(1, tokens, num_heads, 64, dtype=dtype)
    return x.transpose(1, 2).requires_grad_(requires_grad)


def forward_backward(f: Callable[..., Tensor], inputs: tuple[Tensor, ...], out: Tensor) -> None:
    torch.autograd.grad(f(*inputs), inputs, out)


def operation(quick: bool) -> Iterator[Row]:
    """Forward and backward of the exclusion, alone and with attention, over that of SDPA."""
    lengths, rounds = ((128,), 3) if quick else ((512, 1024, 2048, 4096), 5)
    for name, dtype in DTYPES.items():
        for kv_heads in (12, 4):
            for tokens in lengths:
                torch._dynamo.reset()
                projection.compiled.cache_clear()
                yield operation_row(name, dtype, kv_heads, tokens, rounds)


def operation_row(name: str, dtype: torch.dtype, kv_heads: int, tokens: int, rounds: int) -> Row:
    torch.manual_seed(0)
    q, k, v = heads(12, tokens, dtype), heads(kv_heads, tokens, dtype), heads(kv_heads, tokens, dtype)
    y, out = heads(12, tokens, dtype), heads(12, tokens, dtype, requires_grad=False)
    alone: dict[str, Callable[..., Tensor]] = {
        "alone": outward.exclude_self,
        "alone, kernel": partial(outward.exclude_self, impl="compiled"),
        "alone, published": published_exclusion,
        "alone, torch.compile": torch.compile(outward.exclude_self),
        "alone, published, torch.compile": torch.compile(published_exclusion),
    }
    joint = {**FORMS, "torch.compile": torch.compile(exclusive)}
    joint["published, torch.compile"] = torch.compile(published)
    runs = {n: partial(forward_backward, f, (y, v), out) for n, f in alone.items()}
    runs |= {n: partial(forward_backward, f, (q, k, v), out) for n, f in joint.items()}
    times = interleaved(runs, rounds=rounds, warmup=3)
    row: Row = {"dtype": name, "heads": f"12/{kv_heads}", "tokens": tokens}
    row |= {n: ratio(times, n, "standard") for n in (*alone, *joint) if n != "standard"}
    row["ms"] = 1e3 * median(times["standard"])
    return row


# ---- memory


def memory(quick: bool) -> Iterator[Row]:
    """Kept for the backward pass beyond standard attention, in units of one output tensor."""
    tokens = 128 if quick else 1024
    for name, dtype in DTYPES.items():
        for kv_heads in (12, 4):
            q = heads(12, tokens, dtype)
            k, v = heads(kv_heads, tokens, dtype), heads(kv_heads, tokens, dtype)
            W_O = torch.randn(768, 768, dtype=dtype, requires_grad=True)
            unit = q.numel() * q.element_size()

            def kept(
                f: Attention,
                *,
                q: Tensor = q,
                k: Tensor = k,
                v: Tensor = v,
                W_O: Tensor = W_O,
            ) -> int:
                """Bytes, each storage once: attention, then its output projection."""
                seen: dict[int, int] = {}

                def pack(x: Tensor) -> Tensor:
                    seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
                    return x

                with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                    z = f(q, k, v).transpose(1, 2).flatten(-2) @ W_O
                assert z.requires_grad
                return sum(seen.values())

            def two_steps(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                return outward.exclude_self(standard(q, k, v), v)

            torch._dynamo.reset()
            row: Row = {"dtype": name, "heads": f"12/{kv_heads}"}
            candidates = {
                **FORMS,
                "exclude_self behind standard": two_steps,
                "torch.compile": torch.compile(exclusive),
                "published, torch.compile": torch.compile(published),
            }
            for form, f in candidates.items():
                if form != "standard":
                    row[form] = (kept(f) - kept(standard)) / unit
            yield row


# ---- what is left


def leak(quick: bool) -> Iterator[Row]:
    """max |cos(z, v)| over tokens but the first: what is left of the bias."""
    tokens = 128 if quick else 1024
    for name, dtype in DTYPES.items():
        torch.manual_seed(0)
        q, k, v = (heads(12, tokens, dtype, requires_grad=False) for _ in range(3))
        v = (v.double() + 0.5).to(dtype)
        row: Row = {"dtype": name}
        for form, f in FORMS.items():
            z, own = f(q, k, v)[:, :, 1:].double(), v[:, :, 1:].double()
            row[form] = F.cosine_similarity(z, own, dim=-1).abs().max().item()
        yield row


SECTIONS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "step": training_step,
    "operation": operation,
    "memory": memory,
    "leak": leak,
}


if __name__ == "__main__":
    run("benchmarks.exclusion", __doc__, SECTIONS)
