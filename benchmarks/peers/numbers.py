"""Whether the peer's numbers are ours, and what makes the difference where they are not."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from benchmarks.peers.ways import QUANTITIES, from_cache, ids, peer, texts
from benchmarks.tables import Row
from outward.engines.direct import measure
from outward.measures.bias import PER_TOKEN, bias
from outward.taps.capture import capture

ALLOWED = 1e-4  # of any head and layer, once what differs by intent is taken into account
Quantities = Float[Tensor, "layer quantity head"]


@dataclass(frozen=True, eq=False)
class Case:
    """What the peer found, run in some way; and what ours is, of what it was in truth given."""

    weights: str
    given: str
    found: Quantities
    expected: Quantities
    explained_by: str
    first: str = "left out"

    def row(self, ours: Quantities) -> Row:
        """The largest differences from ours of the model and tokens as they are; and what is left."""
        apart = (self.found - ours).abs().amax(dim=(0, 2)).tolist()
        left = (self.found - self.expected).abs().max().item()
        row: Row = {"weights": self.weights, "given": self.given, "first token": self.first}
        row |= dict(zip(QUANTITIES, apart, strict=True))
        return row | {"explained by": self.explained_by, "left": left}


def compare(model: Any, batch: int, tokens: int) -> tuple[list[Row], list[Row]]:
    """Rows of differences and rows of layers: the peer with and without its processing, on tokens and
    on strings, before which it puts BOS.
    """
    given = ids(batch, tokens)
    at_bos = F.pad(given, (1, 0), value=model.config.bos_token_id)
    own, processed = peer(model), peer(model, processed=True)
    first = Case(
        "as they are",
        "tokens",
        from_cache(own, given, first=True),
        with_first(measured(model, given), tokens=tokens),
        "1 for it, as y = v there",
        "counted",
    )
    cases = []
    for weights, theirs, ours, why in (
        ("as they are", own, measured, ""),
        ("processed", processed, without_value_biases, "value biases out of v and y"),
    ):
        found, expected = from_cache(theirs, given), ours(model, given)
        cases.append(Case(weights, "tokens", found, expected, why))
        found, expected = from_cache(theirs, texts(given)), ours(model, at_bos)
        cases.append(Case(weights, "strings", found, expected, f"{why}, BOS before".strip(", ")))
    on_tokens = [c for c in cases if c.given == "tokens"]
    return [c.row(on_tokens[0].expected) for c in (*cases, first)], list(_layers(*on_tokens))


def _layers(own: Case, processed: Case) -> Iterator[Row]:
    for q, quantity in enumerate(QUANTITIES):
        for n in range(len(own.found)):
            row: Row = {"quantity": quantity, "layer": n, "ours": own.expected[n, q].mean().item()}
            row["theirs"] = own.found[n, q].mean().item()
            row["theirs, processed"] = processed.found[n, q].mean().item()
            yield row | {"ours, value biases out": processed.expected[n, q].mean().item()}


def measured(model: Any, tokens: Int[Tensor, "batch token"]) -> Quantities:
    """What the library says, to whom it is given the model."""
    table = measure(model, [{"input_ids": tokens}]).profile
    means = table[table.place.isna()].set_index(["measure", "layer", "head"])["mean"]
    each = [torch.tensor(means[q].unstack().to_numpy()) for q in QUANTITIES]
    return torch.stack(each, dim=1)


def with_first(found: Quantities, *, tokens: int) -> Quantities:
    """The same with the first token counted: both of its own weight and similarity are 1."""
    counted = (found * (tokens - 1) + 1) / tokens
    return torch.cat((found[:, :1], counted[:, 1:]), dim=1)


def without_value_biases(model: Any, tokens: Int[Tensor, "batch token"]) -> Quantities:
    """Ours, of v - b and y - b: rows of weights sum to 1, so that b is in y as it is in v.

    b is all that does not depend on the token: the bias of v, and the norm's bias through W_V.
    """
    with torch.no_grad(), capture(model) as calls:
        model(tokens)
    layers = []
    for call, block in zip(calls, model.transformer.h, strict=True):
        W, width = block.attn.c_attn.weight, model.config.n_embd
        b = block.attn.c_attn.bias[2 * width :] + block.ln_1.bias @ W[:, 2 * width :]
        b = b.detach().view(call.v.shape[1], 1, call.v.shape[3])
        found = bias(replace(call, v=call.v - b, y=call.y - b))
        known = found.tokens[..., found.kept[0]].double().mean(dim=(1, 3))
        own = [known[PER_TOKEN.index(q)] for q in QUANTITIES[1:]]
        layers.append(torch.stack([found.pairs.double().mean(dim=(0, 2)), *own]))
    return torch.stack(layers)
