"""Differentiated again, batched, in threads: where the fused kernels have no rules."""

import copy
import threading

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import outward
from outward.attention import reference
from outward.attention.standard import plain_attention, plain_gradient
from testing import FORMS, Form, assert_within, causal_bias, qkv, repeated, rounding

EVERY_FORM = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
KEYS = 5


def small(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [x.requires_grad_() for x in qkv(dtype, heads=4, kv_heads=2, tokens=KEYS, dim=3, batch=1)]


def fast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return outward.exclusive_attention(q, k, v, causal=True)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return reference.exclusive(*repeated(q, k, v), q.shape[3] ** -0.5, causal_bias(q.shape[2]))


def as_run(form: Form):  # type: ignore[no-untyped-def]
    """The form as a function of q, k and v of `small`, with fixed arguments."""
    sizes = {"strength": (4,), "gate": (1, 4, KEYS, 3), "direction": (4, 3)}
    extra = {n: torch.rand(sizes[n], dtype=torch.float64) for n in form.arguments}
    return lambda *x, **options: form.fast(*x, **extra, **options)


@EVERY_FORM
@pytest.mark.parametrize("masked", [False, True])
def test_second_derivatives(form: Form, masked: bool) -> None:
    run = as_run(form)
    mask = torch.rand(1, 1, KEYS, KEYS) < 0.7 if masked else None
    assert gradgradcheck(lambda *x: run(*x, causal=True, mask=mask), small())


@pytest.mark.parametrize(
    "related",
    [
        lambda x: (x, x, x),
        lambda x: (x, x * 2, (x * 2).tanh()),
        lambda x: (kv := x + 1, kv, kv),
        lambda x: (x, x.sin(), x.sin()),
    ],
    ids=["all one", "v of k", "one tensor made of x", "k and v alike"],
)
def test_gradients_that_can_be_differentiated_count_once(related) -> None:  # type: ignore[no-untyped-def]
    x = qkv(heads=2, kv_heads=2, tokens=KEYS, dim=3, batch=1)[0].requires_grad_()
    out = torch.randn_like(x)
    (once,) = torch.autograd.grad(fast(*related(x)), x, out)
    (again,) = torch.autograd.grad(fast(*related(x)), x, out, create_graph=True)
    (exact,) = torch.autograd.grad(plain(*related(x)), x, out)
    bound = rounding(terms=4 * KEYS, size=exact.abs().max().item(), dtype=x.dtype)
    assert_within(once, exact, bound)
    assert_within(again, exact, bound)
    assert gradgradcheck(lambda x: fast(*related(x)), x)


def test_hooks_are_called_once() -> None:
    q, k, v = small()
    called = []
    for x in (q, k, v):
        x.register_hook(called.append)
    torch.autograd.grad(fast(q, k, v).sum(), (q, k, v), create_graph=True)
    assert len(called) == 3


@EVERY_FORM
def test_second_derivatives_of_strided_inputs(form: Form) -> None:
    """A copy made inside a node would hang on no graph, and its second derivative be 0."""
    run, inputs = as_run(form), small()
    strided = [x.detach().mT.contiguous().requires_grad_() for x in inputs]
    assert gradcheck(lambda *x: run(*(t.mT for t in x), causal=True), strided)
    assert gradgradcheck(lambda *x: run(*(t.mT for t in x), causal=True), strided)


@EVERY_FORM
def test_batched_gradients(form: Form) -> None:
    inputs = small()
    z = as_run(form)(*inputs, causal=True)
    outs = torch.randn(3, *z.shape, dtype=z.dtype)

    def grad(out: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(z, inputs, out, retain_graph=True)

    for got, want in zip(torch.func.vmap(grad)(outs), zip(*map(grad, outs), strict=True), strict=True):
        exact = torch.stack(want)
        assert_within(got, exact, rounding(terms=4 * KEYS, size=10.0, dtype=exact.dtype))


@EVERY_FORM
@pytest.mark.parametrize("what", ["mask", "additive mask", "self_key", "mask of the last keys"])
def test_who_sees_whom_may_be_batched(form: Form, what: str) -> None:
    if what == "mask of the last keys" and set(form.arguments) - {"direction"}:
        return  # an argument per token
    run, (q, k, v) = as_run(form), (x.detach() for x in small())
    past = torch.ones(KEYS, KEYS, dtype=torch.bool).tril()
    masks = torch.stack([past, past & (torch.arange(KEYS) > 0)])
    options, queries = {
        "mask": ({"mask": masks}, 0),
        "additive mask": ({"mask": torch.zeros(2, KEYS, KEYS).masked_fill(~masks, -torch.inf)}, 0),
        "self_key": ({"self_key": torch.stack([torch.arange(KEYS), torch.arange(KEYS).flip(0)])}, 0),
        "mask of the last keys": ({"mask": masks[:, 3:]}, 3),
    }[what]
    ((name, batched),) = options.items()

    def one(x: Tensor) -> Tensor:
        return run(q[:, :, queries:], k, v, causal=True, **{name: x})

    got, want = torch.func.vmap(one)(batched), torch.stack([one(x) for x in batched])
    assert_within(got, want, 1e-7 if form.fast is outward.no_self_attention else 1e-13)


def test_threads_leave_no_switch_turned() -> None:
    """Which kernels torch may choose is one setting for the whole process."""
    before = switches()

    def work() -> None:
        for _ in range(20):
            inputs = small()
            torch.autograd.grad(fast(*inputs).sum(), inputs, create_graph=True)
            torch.func.vmap(fast)(*(x.detach()[None] for x in inputs))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert switches() == before


def switches() -> tuple[bool, ...]:
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()


def test_no_switch_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a switch of the whole process")

    for name in ("_set_sdp_use_math", "_set_sdp_use_flash", "_set_sdp_use_mem_efficient"):
        monkeypatch.setattr(torch._C, name, refuse)
    inputs = small()
    torch.autograd.grad(fast(*inputs).sum(), inputs, create_graph=True)
    torch.func.vmap(fast)(*(x.detach()[None] for x in inputs))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_the_plain_road_is_that_of_torch(masked: bool, dtype: torch.dtype) -> None:
    q, k, v = (x.requires_grad_() for x in qkv(dtype))
    mask = torch.rand(2, 1, 11, 11) < 0.6 if masked else None
    if mask is not None:
        mask[:, :, 4] = False
    y = plain_attention(q, k, v, mask, True, None, 0.0)
    exact_inputs = [x.detach().double().requires_grad_() for x in (q, k, v)]
    bias = causal_bias() if mask is None else causal_bias().masked_fill(~mask, -torch.inf)
    exact = reference.standard(*repeated(*exact_inputs), q.shape[3] ** -0.5, bias)
    out = torch.randn_like(exact).to(dtype)
    # computed in float32 or wider, rounded once
    inner = torch.promote_types(dtype, torch.float32)
    for got, want in zip(
        (y, *plain_gradient(out, q, k, v, mask, True, None)),
        (exact, *torch.autograd.grad(exact, exact_inputs, out.double())),
        strict=True,
    ):
        size = want.abs().max().item()
        rounded = torch.finfo(dtype).eps * size + rounding(terms=40, size=max(1.0, size), dtype=inner)
        assert_within(got, want, rounded)


def test_float64_stays_float64_under_autocast() -> None:
    for f in (fast, outward.standard_attention, outward.no_self_attention):
        for inputs in (small(), [x.detach() for x in small()]):
            with torch.autocast("cpu", torch.bfloat16):
                z = f(*inputs)
            assert z.dtype == torch.float64
            assert torch.equal(z, f(*inputs))


def test_autocast_under_transforms() -> None:
    inputs = [x.detach() for x in small(torch.float32)]
    with torch.autocast("cpu", torch.bfloat16):
        z = torch.func.vmap(fast)(*(x[None] for x in inputs))[0]
        want = fast(*inputs)
    assert z.dtype == want.dtype == torch.bfloat16
    assert_within(z, want.double(), 4 * torch.finfo(torch.bfloat16).eps * want.abs().max().item())


@pytest.mark.parametrize("size", [2.0**-149, 2.0**-127, 2.0**-50, 1.0, 2.0**120])
def test_the_gradient_of_the_strength_for_any_size_of_v(size: float) -> None:
    """(y·v)/(v·v) of a subnormal v is no float32; what it is for is one."""
    strength_is_right(size, "eager")


@pytest.mark.unhooked
def test_the_gradient_of_the_strength_by_the_compiled_kernel() -> None:
    strength_is_right(2.0**-149, "compiled")


def strength_is_right(size: float, impl: str) -> None:
    y, g = torch.randn(2, 1, 2, 3, 4).unbind()
    v = torch.randn(1, 2, 3, 4)
    v[0, 0, 1] = torch.tensor([3.0, 1.0, 2.0, 5.0]) * size
    leaves = [y.clone().requires_grad_(), torch.rand(2, requires_grad=True)]
    z = outward.exclude_self(leaves[0], v.requires_grad_(), strength=leaves[1], impl=impl)
    got = torch.autograd.grad(z, leaves, g)
    exact_leaves = [x.detach().double().requires_grad_() for x in leaves]
    part = exact_leaves[0] - reference.exclude(exact_leaves[0], v.detach().double())
    exact_z = exact_leaves[0] - exact_leaves[1][:, None, None] * part
    exact = torch.autograd.grad(exact_z, exact_leaves, g.double())
    for a, b in zip(got, exact, strict=True):
        assert_within(a, b, rounding(terms=24, size=10.0, dtype=torch.float32))


def test_a_cache_is_copied_without_its_layer() -> None:
    layer, x = outward.ExclusiveAttention(8, 2), torch.randn(1, 3, 8)
    cache = outward.KVCache()
    layer(x, cache=cache)
    cache._kept = tuple(t.detach() for t in cache._kept)
    other = copy.deepcopy(cache)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x, cache=other), layer(x, cache=cache))
