"""The profile is what one computes from the numbers of every token; bad windows are left out."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outward.engines.direct import measure
from outward.measures.bias import PER_TOKEN, Bias
from outward.probe import loop
from outward.run import Run
from outward.sources.batch import Batch
from sources.tiny import llama

TOKENS = 21
EPS = np.finfo(np.float64).eps


@pytest.fixture(scope="module")
def model() -> nn.Module:
    made: nn.Module = llama()[0].model.eval()
    for p in made.parameters():  # sharper attention than at the start of a training
        if p.ndim == 2:
            nn.init.normal_(p, std=0.3)
    return made


def ids(windows: int, seed: int = 0) -> Tensor:
    return torch.randint(100, 1000, (windows, TOKENS), generator=torch.Generator().manual_seed(seed))


def batches(lengths: list[int], size: int, pad: int = 0) -> Iterator[Batch]:
    """Windows of these lengths as rows, padded on the right, `pad` more than needed."""
    every = ids(len(lengths))
    for start in range(0, len(lengths), size):
        mine = lengths[start : start + size]
        width = min(max(mine) + pad, TOKENS)
        valid = torch.arange(width) < torch.tensor(mine)[:, None]
        x = every[start : start + size, :width].masked_fill(~valid, 0)
        given = {"input_ids": x, "attention_mask": valid.long()}
        names = [f"d{start + i}" for i in range(len(mine))]
        yield Batch((), given, names, [0] * len(mine), valid=valid)


# ---- against numpy


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Bias]]:
    """The numbers of every token, as the probe gets them."""
    found: list[tuple[int, Bias]] = []
    bias = loop.bias

    def recorded(call: Any, *args: Any, **options: Any) -> Bias:
        made = bias(call, *args, **options)
        # the buffers may be used again: what is kept is a copy
        found.append((call.layer, Bias(made.tokens.clone(), made.kept, made.pairs.clone(), made.see)))
        return made

    monkeypatch.setattr(loop, "bias", recorded)
    return found


def of_layer(
    seen: list[tuple[int, Bias]], layer: int, measure: str, head: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(numbers, places) of every token that counts."""
    numbers, places = [], []
    for number, made in seen:
        if number != layer:
            continue
        x = made.tokens[PER_TOKEN.index(measure), :, head].double()
        kept = made.kept.expand(len(x), -1) & x.isfinite()
        numbers.append(x[kept].numpy())
        places.append(made.see.place.expand(len(x), -1)[kept].numpy())
    return np.concatenate(numbers), np.concatenate(places)


def assert_is_profile_of(
    profile: pd.DataFrame, x: NDArray[np.float64], measure: str, place: float, head: int
) -> None:
    at = profile[(profile["layer"] == 1) & (profile["measure"] == measure) & (profile["head"] == head)]
    at = at[at["place"].isna() if np.isnan(place) else at["place"] == place]
    if not len(x):
        assert not len(at) or not at["n"].iloc[0]
        return
    (row,) = at.to_dict("records")
    size = max(1.0, float(np.abs(x).max()))
    # Sums of n numbers in float64, in another order; the square root of the spread halves the digits.
    assert row["n"] == len(x)
    assert abs(row["mean"] - x.mean()) <= len(x) * EPS * size
    assert abs(row["std"] - x.std()) <= np.sqrt(8 * len(x) * EPS) * size
    assert row["min"] == x.min()
    assert row["max"] == x.max()
    assert row["q05"] <= row["q50"] <= row["q95"]


LENGTHS = [21, 17, 21, 9, 3, 21, 12]


@pytest.mark.parametrize("measure_name", PER_TOKEN)
def test_the_profile_is_that_of_every_token(
    model: nn.Module, seen: list[tuple[int, Bias]], measure_name: str
) -> None:
    profile = measure(model, batches(LENGTHS, 3), verify=False).profile
    for head in (0, 3):
        x, places = of_layer(seen, 1, measure_name, head)
        assert_is_profile_of(profile, x, measure_name, np.nan, head)
        with pytest.raises(AssertionError):
            assert_is_profile_of(profile, np.append(x, x.mean()), measure_name, np.nan, head)
        for first, last in ((0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31)):
            inside = x[(places >= first) & (places <= last)]
            assert_is_profile_of(profile, inside, measure_name, first, head)


def test_buckets_are_of_places_and_make_up_the_whole(model: nn.Module) -> None:
    profile = measure(model, batches(LENGTHS, 3), verify=False).profile
    at = profile[
        (profile["measure"] == "self_weight") & (profile["head"] == 1) & (profile["layer"] == 0)
    ]
    parts = at.dropna(subset="place")
    assert parts["place"].tolist() == [1, 2, 4, 8, 16]  # 0 sees only itself
    assert parts["n"].sum() == at[at["place"].isna()]["n"].iloc[0] == sum(LENGTHS) - len(LENGTHS)


# ---- batches and padding


def means(run: Run) -> dict[tuple[str, int, int, str], float]:
    columns = ["document", "layer", "head", "measure"]
    return run.samples.set_index(columns)["mean"].to_dict()


# Float32 activations of size about 1 to 10 that are summed in another order: a few hundred roundings
# through two layers. The centred cosine has a condition of up to 2^13.
TOLERANCE = 512 * float(np.finfo(np.float32).eps)
CENTRED = 2.0**13 * float(np.finfo(np.float32).eps)


def assert_same_means(a: Run, b: Run) -> None:
    left, right = means(a), means(b)
    assert left.keys() == right.keys()
    for key, x in left.items():
        allowed = CENTRED if key[3] == "centred_similarity" else TOLERANCE
        assert abs(x - right[key]) <= allowed * max(1, abs(x)), key


@pytest.mark.parametrize(("size", "pad"), [(1, 0), (2, 0), (7, 0), (3, 5)])
def test_padding_and_company_change_no_window(model: nn.Module, size: int, pad: int) -> None:
    plain = measure(model, batches(LENGTHS, 3), verify=False)
    assert_same_means(plain, measure(model, batches(LENGTHS, size, pad), verify=False))


def test_counting_padding_would_change_them(model: nn.Module) -> None:
    """The sibling: rows whose padding counts as tokens."""

    def unmasked() -> Iterator[Batch]:
        for b in batches(LENGTHS, 7):
            yield Batch((), {"input_ids": b.inputs["input_ids"]}, b.documents, b.windows)

    plain = measure(model, batches(LENGTHS, 3), verify=False)
    with pytest.raises(AssertionError):
        assert_same_means(plain, measure(model, unmasked(), verify=False))


# ---- bad windows


class Poisoned(nn.Module):
    """A model that makes NaN of the rows that hold one token id; as broken weights do."""

    def __init__(self, model: nn.Module, token: int) -> None:
        super().__init__()
        self.model, self.token = model, token
        self.model.get_submodule("layers.1").register_forward_pre_hook(self._poison)
        self.rows = torch.zeros(0, dtype=torch.bool)

    def _poison(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x = args[0].clone()
        x[self.rows] = torch.nan
        return (x, *args[1:])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        self.rows = (input_ids == self.token).any(dim=1)
        return self.model(input_ids=input_ids, attention_mask=attention_mask)


@pytest.mark.parametrize("bad", [0, 4])
@pytest.mark.parametrize("verify", [True, False])
def test_a_window_that_becomes_nan_is_named_and_the_others_stay(bad: int, verify: bool) -> None:
    fresh = llama()[0].model.eval()
    token = int(ids(len(LENGTHS))[bad, 1])
    assert sum(token in row[:n].tolist() for row, n in zip(ids(7), LENGTHS, strict=True)) == 1
    good = measure(fresh, batches(LENGTHS, 3), verify=False)
    run = measure(Poisoned(fresh, token), batches(LENGTHS, 3), verify=verify)
    (named,) = run.manifest["skipped"]
    assert named.startswith(f"d{bad}, window 0: NaN or infinity comes out of model.layers.1.self_attn")
    others = {k: v for k, v in means(good).items() if k[0] != f"d{bad}"}
    assert means(run).keys() == others.keys()
    assert all(abs(means(run)[k] - v) <= CENTRED * max(1, abs(v)) for k, v in others.items())
    assert (run.manifest["checks"] is not None) == verify


def test_without_a_bad_window_nothing_is_left_out(model: nn.Module) -> None:
    run = measure(model, batches(LENGTHS, 3))
    assert run.manifest["skipped"] == []
    assert run.manifest["windows"]["main"] == len(LENGTHS)


def test_where_all_are_bad_it_is_an_error_that_says_why() -> None:
    class Broken(Poisoned):
        def _poison(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (args[0] * torch.nan, *args[1:])

    with pytest.raises(ValueError, match=r"nothing could be measured. d0, window 0: NaN or infinity"):
        measure(Broken(llama()[0].model.eval(), 0), batches(LENGTHS, 3))


def test_a_token_beyond_the_vocabulary_costs_one_window(model: nn.Module) -> None:
    given = list(batches(LENGTHS, 7))
    given[0].inputs["input_ids"][2, 3] = 10**6
    run = measure(model, given)
    (named,) = run.manifest["skipped"]
    assert named.startswith("d2, window 0: ")
    assert run.manifest["windows"]["main"] == len(LENGTHS) - 1


@pytest.mark.parametrize("kernel", ["torch", "native"])
def test_nan_that_the_attention_kernel_swallows_is_found(kernel: str) -> None:
    """A fused kernel may return finite numbers for a query of NaN; the weights tell."""
    broken = llama()[0].model.eval()
    with torch.no_grad():
        broken.layers[1].self_attn.q_proj.weight[3] = torch.nan
    with pytest.raises(ValueError, match=r"NaN or infinity comes out of layers\.1\.self_attn"):
        measure(broken, batches(LENGTHS, 3), verify=False, kernel=kernel)


class Unmasked(nn.Module):
    """Attention that is told of no padding: only the batch knows."""

    def forward(self, x: Tensor) -> Tensor:
        q = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize("kernel", ["torch", "native"])
def test_the_padding_of_a_bad_window_is_not_that_of_the_next(kernel: str) -> None:
    x = torch.randn(2, 13, 6)
    valid = torch.arange(13) < torch.tensor([[5], [11]])
    alone = Batch((x[1:],), {}, ["b"], [0], valid=valid[1:])
    x[0, 2] = torch.nan
    both = Batch((x,), {}, ["a", "b"], [0, 0], valid=valid)
    found, exact = (
        measure(Unmasked(), [b], verify=False, kernel=kernel).profile for b in (both, alone)
    )
    assert found["n"].max() == 11
    assert (found["mean"] - exact["mean"]).abs().max() == 0
