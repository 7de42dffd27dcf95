"""Who is answered, against a real server; and that the app behind it would have answered."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from explorer.serving import Served, run, served
from outward.explorer.runs import Runs
from outward.explorer.safety import (
    CONTENT,
    HEADERS,
    MOST_BYTES,
    MOST_DROPPED,
    Access,
    Guard,
    as_bytes,
)
from outward.explorer.server import app

EVIL = [
    "evil.com",
    "127.0.0.1.evil.com",
    "127.0.0.1@evil.com",
    "localhost.",
    "localhost:1",
    "127.0.0.1:80",
    "127.1",
    "0.0.0.0",
    "[::]",
    "*",
    "other.example",
    "gpu.example.evil.com",
]
ORIGINS = [
    ({}, 404),
    ({"Origin": "http://127.0.0.1:{port}"}, 404),
    ({"Origin": "HTTP://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"}, 404),
    ({"Sec-Fetch-Site": "none"}, 404),
    ({"Origin": "https://127.0.0.1:{port}"}, 404),
    ({"Origin": "http://127.0.0.1:1"}, 403),
    ({"Origin": "http://localhost:{port}"}, 403),
    ({"Origin": "http://127.0.0.1:{port}.evil.com"}, 403),
    ({"Origin": "http://evil.com"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": ""}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403),
    ({"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "cross-site"}, 403),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served((run(),), hosts=("gpu.example", "[fd00::7]:99")) as made:
        yield made


# ---- Host


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LocalHost", "[::1]", "gpu.example"])
def test_a_host_by_its_names(server: Served, name: str) -> None:
    for host in (name, f"{name}:{server.access.port}"):
        assert server.ask("/api/runs", headers={"Host": host}).status == 200


@pytest.mark.parametrize("host", EVIL)
@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/views.js", "/nowhere"])
def test_another_host_is_refused_whatever_it_asks(server: Served, host: str, path: str) -> None:
    answer = server.ask(path, headers={"Host": host})
    assert answer.status == 400
    assert host in answer.json["error"]
    assert "--allowed-host" in answer.json["error"]


def test_the_right_token_does_not_help_another_host(server: Served) -> None:
    answer = server.ask(f"/?token={server.access.token}", headers={"Host": "evil.com"})
    assert answer.status == 400
    assert "set-cookie" not in answer.headers


def test_an_allowed_host_with_a_port_is_that_port(server: Served) -> None:
    assert server.ask("/api/runs", headers={"Host": "[fd00::7]:99"}).status == 200
    assert server.ask("/api/runs", headers={"Host": "[fd00::7]"}).status == 400


@pytest.mark.parametrize("hosts", [b"", b"Host: localhost\r\nHost: evil.com\r\n"])
def test_no_host_and_two_of_them(server: Served, hosts: bytes) -> None:
    token = server.access.token.encode()
    for version in (b"1.1", b"1.0"):
        request = b"GET /api/runs HTTP/" + version + b"\r\n" + hosts
        assert b" 400 " in server.raw(request + b"X-Outward-Token: " + token + b"\r\n\r\n")[:20]


# ---- the token


def test_the_address_lets_in_by_a_cookie_and_forgets_the_token(server: Served) -> None:
    token, port = server.access.token, server.access.port
    answer = server.ask(f"/?token={token}", token=False)
    assert answer.status == 303
    assert answer.headers["location"] == "/"
    assert answer.headers["set-cookie"] == (
        f"outward-{port}={token}; HttpOnly; SameSite=Strict; Path=/"
    )
    cookie = {"Cookie": f"other=1; outward-{port}={token}"}
    assert server.ask("/", token=False, headers=cookie).status == 200
    assert server.ask("/api/runs", token=False, headers=cookie).status == 200


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/views.js", "/api/live", "/nowhere"])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "DELETE"])
def test_nothing_is_answered_without_the_token(server: Served, path: str, method: str) -> None:
    assert server.ask(path, token=False, method=method).status == 403


def test_what_is_nearly_the_token_is_not(server: Served) -> None:
    token, name = server.access.token, server.access.cookie
    wrong = [token[:-1], token + "A", token.swapcase(), "", "é", "%00", "\xff"]
    for guess in wrong:
        for headers in ({"X-Outward-Token": guess}, {"Cookie": f"{name}={guess}"}):
            assert server.ask("/api/runs", token=False, headers=headers).status == 403
    for headers in ({"Cookie": f"outward-1={token}"}, {"Cookie": token}, {"Authorization": token}):
        assert server.ask("/api/runs", token=False, headers=headers).status == 403


@pytest.mark.parametrize("query", ["?token=no", "?token=", "?Token={token}", "?x=1&token=no"])
def test_another_token_in_the_address_lets_nobody_in(server: Served, query: str) -> None:
    answer = server.ask("/" + query.format(token=server.access.token), token=False)
    assert answer.status == 403
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.body == b"Open the address that `outward explore` printed: it has the token."
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize(("path", "method"), [("/", "POST"), ("/api/runs", "GET"), ("/nowhere", "GET")])
def test_what_is_asked_by_scripts_is_refused_in_json(server: Served, path: str, method: str) -> None:
    answer = server.ask(path, token=False, method=method)
    assert answer.headers["content-type"] == "application/json"
    assert "outward explore" in answer.json["error"]


def test_the_token_in_the_address_is_for_the_first_page_alone(server: Served) -> None:
    token = server.access.token
    assert server.ask(f"/api/runs?token={token}", token=False).status == 403
    assert server.ask(f"/?token={token}", token=False, method="POST").status == 403


def test_tokens_differ_and_are_long() -> None:
    with served((run(),)) as one, served((run(),)) as other:
        assert one.access.token != other.access.token
        assert len(one.access.token) >= 32
        assert other.ask("/api/runs", headers={"X-Outward-Token": one.access.token}).status == 403


# ---- Origin


@pytest.mark.parametrize(("headers", "status"), ORIGINS)
def test_what_changes_something_is_asked_by_our_page(
    server: Served, headers: dict[str, str], status: int
) -> None:
    """404: there is no model here; the guard let it pass."""
    given = {name: value.format(port=server.access.port) for name, value in headers.items()}
    assert server.text("a", token=True).status == 404
    answer = server.ask(
        "/api/live", method="POST", body=b"{}", headers={"Content-Type": "application/json", **given}
    )
    assert answer.status == status


# ---- size


def test_a_body_that_is_too_long_is_refused_by_its_length(server: Served) -> None:
    answer = server.ask("/api/live", method="POST", body=b"x" * (MOST_BYTES + 1))
    assert answer.status == 413
    assert "16 MiB" in answer.json["error"]


@pytest.mark.parametrize("length", [MOST_DROPPED + 1, 10**17, 10**30])
def test_one_that_is_far_too_long_is_not_even_read(server: Served, length: int) -> None:
    head = f"POST /api/live HTTP/1.1\r\nHost: localhost\r\nX-Outward-Token: {server.access.token}\r\n"
    with server.connected() as opened:
        opened.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
        assert opened.recv(4096).split()[1] in (b"413", b"400")  # 10**30: h11 has its own limit


def test_so_is_one_in_chunks_without_a_length(server: Served) -> None:
    chunk = b"x" * 2**20
    answer = server.ask("/api/live", method="POST", body=iter([chunk] * 17))
    assert answer.status == 413


def test_as_much_as_allowed_is_let_through(server: Served) -> None:
    for body in (b"x" * MOST_BYTES, iter([b"x" * 2**20] * 16)):
        assert server.ask("/api/live", method="POST", body=body).status == 404


def test_a_client_that_leaves_in_the_middle_harms_nobody(server: Served) -> None:
    head = f"POST /api/live HTTP/1.1\r\nHost: localhost\r\nX-Outward-Token: {server.access.token}\r\n"
    with server.connected() as opened:
        opened.sendall(f"{head}Content-Length: 100\r\n\r\nabc".encode())
    assert server.ask("/api/runs").status == 200
    assert server.told == []


# ---- headers


def answers(server: Served) -> dict[int, dict[str, str]]:
    """The headers of answers of every kind, by status."""
    asked = [
        server.ask("/"),
        server.ask("/api/runs"),
        server.ask("/static/views.js"),
        server.ask(f"/?token={server.access.token}"),
        server.ask("/", headers={"Host": "evil.com"}),
        server.ask("/", token=False),
        server.ask("/nowhere"),
        server.ask("/", method="DELETE"),
        server.ask("/api/live", method="POST", body=b"x" * (MOST_BYTES + 1)),
    ]
    return {a.status: a.headers for a in asked}


def test_every_answer_carries_all_headers(server: Served) -> None:
    found = answers(server)
    assert sorted(found) == [200, 303, 400, 403, 404, 405, 413]
    for headers in found.values():
        assert HEADERS.items() <= headers.items()
        assert not [name for name in headers if name.startswith("access-control")]
        assert not {"server", "date", "x-powered-by"} & set(headers)


def test_the_policy_runs_no_script_that_is_not_ours() -> None:
    rules = dict(rule.split(" ", 1) for rule in CONTENT.split("; "))
    assert rules.pop("img-src") == "'self' data: blob:"
    assert {n for n, x in rules.items() if x == "'self'"} == {"script-src", "style-src", "connect-src"}
    assert {n for n, x in rules.items() if x == "'none'"} == {
        "default-src",
        "base-uri",
        "form-action",
        "frame-ancestors",
    }
    assert "unsafe" not in CONTENT


def test_an_error_that_nobody_foresaw_is_told_here_and_not_to_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(self: Runs) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Runs, "listed", fails)
    with served((run(),)) as made:
        answer = made.ask("/api/runs")
        assert answer.status == 500
        assert b"secret" not in answer.body
        assert HEADERS.items() <= answer.headers.items()
        assert made.told == ["/api/runs: ZeroDivisionError: secret; --debug shows where it comes from"]


def test_other_protocols_are_hung_up_on() -> None:
    """A websocket asks with no Origin check of the browser's: there is none here."""
    sent = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    guard = app(Runs((run(),)), None, Access("t", 1), print)
    asyncio.run(guard({"type": "websocket", "path": "/", "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


# ---- that all of this is the guard's doing


def test_without_the_guard_all_of_it_would_be_answered() -> None:
    guard = app(Runs((run(),)), None, Access("unknown", 1), print)
    assert isinstance(guard, Guard)
    with served(made=guard.app) as bare:
        for headers in ({"Host": "evil.com"}, {"Origin": "http://evil.com"}):
            answer = bare.ask("/api/runs", token=False, headers=headers)
            assert answer.status == 200
            assert not HEADERS.keys() & answer.headers.keys()
        long = bare.ask("/api/live", token=False, method="POST", body=b"x" * (MOST_BYTES + 1))
        assert long.status == 404


def test_json_is_ascii_without_nan_and_survives_names_that_are_no_unicode() -> None:
    document = {"a": float("nan"), "b": "\ud800</script>\u2028", "c": [float("inf"), 1]}
    assert as_bytes(document) == b'{"a":null,"b":"\\ud800</script>\\u2028","c":[null,1]}'
