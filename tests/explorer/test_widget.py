"""The widget of a notebook: what it holds is what the page is told, its module is the page's own."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
import torch

import outward
from browser import Browser, Page, watched
from explorer.serving import run
from outward.explorer import notebook, widget
from outward.explorer.runs import Parsed, Runs
from outward.measures.bias import DEFAULT
from outward.run import Run, load
from outward.stats.histogram import edges

pytest.importorskip("anywidget", reason="the widget is of the extra `notebook`")


def assert_same(found: Any, exact: Any) -> None:
    """But for rounding to five digits, and NaN that is null."""
    if isinstance(exact, dict):
        assert list(found) == list(exact)
        for name in exact:
            assert_same(found[name], exact[name])
    elif isinstance(exact, list):
        assert len(found) == len(exact)
        for one, other in zip(found, exact, strict=True):
            assert_same(one, other)
    elif isinstance(exact, float):
        assert found == pytest.approx(exact, rel=1e-4) or (found is None and np.isnan(exact))
    else:
        assert found == exact


@pytest.mark.parametrize("series", ["main", "length=8"])
def test_it_holds_what_the_page_is_told(series: str) -> None:
    made = widget(load(run()), series=series)
    data = made.data
    runs = Runs((run(),))
    (listed,) = runs.listed()
    page = runs.document(listed["id"])
    assert data["series"] == series
    assert_same(data["document"], {k: page[k] for k in data["document"]})
    assert set(page) - set(data["document"]) == {"id", "name"}
    assert len(data["heads"]) == 8
    for layer in range(2):
        for head in range(4):
            exact = runs.head(listed["id"], layer, head, series)
            found = data["heads"][f"{layer}.{head}"]
            for name, histogram in exact["histograms"].items():
                kind = data["document"]["measures"][name]["kind"]
                assert_same(data["edges"][kind], histogram.pop("edges"))
            assert_same(found, exact)


def test_the_comparison_bites() -> None:
    with pytest.raises(AssertionError):
        assert_same({"a": [1.0, 2.0]}, {"a": [1.0, 2.001]})
    with pytest.raises(AssertionError):
        assert_same(None, 1.0)


def test_it_can_be_sent_as_json_and_is_small() -> None:
    made = widget(load(run()))
    text = json.dumps(made.data, allow_nan=False)
    assert len(text) < 300_000
    assert text.count(str(edges("cosine")[1])) <= 1


def test_a_run_that_is_nowhere_on_disk() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, dim_feedforward=8, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    made = widget(outward.measure(model, [torch.randn(3, 5, 16)], kernel="torch"))
    assert made.data["document"]["about"]["command"] is None
    assert len(made.data["heads"]) == 8


def test_another_series_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"no series 'none' in this run: there are \['main', "):
        widget(load(run()), series="none")


def test_of_very_many_heads_there_are_no_details(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MOST_HEADS", 7)
    data = notebook.widget_data(Parsed(load(run()).result, "a"), "main")
    assert data["heads"] == {}
    assert len(data["document"]["summary"]["heads"]) == 8


def test_its_module_is_the_pages_own_and_asks_nobody() -> None:
    made = widget(load(run()))
    views = (files("outward.explorer") / "static" / "views.js").read_text()
    assert made._esm.startswith(views)
    assert "export default { render }" in made._esm
    assert not re.search(r"^\s*import\b|\bfetch\(|XMLHttpRequest|innerHTML|\beval\(", made._esm, re.M)
    assert made.style == (files("outward.explorer") / "static" / "style.css").read_text()


def test_what_it_uses_of_the_views_is_there() -> None:
    views = (files("outward.explorer") / "static" / "views.js").read_text()
    exported = set(re.findall(r"^export (?:function|const) (\w+)", views, re.M))
    used = {"el", "title", "sentence", "measureTable", "histogram", "curve", "renderRun"}
    assert used <= exported
    for name in used:
        assert re.search(rf"\b{name}\(", notebook.RENDER), name


SHOW = """async ([esm, data, style]) => {
    const url = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
    const el = document.createElement("div");
    document.body.append(el);
    const model = { get: (name) => ({ data, style })[name] };
    (await import(url)).default.render({ model, el });
}"""


CELL = "[role=grid] [tabindex='0']"


@contextmanager
def shown(chromium: Browser, made: Any) -> Iterator[Page]:
    """As a notebook shows it: a module, an element, and nothing else of the page."""
    with watched(chromium, "blob:") as page:
        page.goto("about:blank")
        page.evaluate(SHOW, [made._esm, made.data, made.style])
        yield page


def test_in_a_browser_it_draws_heads_and_one_of_them_in_full(chromium: Browser) -> None:
    made = widget(load(run()))
    with shown(chromium, made) as page:
        assert page.get_by_text(made.data["document"]["reading"][0]).is_visible()
        page.locator(CELL).focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert page.locator("h2", has_text="Layer 1, head 0").is_visible()
        assert page.locator("table.measures tbody tr").count() == len(DEFAULT)
        assert page.locator("svg.plot").count() == 2
        page.get_by_role("button", name="weight on itself", exact=True).click()
        assert page.locator("svg.plot").count() == 2


def test_without_details_it_says_so(chromium: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MOST_HEADS", 7)
    with shown(chromium, widget(load(run()))) as page:
        page.locator(CELL).focus()
        page.keyboard.press("Enter")
        assert page.locator("h2", has_text="Layer 0, head 0").is_visible()
        assert page.get_by_text("The notebook holds no more of it.").is_visible()
        assert page.locator("table.measures").count() == 0


def test_without_anywidget_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    notebook._kind.cache_clear()
    monkeypatch.setattr(notebook, "import_module", missing)
    with pytest.raises(ImportError, match=r"pip install 'outward\[notebook\]'"):
        widget(Run(load(run()).result))
