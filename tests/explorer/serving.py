"""What the tests of the explorer share: a run on disk, a real server on this machine, asking it."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from engines.command import call, options, scratch
from outward.explorer.runs import Runs
from outward.explorer.safety import Access
from outward.explorer.server import access_to, app, listening, server_for

LOOPBACK = "127.0.0.1"


@cache
def run() -> Path:
    """A run of a tiny model, with a baseline and another length."""
    out = scratch() / "explored" / "tiny"
    out.parent.mkdir()
    assert call(*options(out, "--lengths", "8", "--baseline", "shuffled-tokens")) == 0
    return out


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """As the standard has it."""
        return json.loads(self.body, parse_constant=no_constant)


def no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


@dataclass(frozen=True)
class Served:
    """A server that runs, and what it told of errors."""

    access: Access
    told: list[str]

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        body: Any = None,
        headers: dict[str, str] | None = None,
        token: bool = True,
    ) -> Answer:
        """One request. The path goes out as it is given: no client tidies it up."""
        shown = {"X-Outward-Token": self.access.token} if token else {}
        connection = http.client.HTTPConnection(LOOPBACK, self.access.port, timeout=30)
        try:
            connection.request(method, path, body=body, headers={**shown, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def text(self, text: Any, **options: Any) -> Answer:
        """Give the model a text."""
        body = json.dumps({"text": text}).encode()
        return self.ask(
            "/api/live",
            method="POST",
            body=body,
            headers={"Content-Type": "application/json"},
            **options,
        )

    def raw(self, sent: bytes, *, leave: bool = False) -> bytes:
        """What comes back for these very bytes, until the server hangs up. leave: nothing follows."""
        with self.connected() as opened:
            opened.sendall(sent)
            if leave:
                opened.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: opened.recv(65536), b""))

    def connected(self) -> socket.socket:
        return socket.create_connection((LOOPBACK, self.access.port), timeout=30)


@contextmanager
def served(
    runs: tuple[Path, ...] = (),
    live: Any = None,
    hosts: tuple[str, ...] = (),
    made: ASGIApp | None = None,
) -> Iterator[Served]:
    """The app, or another, on a port that was free."""
    opened = listening(LOOPBACK, 0)
    told: list[str] = []
    access = access_to(opened, hosts)
    server = server_for(made or app(Runs(runs), live, access, told.append), debug=False)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    try:
        yield Served(access, told)
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        opened.close()
        assert not thread.is_alive()


def eventually(true: Any) -> None:
    """Within some seconds."""
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
