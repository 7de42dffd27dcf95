"""What a run of context similarity says: one document, and sentences made from its numbers."""

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from outward.report.summary import SEED, by_window, heads, layers
from outward.results import Result
from outward.stats.bootstrap import bootstrap

CHANCES = {
    "separator_share": "separator_chance",
    "same_sentence_share": "same_sentence_chance",
    "equal_share": "equal_chance",
    "local_share": "local_chance",
    "focal_tokens": "focal_expected",
}
"""What there would be by chance, in the same texts."""
ODDS = 1.96  # of a normal distribution, 95 % lie within
REPETITION, LOCAL, FOCAL, SENTENCE = 4.0, 3.0, 0.3, 1.5
Document = dict[str, Any]


def context_document(result: Result, run: str | None = None) -> Document:
    """The document that `outward context --json` prints."""
    series = [str(s) for s in result.manifest["windows"]]
    found = {s: _of_series(result, s) for s in series}
    main = found["main"]
    others = {s: {x["layer"]: x for x in found[s]["layers"]} for s in series if s != "main"}
    for layer in main["layers"]:
        layer["null"] = _nulls(layer, {s: by[layer["layer"]] for s, by in others.items()})
    return {
        "layers": main["layers"],
        "heads": main["heads"],
        "distances": main["distances"],
        "options": (result.manifest.get("plan") or {}).get("context"),
        "coverage": result.manifest["coverage"],
        "checks": result.manifest["checks"],
        "warnings": warnings(result),
        "run": run,
    }


def _of_series(result: Result, series: str) -> Document:
    profile = result.tables["profile"].to_pandas()
    profile = profile[(profile["series"] == series) & profile["place"].isna()]
    samples = result.tables["samples"].to_pandas()
    by_layer, by_head = layers(profile), heads(profile)
    between = _intervals(samples[samples["series"] == series])
    distances: Document = {}
    for layer in by_layer:
        number = layer["layer"]
        focal = result.arrays[f"{series}.layer{number}.focal"]
        tied = result.arrays[f"{series}.layer{number}.tied"]
        layer |= {"focal_tokens": _distinct(focal).mean().item(), "focal_ties": tied.mean().item()}
        layer["interval"] = between.get(number, {})
        repetition = result.arrays[f"{series}.layer{number}.repetition"]
        distances[str(number)] = result.arrays[f"{series}.layer{number}.distances"].tolist()
        for head in (h for h in by_head if h["layer"] == number):
            head |= {"odds": odds(repetition[head["head"]])}
            head["kind"] = kinds(head)
    return {"layers": by_layer, "heads": by_head, "distances": distances}


def _distinct(focal: NDArray[Any]) -> NDArray[np.float64]:
    """Of each text, how many different focal tokens its heads have."""
    return np.array([len(set(row[row >= 0].tolist())) for row in focal], np.float64)


def _intervals(samples: pd.DataFrame) -> dict[int, Document]:
    """By layer: the interval of each measure over documents."""
    found: dict[int, Document] = {}
    for measure in samples["measure"].unique():
        windows, numbers = by_window(samples, measure)
        if not numbers:
            continue
        for number, x in zip(numbers, bootstrap(windows, lambda m: m, seed=SEED), strict=True):
            found.setdefault(number, {})[str(measure)] = [x.low, x.high]
    return found


def _nulls(layer: Document, others: dict[str, Document]) -> Document:
    """For each measure, what chance gives where that is known, and what the baselines give."""
    found: Document = {}
    for name, x in layer.items():
        if not isinstance(x, float) or name in CHANCES.values():
            continue
        chance = layer.get(CHANCES.get(name, ""))
        found[name] = {"chance": chance} | {s: other.get(name) for s, other in others.items()}
    return found


def odds(repetition: NDArray[Any]) -> Document:
    """How much likelier equal tokens are among high pairs: an odds ratio, and its 95 % interval.

    A half is added to each count, so that none is 0. The interval is as if pairs were independent,
    which those of one text are not.
    """
    (low, low_equal), (high, high_equal) = (repetition + 0.5).tolist()
    ratio = math.log(high_equal * low / (high * low_equal))
    error = ODDS * math.sqrt(sum(1 / x for x in (low, low_equal, high, high_equal)))
    return {"value": math.exp(ratio), "low": math.exp(ratio - error), "high": math.exp(ratio + error)}


def kinds(head: Document) -> list[str]:
    """What a head is: repetition, local, focal, sentence, or nothing. docs/context.md has the rules."""

    def times(share: str, chance: str) -> float:
        a, b = head.get(share), head.get(chance)
        return a / b if a is not None and b else 0.0

    found = []
    if head["odds"]["low"] > REPETITION:
        found.append("repetition")
    if times("local_share", "local_chance") > LOCAL:
        found.append("local")
    if (head.get("focal_share") or 0) > FOCAL and times("equal_share", "equal_chance") < REPETITION:
        found.append("focal")
    if times("same_sentence_share", "same_sentence_chance") > SENTENCE:
        found.append("sentence")
    return found


def warnings(result: Result) -> list[str]:
    """What a reader should know before believing the numbers."""
    manifest = result.manifest
    windows, documents = manifest["windows"]["main"], manifest["documents"]["main"]
    found = [f"{documents} documents ({windows} windows)."] if documents < 100 else []
    if len(manifest["windows"]) == 1:
        found.append(
            "no null was made: --baseline shuffled-tokens,rotated-values,random-weights says what the "
            "same numbers are without order, without values that mean something, and without training."
        )
    if manifest["skipped"]:
        found.append(f"{len(manifest['skipped'])} left out, the first: {manifest['skipped'][0]}")
    if manifest["note"]:
        found.append(f"measured on {manifest['note']}.")
    return found


# ---- in words


def context_reading(document: Document) -> list[str]:
    """From the numbers, and from nothing else."""
    known = [x for x in document["layers"] if x.get("mean_distance") is not None]
    if not known:
        return ["No head has a pair of tokens that is alike: nothing can be said."]
    first, last = known[0], known[-1]
    said = [
        f"High pairs are {first['mean_distance']:.0f} tokens apart in layer {first['layer']} and "
        f"{last['mean_distance']:.0f} in layer {last['layer']}.",
        _against(
            known, "same_sentence_share", "of high pairs lie in one sentence", "pairs as far apart"
        ),
        _against(known, "equal_share", "are of equal tokens", "all pairs"),
        _focal_said(known, document),
        _against(
            known, "separator_share", "of the tokens attended to most are separators", "all tokens"
        ),
        _kinds_said(document),
    ]
    return [s for s in said if s]


def _mean(layers: list[Document], name: str) -> float | None:
    known = [x[name] for x in layers if x.get(name) is not None]
    return sum(known) / len(known) if known else None


def _against(known: list[Document], name: str, what: str, whom: str) -> str | None:
    share, chance = _mean(known, name), _mean(known, CHANCES[name])
    if share is None or chance is None:
        return None
    return f"{share:.0%} {what}; of {whom}, {chance:.0%} would."


def _focal_said(known: list[Document], document: Document) -> str:
    found, chance = _mean(known, "focal_tokens"), _mean(known, "focal_expected")
    heads = len({h["head"] for h in document["heads"]})
    said = f"The {heads} heads of a layer have {found:.1f} different focal tokens in a text"
    if chance is not None:
        said += f"; if each chose by itself, it would be {chance:.1f}"
    for series in known[0]["null"]["focal_tokens"]:
        other = [x["null"]["focal_tokens"].get(series) for x in known]
        numbers = [x for x in other if x is not None]
        if series != "chance" and numbers:
            said += f", with {series.replace('-', ' ')} it is {sum(numbers) / len(numbers):.1f}"
    return f"{said}."


def _kinds_said(document: Document) -> str | None:
    counts: dict[str, int] = {}
    for head in document["heads"]:
        for kind in head["kind"]:
            counts[kind] = counts.get(kind, 0) + 1
    if not counts:
        return (
            "No head stands out as one that repeats, stays near, favours a token or keeps to sentences."
        )
    named = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
    return f"Of {len(document['heads'])} heads: {named} (a head can be several)."
