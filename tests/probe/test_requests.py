"""Optional measures from the request to the run: computed when named, kept like the others."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from engines.command import LENGTH, call, options, texts, tiny
from outward.engines.direct import measure
from outward.engines.plan import Pass, Plan, asked_for, begin, chunks, load, read_plan
from outward.engines.work import Watched
from outward.measures.bias import DEFAULT, Bias, bias
from outward.measures.optional import OPTIONAL, REQUESTS, entropy
from outward.probe import loop
from outward.probe.chunks import pack, unpack
from outward.probe.loop import BiasLens
from outward.probe.tables import histograms, profile, samples
from outward.probe.tally import Chunk
from outward.results import ResultError
from outward.run import Run
from probe.test_chunks import assert_same
from probe.test_profile import LENGTHS, assert_is_profile_of, batches
from sources.tiny import llama

ALL = ("entropy", "orthogonal_similarity")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    made: nn.Module = llama()[0].model.eval()
    for p in made.parameters():  # sharper attention than at the start of a training
        if p.ndim == 2:
            nn.init.normal_(p, std=0.3)
    return made


def run_of(model: nn.Module, measures: tuple[str, ...], kernel: str = "torch") -> Run:
    return measure(model, batches(LENGTHS, 3), verify=False, measures=measures, kernel=kernel)


# ---- in the tables


def measures_of(table: pd.DataFrame) -> list[str]:
    return list(table["measure"].unique())


def without(table: pa.Table) -> pd.DataFrame:
    """The rows of the default measures."""
    frame = table.to_pandas().astype({"measure": str})
    return frame[frame["measure"].isin(DEFAULT)].reset_index(drop=True)


@pytest.mark.parametrize("kernel", ["torch", "native"])
def test_the_default_measures_are_the_same_beside_others(model: nn.Module, kernel: str) -> None:
    plain, more = run_of(model, (), kernel), run_of(model, ALL, kernel)
    assert measures_of(plain.profile) == list(DEFAULT)
    assert measures_of(plain.samples) == plain.manifest["measures"] == list(DEFAULT)
    assert set(measures_of(more.profile)) == {*DEFAULT, *OPTIONAL}
    for name in ("profile", "samples"):
        pd.testing.assert_frame_equal(without(plain.arrow[name]), without(more.arrow[name]))
    with pytest.raises(AssertionError):
        pd.testing.assert_frame_equal(without(plain.arrow["profile"]), more.profile)


@pytest.mark.parametrize("kernel", ["torch", "native"])
def test_the_profile_of_entropy_is_that_of_every_token(
    model: nn.Module, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[tuple[Tensor, Bias]] = []
    extra = loop.extra

    def recorded(call: Any, measured: Bias, requests: tuple[str, ...]) -> Any:
        if call.layer == 1:
            numbers.append((entropy(call), measured))
        return extra(call, measured, requests)

    monkeypatch.setattr(loop, "extra", recorded)
    found = run_of(model, ("entropy",), kernel).profile
    for first, last in ((np.nan, 99), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31)):
        x = np.concatenate(
            [of_places(H[:, 2], m, 0 if np.isnan(first) else first, last) for H, m in numbers]
        )
        assert_is_profile_of(found, x, "entropy", first, 2)
        with pytest.raises(AssertionError):
            assert_is_profile_of(found, x + 0.01, "entropy", first, 2)


def of_places(x: Tensor, measured: Bias, first: float, last: float) -> Any:
    kept = measured.kept & (measured.see.place >= first) & (measured.see.place <= last)
    return x[kept.expand(len(x), -1)].double().numpy()


def test_a_number_for_each_document(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[Tensor] = []
    extra = loop.extra

    def recorded(call: Any, *args: Any) -> Any:
        found = extra(call, *args)
        if call.layer == 1:
            pairs.append(found.pairs["exclusive_similarity"][:, 3, 0])
        return found

    monkeypatch.setattr(loop, "extra", recorded)
    run = run_of(model, ("exclusive_similarity",))
    x = torch.cat(pairs).numpy()
    assert len(x) == len(LENGTHS)
    assert_is_profile_of(run.profile, x, "exclusive_similarity", np.nan, 3)
    rows = run.samples[run.samples["measure"] == "exclusive_similarity"]
    assert rows[(rows["layer"] == 1) & (rows["head"] == 3)]["mean"].tolist() == x.tolist()


def test_the_document_names_them(model: nn.Module) -> None:
    said = run_of(model, ALL).document
    for name in OPTIONAL:
        for row in (*said["layers"], *said["heads"]):
            assert isinstance(row[name], float), name
        assert name in said["trend"]
    plain = run_of(model, ()).document
    assert not {*OPTIONAL} & {*plain["layers"][0], *plain["trend"]}


def test_histograms_are_in_the_order_of_the_manifest(model: nn.Module) -> None:
    run = run_of(model, ALL)
    counted = run.arrays["main.layer1.histogram"].sum(axis=(1, 2))
    rows = run.profile.query("place.isna() and layer == 1").groupby("measure", observed=True)["n"].sum()
    assert counted.tolist() == rows.loc[run.manifest["measures"]].tolist()
    assert set(run.manifest["measures"]) == {*DEFAULT, *OPTIONAL}
    assert counted.tolist() != rows.loc[sorted(run.manifest["measures"])].tolist()


# ---- in chunks


@cache
def chunk(measures: tuple[str, ...], number: int) -> Chunk:
    plan = Plan(
        str(tiny()), str(texts()), length=LENGTH, samples=9, batch=2, device="cpu", measures=measures
    )
    one = Pass("main", LENGTH)
    source = load(plan, one)
    with Watched(source.body, None, False, lens=BiasLens(plan.measures)) as watched:
        return watched.tally(list(chunks(plan, one, source, []))[number])


def test_chunks_carry_what_they_hold() -> None:
    for measures in ((), ("entropy",), ALL):
        kept = unpack(pack(chunk(measures, 0)))
        assert_same(kept, chunk(measures, 0))
        assert kept.measures == chunk(measures, 0).measures
        assert len(kept.measures) == len(DEFAULT) + sum(len(REQUESTS[m]) for m in measures)


def test_parts_merge_if_they_hold_the_same() -> None:
    both = chunk(ALL, 0).merge(chunk(ALL, 1))
    tables = profile("main", both), pa.concat_tables(samples("main", both))
    assert all({*OPTIONAL} < set(t.column("measure").unique().to_pylist()) for t in tables)
    assert histograms("main", both)["main.layer0.histogram"].shape[0] == len(both.measures)
    with pytest.raises(ValueError, match=r"only one of two parts holds entropy; .* the same"):
        chunk(("entropy",), 0).merge(chunk((), 1))


# ---- asked for


def test_a_plan_keeps_what_names_ask_for() -> None:
    for names in (
        ("orthogonal_similarity", "entropy"),
        ("entropy", "exclusive_similarity", "self_weight"),
    ):
        assert Plan("m", measures=names).measures == ALL
    assert Plan("m", measures=("self_weight",)).measures == Plan("m").measures == ()


@pytest.mark.parametrize(
    "ask", [asked_for, lambda x: Plan("m", measures=x), lambda x: run_of(nn.Linear(2, 2), x)]
)
def test_an_unknown_name_is_answered_with_all_that_there_are(ask: Callable[[Any], Any]) -> None:
    with pytest.raises(ResultError, match="no measure entropie") as caught:
        ask(("entropy", "entropie"))
    assert all(name in str(caught.value) for name in (*DEFAULT, *OPTIONAL))


def test_to_go_on_needs_the_same_measures(tmp_path: Path) -> None:
    plan = Plan("m", measures=("entropy",))
    begin(plan, tmp_path, resume=False, shared=False, facts={})
    assert read_plan(tmp_path)[0] == plan
    begin(plan, tmp_path, resume=True, shared=False, facts={})
    with pytest.raises(ResultError, match=r"begun with other options \(measures\)"):
        begin(Plan("m"), tmp_path, resume=True, shared=False, facts={})
    assert asdict(plan)["measures"] == ("entropy",)


# ---- by the command


def test_named_in_an_option_it_is_computed_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--samples", "6")
    assert call(*options(tmp_path / "a", *few, "--measures", "self_weight,entropy")) == 0
    assert "entropy" in capsys.readouterr().out
    assert call(*options(tmp_path / "b", *few, "--json")) == 0
    assert "entropy" not in json.loads(capsys.readouterr().out)["layers"][0]
    assert call(*options(None, *few, "--json", "--fail-if", "mean_removed_similarity>-2")) == 4
    assert json.loads(capsys.readouterr().out)["layers"][1]["mean_removed_similarity"] is not None


def test_a_run_without_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A condition on what was never measured is not false: it is no answer."""
    assert call(*options(tmp_path, "--samples", "6")) == 0
    for option in (("--measures", "entropy"), ("--fail-if", "entropy>3")):
        assert call("merge", str(tmp_path), *option) == 2
        assert "holds no entropy" in capsys.readouterr().err
    assert call("merge", str(tmp_path), "--measures", "self_weight") == 0


def test_an_unknown_name_is_a_slip_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*options(None, "--measures", "entropie")) == 2
    assert "orthogonal_similarity" in capsys.readouterr().err


# ---- under a model's autocast


def test_a_models_autocast_is_not_for_measuring(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    differences: list[float] = []

    def compared(call: Any, measured: Bias, requests: tuple[str, ...]) -> Any:
        again = bias(call).pairs
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = bias(call).pairs
        assert torch.equal(measured.pairs, again)
        differences.append((inside.double() - again.double()).abs().max().item())
        return original(call, measured, requests)

    original = loop.extra
    monkeypatch.setattr(loop, "extra", compared)

    def run(batch: Any) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(**batch.inputs)

    measure(model, batches(LENGTHS, 3), run=run, verify=False, kernel="torch")
    assert max(differences) > 1e-4  # measured within autocast, it would be another number
    assert len(differences) == 2 * 3
