"""Hostile tokens, names of files and of models, through the real page: shown as text, never obeyed."""

import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as to_bytes

from browser import Browser, Page, overflow, watched
from engines.command import tiny
from explorer.pages import SETTLED, opened, origin, site
from explorer.serving import Served
from explorer.serving import run as tiny_run

LONGEST = 400
EVIL = [
    "</script><script>globalThis.harmed = 1</script>",
    "<img src=x onerror='globalThis.harmed = 1'>",
    "<svg/onload=globalThis.harmed=1>",
    "javascript:globalThis.harmed=1",
    "\"' onclick='globalThis.harmed=1",
    "${globalThis.harmed=1}{{globalThis.harmed=1}}",
    "<!--<style>*{display:none}</style>",
    "&lt;b&gt;&#0;",
    "\u202egnp.exe\u202c\u2066\u2069\u200e\u200f\u061c",
    "a\x00b\x1b[31m\x7f\x85\r\n\t",
    "\u200b\u200c\u200d\u2060\ufeff\u00ad\u034f\u180e\u2800\u3164\ufe0f\U000e0041",
    "\ud800 \udfff\udc80",
    "\u00a0\u2003\u2028\u2029\u3000",
    "\u0301\u0301\u0301a",
    "w" * 5000,
    "שלום مرحبا",
    "👩\u200d👩\u200d👧 ﷽",
    "",
    " ",
]
ALWAYS_IGNORED = set("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800")
ALWAYS_IGNORED |= {chr(c) for c in (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10))}
ALWAYS_IGNORED |= {chr(c) for c in range(0xE0000, 0xE1000)}


def shown(text: str, *, token: bool = False) -> str:
    """What the page should show for a text: `visible` of views.js, once more from Unicode's tables."""
    out = "".join(map(glyph, text))
    if out and unicodedata.category(out[0]).startswith("M"):
        out = f"◌{out}"
    if token:
        out = out.replace(" ", "·") or "∅"
    return out if len(out) <= LONGEST else out[:LONGEST] + "…"


def glyph(character: str) -> str:
    code, category = ord(character), unicodedata.category(character)
    hidden = category[0] == "C" or category in ("Zl", "Zp", "Zs") or character in ALWAYS_IGNORED
    if not hidden or character == " ":
        return character
    known = {9: "⇥", 10: "↵", 127: "␡"}
    return known.get(code) or (chr(0x2400 + code) if code < 32 else f"⟪U+{code:04X}⟫")


# Characters whose kind is not the same in all versions of Unicode are left out, but for private ones.
settled = st.characters(exclude_categories=["Cn"])
hostile = st.one_of(
    st.sampled_from(EVIL),
    st.text(settled, max_size=12),
    st.lists(st.sampled_from([*EVIL, "a", " ", "<", "\u202e"]), max_size=4).map("".join),
    st.text(
        st.sampled_from("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069\u200f<>&\"'\x00\ud800ab "),
        max_size=12,
    ),
)
thorough = settings(
    max_examples=20,
    deadline=None,  # a browser takes its time
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),  # each try is a visit: what fails is small enough
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Staged:
    """A page of the real server whose answers are ours, as JSON and arrays that a server could send."""

    def __init__(self, page: Page, start: str) -> None:
        self.page, self.start, self.visits = page, start, 0
        self.answers: dict[str, Any] = {"api/runs": {"runs": [], "live": None}}
        self.arrays: dict[str, bytes] = {}

    def answer(self, route: Any) -> None:
        path = route.request.url.split("/", 3)[3].partition("?")[0]
        if path in self.arrays:
            route.fulfill(body=self.arrays[path], content_type="application/octet-stream")
        else:
            route.fulfill(body=json.dumps(self.answers[path]), content_type="application/json")

    def go(self, hash_: str) -> None:
        """To an address, afresh: the page keeps what it was told."""
        self.visits += 1
        self.page.goto(f"{self.start}?visit={self.visits}{hash_}")
        self.page.wait_for_selector(SETTLED, state="attached")

    def unharmed(self) -> None:
        assert self.page.evaluate("globalThis.harmed === undefined")
        assert self.page.evaluate("document.scripts.length") == 1
        assert (
            self.page.evaluate("document.querySelectorAll('img, iframe, object, embed, style').length")
            == 0
        )
        assert overflow(self.page) == 0


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with site() as made:
        yield made


@pytest.fixture(scope="module")
def staged(chromium: Browser, server: Served) -> Iterator[Staged]:
    with watched(chromium, origin(server), viewport={"width": 900, "height": 800}) as page:
        made = Staged(page, origin(server))
        page.route("**/api/**", made.answer)
        page.set_default_timeout(5_000)
        page.goto(f"{origin(server)}?token={server.access.token}")
        page.wait_for_selector(SETTLED, state="attached")
        yield made


def raw(page: Page, selector: str) -> list[str]:
    """The text of the nodes, before any style."""
    found: list[str] = page.evaluate(
        "(s) => [...document.querySelectorAll(s)].map((node) => node.textContent)", selector
    )
    return found


def one_run(name: str, problem: str | None = None) -> dict[str, Any]:
    about = {"kind": "measure", "model": name, "data": name, "layers": 1, "heads": 2, "windows": 3}
    return {"id": "x", "name": name, "series": ["main", name], "problem": problem, **about}


@thorough
@given(names=st.lists(hostile, min_size=1, max_size=8))
@example(names=EVIL)
def test_names_in_the_list(staged: Staged, names: list[str]) -> None:
    runs = [one_run(name, f"!{name}" if n % 3 == 2 else None) for n, name in enumerate(names)]
    staged.answers["api/runs"] = {"runs": runs, "live": None}
    staged.go("#")
    assert raw(staged.page, ".runs b") == [shown(name) for name in names]
    problems = [shown(f"!{name}") for n, name in enumerate(names) if n % 3 == 2]
    assert raw(staged.page, ".why") == problems
    staged.unharmed()


@thorough
@given(name=hostile, sentence=hostile)
@example(name=EVIL[0], sentence=EVIL[1])
@example(name=EVIL[14], sentence=EVIL[8])
@example(name=EVIL[11] + EVIL[14], sentence=EVIL[11])
def test_names_and_sentences_of_a_run(staged: Staged, name: str, sentence: str) -> None:
    heads = [
        {"layer": 0, "head": h, "module": name, "self_similarity": 0.5, name + "!": 0.25}
        for h in (0, 1)
    ]
    document = {
        "id": "x",
        "name": name,
        "summary": {"heads": heads, "warnings": [sentence]},
        "reading": [sentence],
        "about": {
            "model": {"id": name},
            "data": {"data": name},
            "command": sentence,
            "finished": sentence,
            "windows": {"main": 1},
            "documents": {"main": 1},
        },
        "series": ["main", name],
        "measures": {
            "self_similarity": {"kind": "cosine", "what": sentence},
            name + "!": {"kind": "", "what": sentence},
        },
        "others": {name: {"heads": heads}},
    }
    staged.answers["api/runs"] = {"runs": [], "live": None}
    staged.answers["api/runs/x"] = document
    staged.go("#run=x")
    page = staged.page
    assert raw(page, "h1") == [shown(name)]
    assert raw(page, ".words li") == [shown(sentence)] * 2
    assert raw(page, "main pre") == ([shown(sentence)] if sentence else [])
    assert raw(page, "section code") == [shown(sentence)]
    assert page.title() == " ".join(f"{shown(name)} · Outward".split())
    staged.unharmed()
    spread = {
        "n": 5,
        "mean": 0.5,
        "std": 0.1,
        "min": 0.1,
        "max": 0.9,
        "q05": 0.2,
        "q50": 0.5,
        "q95": 0.8,
    }
    head = {
        "layer": 0,
        "head": 1,
        "module": name,
        "measures": {"self_similarity": spread, name + "!": spread},
        "places": {},
        "histograms": {},
    }
    staged.answers["api/runs/x/heads/0/1"] = head
    staged.go("#run=x&layer=0&head=1")
    assert raw(page, ".facts") == [shown(name)]
    assert raw(page, ".measures button")[-1] == shown(name + "!").replace("_", " ").split("; ")[0]
    staged.unharmed()


def tell_live(staged: Staged, tokens: list[str], model: str = "m") -> None:
    """As if a model had been given these tokens."""
    many = len(tokens)
    live = {"model": model, "kind": "text", "layers": 1, "heads": 1, "max_tokens": 99}
    said = {
        "id": "y",
        "kind": "text",
        "tokens": tokens,
        "cut": False,
        "grid": None,
        "prefix": 0,
        "layers": [{"layer": 0, "module": "m", "heads": 1, "tokens": many}],
        "seconds": 0.1,
    }
    per_token = np.full((1, 1, many), 0.25, np.float16)
    names = ("self_weight", "self_similarity", "null_similarity")
    flat = np.full((many, many), 200, np.uint8)
    numbers = ("self_weight", "self_similarity", "removed", "size", "size_exclusive", "attention_max")
    matrices = ("attention", "context", "context_exclusive", "returns", "returns_exclusive")
    staged.answers |= {"api/runs": {"runs": [], "live": live}, "api/live": said}
    staged.arrays = {
        "api/live/y/tokens": to_bytes(dict.fromkeys(names, per_token)),
        "api/live/y/heads/0/0": to_bytes(
            {name: np.full(many, 0.5, np.float32) for name in numbers}
            | {name: np.full(many, n, np.float32) for name, n in (("seen_from", 0), ("seen_to", many))}
            | dict.fromkeys(matrices, flat)
        ),
    }


@thorough
@given(tokens=st.lists(hostile, min_size=1, max_size=10))
@example(tokens=EVIL)
def test_tokens(staged: Staged, tokens: list[str]) -> None:
    tell_live(staged, tokens, model=tokens[0])
    page = staged.page
    staged.go("#live")
    page.wait_for_selector("#facts b")
    assert raw(page, "[role=option]") == [shown(token, token=True) for token in tokens]
    assert raw(page, "#live") == [f"Live: {shown(tokens[0])}"]
    page.locator("[role=option]").last.click()
    last = len(tokens) - 1
    assert raw(page, "#facts b")[0] == f"Token {last}, “{shown(tokens[last], token=True)}”"
    top = [shown(token, token=True) for token in tokens[:10]]
    assert [name.removesuffix(" itself") for name in raw(page, ".largest .name")] == top * 2
    staged.unharmed()


# ---- the siblings: what would be seen if the page were not careful


@pytest.mark.parametrize("evil", EVIL[:2])
def test_a_careless_page_would_be_harmed(chromium: Browser, server: Served, evil: str) -> None:
    with pytest.raises(AssertionError):
        carelessly_shown(chromium, server, evil)


def carelessly_shown(browser: Browser, server: Served, evil: str) -> None:
    with watched(browser, origin(server)) as page:
        page.goto(f"{origin(server)}?token={server.access.token}")
        page.wait_for_selector(SETTLED, state="attached")
        page.evaluate("(evil) => { document.querySelector('main').innerHTML = evil; }", evil)
        page.wait_for_timeout(100)
        Staged(page, origin(server)).unharmed()


def test_text_that_is_not_made_visible_would_be_noticed(staged: Staged) -> None:
    staged.answers["api/runs"] = {"runs": [one_run("\u202eabc")], "live": None}
    staged.go("#")
    assert raw(staged.page, ".runs b") == ["⟪U+202E⟫abc"] != ["\u202eabc"]
    staged.page.evaluate("document.querySelector('.runs b').textContent = 'w'.repeat(5000)")
    staged.page.evaluate("document.body.style.overflowWrap = 'normal'")
    assert overflow(staged.page) > 0


# ---- once more with nothing staged


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "\u202egnp", "a\nb"])
def test_a_real_folder_of_that_name(
    chromium: Browser, tmp_path: Path, name: str, copied: Callable[[Path], None]
) -> None:
    copied(tmp_path / name)
    with site(runs=(tmp_path,)) as server, opened(chromium, server) as page:
        assert raw(page, ".runs b") == [shown(name)]
        page.locator("a.line").click()
        page.wait_for_selector(".cell")
        assert raw(page, "h1") == [shown(name)]


@pytest.fixture
def copied() -> Callable[[Path], None]:
    """A run, copied to a place."""

    def copy(place: Path) -> None:
        place.mkdir()
        for file in tiny_run().iterdir():
            if file.is_file():
                (place / file.name).write_bytes(file.read_bytes())

    return copy


def test_a_real_text_of_that_kind(chromium: Browser) -> None:
    text = "w1 <img src=x onerror=globalThis.harmed=1> w2"
    with site(tiny()) as server, opened(chromium, server, "#live") as page:
        page.get_by_label("Your text").fill(text)
        page.get_by_role("button", name="Run").click()
        page.wait_for_selector("#facts b")
        assert page.evaluate("globalThis.harmed === undefined")
