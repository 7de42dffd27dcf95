"""outward explore, as a process: the address on stdout, answers, an end by a signal."""

import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from engines.command import begun, call, ended, tiny
from explorer.serving import run
from outward.cli.exploring import MOST_TOKENS

Said = pytest.CaptureFixture[str]
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/\?token=[\w-]{43}\n")


@contextmanager
def exploring(*args: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The process, and the address that it printed."""
    process = begun("explore", *args)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert ADDRESS.fullmatch(line), (line, process.poll() is not None and ended(process))
        yield process, line.strip()
    finally:
        process.kill()
        with process:  # waits for it, and closes its pipes
            pass


def browser() -> urllib.request.OpenerDirector:
    """It keeps cookies, and follows where it is sent."""
    return urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_it_prints_an_address_answers_and_ends_at_a_signal(number: signal.Signals, code: int) -> None:
    with exploring(str(run())) as (process, address):
        opened = browser()
        page = opened.open(address, timeout=30)
        assert page.url == address.partition("?")[0]
        assert b"<!doctype html>" in page.read().lower()
        listed = opened.open(f"{page.url}api/runs", timeout=30).read()
        assert b'"name":"tiny"' in listed
        assert b'"live":null' in listed
        with pytest.raises(urllib.error.HTTPError, match="403"):
            browser().open(f"{page.url}api/runs", timeout=30)
        process.send_signal(number)
        assert ended(process) == (code, "", "")


def test_a_model_is_asked_live() -> None:
    with exploring("--model", str(tiny()), "--max-tokens", "9") as (process, address):
        opened = browser()
        root = opened.open(address, timeout=30).url
        request = urllib.request.Request(
            f"{root}api/live", b'{"text": "w1 w2 w3"}', {"Content-Type": "application/json"}
        )
        answer = opened.open(request, timeout=30).read()
        assert b'"tokens":["w1","w2","w3"]' in answer
        assert b'"max_tokens":9' in opened.open(f"{root}api/runs", timeout=30).read()
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (
            143,
            "",
            f"outward: loading {tiny()}; the address follows when it is there\n",
        )


def test_a_port_that_is_taken_is_named_and_nothing_is_served() -> None:
    with exploring(str(run())) as (_, address):
        port = ADDRESS.fullmatch(f"{address}\n")[1]  # type: ignore[index]
        code, out, err = ended(begun("explore", str(run()), "--port", port))
    assert (code, out) == (1, "")
    assert err.startswith(f"outward: 127.0.0.1, port {port}, cannot be served on: ")
    assert err.count("\n") == 1


WRONG = [
    ("", 2, ["nothing to explore", "--out runs/one", "--model NAME"]),
    ("{run} --host 0.0.0.0", 2, ["--host 0.0.0.0: other machines", "--allowed-host NAME"]),
    ("{run} --host ::", 2, ["--host ::: other machines", "--allowed-host NAME"]),
    ("{run} --host 192.168.1.7", 2, ["--host 192.168.1.7: other machines"]),
    ("{run} --host localhost.evil.com", 2, ["--host localhost.evil.com: other machines"]),
    ("{run} --allowed-host *", 2, ["--allowed-host *: it is a name as browsers send it"]),
    ("{run} --allowed-host http://a", 2, ["--allowed-host http://a: it is a name"]),
    ("{run} --allowed-host fd00::7", 2, ["--allowed-host fd00::7", "[fd00::7]"]),
    ("{run} --port 65536", 2, ["--port 65536: ", "65535"]),
    ("{run} --port -1", 2, ["--port -1: "]),
    ("{run} --max-tokens 0", 2, ["--max-tokens 0: ", str(MOST_TOKENS)]),
    (f"{{run}} --max-tokens {MOST_TOKENS + 1}", 2, [f"1 to {MOST_TOKENS}"]),
    ("{run} --max-seconds 0", 2, ["--max-seconds 0: ", "above 0"]),
    ("{run} --max-seconds nan", 2, ["--max-seconds nan: "]),
    ("{place}/none", 1, ["{place}/none: there is no such folder", "--out"]),
    ("{run} {place}", 1, ["{place}: no run is in it", "--out"]),
    ("{place}/file", 1, ["{place}/file: there is no such folder"]),
    ("--model {place}/none", 1, ["{place}/none: there is no such file or folder"]),
]


@pytest.mark.parametrize(("line", "code", "parts"), WRONG, ids=[x[0] or "nothing" for x in WRONG])
def test_what_is_wrong_is_named(
    line: str, code: int, parts: list[str], capsys: Said, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    found = call("explore", *line.format(run=run(), place=tmp_path).split())
    said = capsys.readouterr()
    assert found == code, said.err
    assert said.out == ""
    assert "Traceback" not in said.err
    for part in parts:
        assert part.format(place=tmp_path) in said.err


def test_an_open_host_is_warned_of_and_named_in_the_address() -> None:
    process = begun("explore", str(run()), "--host", "0.0.0.0", "--allowed-host", "gpu.example")
    assert process.stdout is not None
    address = process.stdout.readline()
    assert re.fullmatch(r"http://gpu\.example:\d+/\?token=[\w-]{43}\n", address)
    port = address.split(":")[2].partition("/")[0]
    for host, status in (("gpu.example", 403), ("evil.com", 400), ("0.0.0.0", 400)):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": host})
        with pytest.raises(urllib.error.HTTPError, match=str(status)):
            browser().open(request, timeout=30)
    process.send_signal(signal.SIGTERM)
    code, _, err = ended(process)
    assert code == 143
    assert "--host 0.0.0.0: other machines can reach the page now, unencrypted" in err
