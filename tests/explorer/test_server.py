"""The routes, asked of a real server; one live run at a time, and only while somebody waits."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as read_arrays

from engines.command import scratch
from explorer.serving import LOOPBACK, Served, eventually, run, served
from outward.explorer.runs import Runs
from outward.explorer.safety import Access, RefusedError
from outward.explorer.server import STATIC, ServeError, address, listening
from outward.results import load

SECRET = "nobody may read this"
TRAVERSALS = [
    "/static/../runs.py",
    "/static/%2e%2e/runs.py",
    "/static/..%2fruns.py",
    "/static/%2e%2e%2fruns.py",
    "/static/..%5cruns.py",
    "/static/....//runs.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/views.js/../../runs.py",
    "/static/views.js%00",
    "/static/.",
    "/static/",
    "/static",
    "/static/index.html",
    "//etc/passwd",
    "/../../../../etc/passwd",
    "/api/runs/..",
    "/api/runs/../static",
    "/api/runs/{folder}",
    "/api/runs/%2e%2e%2f{name}",
    "/api/runs/{name}",
    "/api/runs/{name}/heads/0/0",
    "/api/runs/{id}%2f..%2f{id}",
    "/api/runs/{id}/heads/0/0%2f..",
    "/api/runs/{id}/heads/../../..",
    "/api/runs/{id}/",
    "/api/runs/{id}/run.json",
]
NUMBERS = ["-1", "1e0", "x", "0x0", "%20", "²", "9" * 5000, "1000000", "0.0"]


class Model:
    """What stands for a model: it answers when it is told to, and says whether it was stopped."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.go, self.stopped = Event(), 0

    def info(self) -> dict[str, Any]:
        return {"model": "m", "kind": "text", "layers": 1, "heads": 1, "max_tokens": 9}

    def run(self, given: str | bytes, stop: Event) -> dict[str, Any]:
        self.given.append(given)
        while not self.go.wait(0.02):
            if stop.is_set():
                self.stopped += 1
                raise RefusedError(503, "Stopped.")
        return {"id": "a", "tokens": [given if isinstance(given, str) else "picture"]}

    def tokens(self, id: str) -> dict[str, Any]:  # noqa: A002
        if id != "a":
            raise RefusedError(404, "Only the last input is kept.")
        return {"self_weight": np.array([[[0.5, np.nan]]], np.float16)}

    def head(self, id: str, layer: int, head: int, names: Any) -> dict[str, Any]:  # noqa: A002
        return {"asked": np.array([layer, head]), "names": np.array([len(names or ())])}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    (scratch() / "secret.txt").write_text(SECRET)
    with served((run(),)) as made:
        yield made


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def live(model: Model) -> Iterator[Served]:
    with served((), model) as made:
        yield made


def in_background(work: Any) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    return thread, found


# ---- runs


def test_the_page_and_its_files(server: Served) -> None:
    page = server.ask("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b"<!doctype html>" in page.body.lower()
    for name, kind in STATIC.items():
        answer = server.ask(f"/static/{name}")
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
        assert answer.body == (files("outward.explorer") / "static" / name).read_bytes()


def test_the_page_asks_for_nothing_that_is_not_there(server: Served) -> None:
    page = server.ask("/").body.decode()
    asked = re.findall(r'(?:src|href)="(/[^"#]+)"', page)
    assert asked
    for path in asked:
        assert server.ask(path).status == 200


def test_a_run_from_the_list_to_a_head(server: Served) -> None:
    listed = server.ask("/api/runs")
    assert listed.headers["content-type"] == "application/json"
    assert listed.json["live"] is None
    (one,) = listed.json["runs"]
    document = server.ask(f"/api/runs/{one['id']}").json
    assert document["summary"]["heads"] == Runs((run(),)).document(one["id"])["summary"]["heads"]
    head = server.ask(f"/api/runs/{one['id']}/heads/1/3?series=length%3D8").json
    assert head == json.loads(json.dumps(Runs((run(),)).head(one["id"], 1, 3, "length=8")))
    assert server.ask(f"/api/runs/{one['id']}/heads/1/3").json["head"] == 3
    assert server.ask(f"/api/runs/{one['id']}/heads/1/3?series=none").status == 404


def test_json_never_holds_nan(server: Served, tmp_path: Path) -> None:
    """Of a layer without a pair of tokens nothing is known: in the tables that is NaN."""
    frame = load(run()).tables["profile"].to_pandas()
    assert frame.isna().any().any()
    (one,) = server.ask("/api/runs").json["runs"]
    for layer in range(2):
        assert server.ask(f"/api/runs/{one['id']}/heads/{layer}/0").json["places"]


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_path_leads_out(server: Served, path: str) -> None:
    (one,) = server.ask("/api/runs").json["runs"]
    asked = path.format(folder=run(), name="tiny", id=one["id"])
    answer = server.ask(asked)
    assert answer.status == 404, answer.body[:200]
    assert set(answer.json) == {"error"}
    assert SECRET.encode() not in answer.body


def test_a_whole_url_for_a_path_is_no_path(server: Served) -> None:
    head = f"X-Outward-Token: {server.access.token}\r\nConnection: close\r\n\r\n".encode()
    for host, status in ((b"localhost", b"404"), (b"evil.com", b"400")):
        for target in (b"http://evil.com/api/runs", b"http://localhost/api/runs"):
            sent = b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n" + head
            assert server.raw(sent).split()[1] == status


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_that_is_none(server: Served, number: str) -> None:
    (one,) = server.ask("/api/runs").json["runs"]
    number = number.replace("²", "%C2%B2")
    for path in (f"{number}/0", f"0/{number}"):
        assert server.ask(f"/api/runs/{one['id']}/heads/{path}").status == 404


def test_only_what_is_meant_is_done(server: Served) -> None:
    for path in ("/", "/static/views.js", "/api/runs", "/api/runs/x", "/api/runs/x/heads/0/0"):
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            answer = server.ask(path, method=method)
            assert answer.status == 405
            assert set(answer.json) == {"error"}
    assert server.ask("/api/live").status == 405
    assert server.ask("/", method="HEAD").body == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"no request at all\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\0\r\n",
    ],
)
def test_what_is_no_request_is_refused(server: Served, sent: bytes) -> None:
    assert server.raw(sent, leave=True)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431", b"")
    assert server.ask("/api/runs").status == 200


# ---- live


def test_without_a_model_nothing_is_live(server: Served) -> None:
    for answer in (
        server.text("a"),
        server.ask("/api/live/a/tokens"),
        server.ask("/api/live/a/heads/0/0"),
    ):
        assert answer.status == 404
        assert "--model" in answer.json["error"]


def test_a_text_and_what_came_of_it(live: Served, model: Model) -> None:
    model.go.set()
    assert live.ask("/api/runs").json == {"runs": [], "live": model.info()}
    assert live.text("the cat").json == {"id": "a", "tokens": ["the cat"]}
    answer = live.ask("/api/live/a/tokens")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert int.from_bytes(answer.body[:8], "little") < len(answer.body)
    np.testing.assert_array_equal(read_arrays(answer.body)["self_weight"], [[[0.5, np.nan]]])
    assert live.ask("/api/live/b/tokens").status == 404
    found = read_arrays(live.ask("/api/live/a/heads/3/2?matrices=attention,context").body)
    assert found["asked"].tolist() == [3, 2]
    assert found["names"].tolist() == [2]
    assert live.ask("/api/live/a/heads/x/2").status == 404


def test_a_picture_by_its_type(live: Served, model: Model) -> None:
    model.go.set()
    kind = {"Content-Type": "image/png"}
    answer = live.ask("/api/live", method="POST", body=b"\x89PNG", headers=kind)
    assert answer.json["tokens"] == ["picture"]
    assert model.given == [b"\x89PNG"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"[]", "application/json"),
        (b'"text"', "application/json"),
        (b"{}", "application/json"),
        (b'{"text": 1}', "application/json"),
        (b'{"text": null}', "application/json"),
        (b"\xff\xfe", "application/json"),
        (b"[" * 200_000, "application/json"),
        (b'{"text": "a"}', "text/plain"),
        (b'{"text": "a"}', ""),
        (b"text=a", "application/x-www-form-urlencoded"),
        (b"a", "multipart/form-data; boundary=a"),
    ],
)
def test_what_is_no_input(live: Served, model: Model, body: bytes, kind: str) -> None:
    answer = live.ask("/api/live", method="POST", body=body, headers={"Content-Type": kind})
    assert answer.status == 400
    assert "text" in answer.json["error"]
    assert model.given == []


def test_one_at_a_time(live: Served, model: Model) -> None:
    thread, first = in_background(lambda: live.text("first"))
    eventually(lambda: model.given)
    assert live.text("second").status == 409
    assert live.ask("/api/runs").status == 200  # all else goes on
    model.go.set()
    thread.join(10)
    assert first[0].status == 200
    assert live.text("third").status == 200
    assert model.given == ["first", "third"]


def begun(live: Served, text: str) -> socket.socket:
    """A client that has asked, and waits."""
    body = json.dumps({"text": text}).encode()
    opened = live.connected()
    opened.sendall(
        b"POST /api/live HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        + f"X-Outward-Token: {live.access.token}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return opened


def test_a_run_ends_when_its_client_goes(live: Served, model: Model) -> None:
    with begun(live, "first"):
        eventually(lambda: model.given)
        assert model.stopped == 0
    eventually(lambda: model.stopped)


def test_the_next_input_does_not_hear_of_the_one_that_was_given_up(live: Served, model: Model) -> None:
    """A page that stops one and sends another at once is not told that the model is busy."""
    with begun(live, "first"):
        eventually(lambda: model.given)
    eventually(lambda: model.stopped)
    model.go.set()
    assert live.text("second").json["tokens"] == ["second"]


def test_while_its_client_waits_it_goes_on(live: Served, model: Model) -> None:
    with begun(live, "first") as opened:
        eventually(lambda: model.given)
        assert not Event().wait(0.5)
        assert model.stopped == 0
        model.go.set()
        assert b" 200 " in opened.recv(100)[:20]


def test_the_end_of_the_server_ends_a_run(model: Model) -> None:
    with served((), model) as made:
        opened = begun(made, "first")
        eventually(lambda: model.given)
    with opened:
        eventually(lambda: model.stopped)


def test_what_a_run_raises_is_told(live: Served, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(given: Any, stop: Event) -> None:
        raise RefusedError(422, "There is no token in this text; give another.")

    monkeypatch.setattr(model, "run", fails)
    answer = live.text("")
    assert (answer.status, answer.json) == (
        422,
        {"error": "There is no token in this text; give another."},
    )


# ---- serving


def test_a_port_that_is_taken_is_named() -> None:
    with listening(LOOPBACK, 0) as opened:
        port = opened.getsockname()[1]
        with pytest.raises(ServeError, match=f"127.0.0.1, port {port}, cannot be served on: .*--port"):
            listening(LOOPBACK, port)


def test_a_host_that_is_none_is_named() -> None:
    with pytest.raises(ServeError, match=r"256\.0\.0\.1, port 0, cannot be served on"):
        listening("256.0.0.1", 0)


@pytest.mark.parametrize(
    ("host", "begins"),
    [
        ("127.0.0.1", "http://127.0.0.1:7/?token=t"),
        ("::1", "http://[::1]:7/?token=t"),
        ("gpu.example", "http://gpu.example:7/?token=t"),
        ("gpu.example:80", "http://gpu.example:80/?token=t"),
        ("[fd00::7]", "http://[fd00::7]:7/?token=t"),
        ("[fd00::7]:80", "http://[fd00::7]:80/?token=t"),
    ],
)
def test_the_address_to_open(host: str, begins: str) -> None:
    assert address(Access("t", 7), host) == begins
