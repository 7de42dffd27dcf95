"""Rows as HTML, as CSV and in a terminal; text from outside as text that can only be read."""

import csv
import io

import pytest
from rich.console import Console

from outward.report.compare import comparison
from outward.report.frames import Shown
from outward.report.tables import as_csv, as_html, side_by_side, with_interval
from outward.report.terminal import show_comparison, spark
from outward.report.visible import escaped, file_name, visible
from report.made import made

A = {"p": [0.1, 0.3, 0.2], "q": [0.5, 0.9, 0.4]}
B = {"p": [0.3, 0.5, 0.1], "q": [0.7, 1.0, 0.3]}


def test_cells_are_escaped() -> None:
    found = as_html([{"<b>": "<script>alert(1)</script>", "n": 0.123456, "m": None, "k": 3}])
    assert "<script>" not in found
    assert "<th scope=col>&lt;b&gt;</th>" in found
    assert "<td class=n>0.1235</td>" in found
    assert "<td>–</td>" in found
    assert as_html([]) == "<p>Nothing.</p>"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x"])
def test_a_spreadsheet_finds_no_formula(text: str) -> None:
    (_, (cell, number)) = csv.reader(io.StringIO(as_csv([{"a": text, "b": -0.5}])))
    assert cell == f"'{text}"
    assert number == "-0.5"


def test_csv_can_be_read_again() -> None:
    rows = [{"name": 'a,"b"\nc', "x": 1 / 3, "none": None, "n": 12}]
    (found,) = csv.DictReader(io.StringIO(as_csv(rows)))
    assert found == {"name": 'a,"b"␊c', "x": "0.333333", "none": "", "n": "12"}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain ö 漢 🙂", "plain ö 漢 🙂"),
        ("a\x00b\n\x1f", "a␀b␊␟"),
        ("\x7f", "␡"),
        ("x\u202ey", "x⟪U+202E⟫y"),
        ("\u200b\ufeff", "⟪U+200B⟫⟪U+FEFF⟫"),
        ("\ud800", "⟪U+D800⟫"),
        ("\x85", "⟪U+0085⟫"),
    ],
)
def test_what_hides_is_shown(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_names_for_files_and_html() -> None:
    assert escaped("<a href='x'>&\"") == "&lt;a href=&#x27;x&#x27;&gt;&amp;&quot;"
    assert file_name("by-place.1") == "by-place.1"
    assert file_name("../runs/a b<c>").startswith(".._runs_a_b_c_-")
    assert file_name("日本") != file_name("中国")
    assert len(file_name("x" * 1000)) < 100


def test_a_number_and_its_interval() -> None:
    assert with_interval({"value": 0.5, "low": 0.25, "high": 0.75}) == "0.500 [0.250, 0.750]"
    assert with_interval({"value": 0.5, "low": None, "high": None}, "+") == "+0.500"
    assert with_interval(None) == "–"


def test_side_by_side_names_every_run() -> None:
    document = comparison([Shown("a", made(A)), Shown("b", made(B)), Shown("c", made(A))])
    row = side_by_side(document)[0]
    assert list(row) == ["measure", "a", "b", "c", "b − a", "c − a"]
    assert row["c − a"] == "+0.000 [+0.000, +0.000]"


def test_a_run_called_measure_hides_no_label() -> None:
    row = side_by_side(comparison([Shown("measure", made(A)), Shown("b", made(B))]))[0]
    assert row["measure "] == "cos(y, v)"
    assert row["measure"].startswith("0.4")


def shown_in_terminal(width: int = 140) -> str:
    out = io.StringIO()
    runs = [Shown("a", made(A)), Shown("b[red]\x1b[31m", made(B))]
    show_comparison(comparison(runs), Console(file=out, width=width))
    return out.getvalue()


def test_the_terminal_shows_differences_and_curves() -> None:
    found = shown_in_terminal()
    assert "cos(y, v) over depth" in found
    assert "b[red]␛[31m" in found  # as text: neither markup nor an escape
    line = next(x for x in found.splitlines() if x.startswith("cos(y, v) "))
    assert "0.400" in line
    assert "0.483" in line
    assert "+0.083" in line
    assert "* marks a difference" in found


@pytest.mark.parametrize(
    ("line", "drawn"),
    [([0.0, 0.5, 1.0], "▁▅█"), ([None, 1.0], " █"), ([], "")],
)
def test_a_curve_in_characters(line: list[float | None], drawn: str) -> None:
    assert spark(line, 0.0, 1.0) == drawn


def test_a_flat_curve_has_no_height() -> None:
    assert spark([0.3, 0.3], 0.3, 0.3) == "▁▁"
