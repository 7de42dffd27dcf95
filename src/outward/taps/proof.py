"""The tap proves itself on one batch: same output as plain, and y follows from what was captured.

    |y - ŷ| <= Σ_j P_ij |v_j| (e^{2δ_i} - 1 + keys·w + 8u)     ŷ: y from q, k, v, mask in float64
    δ_i = (6u + dim·w) (scale |q_i| max_j |k_j| + max_j |bias_ij|)

u is one rounding of y's type, w one of the type that sums are kept in. δ_i bounds the error of a score:
a sum of dim products, and six roundings on the way (q, k, their product, scale, mask, softcap). A score
off by δ, and a log-sum-exp off by as much, change a weight by e^{2δ}. Then weights are rounded, summed
over the keys against v, and y is rounded: eight at most. Weights below the smallest normal
number are lost.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from outward.attention.call import AttentionCall, log_sum_exp, scores
from outward.taps.capture import Capture, capture
from outward.taps.coverage import ModuleCoverage

ROWS = 256
"""Queries of a call that are computed again, evenly spread: what is misread shows in any of them."""
BLOCK = 2**22
"""Numbers at a time: 32 MiB in float64."""
NOISE = 4.0
"""How much further than two plain runs from each other a watched run may be from them, where they
differ. Of three samples of the same noise, the third is the odd one as often as not."""


class ProofError(Exception):
    """What was seen of a model is not what it did, or nothing was seen."""


@dataclass(frozen=True)
class Proof:
    """What was checked on one batch.

    repeats: two plain runs return the same bits. identical: so does a run that is watched.
    output_difference: of the watched run from a plain one, relative to the largest output.
    y_error: of y, as captured, from y in float64, relative to the largest y of its call; the worst,
        and `module` has it. y_share: the worst error as a share of what rounding explains.
    """

    calls: int
    repeats: bool
    identical: bool
    output_difference: float
    y_error: float
    y_share: float
    module: str


def prove(model: nn.Module, run: Callable[[], Any], *, valid: Tensor | None = None) -> Proof:
    """Run `run`, a forward pass of `model` on one batch, two times plain and once watched, and compare.

    All runs begin with the same random state, and without torch's fused encoder layer, which no
    other code can see into and which rounds in another order. `valid` says which tokens are no padding.
    """
    with same_road(), torch.no_grad():
        first = _outputs(run)
        own = difference(first, _outputs(run))
        check = Recomputation()
        with capture(model, check) as calls:
            calls.valid = valid
            watched = difference(first, _outputs(run))
    _check_output(own, watched)
    if not check.calls:
        raise ProofError(_nothing_seen(calls))
    check.raise_if_wrong()
    return Proof(check.calls, own == 0, watched == 0, watched, check.error, check.share, check.module)


class Recomputation:
    """An observer of calls: y of each again, in float64, from what was captured."""

    def __init__(self) -> None:
        self.calls, self.error, self.share = 0, 0.0, 0.0
        self.module = self.wrong = ""

    def __call__(self, call: AttentionCall) -> None:
        self.calls += 1
        error, share = y_error(call)
        if error >= self.error or not self.module:
            self.error, self.module = error, call.module
        if share > self.share:
            self.share = share
            self.wrong = "" if share <= 1 else _wrong(call, error, share)

    def raise_if_wrong(self) -> None:
        """The worst call, by name."""
        if self.wrong:
            raise ProofError(self.wrong)


def y_error(call: AttentionCall) -> tuple[float, float]:
    """The error of y relative to the largest y; and of y or the log-sum-exp, as a share of the bound.

    Rows that see no key, and padded queries, are left out. NaN where none is due is infinitely wrong.
    """
    error = size = share = 0.0
    with torch.no_grad():
        for part in _by_batch(_off_mps(call)):
            for rows in _blocks(part):
                found = _compare(part, rows)
                error, size, share = (
                    max(pair) for pair in zip((error, size, share), found, strict=True)
                )
    return (error / size if size else error), share


def difference(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """The largest difference, relative to the largest entry; 0 only for the same bits."""
    if len(a) != len(b) or any(
        x.shape != y.shape or x.dtype != y.dtype for x, y in zip(a, b, strict=True)
    ):
        return math.inf
    return max((_differs(x, y) for x, y in zip(a, b, strict=True)), default=0.0)


def tensors_in(x: Any) -> Iterator[Tensor]:
    """Every tensor of an output, whatever it is made of, in order."""
    seen: set[int] = set()
    stack = [x]
    while stack:
        x = stack.pop()
        if isinstance(x, Tensor):
            yield x
        elif id(x) not in seen and not isinstance(x, nn.Module | str | bytes | type):
            seen.add(id(x))
            stack += reversed(_parts(x))


def _parts(x: Any) -> list[Any]:
    if isinstance(x, Mapping):
        return list(x.values())
    if isinstance(x, list | tuple):
        return list(x)
    return list(vars(x).values()) if hasattr(x, "__dict__") else []


def _outputs(run: Callable[[], Any]) -> list[Tensor]:
    """Copies: a model may hand out its own buffers, and write into them next time."""
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        return [x.detach().clone() for x in tensors_in(run())]


def _differs(a: Tensor, b: Tensor) -> float:
    if torch.equal(a, b):
        return 0.0
    if not a.is_floating_point():
        return math.inf
    same = (a == b) | (a.isnan() & b.isnan())
    gap = torch.where(same, 0.0, (a - b).double().abs()).max().item()
    size = a.double().abs().nan_to_num(0.0).max().item()
    if gap == 0:
        return 0.0
    return gap / size if size and not math.isnan(gap) else math.inf


@contextmanager
def same_road() -> Iterator[None]:
    """Without nn.TransformerEncoder's fused layer, which rounds otherwise and cannot be watched."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


# ---- the comparison of one call


def _compare(call: AttentionCall, rows: slice) -> tuple[float, float, float]:
    """Largest error, largest y, and largest share of the bound, of some queries."""
    y, allowed, lse, lse_allowed, counted = _recomputed(call, rows)
    if not counted.any():
        return 0.0, 0.0, 0.0
    off = _gap(call.y[:, :, rows], y)
    share = _share(off, allowed).amax(dim=-1)
    if call.lse is not None and call.weights is None:
        off_lse = _gap(call.lse[:, :, rows], lse).masked_fill(
            lse.isnan(), 0
        )  # kernels say anything there
        share = torch.maximum(share, _share(off_lse, lse_allowed))
    error, size = off.amax(dim=-1), y.abs().nan_to_num(0).amax(dim=-1)
    return error[counted].max().item(), size[counted].max().item(), share[counted].max().item()


def _gap(seen: Tensor, exact: Tensor) -> Tensor:
    """How far apart, and infinitely where only one is NaN: a model that makes NaN is read rightly."""
    gap = (seen.double() - exact).abs().nan_to_num(torch.inf)
    return gap.masked_fill(seen.isnan() & exact.isnan(), 0)


def _share(off: Tensor, allowed: Tensor) -> Tensor:
    return torch.where(off == 0, 0.0, off / allowed).nan_to_num(torch.inf)


def _recomputed(call: AttentionCall, rows: slice) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(ŷ, its bound, lse, its bound, the queries that count)."""
    v = call.v.double().repeat_interleave(call.group, dim=1)
    u, w = _roundings(call)
    summed = v.shape[2] * w
    if call.q is None:
        assert call.weights is not None
        P = call.weights[:, :, rows].double()
        lse = delta = torch.zeros(P.shape[:3], dtype=P.dtype, device=P.device)
        sees = P.sum(dim=-1) != 0
    else:
        s = scores(call, rows, torch.float64)
        lse = log_sum_exp(s, call.sinks)
        delta = _score_error(call, rows, u, w)
        sees = s.amax(dim=-1) != -torch.inf
        P = (s - lse[..., None]).exp()
    relative = torch.expm1(2 * delta.clamp_max(20)) + summed + 8 * u
    allowed = (P @ v.abs()) * relative[..., None]
    allowed = allowed + torch.finfo(call.y.dtype).tiny * (1 + v.abs().sum(dim=2, keepdim=True))
    if call.valid is not None:
        sees = sees & call.valid[:, None, rows]
    return P @ v, allowed, lse, delta + summed + 8 * w * (1 + lse.abs()), sees


def _score_error(call: AttentionCall, rows: slice, u: float, w: float) -> Tensor:
    assert call.q is not None
    assert call.k is not None
    q = call.q[:, :, rows].double().norm(dim=-1).nan_to_num(0)
    k = call.k.double().norm(dim=-1).nan_to_num(0).amax(dim=-1).repeat_interleave(call.group, dim=1)
    size = abs(call.scale) * q * k[..., None]
    if call.mask is not None and call.mask.dtype != torch.bool:
        mask = call.mask if call.mask.shape[2] == 1 else call.mask[:, :, rows]
        hidden = mask <= torch.finfo(mask.dtype).min / 2
        size = size + mask.double().abs().masked_fill(hidden, 0).amax(dim=-1)
    return size * (6 * u + call.q.shape[3] * w)


def _roundings(call: AttentionCall) -> tuple[float, float]:
    """(u, w): of results, and of sums. Half types are summed in float32."""
    eps, single = torch.finfo(call.y.dtype).eps, torch.finfo(torch.float32).eps
    if call.y.dtype == torch.float32:
        inputs = {"highest": eps, "high": 2.0**-10, "medium": 2.0**-7}
        return inputs[torch.get_float32_matmul_precision()], eps
    if call.y.dtype == torch.float64 and call.weights is not None and call.q is not None:
        return single, single  # transformers takes the softmax in float32, whatever the model's type
    return eps, min(eps, single)


def _by_batch(call: AttentionCall) -> Iterator[AttentionCall]:
    """Some rows of the batch at a time."""
    batch, heads, queries, _ = call.y.shape
    wide = max(min(queries, ROWS), *(x.shape[3] for x in (call.v, call.k) if x is not None))
    step = max(1, BLOCK // max(1, heads * call.v.shape[2] * wide))
    for start in range(0, batch, step):
        yield _with_tensors(call, partial(_rows, batch=batch, part=slice(start, start + step)))


def _rows(x: Tensor, batch: int, part: slice) -> Tensor:
    return x[part] if x.ndim > 1 and len(x) == batch else x


def _blocks(call: AttentionCall) -> Iterator[slice]:
    batch, heads, queries, _ = call.y.shape
    every = math.ceil(queries / ROWS)
    step = every * max(1, BLOCK // max(1, batch * heads * call.v.shape[2]))
    for start in range(0, queries, step):
        yield slice(start, min(start + step, queries), every)


def _off_mps(call: AttentionCall) -> AttentionCall:
    """Apple's devices have no float64."""
    if call.y.device.type != "mps":
        return call
    return _with_tensors(call, Tensor.cpu)


def _with_tensors(call: AttentionCall, change: Callable[[Tensor], Tensor]) -> AttentionCall:
    tensors = {f.name: getattr(call, f.name) for f in fields(call)}
    changed: dict[str, Any] = {n: change(x) for n, x in tensors.items() if isinstance(x, Tensor)}
    return replace(call, **changed)


# ---- what is said when it fails


def _check_output(own: float, watched: float) -> None:
    if own == 0 and watched > 0:
        raise ProofError(
            f"watched, the model returns something else than plain (by {watched:.1e} of its largest "
            "output), though two plain runs agree bit for bit: nothing measured so can be trusted."
        )
    if watched > NOISE * own:
        raise ProofError(
            f"watched, the model differs from a plain run by {watched:.1e} of its largest output, and "
            f"two plain runs differ by {own:.1e} only."
        )


def _wrong(call: AttentionCall, error: float, share: float) -> str:
    return (
        f"{call.module or 'the model'}: its attention output does not follow from its q, k, v and mask "
        f"as captured (tier {call.tier}): off by {error:.1e} of the largest, {share:.1e} times what "
        f"rounding in {str(call.y.dtype).removeprefix('torch.')} explains."
    )


def _nothing_seen(calls: Capture) -> str:
    rows = calls.coverage
    if not rows:
        return "no attention was seen, and no module of the model calls itself attention."
    said = "; ".join(_reason(row) for row in rows[:8])
    more = f"; and {len(rows) - 8} more" if len(rows) > 8 else ""
    return f"no self-attention was captured: {said}{more}."


def _reason(row: ModuleCoverage) -> str:
    return f"{row.module or 'the model'} ({row.kind}): {row.reason}"
