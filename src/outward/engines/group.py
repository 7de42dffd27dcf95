"""The worker's share of the work: a shard of an array of jobs, or a process of torchrun."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from outward.engines.work import Share
from outward.results import ResultError

PATIENCE = timedelta(days=2)
"""How long a finished worker waits for the others; torchrun ends it when one of them dies."""


def shard(text: str) -> Share:
    """The share that i/n names: 2/8 is the second of eight, counted from 1."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ResultError(f"--shard {text}: it is i/n, the i-th of n, with i from 1 to n, as in 2/8.")
    return Share(int(found[1]) % int(found[2]), int(found[2]))


def of_torchrun() -> Share | None:
    """This process's share, if torchrun started it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return Share(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


@contextmanager
def together() -> Iterator[None]:
    """Leave only when every process of the group has come to the end."""
    import torch.distributed as group

    group.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield
        group.barrier()
    finally:
        group.destroy_process_group()
