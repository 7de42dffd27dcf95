"""Context similarity, looked for in the calls of texts: measures/context.py, tallied."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from outward.attention.call import AttentionCall
from outward.attention.exclusive import exclude_self
from outward.attention.visible import Visible
from outward.measures.context import Context, Options, Pairs, Text, context, pairs_of, weights_of
from outward.probe.loop import BadSampleError
from outward.probe.tally import LayerTally, of_pairs
from outward.sources.batch import Batch
from outward.stats.histogram import Histogram
from outward.stats.moments import Moments

Form = Literal["standard", "exclusive", "rotated"]


class ContextLens:
    """Looks at C, and at what makes it.

    form: of the outputs as they are; of the exclusive form's; or, as a null, of the same weights over
    values that keep their lengths and get directions of their own at random. ends: ids of the tokens
    that end a sentence or a part of one.
    """

    def __init__(
        self, options: Options, ends: Iterable[int], *, form: Form = "standard", seed: int = 0
    ) -> None:
        self.options, self.ends, self.form, self.seed = options, frozenset(ends), form, seed
        self._known: list[tuple[Text, Pairs]] = []

    def read(self, batch: Batch) -> None:
        """The text of the batch, and its pairs of tokens: the same for all heads."""
        text = text_of(batch, self.ends)
        self._known[:] = [(text, pairs_of(text))]

    def tally(self, call: AttentionCall, see: Visible, windows: int) -> LayerTally | None:
        """One call; nothing is said of one that works on other tokens than the text's."""
        text, pairs = self._known[0]
        if call.y.shape[0] != len(text.ids) or call.y.shape[2] != text.ids.shape[1]:
            return None
        found = context(self._formed(call), text, pairs, see, options=self.options)
        if not found.numbers["common_share"].isfinite().all():
            raise BadSampleError(f"NaN or infinity comes out of {call.module}")
        return _tallied(call, found, windows)

    def _formed(self, call: AttentionCall) -> AttentionCall:
        if self.form == "exclusive":
            return replace(call, y=exclude_self(call.y, call.v))
        if self.form == "rotated":
            return rotated(call, seed=self.seed)
        return call


def text_of(batch: Batch, ends: Iterable[int]) -> Text:
    """Ids, separators, sentences, and which tokens are real."""
    ids = batch.inputs.get("input_ids", batch.args[0] if batch.args else None)
    if ids is None or ids.is_floating_point():
        raise BadSampleError("context similarity is of texts: this batch holds no tokens")
    known = torch.tensor(sorted(ends), dtype=ids.dtype, device=ids.device)
    separator = torch.isin(ids, known)
    if batch.special is not None:
        separator = separator | batch.special
    sentence = separator.cumsum(1) - separator.long()
    valid = torch.ones_like(separator) if batch.valid is None else batch.valid
    return Text(ids, separator, sentence, valid)


def rotated(call: AttentionCall, *, seed: int) -> AttentionCall:
    """The same weights and lengths of values, whose directions are drawn anew for each token and head.

    One rotation for all tokens of a head would be no null: C has only products in it.
    """
    made = torch.Generator(device="cpu").manual_seed(seed + call.layer)
    random = torch.randn(call.v.shape, generator=made).to(call.v.device, torch.float32)
    size = call.v.float().norm(dim=-1, keepdim=True)
    v = random / random.norm(dim=-1, keepdim=True) * size
    P = weights_of(call)
    y = (P.unflatten(1, (v.shape[1], -1)).to(v.dtype) @ v[:, :, None]).flatten(1, 2)
    return replace(call, v=v.to(call.v.dtype), y=y.to(call.y.dtype))


def _tallied(call: AttentionCall, found: Context, windows: int) -> LayerTally:
    names = tuple(found.numbers)
    numbers: Float[Tensor, "measure batch head 1"] = torch.stack(
        [x.double() for x in found.numbers.values()]
    )[..., None]
    heads = numbers.shape[2]
    moments, histogram = of_pairs(numbers, names)
    means = numbers[..., 0].permute(1, 0, 2).cpu().numpy()
    return LayerTally(
        call.layer,
        call.module,
        names,
        (),
        Moments.empty((0, heads, 1)),
        Histogram.empty((0, heads, 1)),
        moments,
        histogram,
        means,
        np.isfinite(means).astype(np.int64),
        0,
        sums=_sums(found),
        rows={"focal": _array(found.focal), "tied": _array(found.tied)},
    )


def _sums(found: Context) -> dict[str, NDArray[Any]]:
    matrices = {f"matrix.{name}": _array(x) for name, x in found.matrices.items()}
    return {
        "distances": _array(found.distances),
        "repetition": _array(found.repetition),
    } | matrices


def _array(x: Tensor) -> NDArray[Any]:
    return np.ascontiguousarray(x.cpu().numpy())
