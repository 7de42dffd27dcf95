"""Runs, heads and comparisons in a notebook and in Python."""

from pathlib import Path

import pytest

from outward.glossary import CONTEXT, MEASURES
from outward.probe.tally import KINDS
from outward.results import ResultError
from outward.run import Run, compare
from outward.stats.histogram import Kind
from report.made import made
from report.test_page import foreign

A = {"p": [0.1, 0.3], "q": [0.5, 0.9], "r": [0.2, 0.2]}
B = {k: [x + 0.05, y + 0.05] for k, (x, y) in A.items()}


def test_a_run_shows_itself() -> None:
    text = Run(made(A, series=("main", "random-weights")))._repr_html_()
    assert foreign(text) == []
    assert "<svg" in text
    assert "cos(y, v)" in text
    assert "tiny hands tokens back to themselves" in text


def test_a_head_shows_itself() -> None:
    head = Run(made(A)).head(1, 2)
    text = head._repr_html_()
    assert foreign(text) == []
    assert text.count("<svg") == 2
    assert "layer 1, head 2 (layers.1)" in text
    assert head.measures.loc["self_similarity", "mean"] == pytest.approx(1.4 / 3 + 1 / 32)
    assert list(head.places["place"].unique()) == [0, 1, 2, 4]
    assert repr(head) == "Head(layer=1, head=2, module='layers.1')"
    assert "self_similarity" in str(head)


@pytest.mark.parametrize("where", [(2, 0), (0, 3), (-1, 0)])
def test_a_head_that_is_not_there_is_named(where: tuple[int, int]) -> None:
    with pytest.raises(ResultError, match=f"no layer {where[0]} with a head {where[1]}"):
        Run(made(A)).head(*where)
    with pytest.raises(ResultError, match="in 'length=8'"):
        Run(made(A)).head(0, 0, series="length=8")


def test_a_comparison_shows_itself() -> None:
    found = compare(Run(made(A), Path("runs/a")), Run(made(B), Path("runs/b")))
    assert repr(found) == "Comparison(a, b)"
    assert "b − a" in str(found)
    text = found._repr_html_()
    assert foreign(text) == []
    assert "<svg" in text
    row = found.table[(found.table.run == "b") & (found.table.along == "all")].iloc[0]
    assert row.measure == "self_similarity"
    assert row.difference == pytest.approx(0.05)


def test_directories_are_read(tmp_path: Path) -> None:
    for name, values in (("a", A), ("b", B)):
        Run(made(values)).save(tmp_path / name)
    found = compare(str(tmp_path / "a"), tmp_path / "b")
    assert repr(found) == "Comparison(a, b)"


def test_names_of_runs() -> None:
    runs = [Run(made(A)), Run(made(B)), Run(made(B), Path("runs/x"))]
    assert [r.name for r in compare(*runs).runs] == ["tiny", "tiny (2)", "x"]
    assert [r.name for r in compare(*runs, names="abc").runs] == ["a", "b", "c"]
    with pytest.raises(ValueError, match="2 names for 3 runs"):
        compare(*runs, names="ab")


def test_the_glossary_knows_every_measure() -> None:
    assert set(KINDS) == set(MEASURES | CONTEXT)
    assert not set(MEASURES) & set(CONTEXT)
    assert set(KINDS.values()) <= set(Kind.__args__)
