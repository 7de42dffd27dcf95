"""One head of one call as the page draws it: who attends to whom, and how alike what comes of it is.

    attention            P_ij, each row over its maximum
    context              cos(y_i, y_j); context_exclusive: cos(z_i, z_j), z the exclusive form of y
    returns              cos(y_i, v_j); returns_exclusive: cos(z_i, v_j)

    seen_from, seen_to   of each token: it sees those from the first of these numbers on, and before the
                         second (within its document and window; where a mask has holes, at most those)

These are the only T×T matrices of the package: of one head, of one text that somebody looks at.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from outward.attention.call import AttentionCall, log_sum_exp, own_slots, scores
from outward.attention.exclusive import exclude_self
from outward.attention.inputs import own_values
from outward.attention.visible import Visible
from outward.measures.bias import CENTRED_FLOOR

MATRICES = ("attention", "context", "context_exclusive", "returns", "returns_exclusive")
UNDEFINED = 255
Arrays = dict[str, NDArray[Any]]


def kept(call: AttentionCall) -> AttentionCall:
    """On the CPU, with a q, k, v and y of its own, as a model goes on writing into its.

    Weights are kept only where nothing else tells them, and in half precision: what is drawn of them
    has a byte.
    """
    own: dict[str, Any] = {
        name: _own(x) for name in ("q", "k", "v", "y") if (x := getattr(call, name)) is not None
    }
    moved: dict[str, Any] = {
        name: x.detach().to("cpu")
        for name in ("mask", "self_key", "sinks")
        if (x := getattr(call, name)) is not None
    }
    weights = None
    if call.q is None and call.weights is not None:
        weights = _own(call.weights).half()
    return replace(call, **own, **moved, weights=weights, lse=None, valid=None)


def _own(x: Tensor) -> Tensor:
    return x.detach().to("cpu", copy=True).contiguous()


def one_head(call: AttentionCall, head: int) -> AttentionCall:
    """The call as if it had no other head."""
    heads = call.y.shape[1]

    def of(x: Tensor | None) -> Tensor | None:
        if x is None or x.shape[1] == 1:
            return x
        at = head // (heads // x.shape[1])
        return x[:, at : at + 1]

    several: dict[str, Any] = {
        name: of(getattr(call, name)) for name in ("q", "k", "v", "y", "mask", "weights")
    }
    sinks = None if call.sinks is None else call.sinks[head : head + 1]
    return replace(call, **several, sinks=sinks)


def head_arrays(call: AttentionCall, head: int, wanted: tuple[str, ...]) -> Arrays:
    """Of a call with a batch of one: the matrices by these names, and the sizes of y and z."""
    one = one_head(call, head)
    wide = torch.promote_types(one.y.dtype, torch.float32)
    y, v = one.y.to(wide), own_values(one.v, one.self_key).to(wide)
    z = exclude_self(y, v)[0, 0]
    y, v = y[0, 0], v[0, 0]
    size, size_exclusive = y.norm(dim=-1), z.norm(dim=-1)
    # What is left of y below this share of it is rounding: it has no direction.
    floor = max(CENTRED_FLOOR, torch.finfo(one.y.dtype).eps) * size
    of_y, of_v = _directions(y, size, 0 * size), _directions(v, v.norm(dim=-1), 0 * size)
    of_z = _directions(z, size_exclusive, floor)
    cosines = {
        "context": (of_y, of_y),
        "context_exclusive": (of_z, of_z),
        "returns": (of_y, of_v),
        "returns_exclusive": (of_z, of_v),
    }
    found = {name: _as_bytes(a @ b.mT) for name, (a, b) in cosines.items() if name in wanted}
    arrays = {name: x.numpy() for name, x in found.items()}
    if "attention" in wanted:
        arrays |= _attention(one)
    numbers = {"size": size, "size_exclusive": size_exclusive, "removed": (y - z).norm(dim=-1) / size}
    return arrays | {name: x.float().numpy() for name, x in numbers.items()}


def seen_run(call: AttentionCall, see: Visible) -> Float[Tensor, "2 token"]:
    """seen_from and seen_to of a call with a batch of one, of keys that are somebody's own."""
    own = own_slots(call).flatten().long()
    if see.mask is None:
        bounds = torch.stack((see.first[0], see.end[0]))
        return torch.searchsorted(own.sort().values, bounds).float().cpu()
    rows = see.mask[0, 0][:, own].byte()
    first, end = rows.argmax(dim=-1), len(own) - rows.flip(-1).argmax(dim=-1)
    return (torch.stack((first, end)) * rows.any(dim=-1)).float().cpu()


def weights(one: AttentionCall) -> Float[Tensor, "query token"]:
    """P of a head, of each token on each token: keys that are nobody's own are left out."""
    if one.weights is not None:
        P = one.weights[0, 0].float()
    else:
        s = scores(one, slice(None), torch.float32)
        P = (s - log_sum_exp(s, one.sinks)[..., None]).exp()[0, 0]
    return P if one.self_key is None else P[:, own_slots(one).flatten()]


def _attention(one: AttentionCall) -> Arrays:
    P = weights(one).nan_to_num(0)
    most = P.amax(dim=-1)
    share = P / most.clamp_min(torch.finfo(P.dtype).tiny)[:, None]
    drawn = (share * 255).round().to(torch.uint8)
    return {"attention": drawn.numpy(), "attention_max": most.numpy().astype(np.float32)}


def _directions(
    x: Float[Tensor, "token dim"], size: Float[Tensor, " token"], floor: Float[Tensor, " token"]
) -> Float[Tensor, "token dim"]:
    """x / |x|; NaN where |x| is not above the floor."""
    return x / size.masked_fill(size <= floor, torch.nan)[:, None]


def _as_bytes(cosine: Float[Tensor, "token other"]) -> UInt8[Tensor, "token other"]:
    """-1 to 1 as 0 to 254; undefined: 255."""
    scaled = ((cosine.clamp(-1, 1) + 1) * 127).round()
    return scaled.nan_to_num(UNDEFINED).to(torch.uint8)
