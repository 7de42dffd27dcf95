"""What a run says: one document of plain numbers, the same for --json and for everything that shows."""

from typing import Any

import numpy as np
import pandas as pd

from outward.results import Result
from outward.stats.bootstrap import TREND, Interval, Samples, Values, bootstrap, trend

SEED = 0
PLACED = ("self_similarity", "null_similarity", "excess_similarity")


def summary(result: Result, run: str | None = None) -> dict[str, Any]:
    """The document that `outward measure --json` prints."""
    profile = result.tables["profile"].to_pandas()
    everywhere = profile[profile["place"].isna()]
    series = list(dict.fromkeys(profile["series"]))
    samples = result.tables["samples"].to_pandas()
    main = everywhere[everywhere["series"] == "main"]
    return {
        "layers": layers(main, samples[samples["series"] == "main"]),
        "heads": heads(main),
        "overall": overall(samples[samples["series"] == "main"]),
        "trend": trends(samples[samples["series"] == "main"]),
        "places": places(profile[profile["series"] == "main"]),
        "tokens": tokens_of(result, main),
        "baselines": _others(everywhere, [s for s in series if _is_baseline(s)]),
        "lengths": _others(everywhere, [s for s in series if s.startswith("length=")]),
        "steps": _others(everywhere, [s for s in series if s.startswith("step=")]),
        "coverage": result.manifest["coverage"],
        "checks": result.manifest["checks"],
        "warnings": warnings(result, main),
        "run": run,
    }


def _is_baseline(series: str) -> bool:
    return series != "main" and not series.startswith(("length=", "step="))


def layers(profile: pd.DataFrame, samples: pd.DataFrame | None = None) -> list[dict[str, Any]]:
    """One object per layer: the mean over heads of each measure, and the interval of the bias."""
    means = _means(profile, ["layer", "module"])
    found: list[dict[str, Any]] = [
        {"layer": int(layer), "module": str(module), **{str(k): _number(v) for k, v in row.items()}}
        for (layer, module), row in means.iterrows()
    ]
    if samples is not None:
        intervals = layer_intervals(samples, "self_similarity")
        for one in found:
            one["self_similarity_interval"] = intervals.get(one["layer"])
    return found


def heads(profile: pd.DataFrame) -> list[dict[str, Any]]:
    """One object per head."""
    means = _means(profile, ["layer", "module", "head"])
    return [
        {"layer": int(n), "module": str(m), "head": int(h)}
        | {str(k): _number(v) for k, v in row.items()}
        for (n, m, h), row in means.iterrows()
    ]


def _means(profile: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """A column per measure, also where it is unknown everywhere."""
    named = list(profile["measure"].unique())
    means = profile.pivot_table(index=keys, columns="measure", values="mean", observed=True)
    return means.reindex(columns=named)


def trends(samples: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """How each measure goes with depth, with intervals over documents."""
    found = {}
    for measure in samples["measure"].unique():
        windows, numbers = by_window(samples, measure)
        if len(numbers) > 1:
            intervals = bootstrap(windows, trend, seed=SEED)
            found[str(measure)] = {n: _interval(x) for n, x in zip(TREND, intervals, strict=True)}
    return found


def overall(samples: pd.DataFrame) -> dict[str, dict[str, float | None]]:
    """The mean over layers and heads of each measure, with its interval over documents."""
    found = {}
    for measure in samples["measure"].unique():
        windows, numbers = by_window(samples, measure)
        if numbers:
            (interval,) = bootstrap(windows, over_layers, seed=SEED)
            found[str(measure)] = _interval(interval)
    return found


def places(profile: pd.DataFrame) -> dict[str, dict[str, float]]:
    """By the first of each range of places in a text, the mean over layers and heads of PLACED."""
    known = profile[profile["place"].notna() & profile["measure"].isin(PLACED)]
    means = known.groupby(["measure", "place"], observed=True)["mean"].mean()
    found: dict[str, dict[str, float]] = {}
    for (measure, place), x in means.items():
        if np.isfinite(x):
            found.setdefault(str(measure), {})[str(int(place))] = float(x)
    return found


def tokens_of(result: Result, main: pd.DataFrame) -> int | None:
    """How many tokens a window of text was to have, where that was said; else, has on average."""
    manifest = result.manifest
    asked = (manifest.get("plan") or {}).get("length")
    if asked and manifest.get("takes") == "text":
        return int(asked)
    chosen = main[(main["measure"] == "self_weight") & (main["head"] == 0)]
    layer = manifest["layers"][0] if manifest["layers"] else {"layer": -1, "alone": 0}
    counted = chosen[chosen["layer"] == layer["layer"]].get("n", pd.Series(dtype=float)).sum()
    whole = (counted + layer["alone"]) / manifest["windows"]["main"]
    return round(whole) if counted else None


def over_layers(means: Values) -> Values:
    """The mean of all layers, of each draw."""
    return means.mean(axis=1, keepdims=True)


def by_window(samples: pd.DataFrame, measure: str) -> tuple[Samples, list[int]]:
    """Means over heads, (window, layer), each of as many tokens as it is of; and the layers."""
    chosen = samples[samples["measure"] == measure]
    codes = chosen["document"].cat.codes.to_numpy()
    frame = chosen[["window", "layer", "mean"]].rename(columns={"window": "w"}).assign(d=codes)
    frame["n"] = chosen.get("n", 1)  # runs of before know no weights
    by = frame.groupby(["d", "w", "layer"])[["mean", "n"]].mean().unstack("layer")
    if not len(by):
        return Samples.of(np.empty((0, 0)), np.empty(0, np.int64)), []
    means, weights = by["mean"].dropna(axis=1, how="all"), by["n"]
    documents = by.index.get_level_values("d").to_numpy().astype(np.int64)
    many = weights[means.columns].fillna(0).to_numpy(np.float64)
    return Samples.of(means.to_numpy(), documents, many), [int(x) for x in means.columns]


def layer_intervals(samples: pd.DataFrame, measure: str) -> dict[int, list[float] | None]:
    """[low, high] of the mean over heads of each layer."""
    windows, numbers = by_window(samples, measure)
    if not numbers:
        return {}
    intervals = bootstrap(windows, lambda x: x, seed=SEED)
    return {
        n: None if x.low is None or x.high is None else [x.low, x.high]
        for n, x in zip(numbers, intervals, strict=True)
    }


def _others(profile: pd.DataFrame, series: list[str]) -> dict[str, list[dict[str, Any]]]:
    """By what comes after length= or step=, or by the whole name."""
    return {s.rpartition("=")[2]: layers(profile[profile["series"] == s]) for s in series}


def warnings(result: Result, profile: pd.DataFrame) -> list[str]:
    """What a reader should know before believing the numbers."""
    manifest = result.manifest
    found = []
    documents, windows = manifest["documents"]["main"], manifest["windows"]["main"]
    if documents < 10:
        found.append(
            f"{_many(documents, 'document')} ({_many(windows, 'window')}): "
            + ("no intervals can be given." if documents < 2 else "the intervals are rough.")
        )
    if (manifest.get("model") or {}).get("weights") == "random":
        found.append("the weights are random: nobody trained this model.")
    lengths = [s for s in manifest["windows"] if s.startswith("length=")]
    if not lengths:
        found.append("one length: the bias depends on how much a token sees; --lengths compares.")
    alone = manifest["layers"][0]["alone"] if manifest["layers"] else 0
    if alone:
        found.append(
            "tokens that see only themselves (the first of each text) are left out: there y = v."
        )
    if _shares_values(profile):
        found.append("heads share values (grouped-query attention): value_similarity is the group's.")
    refused = [c for c in manifest["coverage"] if c["status"] == "refused"]
    if refused:
        many = _many(len(refused), "attention module")
        found.append(f"not measured: {many} ({refused[0]['reason']}).")
    if manifest["skipped"]:
        found.append(f"{len(manifest['skipped'])} left out, the first: {manifest['skipped'][0]}")
    if manifest["failed"]:
        many = _many(len(manifest["failed"]), "chunk")
        found.append(f"{many} failed, the first: {manifest['failed'][0]}")
    note = manifest["note"]
    return found + ([f"measured on {note}."] if note else [])


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _shares_values(profile: pd.DataFrame) -> bool:
    pairs = profile[profile["measure"] == "value_similarity"]
    pairs = pairs[pairs["layer"] == pairs["layer"].min()]
    return len(pairs) > 1 and bool(pairs["mean"].iloc[0] == pairs["mean"].iloc[1])


def _interval(x: Interval) -> dict[str, float | None]:
    return {"value": _number(x.value), "low": x.low, "high": x.high}


def _number(x: Any) -> float | None:
    return float(x) if np.isfinite(x) else None
