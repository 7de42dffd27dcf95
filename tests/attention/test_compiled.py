"""Under torch.compile: one graph, forward and backward, and the same numbers."""

import pytest
import torch
from torch import Tensor, nn

import outward
from outward.attention.modules import parameter_groups
from testing import TOKENS, assert_within, budget, qkv

pytestmark = pytest.mark.unhooked


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def with_gradients(f, inputs: list[Tensor], out: Tensor) -> list[Tensor]:  # type: ignore[no-untyped-def]
    leaves = [x.detach().requires_grad_() for x in inputs]
    z = f(*leaves)
    return [z.detach(), *torch.autograd.grad(z, leaves, out)]


def causal_exclusive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return outward.exclusive_attention(q, k, v, causal=True)


def gated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    alpha = q[:, :, :, 0].tanh()
    return outward.gated_exclusive_attention(q, k, v, strength=alpha, causal=True)


def no_self(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return outward.no_self_attention(q, k, v, causal=True)


def mean_direction(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return outward.mean_direction_attention(q, k, v, causal=True)


def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    place = torch.arange(q.shape[2], device=q.device)
    mask = (place[:, None] - place).abs() < 4
    return outward.exclusive_attention(q, k, v, causal=True, mask=mask)


def agrees(compiled, eager, dtype: torch.dtype, **sizes: int) -> None:  # type: ignore[no-untyped-def]
    inputs = list(qkv(dtype, **sizes))
    out = torch.randn(inputs[0].shape, dtype=torch.float64).to(dtype)
    exact = with_gradients(eager, [x.double() for x in inputs], out.double())
    rough = with_gradients(eager, inputs, out)
    for got, want, near in zip(with_gradients(compiled, inputs, out), exact, rough, strict=True):
        assert got.dtype == dtype
        # the compiler may round in another order than `rough`, and its exp and division are its own
        assert_within(got, want, 4 * budget(want, near))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", [causal_exclusive, gated, no_self, mean_direction, windowed])
def test_forms_compile_to_one_graph(form, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    agrees(torch.compile(form, fullgraph=True), form, dtype, interleaved=True)


def test_exclude_self_compiles_alone_and_its_operations_fuse() -> None:
    """The exclusion becomes one loop over the tokens, not a chain of kernels over all of y."""
    from torch._inductor.utils import run_and_get_code

    q, _, v = qkv(torch.float32, tokens=64, dim=32)
    compiled = torch.compile(outward.exclude_self, fullgraph=True)
    z, (code,) = run_and_get_code(compiled, q, v)
    assert torch.allclose(z, outward.exclude_self(q, v), atol=1e-5)
    assert code.count("async_compile.cpp_pybinding") == 1


def test_no_graph_break_and_none_unseen() -> None:
    explained = torch._dynamo.explain(causal_exclusive)(*qkv(torch.float32))
    assert explained.graph_break_count == 0

    def breaks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        z = causal_exclusive(q, k, v)
        return z * 2 if z.sum().item() > 0 else z

    assert torch._dynamo.explain(breaks)(*qkv(torch.float32)).graph_break_count > 0


def test_lengths_may_change() -> None:
    compiled = torch.compile(causal_exclusive, fullgraph=True, dynamic=True)
    for tokens in (11, 13, 17):
        q, k, v = qkv(torch.float32, tokens=tokens)
        assert torch.allclose(compiled(q, k, v), causal_exclusive(q, k, v), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_little_is_saved_for_backward_when_compiled(dtype: torch.dtype) -> None:
    """In units of one output tensor; the compiler keeps three numbers per row where one would do."""
    inputs = qkv(dtype, batch=1, heads=12, kv_heads=12, tokens=128, dim=64)
    q, k, v = (x.requires_grad_() for x in inputs)
    W_O = torch.randn(64, 64, dtype=dtype, requires_grad=True)

    def kept(f) -> int:  # type: ignore[no-untyped-def]
        seen: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            z = f(q, k, v) @ W_O
        assert z.requires_grad
        return sum(seen.values())

    def published(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = outward.standard_attention(q, k, v, causal=True)
        v_hat = nn.functional.normalize(v, dim=-1)
        return y - (y * v_hat).sum(dim=-1, keepdim=True) * v_hat

    standard = kept(lambda q, k, v: outward.standard_attention(q, k, v, causal=True))
    unit = q.numel() * q.element_size()
    assert (kept(torch.compile(causal_exclusive)) - standard) / unit <= 3 * 4 / q.element_size() / 64
    assert (kept(torch.compile(published)) - standard) / unit > 1


def test_extreme_values_compile_too() -> None:
    compiled = torch.compile(outward.exclude_self, fullgraph=True)
    _, _, v = qkv(torch.float32)
    for factor in (2.0**-120, 1.0, 2.0**120):
        assert not compiled(v * factor, v * factor).any()
        assert torch.allclose(
            compiled(v.flip(-1), v * factor), outward.exclude_self(v.flip(-1), v), atol=1e-5
        )
    v[0, 0, 0] = 0
    assert torch.equal(compiled(v.flip(-1), v)[0, 0, 0], v.flip(-1)[0, 0, 0])


def test_nan_stays_nan_where_it_is_not_looked_for() -> None:
    compiled = torch.compile(outward.exclude_self, fullgraph=True)
    q, _, v = qkv(torch.float32, heads=5)
    v[0, 0, 0, 0] = torch.nan
    z = compiled(q, v)
    assert z[0, 0, 0].isnan().all()
    assert z[0, 0, 1:].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_compiled_kernel_in_eager_mode(dtype: torch.dtype) -> None:
    def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return outward.exclusive_attention(q, k, v, causal=True, impl="compiled")

    def two_steps(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = outward.standard_attention(q, k, v, causal=True)
        return outward.exclude_self(y, v, strength=0.7, impl="compiled")

    def two_steps_eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = outward.standard_attention(q, k, v, causal=True)
        return outward.exclude_self(y, v, strength=0.7)

    agrees(kernel, causal_exclusive, dtype, interleaved=True)
    agrees(two_steps, two_steps_eager, dtype)


def test_the_compiled_kernel_takes_any_length() -> None:
    """A second length makes the compiler generalise, which is another road through it."""
    for tokens in (11, 13, 17, 19):
        inputs = [x.requires_grad_() for x in qkv(torch.float32, tokens=tokens)]
        for f in (causal_exclusive, lambda q, k, v: outward.exclude_self(q, v)):
            eager = f(*inputs)
            with_kernel = {
                causal_exclusive: lambda q, k, v: outward.exclusive_attention(
                    q, k, v, causal=True, impl="compiled"
                )
            }.get(f, lambda q, k, v: outward.exclude_self(q, v, impl="compiled"))
            kernel = with_kernel(*inputs)
            assert torch.allclose(kernel, eager, atol=1e-5)
            got, want = (
                torch.autograd.grad(z.square().sum(), inputs, allow_unused=True)
                for z in (kernel, eager)
            )
            for a, b in zip(got, want, strict=True):
                assert (a is None) == (b is None)
                assert a is None or torch.allclose(a, b, atol=1e-4)


def test_a_changing_strength_does_not_compile_again() -> None:
    q, _, v = qkv(torch.float32)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for strength in (0.1, 0.2, 0.9):
            z = outward.exclude_self(q, v, strength=strength, impl="compiled")
            assert torch.allclose(z, outward.exclude_self(q, v, strength=strength), atol=1e-5)


def test_a_training_step_of_layers() -> None:
    net = nn.Sequential(
        outward.ExclusiveAttention(32, 4, num_kv_heads=2),
        outward.GatedExclusiveAttention(32, 4, per="token", initial_strength=0.3, window=5),
    )
    x = torch.randn(2, TOKENS, 32)
    net(x).square().mean().backward()
    eager = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    torch.compile(net, fullgraph=True)(x).square().mean().backward()
    for p, grad in zip(net.parameters(), eager, strict=True):
        assert_within(p.grad, grad.double(), 1e-5 * max(1.0, grad.abs().max().item()))
    torch.optim.AdamW(parameter_groups(net, weight_decay=0.1), lr=1e-3).step()


def test_a_layer_of_changing_lengths_with_padding() -> None:
    """A second length makes sizes symbols, and `m not in (1, w)` a question they answer wrongly."""
    layer = outward.ExclusiveAttention(32, 4)
    compiled = torch.compile(layer, fullgraph=True)
    for tokens in (9, 12, 9, 12):
        x = torch.randn(2, tokens, 32)
        valid = torch.ones(2, tokens, dtype=torch.bool)
        assert torch.allclose(compiled(x), layer(x), atol=1e-5)
        assert torch.allclose(compiled(x, valid=valid), layer(x, valid=valid), atol=1e-5)


def test_a_layer_decodes_when_compiled() -> None:
    layer = outward.ExclusiveAttention(32, 4)
    compiled, cache = torch.compile(layer, fullgraph=True), outward.KVCache(max_tokens=TOKENS)
    x = torch.randn(2, TOKENS, 32)
    with torch.no_grad():
        steps = [compiled(t, cache=cache) for t in x.split([7, 1, 1, 1, 1], dim=1)]
        assert torch.allclose(torch.cat(steps, dim=1), layer(x), atol=1e-5)


def test_float32_masks_beside_float64() -> None:
    q, k, v = qkv(tokens=40)
    mask = torch.zeros(40, 40).masked_fill(torch.ones(40, 40).triu(1) > 0, -torch.inf)
    compiled = torch.compile(outward.exclusive_attention, fullgraph=True)
    assert torch.allclose(compiled(q, k, v, mask=mask), causal_exclusive(q, k, v))


def test_decoding_on_a_static_cache() -> None:
    """A step of decoding compiles once: the own key is data, not shape."""
    q, k, v = qkv(torch.float32)
    whole = causal_exclusive(q, k, v)

    @torch.compile(fullgraph=True)
    def step(q: Tensor, keys: Tensor, values: Tensor, self_key: Tensor) -> Tensor:
        return outward.exclusive_attention(q, keys, values, causal=True, self_key=self_key)

    keys, values = torch.zeros(*k.shape[:2], 17, 7), torch.zeros(*k.shape[:2], 17, 7)
    for i in range(TOKENS):
        keys[:, :, i], values[:, :, i] = k[:, :, i], v[:, :, i]
        with torch._dynamo.config.patch(error_on_recompile=i > 0):
            z = step(q[:, :, i : i + 1].contiguous(), keys, values, torch.tensor([i]))
        assert torch.allclose(z, whole[:, :, i : i + 1], atol=1e-5)


def test_the_drop_in_compiles() -> None:
    attention = outward.ExclusiveMultiheadAttention(32, 4, batch_first=True)
    x = torch.randn(2, TOKENS, 32)
    compiled = torch.compile(attention, fullgraph=True)
    for need_weights in (True, False):
        want = attention(x, x, x, need_weights=need_weights)[0]
        assert torch.allclose(compiled(x, x, x, need_weights=need_weights)[0], want, atol=1e-5)
