"""One thread's taps do not take another thread's calls away."""

import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from outward.taps import functions, kernels
from outward.taps.capture import capture
from taps import small

LAYERS, TIMES = 5, 41


def stacked() -> nn.Module:
    return nn.Sequential(*(small.SelfAttention("fused") for _ in range(LAYERS))).eval()


def replaces_names(stop: threading.Event) -> None:
    """Watches nn.MultiheadAttention, for which the name of torch's attention is replaced."""
    model, x = nn.MultiheadAttention(21, 3, batch_first=True).eval(), small.x_of()
    with torch.no_grad(), capture(model, lambda _: None):
        while not stop.is_set():
            model(x, x, x, need_weights=False)


def layers_beside_another_thread() -> set[int]:
    """How many layers this thread saw of each pass, while the other one runs."""
    stop = threading.Event()
    other = threading.Thread(target=replaces_names, args=(stop,))
    other.start()
    model, x, found = stacked(), small.x_of(), set()
    try:
        for _ in range(TIMES):
            with torch.no_grad(), capture(model) as calls:
                model(x)
            found.add(len(calls))
    finally:
        stop.set()
        other.join()
    return found


def test_calls_beside_another_thread_are_all_seen() -> None:
    assert layers_beside_another_thread() == {LAYERS}


def layers_while_replaced(meanwhile: Callable[[], None] = lambda: None) -> int:
    """The same without luck: the other thread holds the name replaced for the whole pass."""
    replaced, done = threading.Event(), threading.Event()

    def hold() -> None:
        with functions._fused_calls_to([]):
            replaced.set()
            done.wait()

    other = threading.Thread(target=hold)
    other.start()
    replaced.wait()
    try:
        meanwhile()
        model = stacked()
        with torch.no_grad(), capture(model) as calls:
            model(small.x_of())
        return len(calls)
    finally:
        done.set()
        other.join()


def test_calls_are_seen_while_another_thread_holds_the_name_replaced() -> None:
    assert layers_while_replaced() == LAYERS


def test_a_comparison_with_the_name_as_it_is_now_loses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare_with_the_name() -> None:
        monkeypatch.setattr(functions, "FUSED", F.scaled_dot_product_attention)

    assert layers_while_replaced(compare_with_the_name) == 0


def test_the_function_compared_with_is_torchs_own() -> None:
    assert kernels.FUSED is F.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention
