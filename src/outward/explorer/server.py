"""The app: what is asked for by which address, and serving it on this machine."""

import asyncio
import json
import re
import secrets
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from outward.explorer.runs import Runs
from outward.explorer.safety import Access, Guard, RefusedError, as_bytes, phrase
from outward.results import save_arrays

if TYPE_CHECKING:
    from outward.explorer.live import Live

T = TypeVar("T")
Tell = Callable[[str], None]
STATIC = {
    "explorer.js": "text/javascript",
    "views.js": "text/javascript",
    "live.js": "text/javascript",
    "style.css": "text/css",
}
POLL = 0.05  # seconds from one look whether the client is still there to the next
LETS_GO = 10.0  # seconds that a run which nobody waits for may take to its end
CLOSES = 1  # seconds for answers that are on their way when the server ends


class ServeError(Exception):
    """An address that cannot be served on."""


def app(runs: Runs, live: "Live | None", access: Access, tell: Tell) -> ASGIApp:
    """Everything, behind its guard. tell: what becomes of an error that nobody foresaw."""
    pages = _Pages(runs, live)
    routes = [
        Route("/", pages.index),
        Route("/static/{name}", pages.static),
        Route("/api/runs", pages.runs),
        Route("/api/runs/{run}", pages.run),
        Route("/api/runs/{run}/heads/{layer}/{head}", pages.head),
        Route("/api/live", pages.begin, methods=["POST"]),
        Route("/api/live/{id}/tokens", pages.tokens),
        Route("/api/live/{id}/heads/{layer}/{head}", pages.matrices),
    ]

    def unforeseen(request: Request, error: Exception) -> Response:
        tell(f"{request.url.path}: {type(error).__name__}: {error}; --debug shows where it comes from")
        return _json({"error": "That was not foreseen; the explorer's terminal says more."}, 500)

    handlers: dict[Any, Any] = {
        RefusedError: _refused,
        HTTPException: _unknown,
        Exception: unforeseen,
    }
    made = Starlette(routes=routes, exception_handlers=handlers)
    made.router.redirect_slashes = False
    return Guard(made, access)


class _Pages:
    """What answers each route."""

    def __init__(self, runs: Runs, live: "Live | None") -> None:
        self._runs, self._live, self._turns = runs, live, Turns()

    def index(self, request: Request) -> Response:
        return Response(_file("index.html"), media_type="text/html; charset=utf-8")

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise RefusedError(404, "There is no such file.")
        return Response(_file(name), media_type=f"{STATIC[name]}; charset=utf-8")

    def runs(self, request: Request) -> Response:
        live = None if self._live is None else self._live.info()
        return _json({"runs": self._runs.listed(), "live": live})

    def run(self, request: Request) -> Response:
        return _json(self._runs.document(request.path_params["run"]))

    def head(self, request: Request) -> Response:
        layer, head = _number(request, "layer"), _number(request, "head")
        series = request.query_params.get("series", "main")
        return _json(self._runs.head(request.path_params["run"], layer, head, series))

    async def begin(self, request: Request) -> Response:
        live = self._asked_live()
        given = _given(request.headers.get("content-type", ""), await request.body())

        def work(stop: Event) -> dict[str, Any]:
            return live.run(given, stop)

        return _json(await self._turns.take(work, request.is_disconnected))

    def tokens(self, request: Request) -> Response:
        return _arrays(self._asked_live().tokens(request.path_params["id"]))

    def matrices(self, request: Request) -> Response:
        layer, head = _number(request, "layer"), _number(request, "head")
        wanted = request.query_params.get("matrices")
        names = None if wanted is None else tuple(x for x in wanted.split(",") if x)
        found = self._asked_live().head(request.path_params["id"], layer, head, names)
        return _arrays(found)

    def _asked_live(self) -> "Live":
        if self._live is None:
            raise RefusedError(404, "No model is loaded: start `outward explore` with --model NAME.")
        return self._live


class Turns:
    """One piece of work at a time, in a thread of its own, and only while somebody waits for it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="live")
        self._stop = Event()
        self._running: asyncio.Future[Any] | None = None

    async def take(self, work: Callable[[Event], T], gone: Callable[[], Awaitable[bool]]) -> T:
        """What the work makes. It is handed an event: set when it should end, as its client is gone."""
        while self._running is not None and not self._running.done():
            if not self._stop.is_set():
                raise RefusedError(
                    409, "The model is busy with another input; wait for it, or stop it."
                )
            if not (await asyncio.wait({self._running}, timeout=LETS_GO))[0]:
                raise RefusedError(409, "The model is not done yet with what was stopped; try again.")
        stop = self._stop = Event()
        running = asyncio.get_running_loop().run_in_executor(self._thread, work, stop)
        running.add_done_callback(_heard)
        self._running = running
        try:
            while not (await asyncio.wait({running}, timeout=POLL))[0]:
                if await gone():
                    stop.set()
            return running.result()
        finally:
            stop.set()


def _heard(done: "asyncio.Future[Any]") -> None:
    """What went wrong when nobody waited any more is no news."""
    if not done.cancelled():
        done.exception()


# ---- asked and answered


def _file(name: str) -> bytes:
    return (resources.files("outward.explorer") / "static" / name).read_bytes()


def _json(document: Any, status: int = 200) -> Response:
    return Response(as_bytes(document), status, media_type="application/json")


def _arrays(arrays: dict[str, Any]) -> Response:
    return Response(save_arrays(arrays), media_type="application/octet-stream")


def _refused(request: Request, error: RefusedError) -> Response:
    return _json({"error": str(error)}, error.status)


def _unknown(request: Request, error: HTTPException) -> Response:
    sentence = f"{phrase(error.status_code)}: the explorer has no such page."
    made = _json({"error": sentence}, error.status_code)
    made.headers.update(error.headers or {})
    return made


def _number(request: Request, name: str) -> int:
    text = request.path_params[name]
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise RefusedError(404, f"There is no such {name}: it is a number from 0 on.")
    return int(text)


def _given(kind: str, body: bytes) -> str | bytes:
    """A text, or the bytes of a picture."""
    kind = kind.partition(";")[0].strip().lower()
    if kind.startswith("image/"):
        return body
    if kind != "application/json":
        raise RefusedError(400, 'Send {"text": ...} as application/json, or a picture as image/*.')
    try:
        text = json.loads(body)["text"]
    except (ValueError, RecursionError, KeyError, TypeError, IndexError) as error:
        raise RefusedError(400, "What was sent is no JSON object with a text in it.") from error
    if not isinstance(text, str):
        raise RefusedError(400, "The text that was sent is no string.")
    return text


# ---- serving


def listening(host: str, port: int) -> socket.socket:
    """A socket there; port 0: any that is free."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise ServeError(
            f"{host}, port {port}, cannot be served on: {error.strerror}; give another --port, or 0 "
            "for any that is free."
        ) from error


def address(access: Access, host: str) -> str:
    """What to open: it has the token."""
    bare = host if re.fullmatch(r"\[.*\](:\d+)?|[^:]*(:\d+)?", host) else f"[{host}]"
    named = bare if re.search(r"[^:]:\d+$", bare) else f"{bare}:{access.port}"
    return f"http://{named}/?token={access.token}"


def access_to(opened: socket.socket, hosts: tuple[str, ...]) -> Access:
    """A new token, for the port of a socket."""
    return Access(secrets.token_urlsafe(32), opened.getsockname()[1], hosts)


def server_for(made: ASGIApp, *, debug: bool) -> "Server":
    """Quiet, and it says nothing of itself. debug: what nobody foresaw is shown with its traceback."""
    config = uvicorn.Config(
        made,
        http="h11",
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error" if debug else "critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=CLOSES,
    )
    return Server(config)


def serve(made: ASGIApp, opened: socket.socket, *, debug: bool) -> int:
    """Until a signal: its number."""
    server = server_for(made, debug=debug)
    server.run(sockets=[opened])
    return server.ended_by


class Server(uvicorn.Server):
    """Ends at a signal and says which it was, where uvicorn would raise it again."""

    ended_by = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second one waits for nothing."""
        self.force_exit = self.should_exit
        self.ended_by, self.should_exit = sig, True
