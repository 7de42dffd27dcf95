"""Small models for the tests of the taps, and what of torch and transformers a capture touches."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

BATCH, TOKENS, VOCABULARY = 2, 9, 61
WIDTH, HEADS, KV_HEADS = 24, 6, 2
LLAMA = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": 22,
}
GPT2 = {"n_embd": WIDTH, "n_layer": 2, "n_head": 3}
BERT = {"hidden_size": 21, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 22}
T5 = {"d_model": 20, "d_kv": 5, "num_heads": 4, "num_layers": 2, "d_ff": 22}
BART = {
    "d_model": 20,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 22,
    "decoder_ffn_dim": 22,
}
BLOOM = {"hidden_size": WIDTH, "n_layer": 2, "n_head": 3}


def build(kind: str, config: dict[str, Any], **options: Any) -> nn.Module:
    """A random model, sharp: with weights as initialised, attention is all but uniform."""
    torch.manual_seed(5)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1}
    config_of = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY, **ids, **config, **options
    )
    model: nn.Module = getattr(transformers, f"{kind}Model")(config_of).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.normal_(std=1.5 / p.shape[1] ** 0.5)
    return model


def text(batch: int = BATCH, tokens: int = TOKENS) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(3, VOCABULARY, (batch, tokens), generator=generator)


def without_gradient(run: Callable[[], Any]) -> Any:
    with torch.no_grad():
        return run()


EINSUMS = {"einsum": "bhij,bhjd->bhid", "einsum, ellipsis": "... ij, ...jd -> ...id"}


class Plain(nn.Module):
    """Self-attention as one writes it by hand, in one of four ways."""

    def __init__(self, way: str, causal: bool = True) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.way, self.causal = way, causal
        self.num_heads = 3
        self.qkv = nn.Linear(21, 63)
        self.out = nn.Linear(21, 21)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 3, 7)).permute(2, 0, 3, 1, 4).unbind(0)
        if self.way == "fused":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            s = q @ k.mT / 7**0.5
            if self.causal:
                s = s.masked_fill(torch.ones_like(s).triu(1).bool(), -torch.inf)
            P = s.softmax(dim=-1)
            y = P @ v if self.way == "product" else torch.einsum(EINSUMS[self.way], P, v)
        return self.out(y.transpose(1, 2).flatten(2))


class SelfAttention(Plain):
    """The same, with a name that says what it is."""


def x_of(tokens: int = TOKENS, width: int = 21) -> Tensor:
    return torch.randn(BATCH, tokens, width, generator=torch.Generator().manual_seed(2))


def touched(model: nn.Module) -> tuple[Any, ...]:
    """Everything that a capture changes for its duration."""
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    always = sum(len(m._forward_hooks_always_called) for m in model.modules())
    compiled = [m._compiled_call_impl for m in model.modules()]
    modes = torch._C._len_torch_function_stack()
    fast = torch.backends.mha.get_fastpath_enabled()
    return (
        AttentionInterface.get_interface,
        F.scaled_dot_product_attention,
        hooks,
        always,
        compiled,
        modes,
        fast,
    )
