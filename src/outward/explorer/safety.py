"""Who is answered: Host, token, Origin and size of every request, checked before the app sees it.

A page elsewhere can make a browser ask any address of this machine, also by a name of its own that it
lets point here. Host tells such names; the token, those who were not given the address; Origin, other
pages. What is refused reaches no part of the app, and every answer carries HEADERS.
"""

import hmac
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outward.results import finite

CONTENT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MOST_BYTES = 16 * 2**20
MOST_DROPPED = 8 * MOST_BYTES
"""A client that is still sending hears no answer: up to here, what is too long is read and dropped."""
Headers = list[tuple[str, str]]


class RefusedError(Exception):
    """A request that is not done as asked: the status of HTTP, and one sentence that says why."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Access:
    """By which names the server is asked, and with what token. hosts: others than LOOPBACK."""

    token: str
    port: int
    hosts: tuple[str, ...] = ()

    @property
    def cookie(self) -> str:
        """Its name. Cookies do not tell ports apart: two explorers would overwrite each other's."""
        return f"outward-{self.port}"

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server."""
        names = (*LOOPBACK, *(name.lower() for name in self.hosts))
        return host.lower() in {*names, *(f"{name}:{self.port}" for name in names)}

    def opens(self, token: str) -> bool:
        """Whether it is the token; how long that takes tells nothing of it."""
        return hmac.compare_digest(token.encode(), self.token.encode())


class Guard:
    """The app, behind all checks."""

    def __init__(self, app: ASGIApp, access: Access, *, most_bytes: int = MOST_BYTES) -> None:
        self.app, self.access, self.most_bytes = app, access, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        send = _with_headers(send)
        try:
            if self._enters(scope):
                await self._let_in(send)
                return
            body = await self._body(scope, receive)
        except RefusedError as error:
            at_the_door = (scope["path"], scope["method"], error.status) == ("/", "GET", 403)
            await answer(send, error.status, str(error) if at_the_door else {"error": str(error)})
            return
        if body is not None:
            await self.app(scope, _again(body, receive), send)

    def _enters(self, scope: Scope) -> bool:
        """Whether it brings the token in its address. What may not be answered at all is refused."""
        self._check_host(scope)
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        enters = scope["path"] == "/" and scope["method"] == "GET"
        if enters and any(map(self.access.opens, asked)):
            return True
        if not any(map(self.access.opens, _tokens(scope, self.access.cookie))):
            raise RefusedError(
                403, "Open the address that `outward explore` printed: it has the token."
            )
        if scope["method"] not in ("GET", "HEAD"):
            _check_origin(scope)
        return False

    def _check_host(self, scope: Scope) -> None:
        hosts = _values(scope, "host")
        if len(hosts) != 1 or not self.access.knows(hosts[0]):
            raise RefusedError(
                400,
                f"This server is not asked as {', '.join(hosts)[:100] or 'nobody'}: open the address "
                "that `outward explore` printed, or name the host with --allowed-host.",
            )

    async def _let_in(self, send: Send) -> None:
        """The token goes from the address, which histories keep, into a cookie."""
        value = f"{self.access.cookie}={self.access.token}; HttpOnly; SameSite=Strict; Path=/"
        await answer(send, 303, {}, [("location", "/"), ("set-cookie", value)])

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """All of it, sent in one piece or in chunks; None where the client left meanwhile."""
        too_long = RefusedError(
            413, f"More than {self.most_bytes / 2**20:g} MiB were sent; give a smaller picture or text."
        )
        declared = _values(scope, "content-length")
        if any(not n.isdecimal() or len(n) > 18 or int(n) > MOST_DROPPED for n in declared):
            raise too_long
        kept, size = [], 0
        while size <= MOST_DROPPED:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            piece = message.get("body", b"")
            size += len(piece)
            if size <= self.most_bytes:
                kept.append(piece)
            if not message.get("more_body", False):
                break
        if size > self.most_bytes:
            raise too_long
        return b"".join(kept)


async def answer(send: Send, status: int, document: Any, headers: Headers | None = None) -> None:
    """A JSON document; a sentence as it is, for people to read; nothing for an empty one."""
    is_text = isinstance(document, str)
    body = document.encode() if is_text else as_bytes(document) if document else b""
    kind = [("content-type", "text/plain; charset=utf-8" if is_text else "application/json")]
    fields = [*(kind if body else []), ("content-length", str(len(body))), *(headers or [])]
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def as_bytes(document: Any) -> bytes:
    """JSON in ASCII, without NaN: half a surrogate pair, as names of files hold it, is escaped too."""
    return json.dumps(finite(document), allow_nan=False, separators=(",", ":")).encode("ascii")


def phrase(status: int) -> str:
    """What a status of HTTP is called."""
    return HTTPStatus(status).phrase


def _check_origin(scope: Scope) -> None:
    """What changes something is asked by our own page, or by no page at all."""
    (host,) = _values(scope, "host")
    ours = (f"http://{host}".lower(), f"https://{host}".lower())  # https: by a proxy in front
    others = [x for x in _values(scope, "origin") if x.lower() not in ours]
    sites = [x for x in _values(scope, "sec-fetch-site") if x not in ("same-origin", "none")]
    if others or sites:
        raise RefusedError(403, "Another page asked for this; only the explorer's own page may.")


def _tokens(scope: Scope, cookie: str) -> list[str]:
    """All that a request shows as one: of a cookie there may be several."""
    pairs = [pair.partition("=") for line in _values(scope, "cookie") for pair in line.split(";")]
    shown = [value.strip() for name, _, value in pairs if name.strip() == cookie]
    return shown + _values(scope, "x-outward-token")


def _values(scope: Scope, name: str) -> list[str]:
    """Of a header, which may be there several times."""
    return [v.decode("latin-1") for n, v in scope["headers"] if n.lower() == name.encode()]


def _with_headers(send: Send) -> Send:
    added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    names = {name for name, _ in added}

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [(n, v) for n, v in message.get("headers", []) if n.lower() not in names]
            message = {**message, "headers": [*own, *added]}
        await send(message)

    return sent


def _again(body: bytes, receive: Receive) -> Receive:
    """The body that was read already, and after it whatever comes: that the client is gone."""
    told = False

    async def heard() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return heard
