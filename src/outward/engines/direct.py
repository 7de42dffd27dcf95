"""measure(model, batches): any model and any batches, in this process."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outward.engines.finish import assemble
from outward.engines.plan import CHUNK, KIND, asked_for
from outward.engines.work import Watched, kernel_of
from outward.probe.loop import BiasLens
from outward.probe.tally import EMPTY, Chunk
from outward.results import claim
from outward.run import Run
from outward.sources.batch import Batch


def measure(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    run: Callable[[Any], Any] | None = None,
    verify: bool = True,
    layers: Iterable[int] | None = None,
    measures: tuple[str, ...] = (),
    kernel: str = "auto",
    out: str | Path | None = None,
) -> Run:
    """Measure how much attention hands each token back to itself, over batches of any kind.

    batches: what the model is called with, one after the other (or one alone): a tensor, a tuple of
        arguments, a mapping of named ones, or a `Batch`, which also says what documents its rows are
        of (needed for intervals; otherwise each row counts as a document).
    run: how a batch is run, if not by calling the model with it.
    verify: prove on the first batch that watching changes nothing and sees what is computed.
    layers: which layers to measure; all of them unless given.
    measures: names of optional ones to compute beside the default ones, at a price: entropy,
        orthogonal_similarity.
    kernel: what computes the measures on CPUs: native (compiled at first use by the machine's C++
        compiler), torch, or auto: native if there is a compiler.
    out: a directory to keep the run in.

    The model is put in eval mode for the duration, and back.
    """
    requests = asked_for(measures)
    if out is not None:
        claim(Path(out), KIND)
    original = getattr(model, "_orig_mod", model)
    only = None if layers is None else tuple(layers)
    with InEvalMode(original):
        call = run or (lambda b: original(*b.args, **b.inputs))
        lens = BiasLens(requests, kernel_of(kernel))
        watched = Watched(original, only, verify, lens=lens, run=call)
        found, about = tallied(watched, as_batches(batches))
    if not found.documents:
        raise ValueError(" ".join(["nothing could be measured.", *found.skipped[:1]]))
    facts = {"plan": None, "data": None, "versions": {"torch": torch.__version__}}
    result = assemble({"main": found}, {"main": about}, facts, [])
    kept = Run(result)
    return kept if out is None else kept.save(out)


def tallied(watched: Watched, batches: Iterator[Batch]) -> tuple[Chunk, dict[str, Any]]:
    """The batches' tallies, and what is told of them and the model in run.json."""
    chunks = iter(lambda: list(islice(batches, CHUNK)), [])  # as the engines cut them: the same bits
    with watched:
        parts = [watched.tally(chunk) for chunk in chunks]
    if not parts:
        raise ValueError("batches is empty: there is nothing to measure.")
    about = {
        "model": {
            "class": type(watched.model).__name__,
            "parameters": sum(p.numel() for p in watched.model.parameters()),
        },
        "takes": None,
        "note": None,
        **watched.about(),
        "skipped": [],
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "argv": [],
    }
    return reduce(Chunk.merge, parts, EMPTY), about


def as_batches(batches: Iterable[Any]) -> Iterator[Batch]:
    """What a model is called with, one after the other, as batches: each row is a document."""
    seen = 0
    alone = isinstance(batches, Tensor | Mapping | Batch)  # one batch, not an iterable of them
    for given in (batches,) if alone else batches:
        batch = given if isinstance(given, Batch) else _as_batch(given, seen)
        seen += len(batch.documents)
        yield batch


def _as_batch(given: Any, seen: int) -> Batch:
    args: tuple[Any, ...] = ()
    inputs: dict[str, Any] = {}
    if isinstance(given, Mapping):
        inputs = dict(given)
    else:
        args = tuple(given) if isinstance(given, list | tuple) else (given,)
    rows = next((len(x) for x in (*args, *inputs.values()) if isinstance(x, Tensor) and x.ndim), None)
    if rows is None:
        raise TypeError(
            f"a batch of type {type(given).__name__} holds no tensor with a batch axis: give what the "
            "model is called with, a tensor, a tuple or a mapping."
        )
    mask = inputs.get("attention_mask")
    valid = mask.bool() if isinstance(mask, Tensor) and mask.ndim == 2 else None
    return Batch(args, inputs, [str(seen + i) for i in range(rows)], [0] * rows, valid=valid)


class InEvalMode:
    """Every module as it was, afterwards: some may have been in eval mode on purpose."""

    def __init__(self, model: nn.Module) -> None:
        self.training = [m for m in model.modules() if m.training]

    def __enter__(self) -> None:
        for module in self.training:
            module.training = False

    def __exit__(self, *error: object) -> None:
        for module in self.training:
            module.training = True
