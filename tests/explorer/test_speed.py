"""Long texts cost the page no node per cell, and what it takes is measured where it happens.

How long it takes is told by `python -m benchmarks.seeing`, and asserted nowhere.
"""

from collections.abc import Iterator

import pytest

from browser import Browser, Page
from explorer.pages import LONG, drawn, long_reader, opened, run_id, site
from explorer.serving import Served

NODES = "document.querySelectorAll('*').length"
PER_TOKEN = 4
"""Nodes: the token, marks of its spaces, and the break behind it."""


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with site(long_reader()) as made:
        yield made


def read(page: Page, tokens: int) -> int:
    """Give the model a text of so many tokens: how many nodes the page has then."""
    page.evaluate("performance.clearMeasures()")
    page.get_by_label("Your text").fill(" ".join(f"w{i % 900}" for i in range(tokens)))
    page.get_by_role("button", name="Run").click()
    drawn(page)
    assert page.locator(".tokens [role=option]").count() == tokens
    found: int = page.evaluate(NODES)
    return found


def test_nodes_grow_with_tokens_and_not_with_cells(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, f"#run={run_id(server)}&layer=1&head=2") as page:
        few, many = read(page, 64), read(page, LONG)
        assert many - few <= PER_TOKEN * (LONG - 64)
        sizes = "[...document.querySelectorAll('.sides canvas')].map((canvas) => canvas.width)"
        assert page.evaluate(sizes) == [LONG, LONG]
        page.evaluate("document.body.append(...Array.from({ length: 9000 }, () => new Image()))")
        assert page.evaluate(NODES) - few > PER_TOKEN * (LONG - 64)  # what a node per cell would do


def test_drawing_a_head_is_measured_from_its_bytes_to_the_screen(
    chromium: Browser, server: Served
) -> None:
    with opened(chromium, server, "#live") as page:
        drawn(page)
        read(page, LONG)
        took = page.evaluate("performance.getEntriesByName('outward-head').map((m) => m.duration)")
        assert len(took) == 1
        assert took[0] > 0
        page.locator("label.choose", has_text="Head").locator("select").select_option("1")
        for _ in range(500):
            if page.evaluate("performance.getEntriesByName('outward-head').length") == 2:
                return
            page.wait_for_timeout(20)
        raise AssertionError("the second head was not measured")
