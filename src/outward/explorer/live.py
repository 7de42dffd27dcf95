"""A model that is loaded: one text or picture at a time, and every head of what came of the last one.

The forward pass is the model's own; it is watched by `capture`, in the thread that runs it. Where the
time is up, or nobody waits any more, it is ended from within.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event, Lock
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from outward.attention.call import AttentionCall
from outward.attention.visible import Visible, visible
from outward.explorer.matrices import MATRICES, Arrays, head_arrays, kept, seen_run
from outward.explorer.pictures import (
    Grid,
    as_seen,
    example,
    grid_of,
    names_of_patches,
    read_picture,
)
from outward.explorer.safety import RefusedError
from outward.measures.bias import PER_TOKEN, bias
from outward.sources.batch import Batch
from outward.sources.batches import ready
from outward.sources.errors import SourceError, first_line
from outward.sources.images import picture_batch, prepared
from outward.sources.source import Source
from outward.sources.text import Window, encoder, special_ids, text_batches
from outward.taps.capture import capture

SHOWN = ("self_weight", "self_similarity", "null_similarity")
MOST_KEPT = 4 * 2**30
"""Bytes of q, k, v, y and masks."""
LONGEST_TOKEN = 128
"""Characters; a text is cut at so many times the most tokens, before the tokenizer reads it."""
BROKEN = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
"""What a forward pass, a tokenizer or a processor raises of an input that it cannot take."""


@dataclass(frozen=True, eq=False)
class Layer:
    """What is kept of one layer: its call, SHOWN of each head and token, and what each token sees."""

    call: AttentionCall
    tokens: Float[Tensor, "measure head token"]
    seen: Float[Tensor, "2 token"]

    @property
    def told(self) -> dict[str, Any]:
        """As the page lists it."""
        _, heads, tokens = self.tokens.shape
        return {
            "layer": self.call.layer,
            "module": self.call.module,
            "heads": heads,
            "tokens": tokens,
        }


@dataclass(frozen=True, eq=False)
class Given:
    """An input as the model takes it, and as the page shows it."""

    batch: Batch
    tokens: list[str] = field(default_factory=list)
    cut: bool = False
    grid: Grid | None = None
    prefix: int = 0
    picture: NDArray[np.uint8] | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """What came of an input. left_out: a sentence for each module that is not shown."""

    id: str
    given: Given
    layers: list[Layer]
    left_out: list[str]
    seconds: float


class Live:
    """A model, and the last input that it was given."""

    def __init__(self, source: Source, *, max_tokens: int, max_seconds: float) -> None:
        self.source, self.max_seconds = source, max_seconds
        self.max_tokens = min(max_tokens, source.max_length or max_tokens)
        self._last: Answer | None = None
        self._drawing = Lock()
        self._feed: Callable[[Any], Given] = self._feeder()
        layers = [layer.told for layer in self._tried().layers]
        self._size = {"layers": len(layers), "heads": max(layer["heads"] for layer in layers)}

    def info(self) -> dict[str, Any]:
        """What the page says of the model."""
        about = {"model": self.source.name, "kind": self.source.kind}
        return {**about, **self._size, "max_tokens": self.max_tokens}

    def run(self, given: str | bytes, stop: Event) -> dict[str, Any]:
        """Give the model a text, or the bytes of a picture. Called in one thread at a time."""
        if isinstance(given, str) != (self.source.kind == "text"):
            wanted = "text" if self.source.kind == "text" else "pictures"
            raise RefusedError(422, f"{self.source.name} takes {wanted}.")
        leash = Leash(stop, self.max_seconds)
        with _refused(self.source.name):
            fed = self._feed(given if isinstance(given, str) else read_picture(given))
        self._last = None  # two of them would be kept for a while
        answer = self._answer(fed, leash)
        self._last = answer
        return {
            "id": answer.id,
            "kind": self.source.kind,
            "tokens": answer.given.tokens,
            "cut": answer.given.cut,
            "grid": answer.given.grid,
            "prefix": answer.given.prefix,
            "layers": [layer.told for layer in answer.layers],
            "left_out": answer.left_out,
            "seconds": answer.seconds,
        }

    def tokens(self, id: str) -> Arrays:  # noqa: A002
        """SHOWN by place in the list of layers, head and token; and the picture."""
        answer = self._known(id)
        heads, tokens = (max(x.tokens.shape[n] for x in answer.layers) for n in (1, 2))
        shape = (len(SHOWN), len(answer.layers), heads, tokens)
        found = np.full(shape, np.nan, np.float16)
        for n, layer in enumerate(answer.layers):
            found[:, n, : layer.tokens.shape[1], : layer.tokens.shape[2]] = layer.tokens.numpy()
        arrays: Arrays = dict(zip(SHOWN, found, strict=True))
        picture = answer.given.picture
        return arrays if picture is None else arrays | {"picture": picture}

    def head(self, id: str, layer: int, head: int, names: tuple[str, ...] | None) -> Arrays:  # noqa: A002
        """The matrices of a head by these names; all of them unless given."""
        answer = self._known(id)
        unknown = [n for n in names or () if n not in MATRICES]
        if unknown:
            raise RefusedError(400, f"No matrix {unknown[0][:60]!r}: there are {', '.join(MATRICES)}.")
        found = next((x for x in answer.layers if x.call.layer == layer), None)
        if found is None or head >= found.tokens.shape[1]:
            raise RefusedError(404, f"Nothing is kept of a layer {layer} with a head {head}.")
        with self._drawing:  # one at a time: a matrix of 2,048 tokens takes 16 MiB in the making
            arrays = head_arrays(found.call, head, MATRICES if names is None else names)
        vectors = (*found.tokens[:2, head], *found.seen)
        numbers = zip((*SHOWN[:2], "seen_from", "seen_to"), vectors, strict=True)
        return arrays | {name: x.numpy() for name, x in numbers}

    def _known(self, id: str) -> Answer:  # noqa: A002
        last = self._last
        if last is None or last.id != id:
            raise RefusedError(404, "Only the last input is kept; give this one again.")
        return last

    # ---- what goes in

    def _feeder(self) -> Callable[[Any], Given]:
        if self.source.kind == "text":
            return Texts(self.source, self.max_tokens)
        if self.source.kind == "image":
            return self._picture
        raise SourceError(
            f"{self.source.name} takes {self.source.kind}; live, the explorer takes text and pictures. "
            "`outward measure` measures it."
        )

    def _picture(self, image: Any) -> Given:
        inputs = prepared(self.source, image)
        batch = ready(self.source, picture_batch(self.source, [("picture", inputs)]))
        return Given(batch, picture=as_seen(_pixels(batch), self.source.processor))

    def _tried(self) -> Answer:
        """An example goes through: that the model can be run and shown is known before anybody asks."""
        name = self.source.name
        try:
            with _refused(name):
                given = self._feed(_example(self.source))
            return self._answer(given, Leash(Event(), np.inf))
        except RefusedError as error:
            raise SourceError(str(error)) from error

    # ---- what comes out

    def _answer(self, given: Given, leash: "Leash") -> Answer:
        began = time.monotonic()
        watch = Watch(leash, self.max_tokens, self._tokens_of(given))
        body, calls = self.source.body, capture(self.source.body, watch)
        with torch.no_grad(), _refused(self.source.name), leash.on(body), calls:
            body(*given.batch.args, **given.batch.inputs)
        refused = [f"{c.module}: {c.reason}." for c in calls.coverage if c.status == "refused"]
        layers, left_out = watch.layers(), watch.left_out() + refused
        if not layers:
            why = left_out[0] if left_out else "no module of it calls itself attention."
            raise RefusedError(422, f"{self.source.name} has no attention that can be shown: {why}")
        seen = self._named(given, layers[0].tokens.shape[2])
        return Answer(secrets.token_urlsafe(9), seen, layers, left_out, time.monotonic() - began)

    def _tokens_of(self, given: Given) -> int | None:
        """How many tokens went in, where the decoder of an encoder has others."""
        config = getattr(self.source.body, "config", None)
        return len(given.tokens) if getattr(config, "is_encoder_decoder", False) else None

    def _named(self, given: Given, tokens: int) -> Given:
        """A picture's tokens have names only when their number is known."""
        if self.source.kind == "text":
            return given
        grid, prefix = grid_of(self.source.body, _pixels(given.batch), tokens)
        return replace(given, tokens=names_of_patches(grid, prefix, tokens), grid=grid, prefix=prefix)


class Texts:
    """Text -> what the model is called with, and the text of each token."""

    def __init__(self, source: Source, max_tokens: int) -> None:
        self._source, self._encode = source, encoder(source.processor)
        self._before, self._after = special_ids(source.processor)
        self._room = max_tokens - len(self._before) - len(self._after)
        self._longest = max_tokens * LONGEST_TOKEN
        if self._room < 1:
            raise SourceError(
                f"--max-tokens {max_tokens}: {source.name} puts {max_tokens - self._room} tokens "
                "around every text; give more."
            )

    def __call__(self, text: str) -> Given:
        """Cut to what there is room for."""
        whole = text.encode("utf-8", "replace").decode()  # half a surrogate pair is no character
        ids = [int(n) for n in self._encode(whole[: self._longest])]
        if not ids:
            raise RefusedError(422, "There is no token in this text; give another.")
        cut = len(ids) > self._room or len(whole) > self._longest
        every = [*self._before, *ids[: self._room], *self._after]
        window = Window("live", 0, every, (len(self._before), len(self._after)))
        (batch,) = text_batches([window], batch=1, pad_id=None)
        return Given(ready(self._source, batch), [self._text(n) for n in every], cut)

    def _text(self, token: int) -> str:
        """By itself, with the space before it that a word has."""
        tokenizer = self._source.processor
        if not hasattr(tokenizer, "convert_ids_to_tokens"):
            return str(tokenizer.decode([token])) if hasattr(tokenizer, "decode") else str(token)
        piece = str(tokenizer.convert_ids_to_tokens(token))
        if "\u2581" in piece:  # SentencePiece's sign of a space, which its decoders drop at the start
            return piece.replace("\u2581", " ")
        return str(tokenizer.decode([token], clean_up_tokenization_spaces=False)) or piece


class Leash:
    """Ends a forward pass from within: hooks of the modules ask it."""

    def __init__(self, stop: Event, seconds: float) -> None:
        self._stop, self._seconds = stop, seconds
        self._end = time.monotonic() + seconds

    def __call__(self, *_: Any) -> None:
        """Raises where the time is up, or nobody waits any more."""
        if self._stop.is_set():
            raise RefusedError(503, "Stopped: nobody waits for it any more.")
        if time.monotonic() > self._end:
            raise RefusedError(
                503,
                f"It took longer than {self._seconds:g} seconds and was stopped; give less text, or "
                "start with a longer --max-seconds.",
            )

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Asked before every module of the model."""
        handles = [module.register_forward_pre_hook(self) for module in model.modules()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class Watch:
    """The observer of a capture: keeps what can be shown, and says why the rest cannot.

    only: of calls with another number of tokens nothing is kept.
    """

    def __init__(self, leash: Leash, max_tokens: int, only: int | None) -> None:
        self._leash, self._max_tokens, self._only = leash, max_tokens, only
        self._layers: dict[int, Layer] = {}
        self._left_out: dict[int, str] = {}
        self._seen: dict[Any, tuple[AttentionCall, Visible]] = {}
        self._bytes: dict[int, int] = {}

    def layers(self) -> list[Layer]:
        """In order, those that can be shown."""
        return [x for n, x in sorted(self._layers.items()) if n not in self._left_out]

    def left_out(self) -> list[str]:
        """A sentence for each of the others."""
        return list(self._left_out.values())

    def __call__(self, call: AttentionCall) -> None:
        """One call."""
        self._leash()
        why = self._unshown(call)
        if why is None:
            try:
                self._layers[call.layer] = self._layer(call)
            except ValueError as error:  # of masks that no measure is defined for
                why = str(error).removeprefix(f"{call.module}: ").rstrip(".")
        if why is not None:
            self._left_out[call.layer] = f"{call.module}: {why}."

    def _unshown(self, call: AttentionCall) -> str | None:
        rows, tokens = call.y.shape[0], call.y.shape[2]
        if self._only is not None and tokens != self._only:
            return (
                f"it sees {tokens} tokens, not the {self._only} of the input: the decoder is not shown"
            )
        if rows != 1:
            return f"it works in {rows} windows of {tokens} tokens, not over all of them"
        if call.layer in self._layers:
            return "it works in several parts"
        if not all(bool(x.isfinite().all()) for x in (call.v, call.y)):
            return "NaN or infinity comes out of it"
        if tokens > self._max_tokens:
            raise RefusedError(
                413,
                f"This makes {tokens} tokens, more than {self._max_tokens}; start with a larger "
                "--max-tokens.",
            )
        return None

    def _layer(self, call: AttentionCall) -> Layer:
        see = self._visible(call)
        measured = bias(call, see)
        tokens = measured.tokens[[PER_TOKEN.index(name) for name in SHOWN], 0].float()
        tokens = tokens.masked_fill(~measured.kept[0], torch.nan).cpu()
        mine = kept(call)
        self._refuse_bytes(mine)
        return Layer(mine, tokens, seen_run(call, see))

    def _visible(self, call: AttentionCall) -> Visible:
        """Layers share masks: each is read once. What is compared by identity is held on to."""
        key = (id(call.mask), id(call.self_key), call.causal, call.y.shape[2], call.v.shape[2])
        if key not in self._seen:
            self._seen[key] = call, visible(call)
        return self._seen[key][1]

    def _refuse_bytes(self, call: AttentionCall) -> None:
        """The last input is kept whole, and a large model's is large."""
        for x in (call.q, call.k, call.v, call.y, call.mask, call.weights):
            if x is not None:
                storage = x.untyped_storage()
                self._bytes[storage.data_ptr()] = storage.nbytes()
        if sum(self._bytes.values()) > MOST_KEPT:
            raise RefusedError(
                422,
                f"What this model makes of so many tokens does not fit in {MOST_KEPT // 2**30} GiB; "
                "give less, or start with a smaller --max-tokens.",
            )


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """What an input makes a model, a tokenizer or a processor raise."""
    try:
        yield
    except BROKEN as error:
        raise RefusedError(422, f"{name} cannot be run on it: {first_line(error)[:300]}.") from error


def _pixels(batch: Batch) -> Tensor | None:
    """What a model that sees is given first."""
    return batch.inputs.get("pixel_values", batch.args[0] if batch.args else None)


def _example(source: Source) -> Any:
    """Of text a few letters, of words no more than tokenizers of letters know."""
    if source.kind != "text":
        return example(source)
    return "a a a a" if hasattr(source.processor, "convert_ids_to_tokens") else "aaaa"
