"""The measures of a run by name: the kind of number, its title in figures, its formula. No torch.

Kinds are those of the bins of stats/histogram.py: cosine, share, nats, weight, ratio, signed, count.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One quantity of a head."""

    kind: str
    title: str
    formula: str


MEASURES = {
    "value_similarity": Measure(
        "cosine", "cos(v, v of another token)", "the mean over i≠j of cos(v_i, v_j)"
    ),
    "self_weight": Measure("weight", "weight on itself", "P_ii: the weight that a token gives itself"),
    "self_weight_ratio": Measure(
        "ratio",
        "weight on itself, times an even share",
        "P_ii n_i: over an even share of what is visible",
    ),
    "self_similarity": Measure("cosine", "cos(y, v)", "cos(y_i, v_i): the bias"),
    "null_similarity": Measure(
        "cosine",
        "null: cos(y, v of any other)",
        "the mean over visible j≠i of cos(y_i, v_j): what any other token would score",
    ),
    "excess_similarity": Measure(
        "signed",
        "excess: cos(y, v) less the null",
        "self_similarity - null_similarity: what is about this token",
    ),
    "self_part": Measure(
        "signed", "self part", "P_ii |v_i| / |y_i|: of the bias, the weight on itself"
    ),
    "common_part": Measure(
        "signed", "common part", "(1 - P_ii) m⁻_i·v̂_i / |y_i|: of the bias, what all values share"
    ),
    "selective_part": Measure(
        "signed", "selective part", "the rest of the bias: which others are attended to"
    ),
    "context_part": Measure(
        "signed", "context part", "common_part + selective_part: what the others brought along v_i"
    ),
    "centred_similarity": Measure(
        "cosine", "centred cos(y, v)", "cos(y_i - m_i, v_i - m_i): without what all values share"
    ),
    "removed_energy": Measure(
        "share",
        "share of |y|² that exclusion removes",
        "cos²(y_i, v_i): the share of |y|² that the exclusive form takes out",
    ),
    "sink_weight": Measure(
        "weight", "weight on the first token", "P of the first token of the document"
    ),
    "previous_weight": Measure(
        "weight", "weight on the token before", "P_i,i-1: the weight on the token before"
    ),
    "entropy": Measure("nats", "entropy", "-Σ_j P_ij ln P_ij, in nats"),
    "orthogonal_similarity": Measure(
        "cosine",
        "cos(v, v) beside a third value",
        "the mean of cos(v_j, v_k) at right angles to a third value",
    ),
    "mean_removed_similarity": Measure(
        "cosine",
        "cos(v, v) without their mean",
        "the mean of cos(v_j, v_k) at right angles to their mean",
    ),
    "exclusive_similarity": Measure(
        "cosine",
        "cos(z, z of another token)",
        "the mean over j≠k of cos(z_j, z_k), of the exclusive form",
    ),
    "equicorrelated_similarity": Measure(
        "cosine", "cos(v, v) of equal correlation", "ρ / (1 + ρ), with ρ the value_similarity"
    ),
}

CONTEXT = {
    "mask_size": Measure("count", "tokens attended to most", "tokens j with c_j ≥ θ max c"),
    "separator_share": Measure(
        "share", "of them separators", "of these, separators and special tokens"
    ),
    "separator_chance": Measure("share", "separators by chance", "of all tokens"),
    "focal_expected": Measure(
        "count", "focal tokens by chance", "if each head chose by itself from all ends of high pairs"
    ),
    "high_pairs": Measure("count", "high pairs", "pairs with C_ij ≥ τ max C"),
    "high_mass": Measure("share", "mass of high pairs", "Σ C over high pairs, of Σ |C| over all pairs"),
    "mean_distance": Measure("count", "distance in high pairs", "the mean of |i-j| over high pairs"),
    "same_sentence_share": Measure("share", "high pairs in one sentence", "of high pairs"),
    "same_sentence_chance": Measure(
        "share", "the same by chance", "of all pairs at the distances of the high pairs"
    ),
    "equal_share": Measure("share", "high pairs of equal tokens", "of high pairs"),
    "equal_chance": Measure("share", "equal tokens by chance", "of all pairs"),
    "local_share": Measure("share", "high pairs at most 2 apart", "of high pairs"),
    "local_chance": Measure("share", "at most 2 apart by chance", "of all pairs"),
    "focal_share": Measure("share", "ends at the focal token", "of the ends of high pairs"),
    "gini": Measure("share", "unevenness of ends", "Gini's coefficient of the ends at each token"),
    "diagonal_share": Measure("share", "share of the diagonal", "Σ C_ii over Σ |C|"),
    "common_share": Measure("share", "share of the common direction", "|mean y|² over mean |y|²"),
    "rank_correlation": Measure(
        "cosine", "rank correlation with attention", "Spearman's, of C_ij and P_ij + P_ji"
    ),
}
"""Of context similarity: measures/context.py."""


def measure_of(name: str) -> Measure | None:
    """By name; what follows an @ is a threshold."""
    base = name.partition("@")[0]
    return MEASURES.get(base) or CONTEXT.get(base)


def title_of(measure: str) -> str:
    """A measure as figures name it."""
    known, threshold = measure_of(measure), measure.partition("@")[2]
    title = measure.replace("_", " ") if known is None else known.title
    return f"{title} at {threshold}" if threshold and known else title
