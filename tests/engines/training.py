"""A training small enough for a test, in which every way to disturb one shows."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, TOKENS, VOCABULARY, HEADS, STEPS = 3, 13, 61, 5, 5
Look = Callable[[int], object]


def small_llama(dropout: float = 0.3) -> LlamaForCausalLM:
    """In training, but for one layer that is frozen, in eval mode on purpose."""
    torch.manual_seed(7)
    config = LlamaConfig(
        hidden_size=HEADS * 4,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=1,
        intermediate_size=22,
        vocab_size=VOCABULARY,
        attention_dropout=dropout,
    )
    model = LlamaForCausalLM(config).train()
    model.model.layers[1].eval()
    return model


def texts(windows: int = BATCH, seed: int = 11) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (windows, TOKENS), generator=generator)


def watched_batches() -> list[Any]:
    """Two of them, one with padding."""
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[1, -4:] = 0
    return [texts(), {"input_ids": texts(2, seed=12), "attention_mask": mask}]


def losses(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    look: Look,
    first: int = 0,
    last: int = STEPS - 1,
) -> Iterator[float]:
    """Of each step; its data, too, is drawn from torch's own generator."""
    for step in range(first, last + 1):
        ids = torch.randint(1, VOCABULARY, (BATCH, TOKENS))
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()
        look(step)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def trained(
    model: nn.Module, look_with: Callable[[nn.Module], Look] = lambda _: lambda _: None
) -> list[Any]:
    """All that a training leaves: losses, weights, the optimizer's state, modes, and random numbers."""
    look = look_with(model)
    torch.manual_seed(3)
    optimizer = optimizer_of(model)
    found: list[Any] = list(losses(model, optimizer, look))
    state = optimizer.state_dict()["state"]
    tensors = [*model.state_dict().values(), *(x for s in state.values() for x in s.values())]
    gradients = [p.grad is None for p in model.parameters()]
    modes = [m.training for m in model.modules()]
    return [*found, *(x.tolist() for x in tensors), gradients, modes, torch.rand(1).item()]


def profile(run: Any, series: str) -> pd.DataFrame:
    """The rows of a series, to be compared."""
    found = run.profile[run.profile["series"] == series].drop(columns="series")
    return found.reset_index(drop=True).astype({"module": str, "measure": str})
