"""The table in terminals of any width: every number whole, every sentence unbroken."""

import io
import re

import pytest
from rich.console import Console

from outward.report.terminal import BAR, COLUMNS, bar, layer_table, show
from report.documents import MEASURES, document, layer

LONG = "A sentence that is so long that a terminal must fold it, " * 4 + "0.125 at its end."
LAYERS = [
    layer(0, self_similarity=-0.5),
    layer(7, self_weight_ratio=123.456),
    layer(31, centred_similarity=None, self_similarity=1.0),
]


def shown(width: int, measures: tuple[str, ...] = ()) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, highlight=False)
    show(document(LAYERS, warnings=["one length."]), [LONG, "[bold] is no markup"], console, measures)
    return text.getvalue()


def numbers(measures: tuple[str, ...]) -> list[list[str]]:
    """By layer, in the order of the measures, as the table prints them."""

    def said(x: float | None) -> str:
        return "–" if x is None else f"{x:.3f}" if abs(x) < 10 else f"{x:.1f}"

    return [[said(x[m]) for m in measures] for x in LAYERS]


def rows_of(text: str) -> list[list[str]]:
    """The numbers of each layer, over all the tables."""
    table = text.split("•")[0]
    found: dict[str, list[str]] = {}
    for line in table.splitlines():
        if match := re.match(r" *(\d+) ", line):
            cells = re.findall(r"-?\d+\.\d+|–", line)
            found.setdefault(match[1], []).extend(cells)
    return list(found.values())


@pytest.mark.parametrize("measures", [(), tuple(MEASURES)], ids=["main", "all"])
@pytest.mark.parametrize("width", range(60, 201, 7))
def test_no_number_is_cut(width: int, measures: tuple[str, ...]) -> None:
    text = shown(width, measures)
    assert rows_of(text) == numbers(measures or tuple(COLUMNS))
    assert "…" not in text
    assert all(len(line) <= width for line in text.split("•")[0].splitlines())


def test_a_table_that_does_not_fit_would_be_cut() -> None:
    text = io.StringIO()
    Console(file=text, width=60, highlight=False).print(layer_table(LAYERS))
    assert "…" in text.getvalue() or rows_of(text.getvalue()) != numbers(tuple(COLUMNS))


@pytest.mark.parametrize("width", [60, 200])
def test_sentences_are_whole_lines(width: int) -> None:
    lines = shown(width).splitlines()
    assert lines[-3:] == [f"• {LONG}", "• [bold] is no markup", "! one length."]


def test_wide_terminals_have_one_table() -> None:
    assert shown(200).count("layer ") == 1
    assert shown(60).count("layer ") > 1
    assert shown(60).count("from 0 to 1") == 1


def test_titles_are_those_of_the_measures() -> None:
    assert all(title in shown(200) for title in COLUMNS.values())
    assert "previous weight" in shown(120, ("previous_weight",))


@pytest.mark.parametrize(
    ("x", "drawn"),
    [
        (None, ""),
        (-0.5, ""),
        (0.0, ""),
        (1 / 128, "▏"),
        (0.5, "█" * 8),
        (0.51, "█" * 8 + "▏"),
        (1.5, "█" * BAR),
    ],
)
def test_a_bar_is_a_share_of_one(x: float | None, drawn: str) -> None:
    assert bar(x).plain == drawn


def test_bars_grow_with_the_number() -> None:
    lengths = [
        len(bar(n / 128).plain) * 8 + "▏▎▍▌▋▊▉█".find((bar(n / 128).plain or " ")[-1])
        for n in range(129)
    ]
    assert lengths == sorted(set(lengths))
