"""Windows of tokens from text, batches of windows, and the baseline of shuffled tokens."""

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from outward.sources.batch import Batch, grouped, limited
from outward.sources.documents import PIECE, Document, UnreadableError, documents, is_one_document
from outward.sources.errors import SourceError

SpecialTokens = Literal["auto", "never"]
Encode = Callable[[str], list[int]]
AT_ONCE = 32  # documents that are open at a time
ORDER = f"{AT_ONCE} texts in turn"
"""In which windows come: a run that was begun in another is not gone on with."""
LEAST = 2  # a token alone has no others to attend to
SEAMS = (re.compile(r".*\S( )\S", re.DOTALL), re.compile(r".*\S(\s)\S", re.DOTALL))


@dataclass(frozen=True)
class Window:
    """Consecutive tokens of one document, whose windows index counts.

    special: how many of the tokens, first and last, the tokenizer put around the text.
    """

    document: str
    index: int
    ids: list[int]
    special: tuple[int, int] = (0, 0)


def text_windows(
    data: str | Path | None,
    tokenizer: Any,
    *,
    length: int,
    samples: int,
    special_tokens: SpecialTokens = "auto",
    field: str | None = None,
    whole: bool = False,
    skipped: list[str] | None = None,
) -> Iterator[Window]:
    """At most `samples` windows of `length` tokens, special tokens among them.

    Several documents take turns, so that a few windows are of many texts. No window crosses from one
    document to the next. A short rest is dropped, unless it is all that its document has. What is left
    out is named in `skipped`; with whole, that are also documents shorter than length.
    """
    left_out = skipped if skipped is not None else []
    cutter = _Cutter(encoder(tokenizer), length, *_around(tokenizer, special_tokens))
    if samples < 1:
        raise SourceError(f"samples {samples}: it must be at least 1.")
    if length < cutter.least:
        raise SourceError(
            f"length {length}: a window needs at least {cutter.least} tokens here, of them "
            f"{length - cutter.size} that the tokenizer adds. A token alone has no others to attend to."
        )
    each = (
        _windows(document, cutter, left_out, must=is_one_document(data))
        for document in documents(data, field=field, skipped=left_out)
    )
    nothing = f"{data} holds no text of {LEAST} tokens or more."
    windows = _in_turn(each)
    if whole:
        windows = _of_length(windows, length, left_out)
        nothing = f"{data} holds no text of {length} tokens or more."
    return limited(windows, samples, nothing, left_out)


def _in_turn(each: Iterator[Iterator[Window]]) -> Iterator[Window]:
    """The first window of each of some documents, then the second; who has no more makes place."""
    some = deque(islice(each, AT_ONCE))
    while some:
        windows = some.popleft()
        window = next(windows, None)
        if window is None:
            some.extend(islice(each, 1))
        else:
            yield window
            some.append(windows)


def _of_length(windows: Iterator[Window], length: int, skipped: list[str]) -> Iterator[Window]:
    for window in windows:
        if len(window.ids) == length:
            yield window
        else:
            skipped.append(f"{window.document} has {len(window.ids)} tokens, fewer than {length}.")


def separators(tokenizer: Any, ends: str = ".;?!:") -> frozenset[int]:
    """The ids of tokens that are one of these signs, with or without space around it."""
    many = getattr(tokenizer, "vocab_size", None)
    if many is None or not hasattr(tokenizer, "decode"):
        return frozenset()
    whole = max(many, len(tokenizer)) if hasattr(tokenizer, "__len__") else many
    return frozenset(i for i in range(whole) if tokenizer.decode([i]).strip() in set(ends))


def text_batches(windows: Iterable[Window], *, batch: int, pad_id: int | None) -> Iterator[Batch]:
    """Consecutive windows as rows, padded on the right; without a pad_id, rows of one length only."""

    def same(window: Window) -> int:
        return 0 if pad_id is not None else len(window.ids)

    for group in grouped(windows, batch, same):
        yield _batch(group, pad_id or 0)


def shuffled(batch: Batch, *, seed: int) -> Batch:
    """The baseline: in each row the tokens of the text change places; special ones and padding stay.

    The order depends on seed, document and window alone, not on the batch.
    """
    ids = batch.inputs.get("input_ids", batch.args[0] if batch.args else None)
    if ids is None or ids.is_floating_point():
        raise SourceError("Shuffled tokens are a baseline for text; this batch holds none.")
    fixed = torch.zeros_like(ids, dtype=torch.bool)
    fixed |= ~batch.valid if batch.valid is not None else False
    fixed |= batch.special if batch.special is not None else False
    rows = [
        _permuted(row, ~stays, f"{seed}\0{document}\0{window}")
        for row, stays, document, window in zip(ids, fixed, batch.documents, batch.windows, strict=True)
    ]
    if "input_ids" in batch.inputs:
        return replace(batch, inputs={**batch.inputs, "input_ids": torch.stack(rows)})
    return replace(batch, args=(torch.stack(rows), *batch.args[1:]))


def encoder(tokenizer: Any) -> Encode:
    """Text to ids without special tokens, for tokenizers of transformers and others with encode."""
    if not hasattr(tokenizer, "encode"):
        raise SourceError(
            f"{type(tokenizer).__name__} is no tokenizer: text needs one with encode(text) -> ids. A "
            "function that makes a model returns (model, tokenizer)."
        )
    if not _of_transformers(tokenizer):
        return lambda text: list(tokenizer.encode(text))
    # verbose=False: a warning that a piece is longer than the model's limit would be wrong here.
    return lambda text: tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def special_ids(tokenizer: Any) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and behind a text, found by encoding one with and without."""
    if not _of_transformers(tokenizer):
        return [], []
    plain, full = encoder(tokenizer)("a"), tokenizer("a", verbose=False)["input_ids"]
    for start in range(len(full) - len(plain) + 1):
        if plain and full[start : start + len(plain)] == plain:
            return full[:start], full[start + len(plain) :]
    raise SourceError(
        f"{type(tokenizer).__name__}: its special tokens are not put around the text, but change it. "
        "Leave them out with special_tokens='never'."
    )


def _of_transformers(tokenizer: Any) -> bool:
    return hasattr(tokenizer, "num_special_tokens_to_add") and callable(tokenizer)


def _around(tokenizer: Any, special_tokens: SpecialTokens) -> tuple[list[int], list[int]]:
    return special_ids(tokenizer) if special_tokens == "auto" else ([], [])


@dataclass(frozen=True)
class _Cutter:
    encode: Encode
    length: int
    before: list[int]
    after: list[int]

    @property
    def size(self) -> int:
        """How many tokens of the text a window has."""
        return self.length - len(self.before) - len(self.after)

    @property
    def least(self) -> int:
        return max(LEAST, len(self.before) + len(self.after) + 1)


def _windows(
    document: Document, cutter: _Cutter, skipped: list[str], *, must: bool
) -> Iterator[Window]:
    """The windows of one document. What cannot be read is named; an error, if it must be read."""
    special = len(cutter.before), len(cutter.after)
    index = -1
    try:
        for index, ids in enumerate(_cut(_tokens(document.pieces, cutter.encode), cutter.size)):
            whole = cutter.before + ids + cutter.after
            if len(whole) < LEAST:
                skipped.append(f"{document.name} has fewer than {LEAST} tokens.")
                return
            yield Window(document.name, index, whole, special)
    except UnreadableError as error:
        if must:
            raise
        skipped.append(f"{document.name}: {error}")
        return
    if index < 0:
        skipped.append(f"{document.name} is empty.")


def _cut(pieces: Iterator[list[int]], size: int) -> Iterator[list[int]]:
    """Consecutive windows of `size`; the rest only where there is no other."""
    rest: list[int] = []
    whole = 0
    for piece in pieces:
        rest += piece
        for start in range(0, len(rest) - size + 1, size):
            yield rest[start : start + size]
            whole += 1
        rest = rest[len(rest) // size * size :]
    if rest and not whole:
        yield rest


def _tokens(pieces: Iterator[str], encode: Encode) -> Iterator[list[int]]:
    """The tokens of a text, a piece at a time.

    Pieces are cut where a space stands between two words, as tokenizers cut there themselves: the
    tokens are those of the whole text. Only text without such a place for the length of a piece may
    get another token at the cut.
    """
    rest = ""
    for piece in pieces:
        text = rest + piece
        end = _last_seam(text) if len(text) >= PIECE else 0
        rest = text[end:]
        if end:
            yield _encoded(text[:end], encode)
            rest = rest.removeprefix(_unwritten(encode))
    yield _encoded(rest, encode)


def _encoded(text: str, encode: Encode) -> list[int]:
    return encode(text) if text.strip() else []


def _last_seam(text: str) -> int:
    """Where the last space between two words is; without any, where the text ends."""
    for seam in SEAMS:
        if found := seam.match(text):
            return found.start(1)
    return len(text)


def _unwritten(encode: Encode) -> str:
    """The space that a tokenizer adds before every text, and that must not be there twice."""
    whole = encode("one two")
    if encode("one") + encode(" two") != whole == encode("one") + encode("two"):
        return " "
    return ""


def _batch(group: list[Window], pad_id: int) -> Batch:
    width = max(len(window.ids) for window in group)
    short = [width - len(window.ids) for window in group]
    ids = torch.tensor([w.ids + [pad_id] * n for w, n in zip(group, short, strict=True)])
    place = torch.arange(width)
    end = width - torch.tensor(short)[:, None]
    first, last = torch.tensor([window.special for window in group]).T[..., None]
    special = (place < first) | ((place >= end - last) & (place < end))
    valid = (place < end) if any(short) else None
    return Batch(
        (),
        {"input_ids": ids} if valid is None else {"input_ids": ids, "attention_mask": valid.long()},
        [window.document for window in group],
        [window.index for window in group],
        valid=valid,
        special=special if special.any() else None,
    )


def _permuted(row: Tensor, free: Tensor, key: str) -> Tensor:
    """The row with its free places shuffled, in an order that only the key decides."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
    places = free.nonzero().squeeze(1)
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    mixed = row.clone()
    mixed[places] = row[places[order.to(row.device)]]
    return mixed
