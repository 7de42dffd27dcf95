"""Context similarity against loops over single pairs in float64, and on planted structure."""

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from outward.attention.call import AttentionCall
from outward.measures.context import SIMILARITIES, Context, Options, Text, context, pairs_of

B, H, KV, T, D = 3, 6, 2, 23, 5


def text(*, padded: bool = False) -> Text:
    """Thirteen kinds of tokens, of which 3 and 7 separate."""
    ids = torch.randint(0, 13, (B, T))
    separator = (ids == 3) | (ids == 7)
    sentence = separator.cumsum(1) - separator.long()
    valid = torch.ones(B, T, dtype=torch.bool)
    if padded:
        valid[1, 17:] = False
        valid[2, :4] = False
    return Text(ids, separator, sentence, valid)


def call(given: Text, *, causal: bool = False, dtype: torch.dtype = torch.float64) -> AttentionCall:
    """Outputs around a few directions, so that some pairs are high and most are not."""
    q, k = torch.randn(B, H, T, D, dtype=dtype), torch.randn(B, KV, T, D, dtype=dtype)
    v = torch.randn(B, KV, T, D, dtype=dtype)
    s = (2 * q @ k.repeat_interleave(H // KV, dim=1).mT).double()
    hidden = ~given.valid[:, None, None].expand(B, H, T, T)
    if causal:
        hidden = hidden | (torch.arange(T)[:, None] < torch.arange(T))
    P = s.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0)
    some = None if given.valid.all() else given.valid
    y = (P @ v.repeat_interleave(H // KV, dim=1).double()).to(dtype)
    return AttentionCall(
        0, "m", "test", v, y, q=q, k=k, scale=2.0, causal=causal, weights=P.to(dtype), valid=some
    )


# ---- the same by loops


def naive(c: AttentionCall, given: Text, b: int, h: int, options: Options) -> dict[str, Any]:
    tokens = given.valid[b].nonzero()[:, 0].tolist()
    y = {i: c.y[b, h, i].double() for i in tokens}
    mean = sum(y.values()) / len(y)
    o = {
        "dot": y,
        "cosine": {i: x / x.norm() for i, x in y.items()},
        "centred": {i: x - mean for i, x in y.items()},
    }[options.similarity]
    ids, sentence = given.ids[b].tolist(), given.sentence[b].tolist()
    pairs = list(combinations(tokens, 2))
    C = {(i, j): float(o[i] @ o[j]) for i, j in pairs}
    top = max(C.values())
    tau = options.similarity_thresholds[0]
    high = [p for p in pairs if top > 0 and C[p] >= tau * top]
    ends = Counter(i for p in high for i in p)
    by_id: Counter[int] = Counter()
    for i, n in ends.items():
        by_id[ids[i]] += n
    most = max(by_id.values())
    best = [t for t, n in by_id.items() if n == most]
    focal = next(ids[i] for i in tokens if ids[i] in best)

    def share(of: list[Any], what: Any) -> float:
        return sum(map(what, of)) / len(of)

    def chance(p: tuple[int, int]) -> float:
        there = [q for q in pairs if q[1] - q[0] == p[1] - p[0]]
        return share(there, lambda q: sentence[q[0]] == sentence[q[1]])

    equal, local = (lambda p: ids[p[0]] == ids[p[1]]), (lambda p: p[1] - p[0] <= 2)
    x = sorted(ends.get(i, 0) for i in tokens)
    m = len(x)
    column = {}
    for j in tokens:
        watchers = [i for i in tokens if not c.causal or i >= j]
        column[j] = sum(float(c.weights[b, h, i, j]) for i in watchers) / len(watchers)
    tall = max(column.values())
    mask = [j for j in tokens if column[j] >= options.mask_thresholds[0] * tall]
    own = sum(float(y[i] @ y[i]) for i in tokens)
    trace = sum(float(o[i] @ o[i]) for i in tokens)
    return {
        "high_pairs": len(high),
        "high_mass": sum(C[p] for p in high) / sum(abs(z) for z in C.values()),
        "mean_distance": share(high, lambda p: p[1] - p[0]),
        "same_sentence_share": share(high, lambda p: sentence[p[0]] == sentence[p[1]]),
        "same_sentence_chance": share(high, chance),
        "equal_share": share(high, equal),
        "equal_chance": share(pairs, equal),
        "local_share": share(high, local),
        "local_chance": share(pairs, local),
        "focal_share": most / (2 * len(high)),
        "gini": 2 * sum((n + 1) * z for n, z in enumerate(x)) / (m * sum(x)) - (m + 1) / m,
        "mask_size": len(mask),
        "separator_share": share(mask, lambda j: bool(given.separator[b, j])),
        "separator_chance": share(tokens, lambda j: bool(given.separator[b, j])),
        "ends": by_id,
        "diagonal_share": trace / (trace + 2 * sum(abs(z) for z in C.values())),
        "common_share": float(mean @ mean) / (own / m),
        "focal": focal,
        "tied": len(best) > 1,
        "distances": Counter(j - i for i, j in high),
        "repetition": [
            [sum(1 for p in pairs if (p in high) == a and equal(p) == e) for e in (False, True)]
            for a in (False, True)
        ],
    }


def expect_distinct(row: list[dict[str, Any]]) -> None:
    """How many different focal tokens the heads of a text would have by independent choice."""
    shares = [{t: n / sum(e["ends"].values()) for t, n in e["ends"].items()} for e in row]
    kinds = {t for s in shares for t in s}
    pooled = {t: sum(s.get(t, 0) for s in shares) / len(shares) for t in kinds}
    for e in row:
        e["focal_expected"] = sum(1 - (1 - p) ** len(row) for p in pooled.values())


def both(given: Text, c: AttentionCall, options: Options) -> tuple[Context, list[list[dict[str, Any]]]]:
    found = context(c, given, pairs_of(given), options=options)
    return found, [[naive(c, given, b, h, options) for h in range(H)] for b in range(B)]


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_numbers_are_those_of_loops(similarity: Any, padded: bool, causal: bool) -> None:
    given = text(padded=padded)
    c = call(given, causal=causal and not padded)
    options = Options(similarity=similarity, similarity_thresholds=(0.55,))
    found, expected = both(given, c, options)
    for row in expected:
        expect_distinct(row)
    for name, x in found.numbers.items():
        by_hand = torch.tensor([[e[name] for e in row] for row in expected], dtype=torch.float64)
        say = partial("{}: {}".format, name)
        torch.testing.assert_close(x, by_hand, rtol=1e-12, atol=1e-12, msg=say)
    assert found.focal.tolist() == [[e["focal"] for e in row] for row in expected]
    assert found.tied.tolist() == [[e["tied"] for e in row] for row in expected]
    for h in range(H):
        distances = sum((row[h]["distances"] for row in expected), Counter())
        assert found.distances[h].tolist() == [distances.get(d, 0) for d in range(T)]
        repetition = sum(torch.tensor(row[h]["repetition"]) for row in expected)
        assert found.repetition[h].tolist() == repetition.tolist()
    pairs = found.numbers["high_pairs"]
    assert 0 < pairs.mean() < T * (T - 1) / 4  # neither none nor all: something is tested


def test_matrices_are_sums_over_texts() -> None:
    given = text(padded=True)
    c = call(given)
    found = context(c, given, pairs_of(given))
    for name in SIMILARITIES:
        total = torch.zeros(T, T, dtype=torch.float64)
        for b in range(B):
            i = given.valid[b].nonzero()[:, 0]
            y = c.y[b, :, i]
            o = {"dot": y, "cosine": y / y.norm(dim=-1, keepdim=True), "centred": y - y.mean(1, True)}
            total[i[:, None], i] += (o[name] @ o[name].mT).sum(dim=0)
        total -= torch.diag(total.diagonal())
        torch.testing.assert_close(found.matrices[name], total, rtol=1e-12, atol=1e-12)


def test_a_rotation_of_each_heads_values_changes_nothing() -> None:
    """So it is no null: C has only products in it."""
    given = text()
    c = call(given)
    R = torch.linalg.qr(torch.randn(H, D, D, dtype=torch.float64)).Q
    turned = replace(c, y=c.y @ R)
    a, b = (context(x, given, pairs_of(given)).numbers for x in (c, turned))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-9)


def test_float32_is_close_and_weights_are_made_again() -> None:
    given = text()
    c = call(given, causal=True)
    single = replace(c, **{n: getattr(c, n).float() for n in ("q", "k", "v", "y")}, weights=None)
    double, found = (context(x, given, pairs_of(given)).numbers for x in (c, single))
    for name in ("mask_size", "separator_share", "common_share", "diagonal_share"):
        torch.testing.assert_close(found[name].double(), double[name], rtol=1e-4, atol=1e-5)


def test_several_thresholds_have_names_of_their_own() -> None:
    given = text()
    options = Options(similarity_thresholds=(0.5, 0.9), mask_thresholds=(0.1, 0.5))
    numbers = context(call(given), given, pairs_of(given), options=options).numbers
    assert (numbers["high_pairs"] >= numbers["high_pairs@0.9"]).all()
    assert (numbers["mask_size"] >= numbers["mask_size@0.5"]).all()
    alone = context(call(given), given, pairs_of(given), options=Options(similarity_thresholds=(0.5,)))
    assert "high_pairs@0.9" not in alone.numbers


def test_rank_correlation_is_of_the_first_text() -> None:
    given = text()
    c = call(given)
    found = context(c, given, pairs_of(given), options=Options(ranked=True)).numbers["rank_correlation"]
    assert found[1:].isnan().all()
    i, j = torch.triu_indices(T, T, 1)
    for h in range(H):
        C = (c.y[0, h] @ c.y[0, h].T)[i, j]
        P = (c.weights[0, h] + c.weights[0, h].T)[i, j]
        x, z = (t.argsort().argsort().double() for t in (C, P))  # no two are equal here
        assert float(found[0, h]) == pytest.approx(float(torch.corrcoef(torch.stack((x, z)))[0, 1]))


# ---- planted structure


def planted(y: Tensor, given: Text) -> Context:
    v = torch.randn(B, 1, T, y.shape[3])
    P = torch.full((B, 1, T, T), 1 / T)
    c = AttentionCall(0, "m", "test", v, y, weights=P)
    return context(c, given, pairs_of(given), options=Options(similarity_thresholds=(0.8,)))


def odds(found: Context) -> float:
    (low, low_equal), (high, high_equal) = found.repetition[0].tolist()
    return (high_equal + 0.5) * (low + 0.5) / ((high + 0.5) * (low_equal + 0.5))


def test_a_head_that_copies_equal_tokens_is_found() -> None:
    given = text()
    copies = torch.nn.functional.one_hot(given.ids, 13).float()[:, None]
    noise = torch.randn(B, 1, T, 64)
    assert odds(planted(copies, given)) > 100
    assert 1 / 5 < odds(planted(noise, given)) < 5


def test_a_local_head_is_found() -> None:
    given = text()
    place = torch.arange(T)
    near = torch.exp(-((place[:, None] - place).float() ** 2) / 2).expand(B, 1, T, T)
    local, plain = planted(near, given).numbers, planted(torch.randn(B, 1, T, 64), given).numbers
    assert (local["local_share"] == 1).all()
    assert plain["local_share"].mean() < 3 * plain["local_chance"].mean()
    assert (local["mean_distance"] < 2).all()


def test_a_head_that_favours_a_token_is_found() -> None:
    given = replace(text(), ids=torch.arange(T).expand(B, T) + 100)
    y = torch.randn(B, 1, T, 64) / 8
    y[:, :, 5] += 3 * y.mean(dim=2)
    y = y + 0.2
    y[:, :, 5] *= 5
    found = planted(y, given)
    assert (found.focal == 105).all()
    assert found.numbers["gini"].mean() > 0.4
    assert not math.isnan(float(found.numbers["focal_share"].mean()))


def test_nothing_in_common_has_no_high_pair() -> None:
    given = text()
    y = torch.eye(T).expand(B, 1, T, T)
    found = planted(y, given)
    assert (found.numbers["high_pairs"] == 0).all()
    assert (found.focal == -1).all()
    assert found.numbers["mean_distance"].isnan().all()
