"""Chunks: as bytes and back, and merged in any grouping."""

from dataclasses import replace
from functools import cache, reduce

import numpy as np
import pyarrow as pa
import pytest
import torch

from engines.command import LENGTH, texts, tiny
from outward.engines.plan import Pass, Plan, chunks, load
from outward.engines.work import Watched
from outward.measures.bias import DEFAULT
from outward.probe.chunks import pack, unpack
from outward.probe.loop import BiasLens
from outward.probe.tables import histograms, profile, samples
from outward.probe.tally import EMPTY, Chunk

ARRAYS = ("count", "mean", "m2", "low", "high")


@cache
def some() -> list[Chunk]:
    """Three chunks of a model; the last has windows that are shorter, and one that was left out."""
    plan = Plan(str(tiny()), str(texts()), length=LENGTH, samples=20, batch=2, device="cpu")
    source = load(plan, Pass("main", LENGTH))
    with Watched(source.body, None, verify=False, lens=BiasLens()) as watched:
        found = [watched.tally(c) for c in chunks(plan, Pass("main", LENGTH), source, [])]
    return [*found[:-1], replace(found[-1], skipped=["03.txt, window 1: ünï"])]


def assert_same(a: Chunk, b: Chunk) -> None:
    """To the bit."""
    assert (a.documents, a.windows, a.skipped) == (b.documents, b.windows, b.skipped)
    for x, y in zip(a.layers, b.layers, strict=True):
        assert (x.layer, x.module, x.alone) == (y.layer, y.module, y.alone)
        assert x.means.tobytes() == y.means.tobytes()
        assert np.array_equal(x.histogram.counts, y.histogram.counts)
        assert np.array_equal(x.pair_histogram.counts, y.pair_histogram.counts)
        for name in ARRAYS:
            assert getattr(x.tokens, name).tobytes() == getattr(y.tokens, name).tobytes(), name
            assert getattr(x.pairs, name).tobytes() == getattr(y.pairs, name).tobytes(), name


def test_bytes_and_back_is_exact() -> None:
    assert len(some()) == 3
    for chunk in (*some(), EMPTY, Chunk([], [], [], ["all of it"])):
        assert_same(unpack(pack(chunk)), chunk)
        assert pack(unpack(pack(chunk))) == pack(chunk)


def test_the_comparison_bites() -> None:
    changed = unpack(pack(some()[0]))
    changed.layers[1].tokens.m2[3, 0, 1] *= 1 + 2.0**-52
    with pytest.raises(AssertionError, match="m2"):
        assert_same(changed, some()[0])


def test_bytes_are_no_pickle_and_small() -> None:
    data = pack(some()[0])
    cells = sum(x.histogram.counts.size for x in some()[0].layers)
    assert len(data) < cells
    assert b"numpy" not in data


def merged(order: str) -> Chunk:
    a, b, c = some()
    return {
        "from the left": lambda: reduce(Chunk.merge, [a, b, c], EMPTY),
        "from the right": lambda: a.merge(b.merge(c)),
        "with nothing in between": lambda: a.merge(EMPTY).merge(b).merge(EMPTY.merge(c)),
    }[order]()


def table(chunk: Chunk) -> pa.Table:
    return profile("main", chunk)


def test_the_same_order_gives_the_same_bytes() -> None:
    again = reduce(Chunk.merge, [unpack(pack(c)) for c in some()], EMPTY)
    assert_same(again, merged("from the left"))
    assert_same(merged("with nothing in between"), merged("from the left"))
    assert table(again).equals(table(merged("from the left")))


def test_any_grouping_gives_the_same_profile_within_rounding() -> None:
    left, right = table(merged("from the left")), table(merged("from the right"))
    assert_close(left, right)
    a, b, _ = some()
    with pytest.raises(AssertionError):
        assert_close(left, table(a.merge(b)))


def assert_close(left: pa.Table, right: pa.Table) -> None:
    """Counts, extremes and all that comes of histograms exactly; the rest to a few roundings."""
    a, b = left.to_pandas(), right.to_pandas()
    assert len(a) == len(b)
    for name in a:
        if name in ("mean", "std"):
            size = np.maximum(np.abs(a[["min", "max"]]).max(axis=1), 1)
            assert ((a[name] - b[name]).abs() <= 64 * np.finfo(float).eps * size)[a["n"] > 0].all(), (
                name
            )
        else:
            assert a[name].equals(b[name]), name


def test_longer_windows_bring_more_buckets() -> None:
    short = some()[0]
    plan = Plan(str(tiny()), str(texts()), length=40, samples=2, batch=2, device="cpu")
    source = load(plan, Pass("main", 40))
    with Watched(source.body, None, verify=False, lens=BiasLens()) as watched:
        (long,) = (watched.tally(c) for c in chunks(plan, Pass("main", 40), source, []))
    for both in (short.merge(long), long.merge(short)):
        places = set(table(both).to_pandas()["place"].dropna())
        assert places == {1, 2, 4, 8, 16, 32}
    assert 32 not in set(table(short).to_pandas()["place"].dropna())
    assert 16 not in set(table(short).to_pandas()["place"].dropna())


def test_parts_of_different_models_are_not_merged() -> None:
    other = [replace(x, module=f"{x.module}.other") for x in some()[1].layers]
    with pytest.raises(ValueError, match="different models"):
        some()[0].merge(replace(some()[1], layers=other))


def test_samples_have_a_row_for_each_mean_that_is_known() -> None:
    chunk = some()[0]
    found = pa.concat_tables(samples("main", chunk)).to_pandas()
    known = sum(int((~np.isnan(x.means)).sum()) for x in chunk.layers)
    assert len(found) == known
    at = found[(found["layer"] == 1) & (found["head"] == 2) & (found["measure"] == DEFAULT[3])]
    assert at["mean"].tolist() == chunk.layers[1].means[:, 3, 2].tolist()
    assert at["document"].tolist() == chunk.documents
    assert at["window"].tolist() == chunk.windows


def test_histograms_count_every_number() -> None:
    chunk = merged("from the left")
    found = histograms("main", chunk)
    assert sorted(found) == ["main.layer0.histogram", "main.layer1.histogram"]
    everywhere = table(chunk).to_pandas().query("place.isna() and layer == 1")
    n = everywhere.groupby(["measure", "head"], observed=True)["n"].sum().unstack()
    counted = found["main.layer1.histogram"].sum(-1)
    assert counted.tolist() == n.loc[list(DEFAULT)].to_numpy().tolist()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
