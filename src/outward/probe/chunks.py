"""A chunk as bytes, to be kept on disk or sent: safetensors, histograms sparse, compressed."""

import json
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from outward.probe.tally import Chunk, LayerTally
from outward.results import save_arrays
from outward.stats.histogram import Histogram, narrow
from outward.stats.moments import Moments

_MOMENTS = ("count", "mean", "m2", "low", "high")
Arrays = dict[str, NDArray[np.generic]]
OF_LAYERS = ("layers", "modules", "alone", "per_pair", "per_token")


def pack(chunk: Chunk) -> bytes:
    """Exactly what it holds."""
    arrays: Arrays = {}
    for n, layer in enumerate(chunk.layers):
        for name in _MOMENTS:
            arrays[f"{n}.tokens.{name}"] = getattr(layer.tokens, name)
            arrays[f"{n}.pairs.{name}"] = getattr(layer.pairs, name)
        arrays |= _sparse(f"{n}.histogram", layer.histogram)
        arrays |= _sparse(f"{n}.pair_histogram", layer.pair_histogram)
        arrays[f"{n}.means"], arrays[f"{n}.counts"] = layer.means, layer.counts
        for kind, named in (("sums", layer.sums), ("rows", layer.rows)):
            arrays |= {f"{n}.{kind}.{name}": x for name, x in named.items()}
    about = {
        "layers": [layer.layer for layer in chunk.layers],
        "modules": [layer.module for layer in chunk.layers],
        "alone": [layer.alone for layer in chunk.layers],
        "per_pair": [layer.per_pair for layer in chunk.layers],
        "per_token": [layer.per_token for layer in chunk.layers],
        "documents": chunk.documents,
        "windows": chunk.windows,
        "skipped": chunk.skipped,
    }
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    return zlib.compress(save_arrays(arrays), level=1)


def unpack(data: bytes) -> Chunk:
    """The other way round."""
    arrays = load(zlib.decompress(data))
    about = json.loads(arrays["about"].tobytes())
    layers = [
        LayerTally(
            layer,
            module,
            tuple(per_pair),
            tuple(per_token),
            _moments(arrays, f"{n}.tokens"),
            _dense(arrays, f"{n}.histogram"),
            _moments(arrays, f"{n}.pairs"),
            _dense(arrays, f"{n}.pair_histogram"),
            arrays[f"{n}.means"],
            arrays[f"{n}.counts"],
            alone,
            *(_named(arrays, f"{n}.{kind}.") for kind in ("sums", "rows")),
        )
        for n, (layer, module, alone, per_pair, per_token) in enumerate(
            zip(*(about[x] for x in OF_LAYERS), strict=True)
        )
    ]
    return Chunk(layers, about["documents"], about["windows"], about["skipped"])


def _named(arrays: Arrays, prefix: str) -> dict[str, NDArray[Any]]:
    return {k.removeprefix(prefix): x for k, x in arrays.items() if k.startswith(prefix)}


def _moments(arrays: Arrays, name: str) -> Moments:
    return Moments(*(arrays[f"{name}.{part}"].astype(np.float64) for part in _MOMENTS))


def _sparse(name: str, histogram: Histogram) -> Arrays:
    flat = histogram.counts.ravel()
    at = np.flatnonzero(flat)
    return {
        f"{name}.shape": np.array(histogram.counts.shape, np.int64),
        f"{name}.step": np.diff(at, prepend=0).astype(np.int32),
        f"{name}.counts": flat[at].astype(np.int64),
    }


def _dense(arrays: Arrays, name: str) -> Histogram:
    known = narrow(arrays[f"{name}.counts"].astype(np.int64))
    counts = np.zeros(arrays[f"{name}.shape"].tolist(), known.dtype)
    counts.ravel()[arrays[f"{name}.step"].cumsum(dtype=np.int64)] = known
    return Histogram(counts)
