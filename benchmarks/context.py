"""What context similarity costs: over a plain forward pass of the same model, 32 texts of 128 tokens.

    python -m benchmarks.context [--json] [--out DIR] [--only price] [--quick]

Random weights put every pair above the threshold: attention is even, and all outputs are alike. So one
model is minilm, with its weights, on English; and one has the shape of BERT-base, with queries and keys
so much larger that attention is uneven. `high pairs` says how many of 8128 are high, on average.
"""

from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.tables import Row, run
from benchmarks.timing import interleaved, ratio
from outward.measures.context import Options
from outward.probe.context import ContextLens
from outward.probe.loop import Probe
from outward.sources.batch import Batch
from outward.sources.batches import batches
from outward.sources.models import load_model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TEXTS, TOKENS, SHARPER = 32, 128, 6.0
ENDS = frozenset({1012, 1025, 1029, 999, 1024})  # . ; ? ! :


def bert_base(layers: int) -> nn.Module:
    """Of random weights, with uneven attention."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig(num_hidden_layers=layers), add_pooling_layer=False).eval()
    with torch.no_grad():
        for layer in model.encoder.layer:
            for part in (layer.attention.self.query, layer.attention.self.key):
                part.weight *= SHARPER
    return model


def models(quick: bool) -> Iterator[tuple[str, nn.Module, Batch]]:
    """A name, a model and a batch."""
    source = load_model("minilm")
    texts = 4 if quick else TEXTS
    given = next(iter(batches(source, None, length=TOKENS, samples=texts, batch=texts, whole=True)))
    yield "minilm", source.body, given
    yield "BERT-base, random", bert_base(2 if quick else 12), given


def forward(model: nn.Module, batch: Batch) -> Any:
    """A plain forward pass."""
    with torch.no_grad():
        return model(**batch.inputs)


def looked_at(model: nn.Module, batch: Batch) -> float:
    """The same, with everything of context similarity: the mean number of high pairs."""
    lens = ContextLens(Options(), ENDS)
    with Probe(model, partial(forward, model), lens=lens) as probe:
        found = probe.measure([batch])
    assert found.documents, found.skipped
    at = found.layers[0].per_pair.index("high_pairs")
    return float(sum(layer.pairs.mean[at].mean() for layer in found.layers) / len(found.layers))


def price(quick: bool) -> Iterator[Row]:
    """Everything, over the plain forward pass; and how long 20,000 texts would take so"""
    for dtype_name, dtype in DTYPES.items():
        for name, made, batch in models(quick):
            model = made.to(dtype)
            runs = {
                "plain": partial(forward, model, batch),
                "context": partial(looked_at, model, batch),
            }
            times = interleaved(runs, rounds=3 if quick else 7, warmup=1)
            yield {
                "model": name,
                "dtype": dtype_name,
                "texts": len(batch.documents),
                "context over plain": ratio(times, "context", "plain"),
                "plain, s": median(times["plain"]),
                "high pairs": looked_at(model, batch),
                "20,000 texts, min": median(times["context"]) * 20_000 / len(batch.documents) / 60,
            }


if __name__ == "__main__":
    run("benchmarks.context", __doc__, {"price": price})
