"""The default measures against the naive ones, inside real transformers models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from measures.naive import naive_bias, naive_value_similarity
from outward.attention.call import AttentionCall
from outward.measures.bias import PER_TOKEN, Kernel, bias
from outward.taps.capture import capture
from testing import assert_within, rounding

BATCH, TOKENS, VOCABULARY = 2, 13, 97
LLAMA = {
    "num_hidden_layers": 2,
    "hidden_size": 30,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 22,
    "vocab_size": VOCABULARY,
}
BERT = {
    "num_hidden_layers": 2,
    "hidden_size": 21,
    "num_attention_heads": 3,
    "intermediate_size": 22,
    "vocab_size": VOCABULARY,
}


def build(kind: str, config: dict[str, Any], **options: Any) -> nn.Module:
    torch.manual_seed(5)
    config_of = getattr(transformers, f"{kind.removesuffix('Encoder')}Config")(
        **config, **options, bos_token_id=1, eos_token_id=2, pad_token_id=0
    )
    model: nn.Module = getattr(transformers, f"{kind}Model")(config_of).eval()
    for p in model.parameters():  # sharper attention than at the start of a training
        if p.ndim == 2:
            nn.init.normal_(p, std=0.4)
    return model


def llama(implementation: str) -> nn.Module:
    return build("Llama", LLAMA, attn_implementation=implementation)


def gpt2_eager() -> nn.Module:
    sizes = {"n_layer": 2, "n_embd": 21, "n_head": 3, "vocab_size": VOCABULARY}
    return build("GPT2", sizes, attn_implementation="eager")


def window(kind: str = "Mistral", **options: Any) -> nn.Module:
    return build(kind, {**LLAMA, **options}, sliding_window=5)


def gpt_oss() -> nn.Module:
    sizes = {"hidden_size": 32, "intermediate_size": 16}  # its grouped products want rows of 16 bytes
    return window("GptOss", num_local_experts=2, num_experts_per_tok=1, **sizes)


def bloom() -> nn.Module:
    sizes = {"n_layer": 2, "hidden_size": 21, "n_head": 3, "vocab_size": VOCABULARY}
    return build("Bloom", sizes)


def t5() -> nn.Module:
    sizes = {"num_layers": 2, "d_model": 21, "num_heads": 3, "d_kv": 7, "d_ff": 22}
    return build("T5Encoder", {**sizes, "vocab_size": VOCABULARY})


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama, sdpa": lambda: llama("sdpa"),
    "llama, eager": lambda: llama("eager"),
    "gpt2, eager": gpt2_eager,
    "bert": lambda: build("Bert", BERT),
    "mistral, window": window,
    "gemma2, softcap and window": lambda: window("Gemma2", attn_implementation="eager"),
    "gpt-oss, sinks and window": gpt_oss,
    "bloom, alibi": bloom,
    "t5, relative bias": t5,
}
PADDING = {"none": None, "left": slice(0, 4), "right": slice(TOKENS - 4, TOKENS)}


def calls_of(model: nn.Module, padding: str) -> tuple[list[AttentionCall], Tensor]:
    ids = torch.randint(3, VOCABULARY, (BATCH, TOKENS), generator=torch.Generator().manual_seed(1))
    valid = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    if PADDING[padding] is not None:
        valid[1, PADDING[padding]] = False
    given = {} if padding == "none" else {"attention_mask": valid.long()}
    with torch.no_grad(), capture(model) as calls:
        model(input_ids=ids, **given)
    return list(calls), valid


# Errors of a mean over a head in float32. cos: two dot products of 10 terms and a quotient; weights:
# the exponential of a score of size up to 30, known to 30 eps. The centred cosine divides by
# |y - m|, down to CENTRED_FLOOR |y|: its condition number, kept below 2^13, times eps.
MEAN_TOLERANCE = 1e-6
CENTRED_TOLERANCE = 2**13 * torch.finfo(torch.float32).eps
TOKEN_TOLERANCE = 2e-5


@pytest.mark.parametrize("kernel", ["torch", "native"])
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_naive_computation(name: str, padding: str, kernel: Kernel) -> None:
    calls, valid = calls_of(MODELS[name](), padding)
    starts = valid.long().argmax(dim=1)[:, None].expand(BATCH, TOKENS)
    assert len(calls) == 2
    for call in calls:
        got = bias(call, kernel=kernel)
        exact, pairs = naive_bias(call, starts, valid)
        assert torch.equal(got.kept.expand(BATCH, -1), ~exact[0, :, 0].isnan())
        compare(got.tokens, exact)
        first_document = got.see.document.max()  # left padding: tokens before are no document
        assert (got.pairs[..., first_document].double() - pairs).abs().max() < MEAN_TOLERANCE


def compare(got: Tensor, exact: Tensor) -> None:
    for n, measure in enumerate(PER_TOKEN):
        both = ~exact[n].isnan() & ~got[n].isnan()
        error = torch.where(both, (got[n].double() - exact[n]).abs(), 0)
        size = torch.where(both, exact[n].abs(), 0).amax().clamp_min(1)
        centred = measure == "centred_similarity"
        assert error.max() <= size * (CENTRED_TOLERANCE if centred else TOKEN_TOLERANCE), measure
        means = error.sum(dim=-1) / both.sum(dim=-1).clamp_min(1)
        assert means.max() <= size * (CENTRED_TOLERANCE if centred else MEAN_TOLERANCE), measure
        if not centred:
            assert torch.equal(both, ~exact[n].isnan())


def test_the_comparison_bites() -> None:
    calls, valid = calls_of(llama("sdpa"), "none")
    exact, _ = naive_bias(calls[0], torch.zeros(BATCH, TOKENS, dtype=torch.long), valid)
    shifted = bias(calls[0]).tokens.clone()
    shifted[PER_TOKEN.index("null_similarity"), 0, 0, 3] += 1e-4
    with pytest.raises(AssertionError, match="null_similarity"):
        compare(shifted, exact)


@pytest.mark.parametrize("kernel", ["torch", "native"])
def test_values_of_no_length_have_no_cosine(kernel: Kernel) -> None:
    """Neither with others nor with themselves, as the naive sum over pairs has it."""
    q, k, v = (torch.randn(2, 3, 11, 7) for _ in range(3))
    v[0, 1, 2:5], v[1] = 0, 0
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    call = AttentionCall(0, "", "torch", v=v, y=y, q=q, k=k, scale=7**-0.5)
    exact = naive_value_similarity(v.double(), torch.ones(2, 11, dtype=torch.bool), None)
    found = bias(call, kernel=kernel).pairs[..., 0].double()
    assert (found[1] == 0).all()
    bound = rounding(terms=11 * 11 * 7, size=1 / (11 * 10), dtype=torch.float32)
    assert_within(found, exact, bound)
    wrong = exact.clone()
    wrong[0, 1] -= 3 / (11 * 10)  # as if each of the three were like itself
    assert (found - wrong).abs().max() > bound
