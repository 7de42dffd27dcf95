"""The watcher of pages sees what it is there to see."""

from pathlib import Path

import pytest

import browser
from browser import Browser, Page, chromium, colours, findings, overflow, watched

__all__ = ["chromium"]

ORIGIN = "http://planted.test/"
STRICT = {"Content-Security-Policy": "default-src 'none'; script-src 'self'"}


def visit(page: Page, body: str, headers: dict[str, str] | None = None) -> None:
    """A page with that body, with no server."""
    html = f"<!doctype html><html lang=en><title>planted</title><link rel=icon href='data:,'>{body}"
    page.context.route(
        "**/*", lambda route: route.fulfill(body=html, content_type="text/html", headers=headers or {})
    )
    page.goto(ORIGIN)


def test_a_quiet_page_passes(chromium: Browser) -> None:
    with watched(chromium, ORIGIN) as page:
        visit(page, "<h1>hello</h1>", {"Content-Security-Policy": "default-src data:"})


@pytest.mark.parametrize(
    ("body", "headers", "complaint"),
    [
        ("<script>console.error('oh')</script>", {}, "console error: oh"),
        ("<script>console.warn('oh')</script>", {}, "console warning: oh"),
        ("<script>throw new Error('oh')</script>", {}, "page error: .*oh"),
        ("<script>Promise.reject(new Error('oh'))</script>", {}, "page error: .*oh"),
        ("<script>1</script>", STRICT, "CSP: script-src-elem: inline"),
        ("<p style='color: red'>", STRICT, "CSP: style-src-attr: inline"),
        (
            "<img alt='' src='http://elsewhere.test/x.png'>",
            {},
            "request to http://elsewhere.test/x.png",
        ),
        ("<script>fetch('//elsewhere.test')</script>", {}, "request to http://elsewhere.test/"),
        ("<script>open('//elsewhere.test')</script>", {}, "request to http://elsewhere.test/"),
    ],
)
def test_what_is_planted_is_seen(
    chromium: Browser, body: str, headers: dict[str, str], complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        seen(chromium, body, headers)


def seen(chromium: Browser, body: str, headers: dict[str, str]) -> None:
    with watched(chromium, ORIGIN) as page:
        visit(page, body, headers)
        page.wait_for_timeout(100)


def test_what_is_expected_must_come(chromium: Browser) -> None:
    with watched(chromium, ORIGIN, expected=("oh",)) as page:
        visit(page, "<script>console.error('oh')</script>")
    with pytest.raises(AssertionError, match="did not happen"):  # noqa: SIM117
        with watched(chromium, ORIGIN, expected=("oh",)) as page:
            visit(page, "<h1>hello</h1>")


def test_a_file_is_watched_too(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("<!doctype html><title>report</title><h1>hello</h1>")
    with watched(chromium, file.as_uri()) as page:
        page.goto(file.as_uri())
    other = (tmp_path / "other.css").as_uri()
    file.write_text(f"<!doctype html><title>report</title><link rel=stylesheet href='{other}'>")
    with pytest.raises(AssertionError, match="request to file:"):  # noqa: SIM117
        with watched(chromium, file.as_uri()) as page:
            page.goto(file.as_uri())


def test_findings_blank_pages_and_overflow_are_found(chromium: Browser) -> None:
    with watched(chromium, ORIGIN, viewport={"width": 360, "height": 400}) as page:
        visit(page, "<main><h1>hello</h1></main>")
        assert findings(page) == []
        assert overflow(page) == 0
        assert colours(page.screenshot()) > 2
    with watched(chromium, ORIGIN, viewport={"width": 360, "height": 400}) as page:
        visit(page, "<img src='data:,'><div style='width: 500px'>wide</div>")
        assert any("image-alt" in found for found in findings(page))
        assert overflow(page) >= 140
        page.evaluate("document.body.replaceChildren()")
        assert colours(page.screenshot()) == 1


def test_without_a_browser_it_is_said_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(browser.CHROMIUM, "/nowhere/chromium")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is no browser at /nowhere/chromium"):
        browser.program()
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="CI is set, and there is no browser"):
        browser.program()
    monkeypatch.setattr(browser, "WITHOUT_PLAYWRIGHT", "without playwright no browser is driven")
    with pytest.raises(pytest.fail.Exception, match="without playwright"):
        browser.program()
