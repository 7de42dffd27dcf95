"""outward explore."""

import ipaddress
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from outward.cli.options import UsageError
from outward.cli.printing import DONE, FAILED, say

if TYPE_CHECKING:
    from outward.explorer.live import Live

MOST_TOKENS = 8192  # a matrix of as many squared is 64 MiB, and no screen shows more of it
SIGNALLED = 128  # and the number of the signal


def explore(
    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="[RUN ...]")] = (),
    /,
    *,
    model: Annotated[str | None, arg(metavar="NAME")] = None,
    port: Annotated[int, arg(metavar="N")] = 0,
    host: Annotated[str, arg(metavar="ADDRESS")] = "127.0.0.1",
    allowed_host: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME")] = (),
    max_tokens: Annotated[int, arg(metavar="N")] = 2048,
    max_seconds: Annotated[float, arg(metavar="N")] = 60.0,
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    device: Annotated[str, arg(metavar="NAME")] = "auto",
    allow_pickle: bool = False,
    opened: Annotated[bool, arg(name="open")] = False,
    debug: bool = False,
) -> int:
    """Look at runs in the browser: layers and heads, and with --model a sentence or picture of yours.

    Prints the address to open, and serves it until Ctrl-C. Nothing is sent to other machines.

    Args:
        runs: directories that `outward measure --out` made, or folders of them.
        model: also load a model, named as for `outward measure`, to be asked live.
        port: to serve on; 0: any that is free.
        host: address to serve on. One that other machines reach is refused without --allowed-host.
        allowed_host: a name, beside localhost, by which browsers may ask for the page.
        max_tokens: longer inputs are cut there.
        max_seconds: an input that takes the model longer is given up.
        dtype: of weights and activations; auto: as the model is saved.
        device: cpu, cuda, cuda:1, mps; auto: an accelerator if there is one.
        allow_pickle: also load weights that are no safetensors (by torch's weights_only).
        opened: open the page in the browser.
        debug: show the traceback of an error.
    """
    if not runs and model is None:
        raise UsageError(
            "nothing to explore: give a run's directory (`outward measure smollm2 --out runs/one` "
            "makes one), a folder of runs, or --model NAME."
        )
    _refuse_numbers(port, max_tokens, max_seconds)
    hosts = _named(allowed_host)
    _refuse_open(host, hosts)

    from outward.explorer.runs import Runs
    from outward.explorer.server import ServeError, access_to, address, app, listening, serve

    found = Runs(runs)
    try:
        socket = listening(host, port)
    except ServeError as error:
        say(str(error))
        return FAILED
    with socket:
        live = None
        if model is not None:
            live = _loaded(model, dtype, device, allow_pickle, max_tokens, max_seconds)
        access = access_to(socket, hosts)
        page = address(access, host if _is_loopback(host) else hosts[0])
        sys.stdout.write(f"{page}\n")
        sys.stdout.flush()
        if opened:
            import webbrowser

            webbrowser.open(page)
        ended_by = serve(app(found, live, access, say), socket, debug=debug)
    return SIGNALLED + ended_by if ended_by else DONE


def _loaded(
    model: str, dtype: str, device: str, allow_pickle: bool, max_tokens: int, max_seconds: float
) -> "Live":
    from outward.explorer.live import Live
    from outward.sources.models import load_model

    say(f"loading {model}; the address follows when it is there")
    source = load_model(model, dtype=dtype, device=device, allow_pickle=allow_pickle)
    return Live(source, max_tokens=max_tokens, max_seconds=max_seconds)


def _refuse_numbers(port: int, max_tokens: int, max_seconds: float) -> None:
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port}: it is a number from 1 to 65535, or 0 for any that is free.")
    if not 1 <= max_tokens <= MOST_TOKENS:
        raise UsageError(f"--max-tokens {max_tokens}: it is a number from 1 to {MOST_TOKENS}.")
    if not max_seconds > 0:
        raise UsageError(f"--max-seconds {max_seconds:g}: it is a number above 0.")


def _named(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """As a Host header has them: names, or addresses, with a port or without."""
    for host in hosts:
        if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:\d{1,5})?", host):
            raise UsageError(
                f"--allowed-host {host}: it is a name as browsers send it, as in gpu7.example.org, "
                "192.168.1.7, [fd00::7] or gpu7:8080."
            )
    return hosts


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse_open(host: str, hosts: tuple[str, ...]) -> None:
    """Other machines are let in only by someone who says under which name."""
    if _is_loopback(host):
        return
    if not hosts:
        raise UsageError(
            f"--host {host}: other machines could reach that. If they should, say by which name they "
            "will, with --allowed-host NAME; otherwise leave --host out."
        )
    say(
        f"--host {host}: other machines can reach the page now, unencrypted; whoever is given its "
        "address, or reads along, can see the runs and use the model."
    )
