"""Batch: what is passed to a model, what it was made of, and which of its tokens count."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from jaxtyping import Bool
from torch import Tensor

from outward.sources.errors import SourceError

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Call `source.body(*batch.args, **batch.inputs)`. Row r is window windows[r] of documents[r].

    valid says which tokens are real, not padding; None: all. special says which tokens the
    tokenizer put around the text; None: none.
    """

    args: tuple[Tensor, ...]
    inputs: dict[str, Tensor]
    documents: list[str]
    windows: list[int]
    valid: Bool[Tensor, "batch token"] | None = field(default=None, kw_only=True)
    special: Bool[Tensor, "batch token"] | None = field(default=None, kw_only=True)


def placed(batch: Batch, like: Tensor) -> Batch:
    """On the device of the model, and what is floating of its type."""

    def move(x: Tensor) -> Tensor:
        return x.to(like.device, like.dtype if x.is_floating_point() else x.dtype)

    return replace(
        batch,
        args=tuple(map(move, batch.args)),
        inputs={name: move(x) for name, x in batch.inputs.items()},
        valid=None if batch.valid is None else move(batch.valid),
        special=None if batch.special is None else move(batch.special),
    )


def grouped(items: Iterable[T], size: int, key: Callable[[T], object]) -> Iterator[list[T]]:
    """Consecutive items, at most size of them, that agree in key; their order stays."""
    group: list[T] = []
    for item in items:
        if group and (len(group) == size or key(item) != key(group[0])):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def limited(items: Iterable[T], samples: int, nothing: str, skipped: list[str]) -> Iterator[T]:
    """The first `samples` items; where there is none, an error that says so and why."""
    made = 0
    for item in islice(items, samples):
        made += 1
        yield item
    if made == 0:
        raise SourceError(" ".join([nothing, *skipped[:1]]))
