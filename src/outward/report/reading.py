"""What a run means: sentences made from its numbers, and from nothing else."""

from typing import Any

import numpy as np

Layer = dict[str, Any]


def reading(document: dict[str, Any]) -> list[str]:
    """From the document of `summary`: where the bias is, how it goes with depth, what it is made of."""
    layers = [x for x in document["layers"] if x.get("self_similarity") is not None]
    if not layers:
        return ["No layer has a token that sees another: nothing can be said."]
    said = [_highest(layers), _trend(document["trend"].get("self_similarity"), layers)]
    said += [_made_of(layers), _null(layers), _along(document.get("places") or {}), _values(layers)]
    said += [_heads(document["heads"])]
    said += _compared(layers, document["baselines"])
    said += _lengths(document["lengths"], layers, document.get("tokens"))
    said += _trained(document["steps"])
    return [s for s in said if s]


FITS = 0.5
"""A shape over depth is spoken of as one where a parabola explains at least so much of it."""
MUCH = 0.1
NOTICEABLE = 0.005
"""Less than this is shown as 0.00, and is not spoken of as something."""


def verdict(document: dict[str, Any], name: str) -> str:
    """The answer in one sentence: how much of what attention returns is about the token itself."""
    whole, null, excess = (
        document["overall"].get(f"{n}_similarity") for n in ("self", "null", "excess")
    )
    if whole is None or null is None or excess is None:
        return f"{name}: no layer has a token that sees another, so nothing can be said."
    said = (
        f"cos(y, v) is {_with(whole, '.2f')} on average, and any other token that it sees would score "
        f"{_with(null, '.2f')}: {_with(excess, '+.2f')} is about the token itself."
    )
    least = excess["value"] if excess["low"] is None else excess["low"]
    most = excess["value"] if excess["high"] is None else excess["high"]
    if least > NOTICEABLE:
        return f"{name} hands tokens back to themselves: {said}"
    if most < -NOTICEABLE:
        return f"{name} turns tokens away from themselves: {said}"
    return f"{name} hands tokens back no more of themselves than of others: {said}"


def _mean(layers: list[Layer], measure: str, form: str) -> str:
    """The mean over layers, in words."""
    known = [x[measure] for x in layers if x.get(measure) is not None]
    return f"{sum(known) / len(known):{form}}" if known else "unknown"


def _highest(layers: list[Layer]) -> str:
    top = max(layers, key=lambda x: x["self_similarity"])
    low = min(layers, key=lambda x: x["self_similarity"])
    mean = _mean(layers, "self_similarity", ".2f")
    said = f"What attention returns has a cosine of {mean} with the token's own value"
    if len(layers) == 1:
        return f"{said} in layer {top['layer']}, the only one."
    return (
        f"{said} on average; it is highest in layer {top['layer']} ({top['self_similarity']:.2f}) and "
        f"lowest in layer {low['layer']} ({low['self_similarity']:.2f})."
    )


def _trend(trend: dict[str, Any] | None, known: list[Layer]) -> str | None:
    if trend is None:
        return None
    change, rank = trend["last_minus_first"], trend["spearman"]
    said = f"Over depth: last layer minus first {_with(change, '+.2f')}; "
    said += f"rank correlation {_with(rank, '+.2f')}."
    curve, lowest = trend["curvature"], trend["depth_of_minimum"]
    if len(known) < 5 or curve["value"] is None:
        return said
    if (
        abs(curve["value"]) < NOTICEABLE
        and max(known, key=_bias)["self_similarity"] - min(known, key=_bias)["self_similarity"]
        < NOTICEABLE
    ):
        return f"{said} It is the same in all layers."
    fit = _fit([x["self_similarity"] for x in known])
    if fit < FITS and (rank["low"] is None or rank["low"] <= 0 <= rank["high"]):
        return f"{said} It goes up and down from layer to layer: a parabola explains {fit:.0%} of that."
    return f"{said} {_shape(curve, rank, lowest, fit)}" + (
        f" A parabola explains {fit:.0%} of how layers differ." if fit < FITS else ""
    )


def _bias(layer: Layer) -> float:
    return float(layer["self_similarity"])


def _fit(line: list[float]) -> float:
    """The share of the variance over layers that the best parabola explains."""
    depth = np.linspace(-1, 1, len(line))
    values = np.array(line)
    rest = values - np.polyval(np.polyfit(depth, values, 2), depth)
    spread = ((values - values.mean()) ** 2).sum()
    return float(1 - (rest**2).sum() / spread) if spread > 0 else 0.0


def _shape(curve: dict[str, Any], rank: dict[str, Any], lowest: dict[str, Any], fit: float) -> str:
    """A U is claimed only where the lowest layer is within the depth, in every draw that counts."""
    if curve["low"] is None:
        return "One document gives no interval, so no shape is claimed."
    curvature = f"(curvature {_with(curve, '+.2f')})"
    if curve["low"] > 0 and lowest["low"] > 0 and lowest["high"] < 1 and fit >= FITS:
        place = f"{lowest['value']:.0%} of the depth{_range(lowest, '.0%')}"
        return f"It is curved upwards, like a U {curvature}: lowest at {place}."
    if curve["low"] > 0 and (lowest["low"] <= 0 or lowest["high"] >= 1):
        return f"It is curved upwards {curvature}, but its lowest layer may be at an end: no U."
    if curve["low"] > 0:
        return f"It is curved upwards {curvature}."
    if curve["high"] < 0:
        return f"It is curved downwards {curvature}."
    if rank["low"] is not None and rank["low"] > 0:
        return "It grows with depth, and no curvature can be told from none."
    if rank["high"] is not None and rank["high"] < 0:
        return "It falls with depth, and no curvature can be told from none."
    return "Neither a trend nor a curvature can be told from none."


def _made_of(layers: list[Layer]) -> str:
    parts = {n: _mean(layers, f"{n}_part", "+.2f") for n in ("self", "common", "selective")}
    weight = _mean(layers, "self_weight", ".1%")
    return (
        f"Of that cosine, {parts['self']} is the weight that a token gives itself ({weight} of its "
        f"attention, {_mean(layers, 'self_weight_ratio', '.1f')} times an even share), "
        f"{parts['common']} what the others' values have in common with its own, and "
        f"{parts['selective']} which of them it chooses."
    )


def _null(layers: list[Layer]) -> str:
    return (
        f"Any other visible token would score {_mean(layers, 'null_similarity', '.2f')}: "
        f"{_mean(layers, 'excess_similarity', '+.2f')} is about the token itself. Without what all "
        f"visible values share, the cosine is {_mean(layers, 'centred_similarity', '.2f')}."
    )


def _values(layers: list[Layer]) -> str:
    said = (
        f"Values of different tokens have a mean cosine of {_mean(layers, 'value_similarity', '.2f')}."
    )
    known = [x["sink_weight"] for x in layers if x.get("sink_weight") is not None]
    if sum(known) > 0.1 * len(known):
        said += f" The first token takes {_mean(layers, 'sink_weight', '.0%')} of all attention."
    return said


def _heads(heads: list[Layer]) -> str | None:
    known = [h for h in heads if h.get("excess_similarity") is not None]
    if len(known) < 2:
        return None
    top = sorted(known, key=lambda h: -h["excess_similarity"])[:3]
    top = [h for h in top if h["excess_similarity"] >= NOTICEABLE]
    if not top:
        return "No head returns more of the token itself than of any other token that it sees."
    names = ", ".join(f"{h['layer']}.{h['head']} ({h['excess_similarity']:+.2f})" for h in top)
    return f"The heads that return most of the token itself, beyond the null (layer.head): {names}."


def _compared(layers: list[Layer], baselines: dict[str, list[Layer]]) -> list[str]:
    mean, excess = _both(layers)
    return [
        f"With {name.replace('-', ' ')} the cosine is {_both(other)[0]} instead of {mean}, and its "
        f"excess over the null {_both(other)[1]} instead of {excess}."
        for name, other in baselines.items()
    ]


def _both(layers: list[Layer]) -> tuple[str, str]:
    return _mean(layers, "self_similarity", ".2f"), _mean(layers, "excess_similarity", "+.2f")


def _along(places: dict[str, dict[str, float]]) -> str | None:
    """What a mean over all places hides, where it hides much."""
    excess = {int(k): x for k, x in places.get("excess_similarity", {}).items()}
    if len(excess) < 2:
        return None
    first, last = min(excess), max(excess)
    if abs(excess[last] - excess[first]) < MUCH:
        return None
    return (
        f"These are means over places: at place {first} of a text the excess is {excess[first]:+.2f}, "
        f"from place {last} on {excess[last]:+.2f}."
    )


def _lengths(lengths: dict[str, list[Layer]], main: list[Layer], tokens: int | None) -> list[str]:
    if not lengths:
        return []
    each = {int(n): x for n, x in lengths.items()}
    if tokens is not None:
        each.setdefault(tokens, main)
    said = ", ".join("{} ({}) at {}".format(*_both(x), n) for n, x in sorted(each.items()))
    return [f"By length, the cosine (and its excess over the null) is {said}."]


def _trained(steps: dict[str, list[Layer]]) -> list[str]:
    """From the first step of a watched training to the last."""
    if len(steps) < 2:
        return []
    first, *_, last = steps
    before, after = _both(steps[first]), _both(steps[last])
    said = (
        f"From step {first} to step {last} the cosine went from {before[0]} to {after[0]}, and its "
        f"excess over the null from {before[1]} to {after[1]}"
    )
    was = {x["layer"]: x for x in steps[first] if x.get("self_similarity") is not None}
    known = [x for x in steps[last] if x.get("self_similarity") is not None and x["layer"] in was]
    moved = [(x["layer"], was[x["layer"]]["self_similarity"], x["self_similarity"]) for x in known]
    if len(moved) < 2:
        return [f"{said}."]
    layer, a, b = max(moved, key=lambda x: abs(x[2] - x[1]))
    return [f"{said}; most in layer {layer}, from {a:.2f} to {b:.2f}."]


def _with(x: dict[str, Any], form: str) -> str:
    if x["value"] is None:
        return "unknown"
    return f"{x['value']:{form}}{_range(x, form)}"


def _range(x: dict[str, Any], form: str) -> str:
    return "" if x["low"] is None else f" [{x['low']:{form}}, {x['high']:{form}}]"
