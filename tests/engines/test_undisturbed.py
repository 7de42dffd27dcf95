"""A training that is watched goes on as if nobody had looked, however its model is wrapped."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh
from torch.utils.data import DataLoader, TensorDataset

from engines.training import BATCH, small_llama, texts, trained, watched_batches
from outward.engines import undisturbed
from outward.engines import watch as watching
from outward.engines.steps import steps_in
from outward.engines.watch import watch
from taps.small import touched

pytestmark = pytest.mark.usefixtures("one_thread")
EVERY = 2


def drawing(model: nn.Module) -> Callable[[Any], Any]:
    """To run a model that draws random numbers in eval mode, too, from wherever there are some."""

    def run(batch: Any) -> Any:
        torch.rand(1), random.random(), np.random.rand()
        return model(*batch.args, **batch.inputs)

    return run


def looking(out: Path, **options: Any) -> Callable[[nn.Module], Callable[[int], object]]:
    def with_model(model: nn.Module) -> Callable[[int], object]:
        loader = DataLoader(TensorDataset(texts(BATCH + 2)), batch_size=2, shuffle=True)
        options.setdefault("run", drawing(model))
        return watch(model, loader, every=EVERY, out=out, **options).step

    return with_model


def test_a_training_is_the_same_to_the_bit(tmp_path: Path) -> None:
    assert trained(small_llama(), looking(tmp_path)) == trained(small_llama())


@pytest.mark.unhooked  # checking types draws from Python's generator
def test_other_generators_go_on_where_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(out: Path) -> tuple[float, float]:
        look = looking(out)(small_llama())
        random.seed(5)
        np.random.seed(5)
        look(0)
        return random.random(), np.random.rand()

    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.rand()
    assert drawn(tmp_path / "a") == expected
    monkeypatch.setattr(undisturbed, "seeded", _as_it_comes)
    disturbed = drawn(tmp_path / "b")
    assert all(x != y for x, y in zip(disturbed, expected, strict=True))


@contextmanager
def _as_it_comes(_: Any) -> Iterator[None]:
    yield


class _BackToTraining:
    """Eval and then train, as one writes it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.model.eval()

    def __exit__(self, *error: object) -> None:
        self.model.train()


class _LeftInEval(_BackToTraining):
    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("seeded", _as_it_comes), ("InEvalMode", _BackToTraining), ("InEvalMode", _LeftInEval)],
)
def test_a_look_that_disturbs_is_seen(
    name: str, wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undisturbed, name, wrong)
    assert trained(small_llama(), looking(tmp_path)) != trained(small_llama())


def test_batches_drawn_by_a_loader_cost_no_random_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(out: Path) -> float:
        torch.manual_seed(4)
        looking(out)(small_llama())
        return torch.rand(1).item()

    def none(_: Path) -> float:
        small_llama()
        return torch.rand(1).item()

    torch.manual_seed(4)
    assert drawn(tmp_path / "a") == none(tmp_path)
    monkeypatch.setattr(watching, "seeded", _as_it_comes)
    assert drawn(tmp_path / "b") != none(tmp_path)


def test_nothing_stays_on_the_model(tmp_path: Path) -> None:
    model = small_llama()
    before = touched(model)
    looking(tmp_path)(model)(0)
    assert touched(model) == before


def gradient(model: nn.Module, look: Callable[[int], object]) -> list[Any]:
    """After a look inside of the autocast that the training runs in."""
    with torch.autocast("cpu", torch.bfloat16):
        look(0)
        torch.manual_seed(6)
        model(input_ids=texts(), labels=texts()).loss.backward()
    return [None if p.grad is None else p.grad.tolist() for p in model.parameters()]


def test_weights_cast_for_a_look_are_not_the_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some versions of torch keep weights that were cast without gradients, to use them with."""
    plain, watched = small_llama(), small_llama()
    expected = gradient(plain, lambda _: None)
    cleared: list[None] = []
    clear = torch.clear_autocast_cache
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: cleared.append(clear()))
    look = watch(watched, texts(), out=tmp_path, verify=False).step
    assert gradient(watched, look) == expected
    assert len(cleared) > 1  # of a look, and of the autocast's end


def test_what_a_model_draws_is_the_same_at_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_llama()

    def run(batch: Any) -> Any:
        return model(torch.randint(1, 61, batch.args[0].shape))

    watcher = watch(model, texts(), out=tmp_path, run=run, verify=False)
    first, second = watcher.measure(0), watcher.measure(1)
    assert first is not None
    assert first.equals(second)
    monkeypatch.setattr(undisturbed, "seeded", _as_it_comes)
    assert not first.equals(watcher.measure(2))


# ---- models that are wrapped


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_of_data_parallelism_the_model_itself_is_measured(tmp_path: Path) -> None:
    model = small_llama()
    for n, wrapped in enumerate((nn.DataParallel(model), nn.parallel.DistributedDataParallel(model))):
        watcher = watch(wrapped, watched_batches(), out=tmp_path / str(n))
        assert watcher.model is model
        assert watcher.measure(0) is not None


@pytest.mark.usefixtures("group")
def test_sharded_weights_are_refused(tmp_path: Path) -> None:
    model = small_llama()
    mesh = init_device_mesh("cpu", (1,))
    whole = model.lm_head.weight.detach()
    model.lm_head.weight = nn.Parameter(distribute_tensor(whole, mesh, [Replicate()]))
    with pytest.raises(ValueError, match=r"lm_head\.weight is sharded .* save checkpoints"):
        watch(model, watched_batches(), out=tmp_path)


def looking_through(model: nn.Module) -> Callable[[int], object]:
    """The wrapper itself, without gradients: that is another graph."""
    return torch.no_grad()(lambda _: model(texts()))


@pytest.mark.unhooked
def test_a_compiled_training_is_watched_and_not_compiled_again(tmp_path: Path) -> None:
    graphs: list[object] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def compiled(look_with: Any) -> tuple[list[Any], int]:
        torch._dynamo.reset()
        graphs.clear()
        model = torch.compile(small_llama(dropout=0.0), backend=backend)
        return trained(model, look_with), len(graphs)

    expected, alone = compiled(lambda _: lambda _: None)
    found, watched = compiled(looking(tmp_path, run=None))
    assert found == expected
    assert watched == alone > 0
    assert compiled(looking_through)[1] > alone
    assert steps_in(tmp_path) == [0, 2, 4]


@pytest.mark.unhooked
def test_a_part_that_is_compiled_is_refused(tmp_path: Path) -> None:
    model = small_llama()
    model.model.layers[1] = torch.compile(model.model.layers[1])
    with pytest.raises(ValueError, match=r"'model\.layers\.1' is wrapped by torch.compile"):
        watch(model, watched_batches(), out=tmp_path)
