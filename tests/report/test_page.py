"""The report: one file, with all its figures, numbers and words, and nothing from elsewhere."""

import base64
import csv
import hashlib
import io
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from outward.report import figures as draw
from outward.report.drawing import FORMATS, page_svg, paper, save_figures
from outward.report.frames import Shown
from outward.report.page import page
from outward.report.story import Figure, bias, story
from outward.results import Result, ResultError
from report.made import made

A = {"p": [0.1, 0.3, 0.2], "q": [0.5, 0.9, 0.4], "r": [0.3, 0.3, 0.3]}
SERIES = ("main", "random-weights", "length=8", "length=64", "step=0", "step=100")
HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x00"


@cache
def one() -> tuple[Shown, list[Figure]]:
    run = Shown("tiny", made(A, series=SERIES))
    return run, story([run])


@cache
def html() -> str:
    run, told = one()
    return page([run], told)


class Tags(HTMLParser):
    """Every element, with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def foreign(text: str) -> list[str]:
    """What a browser would fetch, or run."""
    bad = []
    for tag, attributes in Tags(text).found:
        if tag in ("script", "iframe", "object", "embed", "link", "img"):
            bad.append(tag)
        for name, value in attributes.items():
            wanted = name in ("src", "href", "xlink:href", "action", "data")
            if name.startswith("on") or (wanted and not (value or "").startswith(("data:", "#"))):
                bad.append(f"{tag} {name}={value}")
    return bad + re.findall(r"url\((?!#|['\"]?data:)[^)]*\)", text)


def test_nothing_is_fetched_and_nothing_runs() -> None:
    assert foreign(html()) == []
    assert foreign('<p onclick="x"><img src=y><a href="http://z">') != []


def test_the_policy_allows_the_style_and_nothing_else() -> None:
    style = re.search(r"<style>(.*?)</style>", html(), re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html())
    assert style is not None
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy[1] == f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'"
    assert " style=" not in html()  # which the policy would refuse


def test_every_figure_has_words_and_numbers() -> None:
    _, told = one()
    assert [f.file for f in told] == [
        "bias-over-depth",
        "three-quantities",
        "parts-tiny",
        "heads-tiny",
        "tokens-tiny",
        "by-place",
        "by-length",
        "by-step",
    ]
    for figure in told:
        assert figure.caption
        assert re.search(r"\d\.\d\d", figure.alt), figure.name
        assert figure.rows
    charts = [a for tag, a in Tags(html()).found if tag == "div" and a.get("role") == "img"]
    assert [a["aria-label"] for a in charts] == [f.alt for f in told]
    assert html().count("Data as table") == len(told)


def test_the_csv_holds_what_is_drawn() -> None:
    links = [a["href"] for tag, a in Tags(html()).found if tag == "a" and "download" in a]
    data = base64.b64decode(str(links[0]).partition("base64,")[2]).decode()
    rows = list(csv.DictReader(io.StringIO(data)))
    main = [r for r in rows if r["series"] == "main" and r["measure"] == "self_similarity"]
    assert [float(r["mean"]) for r in main] == pytest.approx([0.3, 0.5, 0.3])
    assert [float(r["depth"]) for r in main] == [0, 0.5, 1]
    assert float(main[0]["low"]) < 0.3 < float(main[0]["high"])


def test_it_says_what_made_it() -> None:
    for said in (
        "outward measure tiny",
        "ab" * 32,
        "book.txt",
        "3 windows of 3 documents",
        "1 captured, 1 refused",
    ):
        assert said in html()
    assert "the same bits watched and not watched" in html()


def test_the_verdict_comes_first() -> None:
    first = html().index("tiny hands tokens back")
    assert first < html().index("<h2")


def test_hostile_names_are_only_text() -> None:
    run = Shown(HOSTILE, made(A, model={"id": HOSTILE}, data={"data": HOSTILE, "sha256": None}))
    text = page([run], story([run]), title=HOSTILE)
    assert foreign(text) == []
    assert "<script" not in text
    assert "\u202e" not in text
    assert "\x00" not in text
    assert "⟪U+202E⟫" in text


def test_characters_that_end_programs_are_drawn_as_signs() -> None:
    """They come into the key of a chart, where the one that draws would abort."""
    runs = [
        Shown("\x1b[31mred\x07", made(A)),
        Shown("\u202eabc", made(A)),
        Shown("currentColor", made(A)),
    ]
    text = page(runs, story(runs)[:1])
    assert "␛[31mred␇" in text
    assert "\u202e" not in text
    assert b"currentColor" in paper(story(runs)[0].chart, "svg")  # the name, in the key
    odd = [Shown('a role="b" c', made(A)), Shown("d", made(A))]
    assert 'a role="b" c</text>' in page_svg(story(odd)[0].chart)


def test_a_run_that_is_called_as_its_baseline() -> None:
    rows = bias([Shown("random-weights", made(A, series=SERIES[:2]))]).rows
    assert {r["which"] for r in rows} == {"random-weights", "random-weights, random-weights"}


def test_several_runs_lie_over_each_other() -> None:
    runs = [Shown("a", made(A, series=SERIES[:2])), Shown("b", made(A)), Shown("c", made(A, heads=5))]
    told = story(runs)
    lines = {r["which"] for r in told[0].rows}
    assert lines == {"a", "b", "c", "a, random-weights"}
    text = page(runs, told)
    assert "Side by side" in text
    assert "b − a" in text
    assert text.count('class="verdict"') == 3


def test_runs_differ_in_more_than_hue() -> None:
    runs = [Shown(n, made(A, series=SERIES[:2])) for n in "abc"]
    looks = draw._looks(bias(runs).rows)
    assert len({x["ink"] for x in looks.values()}) == 3
    assert len({x["shape"] for x in looks.values()}) == 3
    assert len({str(x["dash"]) for x in looks.values()}) == 2
    alone = draw._looks(bias(runs[:1]).rows)
    assert len({(x["ink"], str(x["dash"]), x["shape"]) for x in alone.values()}) == len(alone)


def test_what_was_not_measured_is_not_drawn() -> None:
    run = Shown("a", made(A, measures=("self_similarity",), places=(None,)))
    names = [f.name for f in story([run])]
    assert "by-length" not in names
    assert "parts-a" not in names
    bare = Result(run.result.manifest, run.result.tables, {})
    assert "tokens-a" not in [f.name for f in story([Shown("a", bare)])]
    other = Shown("b", made(A, measures=("self_weight",)))
    assert "tokens-b" not in [f.name for f in story([other])]


def test_many_layers_and_heads_stay_small() -> None:
    wide = {k: [0.01 * n + x[0] / 10 for n in range(36)] for k, x in A.items()}
    run = Shown(
        "wide", made(wide, heads=16, series=("main", "random-weights", "length=8", "length=64"))
    )
    assert len(page([run], story([run])).encode()) < 2_000_000


# ---- files


def chart() -> Any:
    return one()[1][0].chart


def test_figures_for_papers(tmp_path: Path) -> None:
    _, told = one()
    files = save_figures({f.file: f.chart for f in told[:1]}, tmp_path / "figures")
    assert [f.suffix[1:] for f in files] == list(FORMATS)
    svg, png, pdf = (f.read_bytes() for f in files)
    assert svg.startswith(b"<svg")
    assert png.startswith(b"\x89PNG")
    assert pdf.startswith(b"%PDF")


def test_a_page_has_the_ink_of_its_text_and_a_paper_has_black() -> None:
    assert "currentColor" in page_svg(chart())
    assert b"currentColor" not in paper(chart(), "svg")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(ResultError, match=r"taken.*give another folder"):
        save_figures({"x": chart()}, tmp_path / "taken" / "figures")
