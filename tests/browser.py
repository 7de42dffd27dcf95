"""A real browser for tests: Chromium by playwright, and pages that are watched.

A watched page may ask its own origin and nobody else, and says nothing on the console: errors, breaches
of the Content-Security-Policy and foreign requests are collected, and none may be left at the end.
"""

import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright
except ImportError as missing:
    WITHOUT_PLAYWRIGHT: str | None = f"without playwright no browser is driven: {missing}"
else:
    WITHOUT_PLAYWRIGHT = None

CHROMIUM = "OUTWARD_CHROMIUM"
"""The environment variable that names the program."""
ARGS = [
    "--no-sandbox",  # as root, in containers, there is none
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]
TELLS = """
document.addEventListener("securitypolicyviolation", (event) =>
    globalThis.tellsOfBreach(`${event.violatedDirective}: ${event.blockedURI || event.sourceFile}`));
"""
SERIOUS = ("serious", "critical")
INSIDE = ("data:", "blob:", "about:")


def unavailable(reason: str) -> None:
    """Skips with the reason; where CI is set, a test that needs a browser fails without one."""
    if os.environ.get("CI"):
        pytest.fail(f"CI is set, and {reason}", pytrace=False)
    pytest.skip(reason)


def program() -> Path:
    """Where Chromium is."""
    path = Path(os.environ.get(CHROMIUM) or "/usr/bin/chromium")
    if WITHOUT_PLAYWRIGHT is not None:
        unavailable(WITHOUT_PLAYWRIGHT)
    if not path.is_file():
        unavailable(f"there is no browser at {path}: install chromium, or name one by {CHROMIUM}.")
    return path


@contextmanager
def started() -> Iterator["Browser"]:
    """Chromium, without a window."""
    path = program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGS)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """One for all tests of a file. As long as it runs, this thread has an event loop that runs, and
    tests elsewhere that start one of their own would fail: so not one for all files.
    """
    with started() as browser:
        yield browser


@contextmanager
def watched(
    browser: "Browser", origin: str, *, expected: tuple[str, ...] = (), **options: Any
) -> Iterator["Page"]:
    """A page in a context of its own (options are the context's) that may ask what begins with origin.

    expected: parts of complaints that must come, each, and are then none.
    """
    problems: list[str] = []

    def console(message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning"):
            problems.append(f"console {message.type}: {message.text}")

    def request(asked: "Request") -> None:
        if not asked.url.startswith((origin, *INSIDE)):
            problems.append(f"request to {asked.url}")

    context = browser.new_context(**options)
    context.set_default_timeout(15_000)
    try:
        context.expose_binding("tellsOfBreach", lambda _, told: problems.append(f"CSP: {told}"))
        context.add_init_script(TELLS)
        context.on("console", console)
        context.on("weberror", lambda error: problems.append(f"page error: {error.error}"))
        context.on("request", request)
        page = context.new_page()
        yield page
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    finally:
        context.close()
    unmet = [part for part in expected if not any(part in problem for problem in problems)]
    assert not unmet, f"did not happen: {unmet}; but {problems}"
    left = [problem for problem in problems if not any(part in problem for part in expected)]
    assert not left, "\n".join(left)


def findings(page: "Page", impacts: tuple[str, ...] = SERIOUS) -> list[str]:
    """What axe-core finds on the page as it is now."""
    return [
        f"{found['impact']} {found['id']}: {node['target']} {node['failureSummary']}"
        for found in Axe().run(page).response["violations"]
        if found["impact"] in impacts
        for node in found["nodes"]
    ]


def colours(picture: bytes) -> int:
    """How many colours a screenshot has: one, or two, are a blank page."""
    with Image.open(io.BytesIO(picture)) as image:
        return len(set(image.convert("RGB").resize((400, 400)).get_flattened_data()))


def until(page: "Page", expression: str, argument: Any = None) -> None:
    """Waits for it to be true; playwright's wait_for_function needs what a strict policy forbids."""
    end = time.monotonic() + 15
    while not page.evaluate(expression, argument):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(20)


def overflow(page: "Page") -> int:
    """By how many pixels the page is wider than the window."""
    wide: int = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return max(0, wide)
