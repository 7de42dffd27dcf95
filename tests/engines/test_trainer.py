"""WatchCallback under a real Trainer: what it measures, when, and that the training is the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import LlamaForCausalLM, Trainer, TrainerControl, TrainerState, TrainingArguments

from engines.training import profile, small_llama, texts, watched_batches
from outward.engines.direct import measure
from outward.engines.trainer import WatchCallback
from outward.results import ResultError
from outward.run import load

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, EVERY = 5, 2


class Rows(Dataset[dict[str, Tensor]]):
    def __init__(self, seed: int) -> None:
        self.ids = texts(11, seed=seed)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[row], "labels": self.ids[row]}


def trainer(folder: Path, *callbacks: WatchCallback, model: Any = None, **options: Any) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=3,
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{"max_steps": STEPS, "learning_rate": 0.02, "save_strategy": "no", **options},
    )
    model = small_llama() if model is None else model
    return Trainer(
        model, arguments, train_dataset=Rows(1), eval_dataset=Rows(2), callbacks=[*callbacks]
    )


def watching(out: Path, **options: Any) -> WatchCallback:
    return WatchCallback(watched_batches(), every=EVERY, out=out, **options)


def left_by(made: Trainer) -> list[Any]:
    made.train()
    told = [(x.get("loss"), x.get("grad_norm")) for x in made.state.log_history]
    return [told, *(p.tolist() for p in made.model.parameters())]


def test_a_trainers_training_is_the_same_to_the_bit(tmp_path: Path) -> None:
    callback = watching(tmp_path / "run")
    plain = left_by(trainer(tmp_path / "a"))
    assert left_by(trainer(tmp_path / "b", callback)) == plain
    assert len({loss for loss, _ in plain[0]}) > STEPS - 1
    assert callback.run is not None
    assert load(tmp_path / "run").manifest["steps"] == callback.run.manifest["steps"] == [0, 2, 4, 5]


class _Drawing(WatchCallback):
    """One that costs the training a random number."""

    def on_step_end(self, *args: Any, **more: Any) -> None:
        torch.rand(1)


def test_a_callback_that_disturbs_is_seen(tmp_path: Path) -> None:
    wrong = _Drawing(watched_batches(), every=EVERY, out=tmp_path / "run")
    assert left_by(trainer(tmp_path / "a", wrong)) != left_by(trainer(tmp_path / "b"))


def test_first_and_last_are_the_models_before_and_after(tmp_path: Path) -> None:
    model, callback = small_llama(), watching(tmp_path / "run")
    before = measure(model, watched_batches())
    trainer(tmp_path / "out", callback, model=model).train()
    after = measure(model, watched_batches())
    for series, alone in (("step=0", before), (f"step={STEPS}", after), ("main", after)):
        assert profile(callback.run, series).equals(profile(alone, "main"))
    assert not profile(before, "main").equals(profile(after, "main"))


def test_the_last_step_is_not_the_best_checkpoint(tmp_path: Path) -> None:
    model, callback = small_llama(), watching(tmp_path / "run")
    trainer(
        tmp_path / "out",
        callback,
        model=model,
        learning_rate=3.0,  # it gets worse
        eval_strategy="steps",
        save_strategy="steps",
        eval_steps=1,
        save_steps=1,
        load_best_model_at_end=True,
    ).train()
    last = LlamaForCausalLM.from_pretrained(tmp_path / "out" / f"checkpoint-{STEPS}")
    found = profile(callback.run, f"step={STEPS}")
    assert found.equals(profile(measure(last, watched_batches()), "main"))
    assert not found.equals(profile(measure(model, watched_batches()), "main"))  # that is the best


def test_a_training_that_goes_on_from_a_checkpoint_is_one_run(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 3, "max_steps": 7}
    trainer(tmp_path / "a", first := watching(tmp_path / "whole"), **saving).train()
    trainer(tmp_path / "b", watching(tmp_path / "parts"), **{**saving, "max_steps": 6}).train()
    again = watching(tmp_path / "parts", resume=True)
    trainer(tmp_path / "c", again, **saving).train(
        resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-3")
    )
    assert again.run is not None
    assert again.run.manifest["steps"] == [0, 2, 3, 4, 6, 7]
    for step in (0, 2, 4, 6, 7):
        assert profile(again.run, f"step={step}").equals(profile(first.run, f"step={step}"))


def test_another_training_does_not_go_on_with_the_first(tmp_path: Path) -> None:
    trainer(tmp_path / "a", watching(tmp_path / "run"), max_steps=2).train()
    before = load(tmp_path / "run").manifest
    again = trainer(tmp_path / "b", watching(tmp_path / "run", resume=True), max_steps=2)
    with pytest.raises(ResultError, match=r"holds steps up to 2, and this training begins at 0"):
        again.train()
    with pytest.raises(ResultError, match=r"resume=True goes on with it"):
        trainer(tmp_path / "c", watching(tmp_path / "run"), max_steps=2).train()
    assert load(tmp_path / "run").manifest == before


def test_only_the_main_process_measures(tmp_path: Path) -> None:
    model: nn.Module = small_llama()
    arguments = TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[])
    for main in (False, True):
        callback = watching(tmp_path / "run")
        state = TrainerState(is_world_process_zero=main)
        callback.on_train_begin(arguments, state, TrainerControl(), model=model)
        callback.on_step_end(arguments, state, TrainerControl())
        callback.on_train_end(arguments, state, TrainerControl())
        assert (tmp_path / "run").exists() == main
        assert (callback.run is not None) == main
