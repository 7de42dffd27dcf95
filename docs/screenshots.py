"""The pictures of README, as Chromium shows a report and the explorer: `make screenshots`."""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

SIZE = {"width": 1280, "height": 900}
HEAD = "layer=11&head=6&token=9"


@contextmanager
def explorer(run: Path, model: str) -> Iterator[str]:
    """The address of a running one."""
    command = [sys.executable, "-m", "outward", "explore", str(run), "--model", model]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def of_explorer(page: Page, address: str, out: Path) -> None:
    """The grid of a run, and one head on a sentence, beside its exclusive form."""
    page.goto(address)
    page.get_by_role("link").nth(2).click()
    page.get_by_role("grid").wait_for()
    page.screenshot(path=out / "grid.png")
    page.goto(f"{page.url}&{HEAD}")
    page.locator("canvas").last.wait_for(timeout=60_000)
    page.wait_for_timeout(1000)  # matrices and lists come, and push what is there
    page.evaluate("document.querySelector('[role=status]').scrollIntoView()")
    page.wait_for_timeout(500)
    page.screenshot(path=out / "explorer.png")


def main() -> None:
    """Both, into one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("run", "report", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, explorer(options.run, options.model) as address:
        program = os.environ.get("OUTWARD_CHROMIUM") or "/usr/bin/chromium"
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.goto(options.report.resolve().as_uri())
        page.screenshot(path=options.out / "report.png")
        of_explorer(page, address, options.out)
        browser.close()


if __name__ == "__main__":
    main()
