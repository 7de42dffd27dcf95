"""Chunks -> the tables and arrays of a run."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from outward.probe.tally import Chunk, LayerTally, bucket_start, kind_of
from outward.stats.histogram import Histogram, Kind
from outward.stats.moments import Moments

QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
PROFILE = pa.schema(
    [
        ("series", pa.dictionary(pa.int32(), pa.string())),  # main, or a baseline, or a length
        ("layer", pa.int32()),
        ("module", pa.dictionary(pa.int32(), pa.string())),
        ("head", pa.int32()),
        ("measure", pa.dictionary(pa.int32(), pa.string())),
        ("place", pa.int32()),  # the first place of a bucket; null: all places together
        ("n", pa.int64()),
        *((name, pa.float64()) for name in ("mean", "std", "min", "max", *QUANTILES)),
    ]
)


def profile(series: str, chunk: Chunk) -> pa.Table:
    """A row for each layer, head, measure and bucket that holds anything, and for all buckets."""
    batches = [
        _rows(series, layer, measure, place, cells, histogram)
        for layer in chunk.layers
        for measure, place, cells, histogram in _cells(layer)
    ]
    return pa.Table.from_batches(batches, schema=PROFILE)


def _cells(layer: LayerTally) -> Iterator[tuple[str, int | None, Moments, Histogram]]:
    for m, measure in enumerate(layer.per_pair):
        yield measure, None, layer.pairs.at(m), Histogram(layer.pair_histogram.counts[m])
    together, histogram = layer.tokens.over(2), layer.histogram.over(2)
    for m, measure in enumerate(layer.per_token):
        yield measure, None, together.at(m), Histogram(histogram.counts[m])
        for bucket in range(layer.tokens.count.shape[2]):
            cell = layer.tokens.at((m, slice(None), bucket))
            if cell.count.any():
                counts = layer.histogram.counts[m, :, bucket]
                yield measure, bucket_start(bucket), cell, Histogram(counts)


def _rows(
    series: str,
    layer: LayerTally,
    measure: str,
    place: int | None,
    cells: Moments,
    histogram: Histogram,
) -> pa.RecordBatch:
    heads = len(cells.count)
    kind: Kind = kind_of(measure)
    value = cells.value()
    quantiles = {
        name: histogram.value(kind, q, value["min"], value["max"]) for name, q in QUANTILES.items()
    }
    columns = {
        "series": [series] * heads,
        "layer": np.full(heads, layer.layer),
        "module": [layer.module] * heads,
        "head": np.arange(heads),
        "measure": [measure] * heads,
        "place": [place] * heads,
        "n": value["n"].astype(np.int64),
        **{k: value[k] for k in ("mean", "std", "min", "max")},
        **quantiles,
    }
    arrays = [
        pa.array(x, f.type.value_type if pa.types.is_dictionary(f.type) else f.type, from_pandas=True)
        for x, f in zip(columns.values(), PROFILE, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [a.cast(f.type) for a, f in zip(arrays, PROFILE, strict=True)], schema=PROFILE
    )


def samples(series: str, chunk: Chunk) -> list[pa.Table]:
    """By layer: a row for each window, head and measure: the mean, where there is one."""
    return [_samples_of(series, layer, chunk) for layer in chunk.layers]


def _samples_of(series: str, layer: LayerTally, chunk: Chunk) -> pa.Table:
    windows, measures, _ = layer.means.shape
    index = np.indices(layer.means.shape).reshape(3, -1)
    known = ~np.isnan(layer.means).ravel()
    window, measure, head = (x[known].astype(np.int32) for x in index)
    number, names = _numbered(chunk.documents)
    assert windows == len(chunk.documents)
    assert measures == len(layer.measures)
    return pa.table(
        {
            "series": pa.DictionaryArray.from_arrays(np.zeros(len(window), np.int32), [series]),
            "document": pa.DictionaryArray.from_arrays(number[window], names),
            "window": np.asarray(chunk.windows, np.int32)[window],
            "layer": np.full(len(window), layer.layer, np.int32),
            "head": head,
            "measure": pa.DictionaryArray.from_arrays(measure, list(layer.measures)),
            "mean": layer.means.ravel()[known],
            "n": layer.counts.ravel()[known].astype(np.int32),
        }
    )


def _numbered(documents: list[str]) -> tuple[NDArray[np.int32], list[str]]:
    names = list(dict.fromkeys(documents))
    place = {name: i for i, name in enumerate(names)}
    return np.array([place[d] for d in documents], np.int32), names


def histograms(series: str, chunk: Chunk) -> dict[str, NDArray[np.int32]]:
    """By layer: (measure, head, bin) over all places, the measures in the order of the chunk's."""
    return {
        f"{series}.layer{layer.layer}.histogram": np.concatenate(
            (layer.pair_histogram.counts, layer.histogram.over(2).counts)
        ).astype(np.int32)
        for layer in chunk.layers
    }


def arrays(series: str, chunk: Chunk) -> dict[str, NDArray[Any]]:
    """By layer: what adds up over windows, and what has a row for each."""
    return {
        f"{series}.layer{layer.layer}.{name}": x
        for layer in chunk.layers
        for name, x in (*layer.sums.items(), *layer.rows.items())
    }
