"""A watched training: each step is what `measure` says of it, and none is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.distributed as dist
from torch import nn

from engines.command import call
from engines.training import (
    HEADS,
    STEPS,
    losses,
    optimizer_of,
    profile,
    small_llama,
    texts,
    watched_batches,
)
from outward.engines.direct import measure
from outward.engines.watch import watch
from outward.results import ResultError
from outward.run import load
from testing import rounding

pytestmark = pytest.mark.usefixtures("one_thread")
EVERY = 2


def test_each_step_is_what_measure_says_of_it(tmp_path: Path) -> None:
    model = small_llama()
    expected: dict[str, pd.DataFrame] = {}
    watcher = watch(model, watched_batches(), every=EVERY, out=tmp_path)

    def look(step: int) -> None:
        alone = measure(model, watched_batches())
        found = watcher.step(step)
        assert (found is None) == (step % EVERY != 0)
        if found is not None:
            expected[f"step={step}"] = profile(alone, "main")
            kept = alone.layers[list(found.columns)].drop(columns="module")
            size = alone.heads.drop(columns="module").abs().max()[kept.columns]
            error = (found.drop(columns="module") - kept).abs().max()
            assert (error <= rounding(terms=HEADS, size=1, dtype=torch.float64) * size).all()

    list(losses(model, optimizer_of(model), look, last=STEPS))
    expected[f"step={STEPS}"] = profile(measure(model, watched_batches()), "main")
    run = watcher.finish()
    assert run.manifest["steps"] == [0, 2, 4, STEPS]
    for series, table in expected.items():
        pd.testing.assert_frame_equal(profile(run, series), table, check_exact=True)
    pd.testing.assert_frame_equal(profile(run, "main"), profile(run, f"step={STEPS}"))
    assert not profile(run, "step=0").equals(profile(run, "step=2"))  # or equality would say little


def test_the_run_is_one_of_measure_with_steps(tmp_path: Path) -> None:
    model = small_llama()
    with watch(model, watched_batches(), every=EVERY, out=tmp_path, measures=["entropy"]) as watcher:
        list(losses(model, optimizer_of(model), watcher.step))
    run = load(tmp_path)
    document = run.document
    assert run.manifest["kind"] == "measure"
    assert run.manifest["checks"]["identical"]
    assert list(document["steps"]) == ["0", "2", "4"]
    assert document["baselines"] == document["lengths"] == {}
    assert document["steps"]["4"] == [
        {k: v for k, v in x.items() if k != "self_similarity_interval"} for x in document["layers"]
    ]
    assert set(run.samples["series"]) == {"main", "step=0", "step=2", "step=4"}
    assert "entropy" in document["steps"]["0"][0]


def test_the_change_is_told_in_a_sentence(tmp_path: Path) -> None:
    model = small_llama()
    with watch(model, watched_batches(), every=EVERY, out=tmp_path) as watcher:
        list(losses(model, optimizer_of(model), watcher.step))
    run = load(tmp_path)
    (said,) = [s for s in run.reading if "From step" in s]
    first, last = (run.document["steps"][n] for n in ("0", "4"))
    means = [sum(x["self_similarity"] for x in layers) / 2 for layers in (first, last)]
    assert said.startswith(
        f"From step 0 to step 4 the cosine went from {means[0]:.2f} to {means[1]:.2f},"
    )
    moved = [abs(b["self_similarity"] - a["self_similarity"]) for a, b in zip(first, last, strict=True)]
    assert f"most in layer {moved.index(max(moved))}, from" in said
    assert not any("From step" in s for s in measure(model, watched_batches()).reading)


def test_batches_are_those_of_the_beginning(tmp_path: Path) -> None:
    ids, model = texts(), small_llama()
    watcher = watch(model, ids, out=tmp_path)
    before = watcher.measure(0)
    ids.fill_(1)
    after = watcher.measure(1)
    assert before is not None
    assert before.equals(after)
    assert not measure(model, [ids]).layers["self_similarity"].equals(before["self_similarity"])


# ---- what is left of a training that stopped


class _CrashError(Exception):
    pass


def crash_at(step: int, look: Callable[[int], object]) -> Callable[[int], object]:
    def seen(now: int) -> None:
        look(now)
        if now == step:
            raise _CrashError

    return seen


def test_a_crash_loses_nothing_and_resuming_goes_on(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    model = small_llama(dropout=0.0)
    with watch(model, watched_batches(), every=EVERY, out=whole) as watcher:
        list(losses(model, optimizer_of(model), watcher.step, last=6))

    torch.manual_seed(0)
    model = small_llama(dropout=0.0)
    optimizer = optimizer_of(model)
    with (
        pytest.raises(_CrashError),
        watch(model, watched_batches(), every=EVERY, out=parts) as watcher,
    ):
        list(losses(model, optimizer, crash_at(3, watcher.step), last=6))
    with pytest.raises(ResultError, match=r"run\.json"):
        load(parts)
    with watch(model, watched_batches(), every=EVERY, out=parts, resume=True) as watcher:
        assert watcher.steps == [0, 2]
        list(losses(model, optimizer, watcher.step, first=4, last=6))
    files = [(out / "profile.parquet").read_bytes() for out in (whole, parts)]
    assert files[0] == files[1]
    assert profile(load(whole), "step=0").equals(profile(load(parts), "step=0"))


def test_what_a_stopped_training_left_is_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch(small_llama(), watched_batches(), out=tmp_path).measure(3)
    assert call("merge", str(tmp_path)) == 0
    assert "cos(y, v)" in capsys.readouterr().out
    assert load(tmp_path).manifest["steps"] == [3]


def test_a_finished_run_goes_on(tmp_path: Path) -> None:
    model = small_llama()
    with watch(model, watched_batches(), out=tmp_path) as watcher:
        watcher.step(0)
    assert load(tmp_path).manifest["steps"] == [0]
    with watch(model, watched_batches(), out=tmp_path, every=7, resume=True) as watcher:
        list(losses(model, optimizer_of(model), watcher.step, first=5, last=7))
    assert load(tmp_path).manifest["steps"] == [0, 7]


def test_going_back_drops_what_was_after(tmp_path: Path) -> None:
    watcher = watch(small_llama(), watched_batches(), every=EVERY, out=tmp_path)
    for step in range(7):
        watcher.step(step)
    watcher.rewind(3)
    assert watcher.steps == [0, 2]
    watcher.step(4)
    assert watcher.finish().manifest["steps"] == [0, 2, 4]


def test_a_step_told_again_is_not_measured_again(tmp_path: Path) -> None:
    watcher = watch(small_llama(), watched_batches(), every=EVERY, out=tmp_path)
    found = [watcher.step(n) is None for n in (0, 0, 1, 1, 2, 2)]
    assert found == [False, True, True, True, False, True]


def test_a_training_that_diverged_is_not_stopped(tmp_path: Path) -> None:
    model = small_llama()
    watcher = watch(model, watched_batches(), every=1, out=tmp_path)
    watcher.step(0)
    nn.init.constant_(model.model.layers[0].self_attn.v_proj.weight, torch.nan)
    with pytest.warns(UserWarning, match="step 1 is not measured"):
        assert watcher.step(1) is None
    run = watcher.finish()
    assert run.manifest["steps"] == [0]
    assert [x.startswith("step=1: nothing could be measured") for x in run.manifest["failed"]] == [True]
    assert any("1 chunk failed" in x for x in run.document["warnings"])


def test_what_never_worked_is_an_error(tmp_path: Path) -> None:
    model = small_llama()
    nn.init.constant_(model.model.layers[0].self_attn.v_proj.weight, torch.nan)
    with pytest.raises(ValueError, match="nothing could be measured"):
        watch(model, watched_batches(), out=tmp_path, verify=False).step(0)
    with pytest.raises(ResultError, match="no step of a training was measured"):
        watch(small_llama(), watched_batches(), out=tmp_path).finish()  # a slip leaves nothing behind


# ---- what is refused


@pytest.mark.parametrize(
    ("batches", "options", "complaint"),
    [
        ([], {}, "batches is empty"),
        ((texts(), texts()), {}, "batches is a tuple, which may be one batch or several"),
        (texts(), {"every": 0}, "every=0: it is the number of steps"),
        (texts(), {"measures": ["bias"]}, "no measure bias"),
    ],
)
def test_what_cannot_be_watched(
    batches: Any, options: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, TypeError, ResultError), match=complaint):
        watch(small_llama(), batches, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_damaged_step_is_named(tmp_path: Path) -> None:
    watcher = watch(small_llama(), watched_batches(), out=tmp_path)
    for step in (2, 3):
        watcher.measure(step)
    damaged = tmp_path / "chunks" / "step=2.chunk"
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(ResultError, match=r"step=2\.chunk is damaged: remove it"):
        watcher.finish()
    damaged.unlink()
    assert watcher.finish().manifest["steps"] == [3]


def test_steps_go_up(tmp_path: Path) -> None:
    watcher = watch(small_llama(), watched_batches(), every=EVERY, out=tmp_path)
    watcher.step(4)
    with pytest.raises(ValueError, match=r"step 3 is told after step 4: .* watcher\.rewind\(3\)"):
        watcher.step(3)
    with pytest.raises(ValueError, match="step -1: steps are counted from 0"):
        watcher.step(-1)
    again = watch(small_llama(), watched_batches(), every=EVERY, out=tmp_path, resume=True)
    with pytest.raises(ValueError, match="step 2 is told after step 4"):
        again.step(2)


def other_folder(out: Path) -> None:
    (out / "notes.txt").write_text("mine")


def other_run(out: Path) -> None:
    measure(small_llama(), watched_batches(), out=out)


def other_batches(out: Path) -> None:
    watch(small_llama(), texts(), out=out).measure(0)


def begun(out: Path) -> None:
    watch(small_llama(), watched_batches(), out=out).measure(0)


@pytest.mark.parametrize(
    ("made", "resume", "complaint"),
    [
        (other_folder, False, "holds 'notes.txt', which no run writes"),
        (other_run, True, "holds a run that no watched training can add to"),
        (other_batches, True, "of a training watched with other batches"),
        (begun, False, "was watched before: resume=True goes on with it"),
    ],
)
def test_a_directory_of_something_else(
    made: Callable[[Path], None], resume: bool, complaint: str, tmp_path: Path
) -> None:
    made(tmp_path)
    before = sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))
    with pytest.raises(ResultError, match=complaint):
        watch(small_llama(), watched_batches(), out=tmp_path, resume=resume)
    assert sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*")) == before


def test_a_model_of_another_structure_is_not_gone_on_with(tmp_path: Path) -> None:
    begun(tmp_path)
    model, same = small_llama(), small_llama()
    mlp = model.model.layers[1].mlp
    mlp.up_proj, mlp.down_proj = mlp.down_proj, mlp.up_proj  # as many parameters, of the same class
    assert model.num_parameters() == same.num_parameters()
    with pytest.raises(ResultError, match="of a training watched with other structure"):
        watch(model, watched_batches(), out=tmp_path, resume=True)
    watch(same, watched_batches(), out=tmp_path, resume=True)


def test_one_process_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 3)):
        monkeypatch.setattr(dist, name, lambda value=value: value)
    with pytest.raises(ValueError, match=r"watch in process 1 of 3: .* in process 0 only"):
        watch(small_llama(), watched_batches(), out=tmp_path)
