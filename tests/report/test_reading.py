"""Sentences say the numbers of the document, and claim no more than its intervals allow."""

from typing import Any

import pytest

from outward.report.reading import reading
from report.documents import document, head, layer, trend

FIVE = [layer(n, self_similarity=x) for n, x in enumerate((0.5, 0.25, 0.375, 0.625, 0.75))]


def one(said: list[str], begins: str) -> str:
    """The sentence that begins so."""
    (found,) = [s for s in said if s.startswith(begins)]
    return found


def test_every_sentence_of_a_plain_run() -> None:
    heads = [head(0, 0, 0.125), head(0, 1, -0.5), head(1, 0, 0.75), head(1, 1, 0.25)]
    layers = [layer(0, self_similarity=0.25), layer(1, self_similarity=0.75)]
    assert reading(document(layers, heads=heads)) == [
        "What attention returns has a cosine of 0.50 with the token's own value on average; it is "
        "highest in layer 1 (0.75) and lowest in layer 0 (0.25).",
        "Of that cosine, +0.31 is the weight that a token gives itself (13.5% of its attention, 2.3 "
        "times an even share), +0.17 what the others' values have in common with its own, and -0.05 "
        "which of them it chooses.",
        "Any other visible token would score 0.23: +0.27 is about the token itself. Without what all "
        "visible values share, the cosine is 0.07.",
        "Values of different tokens have a mean cosine of 0.11.",
        "The heads that return most of the token itself, beyond the null (layer.head): 1.0 (+0.75), "
        "1.1 (+0.25), 0.0 (+0.12).",
    ]


def test_the_only_layer() -> None:
    said = reading(document([layer(3)]))[0]
    assert said == (
        "What attention returns has a cosine of 0.50 with the token's own value in layer 3, the only "
        "one."
    )


def test_layers_of_which_nothing_is_known_are_left_out() -> None:
    unknown = layer(0, self_similarity=None)
    assert reading(document([unknown])) == [
        "No layer has a token that sees another: nothing can be said."
    ]
    assert reading(document([])) == reading(document([unknown]))
    assert "in layer 1, the only one" in reading(document([unknown, layer(1)]))[0]


def test_what_is_unknown_is_said_to_be() -> None:
    said = reading(document([layer(0, centred_similarity=None), layer(1, centred_similarity=None)]))
    assert "the cosine is unknown." in one(said, "Any other")
    known = reading(document([layer(0, centred_similarity=None), layer(1, centred_similarity=0.5)]))
    assert "the cosine is 0.50." in one(known, "Any other")


# ---- depth

INTERVALS = (
    "Over depth: last layer minus first -0.25 [-0.38, +0.12]; rank correlation +0.30 [-0.20, +0.70]."
)


def test_of_few_layers_no_shape_is_told() -> None:
    said = reading(document(FIVE[:4], trend={"self_similarity": trend()}))
    assert one(said, "Over depth") == INTERVALS


@pytest.mark.parametrize(
    ("curvature", "spearman", "shape"),
    [
        (
            (0.5, 0.25, 0.75),
            (0.3, -0.2, 0.7),
            "It is curved upwards, like a U (curvature +0.50 [+0.25, +0.75]): "
            "lowest at 25% of the depth [20%, 75%].",
        ),
        (
            (-0.5, -0.75, -0.25),
            (0.3, -0.2, 0.7),
            "It is curved downwards (curvature -0.50 [-0.75, -0.25]).",
        ),
        (
            (0.1, -0.2, 0.4),
            (0.8, 0.5, 0.9),
            "It grows with depth, and no curvature can be told from none.",
        ),
        (
            (0.1, -0.2, 0.4),
            (-0.8, -0.9, -0.5),
            "It falls with depth, and no curvature can be told from none.",
        ),
        ((0.1, -0.2, 0.4), (0.3, -0.2, 0.7), "Neither a trend nor a curvature can be told from none."),
        (
            (0.1, -0.2, 0.4),
            (None, None, None),
            "Neither a trend nor a curvature can be told from none.",
        ),
        ((0.1, 0.0, 0.4), (0.3, 0.0, 0.7), "Neither a trend nor a curvature can be told from none."),
        (
            (0.5, None, None),
            (0.3, None, None),
            "One document gives no interval, so no shape is claimed.",
        ),
    ],
)
def test_the_shape_is_what_the_intervals_allow(curvature: Any, spearman: Any, shape: str) -> None:
    said = reading(document(FIVE, trend={"self_similarity": trend(curvature, spearman)}))
    depth = one(said, "Over depth")
    assert depth.endswith(f" {shape}")


@pytest.mark.parametrize("lowest", [(0.0, 0.0, 0.5), (1.0, 0.5, 1.0)])
def test_no_u_is_seen_where_the_lowest_layer_may_be_at_an_end(lowest: Any) -> None:
    curved = trend((0.5, 0.25, 0.75))
    curved["depth_of_minimum"] = dict(zip(("value", "low", "high"), lowest, strict=True))
    depth = one(reading(document(FIVE, trend={"self_similarity": curved})), "Over depth")
    assert depth.endswith("but its lowest layer may be at an end: no U.")
    assert "like a U" not in depth


def test_a_zigzag_is_no_u() -> None:
    zigzag = [layer(n, self_similarity=0.5 + 0.2 * (-1) ** n) for n in range(8)]
    depth = one(
        reading(
            document(zigzag, trend={"self_similarity": trend((0.5, 0.25, 0.75), (0.1, -0.2, 0.3))})
        ),
        "Over depth",
    )
    assert "It goes up and down from layer to layer: a parabola explains" in depth
    assert "like a U" not in depth
    rising = trend((0.5, 0.25, 0.75), (0.4, 0.2, 0.6))
    depth = one(reading(document(zigzag, trend={"self_similarity": rising})), "Over depth")
    assert "like a U" not in depth
    assert "A parabola explains" in depth


@pytest.mark.parametrize(("last", "told"), [(0.25, True), (-0.45, False)])
def test_what_a_mean_over_places_hides_is_told(last: float, told: bool) -> None:
    places = {"excess_similarity": {"1": -0.5, "16": 0.1, "64": last}}
    said = " ".join(reading(document(FIVE, places=places)))
    assert ("at place 1 of a text the excess is -0.50, from place 64 on +0.25" in said) == told


def test_no_head_is_named_that_returns_no_more_of_itself() -> None:
    heads = [{"layer": n, "head": 0, "excess_similarity": x} for n, x in enumerate((-0.2, 0.004))]
    said = reading(document(FIVE, heads=heads))
    assert one(said, "No head") == (
        "No head returns more of the token itself than of any other token that it sees."
    )


def test_a_curvature_that_is_unknown_claims_nothing() -> None:
    said = reading(document(FIVE, trend={"self_similarity": trend((None, None, None))}))
    assert one(said, "Over depth") == INTERVALS


def test_a_rank_that_is_unknown_is_said_to_be() -> None:
    unknown = trend(spearman=(None, None, None))
    said = reading(document(FIVE[:2], trend={"self_similarity": unknown}))
    assert one(said, "Over depth").endswith("rank correlation unknown.")


# ---- what else is said


@pytest.mark.parametrize(
    ("sink", "told"), [((0.05, 0.14), False), ((0.05, 0.16), True), ((None, 0.5), True)]
)
def test_a_sink_is_told_where_it_takes_a_tenth(sink: tuple[Any, Any], told: bool) -> None:
    layers = [layer(n, sink_weight=x) for n, x in enumerate(sink)]
    said = one(reading(document(layers)), "Values of different tokens")
    assert ("The first token takes" in said) is told
    if sink == (None, 0.5):
        assert said.endswith("The first token takes 50% of all attention.")


@pytest.mark.parametrize("heads", [[], [head(0, 0, 0.5)], [head(0, 0, 0.5), head(0, 1, None)]])
def test_a_head_alone_is_no_ranking(heads: list[dict[str, Any]]) -> None:
    assert not [s for s in reading(document([layer(0)], heads=heads)) if s.startswith("The heads")]


def test_baselines_are_compared() -> None:
    other = [layer(0, self_similarity=0.125, excess_similarity=-0.03)]
    said = reading(document([layer(0)], baselines={"random-weights": other, "shuffled-tokens": other}))
    assert [s for s in said if s.startswith("With")] == [
        f"With {name} the cosine is 0.12 instead of 0.50, and its excess over the null -0.03 instead "
        "of +0.27."
        for name in ("random weights", "shuffled tokens")
    ]


def test_lengths_are_compared() -> None:
    lengths = {"64": [layer(0, self_similarity=0.75)], "256": [layer(0, excess_similarity=0.0625)]}
    assert one(reading(document([layer(0)], lengths=lengths)), "By length") == (
        "By length, the cosine (and its excess over the null) is 0.75 (+0.27) at 64, 0.50 (+0.06) at "
        "256."
    )


def test_the_own_length_stands_among_the_others() -> None:
    said = one(reading(document(FIVE, lengths={"8": FIVE, "64": FIVE}, tokens=16)), "By length")
    assert [f"at {n}" in said for n in (8, 16, 64)] == [True] * 3
    assert said.index("at 8") < said.index("at 16") < said.index("at 64")


def test_steps_are_compared_first_with_last() -> None:
    steps = {
        "0": [layer(0, self_similarity=0.25), layer(1, self_similarity=0.5)],
        "50": [layer(0), layer(1)],
        "100": [layer(0, self_similarity=0.375), layer(1, self_similarity=0.25)],
    }
    assert one(reading(document([layer(0)], steps=steps)), "From step") == (
        "From step 0 to step 100 the cosine went from 0.38 to 0.31, and its excess over the null from "
        "+0.27 to +0.27; most in layer 1, from 0.50 to 0.25."
    )
    first = {"0": steps["0"]}
    assert not [s for s in reading(document([layer(0)], steps=first)) if s.startswith("From")]
