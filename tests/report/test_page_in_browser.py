"""The report in a real browser, from the disk: seen, printed, read by keyboard, checked by axe."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from browser import chromium as chromium  # a fixture
from browser import colours, findings, overflow, watched
from outward.report.frames import Shown
from outward.report.page import page
from outward.report.story import story
from outward.report.visible import visible
from report.made import made

A = {"p": [0.1, 0.3, 0.2], "q": [0.5, 0.9, 0.4], "r": [0.3, 0.3, 0.3]}
SERIES = ("main", "random-weights", "length=8", "length=64")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report of two runs."""
    runs = [Shown("first", made(A, series=SERIES)), Shown("second", made(A, heads=5))]
    file = tmp_path_factory.mktemp("report") / "r.html"
    file.write_text(page(runs, story(runs)), encoding="utf-8")
    return file.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_seen_and_nothing_serious_is_found(scheme: str, chromium, report: str) -> None:
    with watched(chromium, report, color_scheme=scheme) as seen:
        seen.goto(report)
        assert seen.title().startswith("Attention similarity bias")
        assert colours(seen.screenshot(full_page=True)) > 50
        ground = seen.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        assert findings(seen) == []


def test_what_axe_finds_would_be_seen(chromium, report: str) -> None:
    with watched(chromium, report, bypass_csp=True) as seen:
        seen.goto(report)
        seen.evaluate("document.querySelector('main').append(document.createElement('button'))")
        assert any("button-name" in x for x in findings(seen))


def test_the_policy_stops_what_is_planted(chromium, tmp_path: Path) -> None:
    run = Shown("a", made(A))
    text = page([run], story([run])).replace("<main>", "<main><script>document.title = 'x'</script>")
    file = tmp_path / "planted.html"
    file.write_text(text, encoding="utf-8")
    with watched(chromium, file.as_uri(), expected=("script-src",)) as seen:
        seen.goto(file.as_uri())
        assert seen.title() != "x"


def test_it_fits_a_narrow_window(chromium, report: str) -> None:
    with watched(chromium, report, viewport={"width": 360, "height": 740}) as seen:
        seen.goto(report)
        assert overflow(seen) == 0


def test_it_is_read_by_keyboard(chromium, report: str) -> None:
    """Tab comes to the first table; Enter opens it; the link below saves the numbers."""
    with watched(chromium, report) as seen:
        seen.goto(report)
        for _ in range(20):
            seen.keyboard.press("Tab")
            if seen.evaluate("document.activeElement.tagName") == "SUMMARY":
                break
        outline = seen.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
        seen.keyboard.press("Enter")
        assert seen.evaluate("document.activeElement.parentElement.open")
        seen.keyboard.press("Tab")
        with seen.expect_download() as saved:
            seen.keyboard.press("Enter")
        assert saved.value.suggested_filename == "bias-over-depth.csv"
        assert saved.value.path().read_text().startswith("run,series,measure,layer,depth")


def test_it_prints(chromium, report: str) -> None:
    with watched(chromium, report, color_scheme="dark") as seen:
        seen.goto(report)
        seen.emulate_media(media="print")
        ground = seen.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(255, 255, 255)"
        wide = seen.evaluate(
            "[...document.querySelectorAll('section > .wide')].map(x => x.scrollWidth - x.clientWidth)"
        )
        assert wide == [0]  # the table of differences, whole
        assert seen.pdf(print_background=True).startswith(b"%PDF")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


hostile = st.text(
    st.characters() | st.sampled_from(list("<>&\"'\0\u202e\u2028\ud800\x1b")), min_size=1, max_size=40
) | st.sampled_from(
    ["</title><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "javascript:alert(1)"]
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=hostile)
def test_hostile_names_are_only_text(name: str, chromium, folder: Path) -> None:
    run = Shown(name, made(A, model={"id": name}, data={"data": name, "sha256": None}))
    file = folder / "r.html"
    file.write_bytes(page([run], story([run])[:1], title=name).encode("utf-8"))
    with watched(chromium, file.as_uri()) as seen:
        seen.on("dialog", lambda dialog: pytest.fail("something ran"))
        seen.goto(file.as_uri())
        said = seen.locator("h1").text_content()
        assert said == visible(name)
        assert seen.locator("h1 *").count() == 0
        assert seen.locator("script, img, iframe").count() == 0
