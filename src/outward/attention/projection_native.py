"""`project` and `gradient` of projection.py by the kernel of projection.cpp: on CPUs, in float32 and
bfloat16, whatever the memory layout. What is kept of the forward pass is c, of the kernel's own scale.
"""

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outward.attention.native import in_parts, library

SOURCE = Path(__file__).with_name("projection.cpp")
BLOCK, MOST_DIMS = 64, 1024  # as in projection.cpp
_NAMES = ("batch", "head", "group", "token")


class _Rows(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), *((n, ctypes.c_int64) for n in _NAMES))


class _Projection(ctypes.Structure):
    _fields_ = (
        *((n, _Rows) for n in ("y", "v", "z", "gz", "gy", "gv", "alpha")),
        *((n, ctypes.c_void_p) for n in ("c", "g_alpha")),
        *((n, ctypes.c_int32) for n in ("batch", "kv_heads", "group", "tokens", "dim", "is_half")),
    )


def fits(y: Tensor, v: Tensor) -> bool:
    """Whether the kernel knows these types, on this device."""
    known = y.dtype in (torch.float32, torch.bfloat16) and y.shape[-1] <= MOST_DIMS
    return y.device.type == "cpu" and known and v.dtype == y.dtype


def project(y: Tensor, v: Tensor, strength: Tensor | float, *, in_place: bool) -> tuple[Tensor, Tensor]:
    """(z, c), with z in the place of y if asked for."""
    z = y if in_place else torch.empty_like(y)
    c = torch.empty(*y.shape[:-1], 1)
    into = z if _is_dense(z) else z.contiguous()
    _run("outward_project", {"y": y, "v": v, "z": into}, strength, c=c)
    return z if into is z else z.copy_(into), c


def gradient(
    gz: Tensor, z1: Tensor, c: Tensor, v: Tensor, strength: Tensor | float
) -> tuple[Tensor, Tensor, Tensor]:
    """(gy, gv summed over the group, gα per row)."""
    gy, gv = _like(gz), _like(v)
    g_strength = torch.empty_like(c)
    rows = {"gz": gz.to(z1.dtype), "z": z1, "v": v, "gy": gy, "gv": gv}
    _run("outward_gradient", rows, strength, c=c, g_alpha=g_strength)
    return gy, gv, g_strength


def _like(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    return made if _is_dense(made) else torch.empty_like(x, memory_format=torch.contiguous_format)


def _is_dense(x: Tensor) -> bool:
    return x.stride(-1) == 1 or x.shape[-1] <= 1


def _run(name: str, rows: dict[str, Tensor], strength: Tensor | float, **cells: Tensor) -> None:
    held: list[Any] = []
    batch, kv_heads, group, tokens, dim = rows["z"].shape

    def axes(x: Tensor | None) -> _Rows:
        if x is None:
            return _Rows(None, 0, 0, 0, 0)
        held.append(x if _is_dense(x) else x.contiguous())
        return _Rows(held[-1].data_ptr(), *held[-1].stride()[:4])

    alpha = torch.as_tensor(strength, dtype=torch.float64).expand(batch, kv_heads, group, tokens, 1)
    argument = _Projection(
        *(axes(rows.get(n)) for n in ("y", "v", "z", "gz", "gy", "gv")),
        axes(alpha),
        *(cells[n].data_ptr() if n in cells else None for n in ("c", "g_alpha")),
        *(batch, kv_heads, group, tokens, dim),
        int(rows["z"].dtype == torch.bfloat16),
    )
    parts = batch * kv_heads * -(-tokens // BLOCK) if group * dim else 0
    in_parts(getattr(library(SOURCE), name), argument, parts)
