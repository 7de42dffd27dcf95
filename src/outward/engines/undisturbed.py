"""A look at a model in the middle of its training that leaves no trace: modes, randomness, wrappers."""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from outward.engines.direct import InEvalMode
from outward.taps.capture import refuse_compiled

SEED = 0
WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module whose weights are trained, out of torch.compile and data parallelism."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod  # type: ignore[assignment]
        elif isinstance(model, WRAPPERS):
            model = model.module
        else:
            break
    refuse_compiled(model)
    _refuse_sharded(model)
    return model


def _refuse_sharded(model: nn.Module) -> None:
    parts = (name for name, p in model.named_parameters() if isinstance(p, DTensor) or is_zero3(p))
    wrapped = (name for name, m in model.named_modules() if isinstance(m, FullyShardedDataParallel))
    found = next(chain(parts, wrapped), None)
    if found is not None:
        raise ValueError(
            f"{found or 'the model'} is sharded over processes, and one process alone cannot run it: "
            "save checkpoints, and hand each to outward.measure."
        )


def is_zero3(parameter: Tensor) -> bool:
    """Whether DeepSpeed has taken its values elsewhere (ZeRO, stage 3)."""
    return hasattr(parameter, "ds_id")


def devices_of(model: nn.Module) -> list[torch.device]:
    """Where its weights are, the first one's first."""
    return list(dict.fromkeys(x.device for x in chain(model.parameters(), model.buffers())))


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """In eval mode and with randomness of its own; afterwards everything is as it was."""
    with InEvalMode(model), seeded(devices_of(model)):
        try:
            yield
        finally:
            # Weights cast without gradients would be handed to the training, which needs them with.
            torch.clear_autocast_cache()


@contextmanager
def seeded(devices: Iterable[torch.device]) -> Iterator[None]:
    """Draw from one seed, each time the same; afterwards all generators go on where they were.

    Those of Python, numpy, torch on the CPU and on the devices, and no other device's: to ask for
    its state would begin to use it.
    """
    kinds = {d: torch.get_device_module(d) for d in devices if d.type not in ("cpu", "meta")}
    python, arrays, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    states = {d: kind.get_rng_state(d) for d, kind in kinds.items()}
    try:
        random.seed(SEED)
        np.random.seed(SEED)
        torch.set_rng_state(torch.Generator().manual_seed(SEED).get_state())
        for d, kind in kinds.items():
            kind.set_rng_state(torch.Generator(d).manual_seed(SEED).get_state(), d)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(cpu)
        for d, kind in kinds.items():
            kind.set_rng_state(states[d], d)
