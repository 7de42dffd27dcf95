"""measure(model, batches) from Python: what batches may be, and what is left as it was."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from outward.engines.direct import measure
from outward.results import ResultError
from outward.run import Run, load
from sources.tiny import llama

WINDOWS, TOKENS = 5, 11


@pytest.fixture(scope="module")
def model() -> nn.Module:
    made: nn.Module = llama()[0].model
    return made


@pytest.fixture(scope="module")
def plain(model: nn.Module) -> Run:
    """Of a tensor."""
    return measure(model, [ids()])


def ids() -> Tensor:
    return torch.randint(100, 1000, (WINDOWS, TOKENS), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "batch",
    [ids(), (ids(),), [ids()], {"input_ids": ids()}, {"input_ids": ids(), "attention_mask": None}],
    ids=["tensor", "tuple", "list", "mapping", "mapping with None"],
)
def test_a_batch_is_what_the_model_is_called_with(model: nn.Module, plain: Run, batch: Any) -> None:
    found = measure(model, [batch], verify=False)
    pd.testing.assert_frame_equal(found.profile, plain.profile, check_exact=True)
    assert list(found.samples["document"].unique()) == ["0", "1", "2", "3", "4"]


def test_another_batch_gives_other_numbers(model: nn.Module, plain: Run) -> None:
    other = measure(model, [ids().flip(1)])
    with pytest.raises(AssertionError):
        pd.testing.assert_frame_equal(other.profile, plain.profile)


def test_padding_is_what_the_attention_mask_says(model: nn.Module) -> None:
    mask = torch.ones(WINDOWS, TOKENS, dtype=torch.long)
    mask[1, 7:] = 0
    run = measure(model, [{"input_ids": ids(), "attention_mask": mask}])
    rows = run.profile[(run.profile["measure"] == "self_weight") & run.profile["place"].isna()]
    assert (rows["n"] == WINDOWS * (TOKENS - 1) - 4).all()


def test_batches_may_be_run_in_another_way(model: nn.Module) -> None:
    seen: list[int] = []

    def run(batch: Any) -> Any:
        seen.append(len(batch.args[0]))
        return model(batch.args[0])

    found = measure(model, [ids(), ids()[:3]], run=run, verify=False)
    assert seen == [5, 3]
    assert found.manifest["documents"] == {"main": 8}
    assert found.manifest["checks"] is None


def test_some_layers(model: nn.Module) -> None:
    assert list(measure(model, [ids()], layers=[1]).profile["layer"].unique()) == [1]
    with pytest.raises(ResultError, match="no layer 2: this model has 2, 0 to 1"):
        measure(model, [ids()], layers=[0, 2])


def test_the_model_is_left_as_it_was(model: nn.Module) -> None:
    model.train()
    model.get_submodule("layers.0").eval()
    before = {name: m.training for name, m in model.named_modules()}
    weights = {name: p.clone() for name, p in model.named_parameters()}
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    measure(model, [ids()])
    assert {name: m.training for name, m in model.named_modules()} == before
    assert all(p.equal(weights[name]) for name, p in model.named_parameters())
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    model.eval()


def test_kept_where_asked(model: nn.Module, tmp_path: Path) -> None:
    run = measure(model, [ids()], out=tmp_path / "run")
    assert run.path == tmp_path / "run"
    assert load(tmp_path / "run").document == run.document
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ResultError, match="file is a file; a run is a directory"):
        measure(model, [ids()], out=tmp_path / "file")


@pytest.mark.parametrize(
    ("batches", "error", "said"),
    [
        ([], ValueError, "batches is empty: there is nothing to measure"),
        ([5], TypeError, "a batch of type int holds no tensor with a batch axis"),
        ([{"text": "w1"}], TypeError, "a batch of type dict holds no tensor"),
        ([ids() + 1000], ValueError, r"nothing could be measured\. 0, window 0: index out of range"),
    ],
)
def test_batches_that_are_none(
    batches: list[Any], error: type[Exception], said: str, model: nn.Module
) -> None:
    with pytest.raises(error, match=said):
        measure(model, batches)


class Attention(nn.Linear):
    """It calls itself attention, and is none."""


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (nn.Linear(7, 7), "no module of it calls itself attention"),
        (Attention(7, 7), "0: no softmax ran"),
    ],
)
def test_a_model_without_attention(layer: nn.Module, said: str) -> None:
    with pytest.raises(ResultError, match=f"no attention of it could be measured .{said}"):
        measure(nn.Sequential(layer), [torch.zeros(2, 3, 7)], verify=False)


def test_one_batch_alone_is_one_batch() -> None:
    layer = nn.TransformerEncoderLayer(12, 3, dim_feedforward=14, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 7, 12)
    alone, listed = (measure(model, given, verify=False).profile for given in (x, [x]))
    assert alone.equals(listed)
    assert not alone.equals(measure(model, [x, x], verify=False).profile)
