"""What exclusion costs on an accelerator: forward and backward of attention with it, over without,
in bfloat16.

    python -m benchmarks.accelerator [--out FILE] [--quick]

Candidates are those of `benchmarks.exclusion`; times are the device's own, by events.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import outward
from benchmarks.exclusion import FORMS, exclusive, forward_backward, published
from benchmarks.tables import Row, table
from benchmarks.timing import Ratio

SIZES = ((12, 12, 64), (16, 4, 128))  # heads, heads of k and v, dim


def interleaved(
    candidates: Mapping[str, Callable[[], object]], *, rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of the device for each candidate, one of each per round; the caches are cold."""
    flush = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for n in range(rounds + 3):
        for name, run in candidates.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            if n >= 3:
                times[name].append(start.elapsed_time(end))
    return times


def ratio(times: Mapping[str, list[float]], name: str) -> Ratio:
    each = [a / b for a, b in zip(times[name], times["standard"], strict=True)]
    low, _, high = quantiles(each, n=4)
    middle = median(times[name]) / median(times["standard"])
    return Ratio(middle, low, high, median(times[name]) / 1e3)


def rows(quick: bool) -> Iterator[Row]:
    lengths, rounds = ((256,), 5) if quick else ((1024, 4096, 8192), 30)
    for heads, kv_heads, dim in SIZES:
        for tokens in lengths:
            batch = max(1, 2**14 // tokens)
            shapes = [(batch, tokens, h, dim) for h in (heads, kv_heads, kv_heads, heads)]
            q, k, v, out = (
                torch.randn(s, dtype=torch.bfloat16, device="cuda").transpose(1, 2) for s in shapes
            )
            yield row(q, k, v, out, rounds)


def row(q: Tensor, k: Tensor, v: Tensor, out: Tensor, rounds: int) -> Row:
    torch._dynamo.reset()
    inputs = tuple(x.requires_grad_() for x in (q, k, v))
    compiled = {
        "torch.compile": torch.compile(exclusive),
        "published, torch.compile": torch.compile(published),
    }
    forms = {**FORMS, **compiled}
    runs = {n: partial(forward_backward, f, inputs, out) for n, f in forms.items()}
    for run in runs.values():
        run()
    times = interleaved(runs, rounds=rounds)
    size = f"{q.shape[1]}/{k.shape[1]} x {q.shape[3]}"
    result: Row = {"heads": size, "batch": q.shape[0]}
    result |= {"tokens": q.shape[2], "standard, ms": median(times["standard"])}
    result |= {n: ratio(times, n) for n in forms if n != "standard"}
    result["kept, outputs"] = (kept(exclusive, inputs) - kept(FORMS["standard"], inputs)) / q.nbytes
    result["max |cos(z, v)|"] = leak(*(x.detach() for x in inputs))
    return result


def kept(f: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> int:
    """Bytes that stay allocated between forward and backward."""
    before = torch.cuda.memory_allocated()
    z = f(*inputs)
    after = torch.cuda.memory_allocated()
    del z
    return after - before


def leak(q: Tensor, k: Tensor, v: Tensor) -> float:
    z = outward.exclusive_attention(q, k, v, causal=True)[:, :, 1:].double()
    own = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)[:, :, 1:].double()
    return torch.cosine_similarity(z, own, dim=-1).abs().max().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the table, and the same as .json")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this machine has no CUDA device; benchmarks.exclusion is the one for CPUs")
    torch.manual_seed(0)
    made: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.accelerator", *sys.argv[1:]]),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
    }
    found = list(rows(options.quick))
    shown = table(f"forward and backward over standard attention, {made['device']}", found)
    Console(width=190, highlight=False).print(shown)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.with_suffix(".txt").open("w") as file:
            Console(file=file, width=190).print(shown)
        document = json.dumps({"made": made, "rows": found}, default=lambda r: r.__dict__, indent=1)
        options.out.with_suffix(".json").write_text(document + "\n")


if __name__ == "__main__":
    main()
