"""bias.py and the sums of tally.py by the kernel of native.cpp: on CPUs, in float32 and bfloat16.

A call goes there where its visible keys are unbroken runs; other calls are left to bias.py.
"""

import ctypes
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from outward.attention.call import AttentionCall
from outward.attention.visible import Visible
from outward.measures.native import in_parts, library
from outward.stats.histogram import BINS, LOWEST, Kind

MOST_DIMS = 1024
_i, _p, _f = ctypes.c_int32, ctypes.c_void_p, ctypes.c_float


class _Heads(ctypes.Structure):
    _fields_ = (
        ("data", _p),
        ("batch", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("token", ctypes.c_int64),
    )


def _fields(kind: Any, names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, kind) for name in names.split())


class _Call(ctypes.Structure):
    _fields_ = (
        *_fields(_Heads, "q k v y"),
        *_fields(_p, "lse own sink previous out pairs first end start document itself valid"),
        *_fields(_i, "rows batch heads kv_heads tokens documents dim query_dim"),
        *_fields(_f, "scale centred_floor"),
        *_fields(_i, "is_half span"),
    )


class _Table(ctypes.Structure):
    _fields_ = (
        *_fields(_p, "values kept bucket kind lowest count total squares low high histogram"),
        *_fields(_i, "rows batch heads tokens buckets"),
    )


def fits(call: AttentionCall, see: Visible) -> bool:
    """Whether the kernel knows this kind of call."""
    return (
        call.y.device.type == "cpu"
        and call.y.dtype in (torch.float32, torch.bfloat16)
        and call.v.dtype == call.y.dtype
        and call.self_key is None
        and see.mask is None
        and call.y.shape[3] == call.v.shape[3] <= MOST_DIMS
        and call.v.shape[2] == call.y.shape[2]
        and call.y.numel() > 0
    )


def reads_weights(call: AttentionCall) -> bool:
    """Whether the kernel can make single weights itself, from q, k and the log-sum-exp."""
    plain = call.mask is None or call.mask.dtype == torch.bool
    known = call.lse is not None and call.weights is None and call.q is not None
    return known and plain and call.softcap is None and call.q.dtype == call.y.dtype  # type: ignore[union-attr]


def token_values(
    call: AttentionCall,
    see: Visible,
    weights: tuple[Tensor, Tensor, Tensor] | None,
    measures: int,
    centred_floor: float,
) -> tuple[Float[Tensor, "measure batch head query"], Float[Tensor, "batch kv_head document"]]:
    """All per-token measures, and value_similarity; `weights` where the kernel cannot make them."""
    batch, heads, tokens, dim = call.y.shape
    kv_heads = call.v.shape[1]
    out = torch.empty(measures, batch, heads, tokens)
    pairs = torch.full((batch, kv_heads, see.documents), torch.nan, dtype=torch.float64)
    span = -(-kv_heads // max(1, torch.get_num_threads() // batch))
    held: list[Any] = []

    def at(x: Tensor | None, dtype: torch.dtype = torch.float32) -> int | None:
        if x is None:
            return None
        held.append(x.to(dtype).contiguous())
        return int(held[-1].data_ptr())

    def axes(x: Tensor | None) -> _Heads:
        if x is None:
            return _Heads(None, 0, 0, 0)
        held.append(x if x.stride(3) == 1 else x.contiguous())
        return _Heads(held[-1].data_ptr(), *held[-1].stride()[:3])

    own, sink, previous = (None,) * 3 if weights is None else weights
    by_itself = weights is None
    numbers = (see.first, see.end, see.start, see.document)
    argument = _Call(
        *(
            axes(x)
            for x in (call.q if by_itself else None, call.k if by_itself else None, call.v, call.y)
        ),
        at(call.lse if by_itself else None),
        *(at(x) for x in (own, sink, previous)),
        out.data_ptr(),
        pairs.data_ptr(),
        *(at(x, torch.int32) for x in numbers),
        at(see.sees_itself, torch.uint8),
        at(see.valid, torch.uint8),
        *(len(see.valid), batch, heads, kv_heads, tokens, see.documents, dim),
        0 if call.q is None else call.q.shape[3],
        *(call.scale, centred_floor),
        *(int(call.y.dtype == torch.bfloat16), span),
    )
    in_parts(library().outward_bias, argument, batch * -(-kv_heads // span))
    return out, pairs


Sums = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
Extremes = tuple[NDArray[np.float64], NDArray[np.float64]]


def sums(
    values: Float[Tensor, "measure batch head query"],
    kept: Tensor,
    bucket: Tensor,
    buckets: int,
    kinds: list[Kind],
) -> tuple[Sums, Extremes, NDArray[np.int64]]:
    """(count, total, squares) per (measure, batch, head, bucket), least and greatest per (measure,
    head, bucket), and the histogram (measure, head, bucket, bin).
    """
    measures, batch, heads, tokens = values.shape
    count, total, squares = np.zeros((3, measures, batch, heads, buckets))
    low = np.full((measures, heads, buckets), np.inf)
    high = np.full((measures, heads, buckets), -np.inf)
    histogram = np.zeros((measures, heads, buckets, BINS), np.int64)
    codes = {"cosine": 0, "share": 1, "weight": 2, "ratio": 2, "signed": 3}
    kind = np.array([codes[k] for k in kinds], np.int32)
    lowest = np.array([LOWEST.get(k, 0) for k in kinds], np.int32)
    held = [x.to(torch.uint8).contiguous() for x in (kept, bucket)]
    values = values.contiguous()
    argument = _Table(
        values.data_ptr(),
        *(x.data_ptr() for x in held),
        *(x.ctypes.data for x in (kind, lowest, count, total, squares)),
        *(x.ctypes.data for x in (low, high, histogram)),
        *(len(kept), batch, heads, tokens, buckets),
    )
    in_parts(library().outward_tally, argument, measures * heads)
    return (count, total, squares), (low, high), histogram
