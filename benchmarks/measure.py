"""What measuring costs: time over a plain forward pass of the same model, and peak memory.

    python -m benchmarks.measure [--json] [--out DIR] [--only price,...] [--quick]

The model is a GPT-2 small as transformers has it, with random weights and torch's own attention.
Measuring is the probe as `outward measure` runs it: capture, every default measure, and the tallies.

    torch     the measures by torch's operations (kernel="torch")
    native    by the kernel that the machine's C++ compiler makes (kernel="native")
"""

import ctypes
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.tables import Row, run
from benchmarks.timing import Clock, interleaved, ratio
from outward.measures.bias import Kernel, bias
from outward.probe.loop import Probe
from outward.probe.tally import tally
from outward.sources.batch import Batch

KERNELS: tuple[Kernel, ...] = ("torch", "native")
SHAPES = ((1, 1024), (8, 512))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
VOCABULARY = 50257
# glibc then gives large blocks back as soon as they are freed: the peak is what is in use. Left alone,
# it keeps them, in holes that fit or do not fit: a matter of 200 MiB either way.
EXACT = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
OPTIONAL = ("entropy", "orthogonal_similarity")


def gpt2(dtype: torch.dtype, *, quick: bool, head: bool = False, tokens: int = 1024) -> nn.Module:
    """12 layers, width 768, 12 heads."""
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

    torch.manual_seed(0)
    config = GPT2Config(n_positions=tokens, vocab_size=VOCABULARY, n_layer=2 if quick else 12)
    model = (GPT2LMHeadModel if head else GPT2Model)(config)
    return model.eval().to(dtype)


def batch_of(batch: int, tokens: int, lengths: list[int] | None = None) -> Batch:
    """Random tokens; `lengths` says where each row ends, and what follows is padding."""
    ids = torch.randint(VOCABULARY, (batch, tokens), generator=torch.Generator().manual_seed(1))
    documents, windows = [str(i) for i in range(batch)], [0] * batch
    if lengths is None:
        return Batch((), {"input_ids": ids}, documents, windows)
    valid = torch.arange(tokens) < torch.tensor(lengths)[:, None]
    inputs = {"input_ids": ids, "attention_mask": valid.long()}
    return Batch((), inputs, documents, windows, valid=valid)


def forward(model: nn.Module, batch: Batch) -> Any:
    """A plain forward pass."""
    with torch.no_grad():
        return model(**batch.inputs, use_cache=False)


def measured(model: nn.Module, batch: Batch, kernel: Kernel, *, measures: tuple[str, ...] = ()) -> None:
    """The same, with everything measured and tallied."""
    with Probe(model, partial(forward, model), kernel=kernel, measures=measures) as probe:
        found = probe.measure([batch])
    assert found.documents, found.skipped


def candidates(model: nn.Module, batch: Batch) -> dict[str, Callable[[], object]]:
    """The plain forward pass, and the measured one by each kernel."""
    plain: dict[str, Callable[[], object]] = {"plain": partial(forward, model, batch)}
    return plain | {k: partial(measured, model, batch, k) for k in KERNELS}


def price(quick: bool) -> Iterator[Row]:
    """All default measures, over the plain forward pass of the same model without a head."""
    rounds = 3 if quick else 5
    for name, dtype in DTYPES.items():
        model = gpt2(dtype, quick=quick)
        for batch, tokens in ((2, 64),) if quick else SHAPES:
            given = batch_of(batch, tokens)
            times = interleaved(candidates(model, given), rounds=rounds, warmup=1)
            row: Row = {"dtype": name, "batch": f"{batch} x {tokens}"}
            row |= {k: ratio(times, k, "plain") for k in KERNELS}
            row |= {
                f"{k}: direct share": direct_share(model, given, k, rounds=1 if quick else 3)
                for k in KERNELS
            }
            yield row | {"plain, s": median(times["plain"])}


def direct_share(model: nn.Module, batch: Batch, kernel: Kernel, *, rounds: int) -> str:
    """The same from inside: time within measures and tallies over the rest of the same pass."""
    shares = []
    clock = Clock()
    with (
        patch("outward.probe.loop.bias", clock.around(bias)),
        patch("outward.probe.loop.tally", clock.around(tally)),
    ):
        for _ in range(rounds):
            total, spent = clock.step(partial(measured, model, batch, kernel))
            shares.append(spent / (total - spent))
    return f"1 + {median(shares):.4f} [{min(shares):.4f}, {max(shares):.4f}]"


def head(quick: bool) -> Iterator[Row]:
    """A measuring run, which needs no head, over the plain forward pass of the language model."""
    for name, dtype in DTYPES.items():
        model = gpt2(dtype, quick=quick, head=True)
        for batch, tokens in ((2, 64),) if quick else SHAPES:
            given = batch_of(batch, tokens)
            runs: dict[str, Callable[[], object]] = {"plain": partial(forward, model, given)}
            runs |= {k: partial(measured, model.transformer, given, k) for k in KERNELS}  # type: ignore[arg-type]
            times = interleaved(runs, rounds=3, warmup=1)
            row: Row = {"dtype": name, "batch": f"{batch} x {tokens}"}
            row |= {k: ratio(times, k, "plain") for k in KERNELS}
            yield row | {"plain with head, s": median(times["plain"])}


def padded(quick: bool) -> Iterator[Row]:
    """Rows of different lengths in one batch, over the plain forward pass of the same batch."""
    for name, dtype in DTYPES.items():
        model = gpt2(dtype, quick=quick)
        batch, tokens = (2, 64) if quick else (8, 512)
        lengths = [tokens - n * tokens // (2 * batch) for n in range(batch)]
        given = batch_of(batch, tokens, lengths)
        times = interleaved(candidates(model, given), rounds=3, warmup=1)
        row: Row = {"dtype": name, "lengths": f"{min(lengths)} to {tokens}, {batch} rows"}
        yield row | {k: ratio(times, k, "plain") for k in KERNELS}


def optional(quick: bool) -> Iterator[Row]:
    """What each optional measure adds, over the plain forward pass."""
    for name, dtype in DTYPES.items():
        model = gpt2(dtype, quick=quick)
        for batch, tokens in ((2, 64),) if quick else SHAPES[:1]:
            given = batch_of(batch, tokens)
            runs: dict[str, Callable[[], object]] = {"plain": partial(forward, model, given)}
            runs["default"] = partial(measured, model, given, "native")
            for measure in OPTIONAL:
                runs[measure] = partial(measured, model, given, "native", measures=(measure,))
            times = interleaved(runs, rounds=3 if quick else 5, warmup=1)
            row: Row = {"dtype": name, "batch": f"{batch} x {tokens}"}
            for each in ("default", *OPTIONAL):
                row[each if each == "default" else f"default, {each}"] = ratio(times, each, "plain")
            yield row


def growth(quick: bool) -> Iterator[Row]:
    """The price as texts grow, one text at a time, in float32: it falls."""
    lengths = (64, 128) if quick else (256, 512, 1024, 2048, 4096)
    model = gpt2(torch.float32, quick=quick, tokens=max(lengths))
    for tokens in lengths:
        given = batch_of(1, tokens)
        rounds = 3 if quick or tokens > 1024 else 5
        times = interleaved(candidates(model, given), rounds=rounds, warmup=1)
        row: Row = {"tokens": tokens} | {k: ratio(times, k, "plain") for k in KERNELS}
        row |= {
            f"{k}: direct share": direct_share(model, given, k, rounds=1 if quick else 3)
            for k in KERNELS
        }
        yield row | {"plain, s": median(times["plain"])}


# ---- memory


def memory(quick: bool) -> Iterator[Row]:
    """Peak memory beyond the resident model, in MiB, each in a process of its own; and over plain."""
    for name in DTYPES:
        for batch, tokens in ((2, 64),) if quick else SHAPES:
            peaks = {c: peak(c, name, batch, tokens, quick=quick) for c in ("plain", *KERNELS)}
            row: Row = {"dtype": name, "batch": f"{batch} x {tokens}"} | peaks
            yield row | {f"{k} over plain": peaks[k] / peaks["plain"] for k in KERNELS}


def peak(candidate: str, dtype: str, batch: int, tokens: int, *, quick: bool) -> float:
    """Of a fresh process: the second pass counts, the first one warms up."""
    code = f"from benchmarks.measure import child; child{(candidate, dtype, batch, tokens, quick)}"
    command = [sys.executable, "-c", code]
    made = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | EXACT)
    return float(made.stdout)


def child(candidate: str, dtype: str, batch: int, tokens: int, quick: bool) -> None:
    """Print how far a pass raised this process's memory above what the model needs."""
    torch.set_num_threads(1)
    model, given = gpt2(DTYPES[dtype], quick=quick), batch_of(batch, tokens)
    go = candidates(model, given)[candidate]
    go()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps of freed memory would hide as much
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
    before = resident("VmRSS")
    go()
    sys.stdout.write(str(resident("VmHWM") - before))


def resident(name: str) -> float:
    """MiB, as the kernel counts."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


SECTIONS = {
    "price": price,
    "head": head,
    "padded": padded,
    "optional": optional,
    "growth": growth,
    "memory": memory,
}

if __name__ == "__main__":
    run("benchmarks.measure", __doc__, SECTIONS)
