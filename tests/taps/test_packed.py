"""Several documents in one row, and padding: what a query sees, and which queries count."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from outward.attention.call import shown
from outward.taps.capture import capture
from outward.taps.proof import y_error
from taps import small

LENGTHS = (2, 7)


def packed_calls(implementation: str) -> Any:
    model = small.build("Llama", small.LLAMA, attn_implementation=implementation)
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    with torch.no_grad(), capture(model) as calls:
        model(small.text(batch=1), position_ids=positions, use_cache=False)
    return calls


def one_document_each() -> torch.Tensor:
    document = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    past = torch.ones(small.TOKENS, small.TOKENS).tril().bool()
    return (document[:, None] == document) & past


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_documents_do_not_mix(implementation: str) -> None:
    calls = packed_calls(implementation)
    assert [row.status for row in calls.coverage] == ["captured"] * 2
    for call in calls:
        visible = shown(call)
        assert visible is not None
        assert visible[0, 0].equal(one_document_each())
        assert call.self_key is None
        assert y_error(call)[1] <= 1


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_one_document_where_there_are_two_is_caught(implementation: str) -> None:
    call = packed_calls(implementation)[1]
    assert y_error(replace(call, mask=None, causal=True))[1] > 1


@pytest.mark.parametrize("way", ["by position", "by name"])
def test_padding_is_seen_however_the_mask_is_passed(way: str) -> None:
    model = small.build("Llama", small.LLAMA)
    mask = torch.ones(small.BATCH, small.TOKENS, dtype=torch.long)
    mask[1, -3:] = 0
    with torch.no_grad(), capture(model) as calls:
        if way == "by position":
            model(small.text(), mask)
        else:
            model(small.text(), attention_mask=mask)
        model(small.text())
    assert [call.valid is None for call in calls] == [False, False, True, True]
    assert calls[0].valid.equal(mask.bool())
