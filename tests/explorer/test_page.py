"""The page, driven in a real browser: keys, links, views, what is live, and what goes wrong."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load as arrays_of

from browser import Browser, Page, colours, findings, overflow, until
from engines.command import tiny
from explorer.pages import (
    LONG,
    SENTENCE,
    SETTLED,
    drawn,
    live,
    long_reader,
    opened,
    picture,
    press,
    run_id,
    seeing,
    site,
    tab_to,
)
from explorer.serving import Served
from explorer.serving import run as tiny_run

if TYPE_CHECKING:
    from playwright.sync_api import Route

VIEWS = {
    "list": "#",
    "run": "#run={run}",
    "measure": "#run={run}&measure=excess_similarity&series=shuffled-tokens",
    "head": "#run={run}&layer=1&head=2",
    "ratio": "#run={run}&layer=1&head=2&measure=self_weight_ratio",
    "live": "#live&layer=1&head=2",
    "token": "#run={run}&layer=1&head=2&token=3",
    "error": "#run=nowhere",
}
NOT_FOUND = ("status of 404",)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with site(tiny()) as made:
        yield made


def address(server: Served, view: str) -> str:
    return VIEWS[view].format(run=run_id(server))


def ask(page: Page, text: str = SENTENCE) -> None:
    """Type a text and run it."""
    page.evaluate("performance.clearMeasures()")
    page.get_by_label("Your text").fill(text)
    page.get_by_role("button", name="Run").click()
    drawn(page)


def choose(page: Page, label: str, value: str) -> None:
    page.locator("label.choose", has_text=label).locator("select").select_option(value)


def readout(page: Page) -> str:
    return page.locator("#facts").inner_text()


# ---- keys and links


def test_the_way_from_the_list_to_a_token_by_keys_alone(chromium: Browser, server: Served) -> None:
    with opened(chromium, server) as page:
        tab_to(page, "a.line")
        press(page, "Enter")
        page.wait_for_selector(".heads .cell:focus")
        press(page, "ArrowDown", "ArrowRight", "ArrowRight")
        assert page.locator(".cell:focus").get_attribute("aria-label") in readout_of_grid(page)
        press(page, "Enter")
        page.wait_for_selector("h1:text-is('Layer 1, head 2'):focus")
        tab_to(page, "textarea")
        page.keyboard.press("ControlOrMeta+A")
        page.keyboard.type(SENTENCE)
        tab_to(page, "button.main", 1)
        press(page, "Enter")
        drawn(page)
        tab_to(page, ".tokens")
        press(page, "Home", "ArrowRight", "ArrowRight")
        assert readout(page).startswith("Token 2, “w3”")
        assert page.url.endswith("&layer=1&head=2&token=2")
        tab_to(page, ".matrix", 1)
        press(page, "ArrowLeft")
        assert "With token 1, “w2”" in readout(page)
        press(page, "Escape")
        page.wait_for_selector(".heads .cell:focus")
        assert page.locator(".cell:focus").get_attribute("aria-label").startswith("layer 1, head 2")
        press(page, "Escape")
        page.wait_for_selector("a.line:focus")


def readout_of_grid(page: Page) -> str:
    """As the label of a cell says it."""
    said = page.locator(".readout").inner_text()
    return said.split(". ")[0].replace("Layer", "layer")


def test_home_end_and_the_edges_of_the_grid(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, address(server, "run")) as page:
        page.locator(".cell").first.focus()
        for key, label in [
            ("End", "layer 0, head 3"),
            ("ArrowRight", "layer 0, head 3"),
            ("ArrowDown", "layer 1, head 3"),
            ("ArrowDown", "layer 1, head 3"),
            ("Home", "layer 1, head 0"),
            ("ArrowUp", "layer 0, head 0"),
        ]:
            press(page, key)
            assert page.locator(".cell:focus").get_attribute("aria-label").startswith(label)
        assert page.locator(".cell[tabindex='0']").count() == 1


@pytest.mark.parametrize(
    ("view", "title", "found"),
    [
        ("list", "Runs · Outward", "a.line"),
        ("run", "tiny · Outward", ".cell"),
        ("measure", "tiny · Outward", "option[selected]:text-is('shuffled-tokens')"),
        ("head", "Layer 1, head 2 · tiny · Outward", "button[aria-pressed=true]:text('cos(y, v)')"),
        ("ratio", "Layer 1, head 2 · tiny · Outward", "button[aria-pressed=true]:text('even share')"),
        ("live", "Live · Outward", ".matrix"),
        ("token", "Layer 1, head 2 · tiny · Outward", "#token-3[aria-selected=true]"),
    ],
)
def test_deep_links(chromium: Browser, server: Served, view: str, title: str, found: str) -> None:
    with opened(chromium, server, address(server, view)) as page:
        page.wait_for_selector(found, state="attached")
        assert page.title() == title
        page.reload()
        page.wait_for_selector(found, state="attached")
        assert page.evaluate("document.activeElement === document.body")  # nobody's focus is taken


def test_the_address_follows_and_the_way_back_leads_back(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, address(server, "run")) as page:
        choose(page, "Measure", "self_weight")
        assert page.url.endswith("&measure=self_weight")
        page.locator(".cell").nth(5).click()
        page.wait_for_selector("h1:text-is('Layer 1, head 1')")
        assert "measure=self_weight" in page.url
        page.get_by_role("link", name="next head").click()
        page.wait_for_selector("h1:text-is('Layer 1, head 2')")
        page.go_back()
        page.wait_for_selector("h1:text-is('Layer 1, head 1')")
        page.go_back()
        page.wait_for_selector(".cell:focus")
        assert page.get_by_label("Measure").input_value() == "self_weight"


# ---- what is shown


def test_the_grid_shows_the_numbers_of_the_run(chromium: Browser, server: Served) -> None:
    document = server.ask(f"/api/runs/{run_id(server)}").json
    heads = document["summary"]["heads"]
    with opened(chromium, server, address(server, "run")) as page:
        labels = [cell.get_attribute("aria-label") for cell in page.locator(".cell").all()]
        assert labels == [
            f"layer {h['layer']}, head {h['head']}: {h['self_similarity']:.3f}".replace("-", "−")
            for h in heads
        ]
        said = page.locator(".words").inner_text()
        assert all(sentence in said for sentence in document["reading"])
        page.get_by_role("button", name="Show as table").click()
        table = page.locator("table").inner_text()
        assert all(label.split(": ")[1] in table for label in labels)
        assert page.locator(".cell").count() == 0


def test_a_head_shows_its_numbers_in_figures_and_tables(chromium: Browser, server: Served) -> None:
    head = server.ask(f"/api/runs/{run_id(server)}/heads/1/2").json
    with opened(chromium, server, address(server, "head")) as page:
        rows = page.locator(".measures tbody tr")
        assert rows.count() == len(head["measures"])
        assert f"{head['measures']['self_similarity']['mean']:.3f}" in page.locator(".plot").nth(
            0
        ).get_attribute("aria-label").replace("−", "-")
        assert page.locator(".plot .outline").count() == 2  # the null, in both
        for button in page.get_by_role("button", name="Show as table").all():
            button.click()
        counted = page.locator(".plots table").nth(0).locator("td:nth-child(3)").all_inner_texts()
        assert sum(map(int, counted)) == head["measures"]["self_similarity"]["n"]
        places = page.locator(".plots table").nth(1).locator("tbody tr")
        assert places.count() == len(head["places"]["self_similarity"])
        page.locator("button", has_text="cos(v, v)").click()
        assert page.locator("button[aria-pressed=true]:focus").inner_text() == "cos(v, v)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_each_view_is_drawn_and_accessible(
    chromium: Browser, server: Served, view: str, scheme: str, tmp_path: Path
) -> None:
    expected = NOT_FOUND if view == "error" else ()
    size = {"width": 1280, "height": 900}
    with opened(
        chromium, server, address(server, view), expected=expected, color_scheme=scheme, viewport=size
    ) as page:
        if view in ("live", "token"):
            drawn(page)
        shown = page.screenshot(path=tmp_path / f"{view}-{scheme}.png", full_page=True)
        assert colours(shown) > 40
        assert findings(page) == []
        assert overflow(page) == 0
        for width in (360, 320):  # 1280 at four times its size is 320
            page.set_viewport_size({"width": width, "height": 800})
            until(page, "document.documentElement.scrollWidth <= innerWidth")
        page.evaluate("document.body.replaceChildren()")
        assert colours(page.screenshot()) < 3  # what blank would be


MOVES = """[...document.querySelectorAll("*")].filter((node) => {
    const style = getComputedStyle(node);
    return style.transitionDuration !== "0s" || style.animationName !== "none"
        || style.scrollBehavior === "smooth";
}).length"""


@pytest.mark.parametrize("view", ["run", "token"])
def test_nothing_moves_whatever_is_preferred(chromium: Browser, server: Served, view: str) -> None:
    for motion in ("reduce", "no-preference"):
        with opened(chromium, server, address(server, view), reduced_motion=motion) as page:
            assert page.evaluate(MOVES) == 0
            page.evaluate("document.querySelector('h1').style.transition = 'opacity 1s'")
            assert page.evaluate(MOVES) == 1


def test_focus_is_seen(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, address(server, "token")) as page:
        drawn(page)
        for selector in ("select", ".measures button", ".tokens", ".matrix", "textarea", "nav a"):
            tab_to(page, selector)
            width = page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)")
            assert width >= 2, selector


def test_a_change_of_the_colour_scheme_draws_again(chromium: Browser, server: Served) -> None:
    colour = "document.querySelector('.cell').style.background"
    with opened(chromium, server, address(server, "run"), color_scheme="light") as page:
        light = page.evaluate(colour)
        page.emulate_media(color_scheme="dark")
        until(page, f"(light) => {colour} !== light", light)


# ---- live


def test_live_text_shows_what_the_model_does(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, "#live") as page:
        drawn(page)
        ask(page)
        tokens = page.locator(".tokens [role=option]").all_inner_texts()
        assert tokens == SENTENCE.split()
        page.locator("#token-5").click()
        known = live(tiny())._last
        assert known is not None
        found = head_of(server, known.id, 0, 0)
        said = readout(page)
        assert said.startswith("Token 5, “w2” gives itself ")
        assert f"cos(y, v) = {found['self_similarity'][5]:.2f}".replace("-", "−") in said
        left = found["size_exclusive"][5] / found["size"][5]
        assert f"|z| / |y| = {left:.2f}" in said
        for n, name in enumerate(("returns", "returns_exclusive")):
            row = found[name][5] / 127.0 - 1
            if n == 0:
                row[5] = found["self_similarity"][5]  # exact, as in the sentence
            values = page.locator(".largest").nth(n).locator("li").all_inner_texts()
            assert len(values) == len(tokens)
            assert values[0].endswith(two(row.max()))
            own = page.locator(".largest").nth(n).locator(".own").inner_text()
            assert own.split() == ["w2", "itself", two(row[5])]


def two(x: float) -> str:
    """As the page writes a number of a matrix: a byte tells no third decimal."""
    return f"{0.0 if abs(x) < 0.005 else x:.2f}".replace("-", "−")


def test_the_list_and_the_sentence_say_one_number(chromium: Browser, server: Served) -> None:
    """Of tokens for which the byte of the matrix would say another."""
    with opened(chromium, server, "#live") as page:
        drawn(page)
        ask(page)
        run = live(tiny())._last.id  # type: ignore[union-attr]
        heads = {(n, h): head_of(server, run, n, h) for n in range(2) for h in range(4)}
        apart = [
            (layer, head, token)
            for (layer, head), found in heads.items()
            for token in range(1, len(SENTENCE.split()))
            if two(found["returns"][token, token] / 127 - 1) != two(found["self_similarity"][token])
        ]
        assert apart
        for layer, head, token in apart[:3]:
            page.evaluate("performance.clearMeasures()")
            choose(page, "Layer", f"{layer}")
            drawn(page)
            page.evaluate("performance.clearMeasures()")
            choose(page, "Head", f"{head}")
            drawn(page)
            page.locator(f"#token-{token}").click()
            said = re.search(r"cos\(y, v\) = (\S+);", readout(page))
            assert said is not None
            own = page.locator(".largest").nth(0).locator(".own").inner_text()
            assert own.split()[-1] == said[1] == two(heads[layer, head]["self_similarity"][token])


def test_tokens_that_are_not_seen_are_marked(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, "#live") as page:
        drawn(page)
        ask(page)
        for matrix in ("returns", "context"):
            choose(page, "Matrix", matrix)
            page.wait_for_selector(f".sides code:text('cos({'y' if matrix == 'context' else 'z'}_i')")
            page.locator("#token-4").click()
            names = page.locator(".largest").nth(0).locator(".name").all_inner_texts()
            later = SENTENCE.split()[5:]  # it is a causal model
            unseen = [name.split()[0] for name in names if "not seen by it" in name]
            assert sorted(unseen) == sorted(later)
            for mark in page.locator(".largest em:not(:empty)").all():
                assert mark.evaluate(WITHIN)
        page.locator(".matrix").first.focus()
        press(page, "ArrowRight")
        assert "With token 5, “w2”, not seen by it: cos(y_i, y_j) = " in readout(page)
        press(page, "ArrowLeft", "ArrowLeft")
        assert "With token 3, “w1”: cos" in readout(page)


WITHIN = """(mark) => {
    const [own, row] = [mark, mark.closest(".name")].map((node) => node.getBoundingClientRect());
    return own.width > 0 && mark.scrollWidth <= mark.clientWidth + 1 && own.right <= row.right + 1;
}"""


def test_weights_are_said_to_be_weights(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, "#live") as page:
        drawn(page)
        ask(page)
        choose(page, "Matrix", "attention")
        page.wait_for_selector(".sides code:text-is('P_ij')")
        heads = page.locator(".sides h3").all_inner_texts()
        assert heads == ["As it is: attention", "Exclusive form: what it returns"]
        assert "the matrix on the right is another quantity" in page.locator(".result").inner_text()
        assert "the row’s largest" in page.locator(".sides .legend").nth(0).inner_text()
        page.locator("#token-7").click()
        found = head_of(server, live(tiny())._last.id, 0, 0)  # type: ignore[union-attr]
        row = found["attention"][7] / 255 * found["attention_max"][7]
        row[7] = found["self_weight"][7]
        said = page.locator(".largest").nth(0).locator("li").all_inner_texts()
        exact = sorted(row[row > 0], reverse=True)
        assert [x.split()[-1] for x in said] == ["<0.01" if x < 0.01 else f"{x:.2f}" for x in exact]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_buttons_are_read_under_the_mouse(chromium: Browser, server: Served, scheme: str) -> None:
    with opened(chromium, server, address(server, "token"), color_scheme=scheme) as page:
        drawn(page)
        for selector in ("button.main", ".toggle", "nav .button"):
            button = page.locator(selector).first
            button.hover()
            assert button.evaluate(CONTRAST) >= 4.5, selector
        button = page.locator("button.main")
        button.evaluate("(x) => { x.style.background = 'var(--hover)'; }")
        assert button.evaluate(CONTRAST) < 4.5  # as it was


CONTRAST = """(button) => {
    const { color, backgroundColor } = getComputedStyle(button);
    const [ink, paper] = [color, backgroundColor].map((text) => text.match(/[\\d.]+/g).slice(0, 3)
        .map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + [0.2126, 0.7152, 0.0722][i] * c, 0));
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
}"""


def test_one_cell_has_the_focus_and_the_one_under_the_mouse_a_hint(
    chromium: Browser, server: Served
) -> None:
    """The number is beside its cell, and is cut off nowhere."""
    ring = "(cell) => getComputedStyle(cell).boxShadow"
    with opened(chromium, server, address(server, "run")) as page:
        tab_to(page, ".cell")
        press(page, "ArrowDown")
        cells = page.locator(".cell")
        focused, other = cells.nth(4), cells.nth(1)
        plain, clear = other.evaluate(ring), focused.evaluate(ring)
        other.hover()
        hinted = other.evaluate(ring)
        assert len({plain, clear, hinted}) == 3
        assert "0px 2px inset" in clear
        assert "0px 2px inset" not in hinted
        assert focused.evaluate(ring) == clear
        assert focused.evaluate("(cell) => getComputedStyle(cell).outlineStyle") == "solid"
        assert other.evaluate("(cell) => getComputedStyle(cell).outlineStyle") == "none"
        for cell in (other, focused):
            cell.hover()
            [tag, own, whole] = (
                page.locator(x).bounding_box() for x in (".value", ".cell:hover", ".heads")
            )
            assert tag is not None
            assert own is not None
            assert whole is not None
            assert tag["y"] + tag["height"] <= own["y"] - 4  # the ring is 4 pixels wide
            assert tag["y"] >= whole["y"]


def test_it_is_said_of_which_series_the_reading_speaks(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, address(server, "run")) as page:
        title = page.locator(".words h2")
        assert title.inner_text() == "What it says"
        choose(page, "Series", "length=8")
        assert title.inner_text() == "What it says of main, not of length=8"
        choose(page, "Series", "main")
        assert title.inner_text() == "What it says"


def test_the_bias_comes_first(chromium: Browser, server: Served) -> None:
    named = ["cos(y, v), the bias", "null: any other token", "excess over the null"]
    with opened(chromium, server, address(server, "run")) as page:
        chooser = page.locator("label.choose", has_text="Measure").locator("option")
        measures = chooser.all_inner_texts()
        assert measures[:3] == named
        assert measures.index("centred cosine") < measures.index("weight on itself")
    with opened(chromium, server, address(server, "head")) as page:
        assert page.locator(".measures button").all_inner_texts() == measures


def test_the_chosen_token_is_scrolled_to_and_the_page_stays(chromium: Browser) -> None:
    with site(long_reader()) as server, opened(chromium, server, "#live") as page:
        drawn(page)
        ask(page, " ".join(f"w{i % 900}" for i in range(LONG)))
        line = page.locator(".tokens").bounding_box()
        last = page.locator(f"#token-{LONG - 1}").bounding_box()
        assert line is not None
        assert last is not None
        assert line["y"] <= last["y"] <= line["y"] + line["height"] - last["height"]
        assert page.evaluate("scrollY") == 0
        page.locator(".tokens").focus()
        press(page, "Home")
        assert page.evaluate("document.querySelector('.tokens').scrollTop") < last["height"]


def head_of(server: Served, run: str, layer: int, head: int) -> dict[str, np.ndarray]:
    """What the server sends of a head."""
    return dict(arrays_of(server.ask(f"/api/live/{run}/heads/{layer}/{head}").body))


def test_in_the_exclusive_form_nothing_is_left_along_the_own_value(
    chromium: Browser, server: Served
) -> None:
    with opened(chromium, server, "#live") as page:
        drawn(page)
        ask(page)
        for token in range(1, len(SENTENCE.split())):
            page.locator(f"#token-{token}").click()
            assert "cos(z, v) = 0.00 " not in readout(page).replace(",", " ,")  # it is one sentence
            assert "cos(z, v) = 0.00," in readout(page)
            assert "cos(y, v) = 0.00;" not in readout(page)  # as it is, there is something
        left, right = (pixels(page, n) for n in (0, 1))
        diagonal = [i * (len(SENTENCE.split()) + 1) for i in range(1, len(SENTENCE.split()))]
        assert len({right[i] for i in diagonal}) == 1  # the colour of 0
        assert len({left[i] for i in diagonal}) > 1
        page.locator("#token-0").click()
        assert "sees only itself" in readout(page)


def pixels(page: Page, n: int) -> list[int]:
    """Of a matrix, a number per cell."""
    found: list[int] = page.evaluate(
        """(n) => {
            const canvas = document.querySelectorAll(".sides canvas")[n];
            const { width, height } = canvas;
            const copy = new OffscreenCanvas(width, height)
                .getContext("2d", { willReadFrequently: true });
            copy.drawImage(canvas, 0, 0);
            return [...new Uint32Array(copy.getImageData(0, 0, width, height).data.buffer)];
        }""",
        n,
    )
    return found


def test_the_choosers_of_the_live_panel(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, "#live&token=4") as page:
        drawn(page)
        ask(page)
        returns = pixels(page, 0)
        choose(page, "Matrix", "attention")
        page.wait_for_selector(".sides code:text('P_ij')")
        assert "The weights are the same in both forms" in page.locator(".result").inner_text()
        assert pixels(page, 0) != returns
        choose(page, "Matrix", "context")
        page.wait_for_selector(".sides code:text('cos(z_i, z_j)')")
        colour = "document.querySelector('#token-4').style.background"
        seen = set()
        for by in ("self_similarity", "self_weight", "null_similarity", "row"):
            choose(page, "Colour tokens by", by)
            seen.add(page.evaluate(colour))
        assert len(seen) >= 3
        choose(page, "Layer", "1")
        choose(page, "Head", "3")
        until(page, "location.hash.includes('layer=1&head=3')")
        page.locator(".heads .cell").first.click()
        until(page, "location.hash.includes('layer=0&head=0')")


def test_hovering_shows_and_leaving_shows_the_chosen_again(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, "#live") as page:
        drawn(page)
        ask(page)
        page.locator("#token-6").click()
        chosen = readout(page)
        page.locator("#token-2").hover()
        assert readout(page).startswith("Token 2")
        page.locator("h1").hover()
        assert readout(page) == chosen
        matrix = page.locator(".sides .matrix").first
        box = matrix.bounding_box()
        assert box is not None
        wide, high = box["width"], box["height"]
        matrix.hover(position={"x": wide * 0.99, "y": high * 0.3})
        assert readout(page).startswith("Token 2")
        assert "With token 7" in readout(page)
        matrix.click(position={"x": wide * 0.01, "y": high * 0.99})
        page.locator("h1").hover()
        assert readout(page).startswith("Token 7")
        assert "With token 0" in readout(page)


def test_a_text_that_is_too_long_says_where_it_is_cut(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, "#live") as page:
        drawn(page)
        ask(page, "w1 " * 200)
        most = live(tiny()).max_tokens
        assert f"it is cut at {most} tokens" in page.locator(".status").inner_text()
        assert page.locator(".tokens [role=option]").count() == most


def test_a_live_picture(chromium: Browser, tmp_path: Path) -> None:
    file, text = tmp_path / "corners.png", tmp_path / "words.txt"
    file.write_bytes(picture())
    text.write_text("no picture")
    with site(seeing()) as server, opened(chromium, server, "#live") as page:
        page.locator("input[type=file]").set_input_files(text)
        assert "words.txt is no picture" in page.locator(".status").inner_text()
        page.locator("input[type=file]").set_input_files(file)
        drawn(page)
        assert "17 tokens" in page.locator(".status").inner_text()
        assert page.locator(".tokens [role=option]").count() == 1  # [CLS]
        page.locator(".picture").focus()
        press(page, "Home", "ArrowUp", "ArrowUp", "ArrowUp", "ArrowDown", "ArrowRight")
        assert readout(page).startswith("Token 6, row 1, column 1")
        assert "cos(z, v) = 0.00" in readout(page)
        box = page.locator(".picture").bounding_box()
        assert box is not None
        page.locator(".picture").click(position={"x": box["width"] * 0.9, "y": box["height"] * 0.9})
        assert readout(page).startswith("Token 16, row 3, column 3")
        assert colours(page.locator(".picture").screenshot()) > 16
        assert findings(page) == []


def test_a_dropped_picture_is_taken(chromium: Browser) -> None:
    with site(seeing()) as server, opened(chromium, server, "#live") as page:
        page.evaluate(
            """(bytes) => {
                const given = new DataTransfer();
                const type = "image/png";
                given.items.add(new File([new Uint8Array(bytes)], "dropped.png", { type }));
                document.querySelector("form").dispatchEvent(
                    new DragEvent("drop", { dataTransfer: given, cancelable: true, bubbles: true }));
            }""",
            list(picture()),
        )
        drawn(page)
        assert page.locator(".picture").is_visible()


# ---- what goes wrong


def test_where_there_is_nothing_the_page_says_what_to_do(chromium: Browser, tmp_path: Path) -> None:
    with site(tiny(), runs=()) as server, opened(chromium, server) as page:
        assert "outward measure smollm2 --out" in page.locator("main").inner_text()
        assert findings(page) == []
        page.get_by_role("link", name="try an input of yours").click()
        drawn(page)


def test_an_unfinished_run_is_listed_with_its_problem(chromium: Browser, tmp_path: Path) -> None:
    (tmp_path / "half" / "chunks").mkdir(parents=True)
    with site(runs=(tiny_run(), tmp_path)) as server, opened(chromium, server) as page:
        rows = page.locator(".runs li").all_inner_texts()
        assert any("half" in row and "it has no run.json" in row for row in rows)
        assert page.locator("a.line").count() == 1
        assert page.locator("#live").is_hidden()
        assert findings(page) == []


@pytest.mark.parametrize(
    ("hash_", "said", "expected"),
    [
        ("#run=nowhere", "There is no such run", NOT_FOUND),
        ("#run={run}&layer=99&head=0", "no layer 99 with a head 0", ()),
        ("#run=..%2f..%2fetc", "the explorer has no such page", NOT_FOUND),
    ],
)
def test_an_address_that_leads_nowhere(
    chromium: Browser, server: Served, hash_: str, said: str, expected: tuple[str, ...]
) -> None:
    with opened(chromium, server, hash_.format(run=run_id(server)), expected=expected) as page:
        assert said in page.get_by_role("alert").inner_text()
        page.get_by_role("link", name="All runs").click()
        page.wait_for_selector("a.line")


def test_without_a_model_nothing_is_live(chromium: Browser) -> None:
    with site() as server, opened(chromium, server, "#live") as page:
        assert "No model is loaded" in page.get_by_role("alert").inner_text()


def test_a_server_that_is_gone_is_said_to_be(chromium: Browser) -> None:
    with (
        site(tiny()) as server,
        opened(chromium, server, "#live", expected=("ERR_CONNECTION_REFUSED",)) as page,
    ):
        drawn(page)
        between = server_is_gone(page)
        page.get_by_role("button", name="Run").click()
        page.wait_for_selector(".status.bad")
        assert "The server does not answer" in page.locator(".status").inner_text()
        page.get_by_role("link", name="Outward", exact=True).click()
        page.wait_for_selector("[role=alert]")
        assert "open the address that it prints" in page.get_by_role("alert").inner_text()
        assert findings(page) == []
        between.on = False
        page.get_by_role("button", name="Try again").click()
        page.wait_for_selector("a.line")


class Between:
    """Between page and server while it is `on`: to take a route away as requests come would race."""

    def __init__(self, page: Page, pattern: str, act: Callable[["Route"], Any]) -> None:
        self.on = True
        page.route(pattern, lambda route: act(route) if self.on else route.continue_())


def server_is_gone(page: Page) -> Between:
    return Between(page, "**/api/**", lambda route: route.abort("connectionrefused"))


def test_a_model_that_is_busy_is_said_to_be(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, "#live", expected=("status of 409",)) as page:
        drawn(page)
        said = '{"error": "The model is busy with another input; wait for it, or stop it."}'
        between = Between(
            page,
            "**/api/live",
            lambda route: route.fulfill(status=409, body=said, content_type="application/json"),
        )
        page.get_by_role("button", name="Run").click()
        page.wait_for_selector(".status.bad")
        assert "busy with another input" in page.locator(".status").inner_text()
        between.on = False
        ask(page)


def test_a_run_can_be_stopped(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, "#live") as page:
        drawn(page)
        between = Between(page, "**/api/live", lambda route: None)  # no answer comes
        page.get_by_role("button", name="Run").click()
        page.get_by_role("button", name="Stop").click()
        page.wait_for_selector(".status.bad")
        assert "Stopped." in page.locator(".status").inner_text()
        between.on = False
        ask(page)
        page.unroute_all(behavior="ignoreErrors")


def test_an_empty_text_and_one_without_tokens(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, "#live") as page:
        drawn(page)
        page.get_by_label("Your text").fill("   ")
        page.get_by_role("button", name="Run").click()
        assert "Type a sentence first" in page.locator(".status").inner_text()


def test_a_result_that_another_one_took_the_place_of(chromium: Browser, server: Served) -> None:
    with opened(chromium, server, "#live", expected=NOT_FOUND) as page:
        drawn(page)
        ask(page)
        assert server.text("w9 w8").status == 200
        choose(page, "Head", "1")
        page.wait_for_selector(".status.bad")
        assert "Only the last input is kept" in page.locator(".status").inner_text()


# ---- the files


STATIC = Path(__file__).parents[2] / "src" / "outward" / "explorer" / "static"
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|setHTML|srcdoc|"
    r"createContextualFragment|DOMParser|https?://(?!www\.w3\.org/2000/svg)|@import|\bstyle="
)


def test_the_files_are_small_and_write_no_html() -> None:
    files = sorted(STATIC.iterdir())
    assert [file.name for file in files] == [
        "explorer.js",
        "index.html",
        "live.js",
        "style.css",
        "views.js",
    ]
    assert sum(file.stat().st_size for file in files) < 60_000
    for file in files:
        assert not FORBIDDEN.findall(file.read_text()), file.name
    assert "import " not in (STATIC / "views.js").read_text().replace("No imports", "")
    assert "fetch(" not in (STATIC / "views.js").read_text()


@pytest.mark.parametrize(
    "planted",
    [
        "box.innerHTML = name",
        "box.insertAdjacentHTML('beforeend', name)",
        "eval(text)",
        "import x from 'https://cdn.example/x.js'",
        "@import url(x.css)",
        "<p style='color: red'>".replace("'", '"'),
    ],
)
def test_what_is_forbidden_would_be_found(planted: str) -> None:
    assert FORBIDDEN.search(planted)


def test_settled_means_that_something_is_shown(chromium: Browser, server: Served) -> None:
    with opened(chromium, server) as page:
        assert page.locator(SETTLED).count() == 1
