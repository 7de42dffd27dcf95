"""A call in parts of a few heads: what is computed of one stays in the cache of a CPU core.

Heads do not know of each other, nor rows of the batch: parts can be measured one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from torch import Tensor

from outward.attention.call import AttentionCall
from outward.attention.visible import Visible

BLOCK = 2**17
"""Numbers of y in a part: half a MiB in float32. Larger ones leave the cache, smaller are overhead."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows of the batch and heads of v of a call, with the query heads that share them."""

    call: AttentionCall
    see: Visible
    rows: slice
    kv_heads: slice
    heads: slice


def parts(call: AttentionCall, see: Visible) -> Iterator[Part]:
    """The whole call on accelerators, whose memory is fast and whose calls are dear."""
    batch, kv_heads = call.v.shape[:2]
    one = call.group * call.y.shape[2] * call.y.shape[3]
    is_cpu = call.y.device.type == "cpu"
    step = max(1, min(kv_heads, BLOCK // max(one, 1))) if is_cpu else kv_heads
    rows = max(1, BLOCK // max(one * kv_heads, 1)) if is_cpu else batch
    for b in range(0, batch, rows):
        some = slice(b, min(b + rows, batch))
        seen = _seen_by(see, some, batch)
        for h in range(0, kv_heads, step):
            kv = slice(h, min(h + step, kv_heads))
            heads = slice(kv.start * call.group, kv.stop * call.group)
            yield Part(_of_heads(call, some, kv, heads), seen, some, kv, heads)


def _seen_by(see: Visible, rows: slice, batch: int) -> Visible:
    if len(see.valid) == 1 or rows == slice(0, batch):
        return see
    tensors = {f.name: getattr(see, f.name) for f in fields(see)}
    return replace(see, **{n: x[rows] for n, x in tensors.items() if isinstance(x, Tensor)})


def _of_heads(call: AttentionCall, rows: slice, kv_heads: slice, heads: slice) -> AttentionCall:
    batch, mask = len(call.y), call.mask

    def cut(x: Tensor | None, chosen: slice) -> Tensor | None:
        return None if x is None else x[rows, chosen]

    if mask is not None and mask.shape[1] > 1:
        mask = mask[:, heads]
    self_key = call.self_key
    if self_key is not None and self_key.ndim == 2 and len(self_key) == batch:
        self_key = self_key[rows]
    return replace(
        call,
        v=call.v[rows, kv_heads],
        y=call.y[rows, heads],
        q=cut(call.q, heads),
        k=cut(call.k, kv_heads),
        weights=cut(call.weights, heads),
        lse=cut(call.lse, heads),
        mask=mask[rows] if mask is not None and len(mask) == batch else mask,
        self_key=self_key,
        sinks=None if call.sinks is None else call.sinks[heads],
        valid=None if call.valid is None else call.valid[rows],
    )
