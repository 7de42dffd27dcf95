"""A signal stops the command at once: what is finished is kept, and --resume goes on with it."""

import os
import signal
from pathlib import Path

import pytest

from engines.command import begun, call, ended, finished_chunks, options, profile_bytes, stuck, waiting
from outward.cli.main import STOPPED, Stop

SAID = "outward: stopped; what is finished is kept where --out was given, and --resume goes on with it"


def stopped(out: Path, number: signal.Signals, *more: str) -> tuple[int, str, str]:
    """A run that gets the signal in its second chunk, at its end."""
    place = out.parent / "waits"
    process = begun(*options(out, *more, model=waiting()), waits=place)
    stuck(process, place)
    process.send_signal(number)
    return ended(process)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_stops_the_run_and_resume_goes_on(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    out, other = tmp_path / "run", tmp_path / "other"
    assert stopped(out, number) == (code, "", f"{SAID}\n")
    assert finished_chunks(out) == ["main.000001.chunk"]
    assert not (out / "run.json").exists()
    assert call(*options(out, "--resume", model=waiting())) == 0
    assert call(*options(other, model=waiting())) == 0
    assert profile_bytes(out) == profile_bytes(other)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_so_it_does_on_ray(number: signal.Signals, code: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    found, said, err = stopped(out, number, "--engine", "ray", "--workers", "2")
    assert (found, said) == (code, "")
    assert err.splitlines()[-1] == SAID
    assert "Traceback" not in err
    assert finished_chunks(out)
    assert call(*options(out, "--resume", model=waiting())) == 0


def test_a_second_signal_does_not_wait() -> None:
    before = {number: signal.getsignal(number) for number in STOPPED}
    stop = Stop()
    try:
        with pytest.raises(KeyboardInterrupt):
            stop(signal.SIGTERM, None)
        assert stop.by == signal.SIGTERM
        assert [signal.getsignal(number) for number in STOPPED] == [signal.SIG_DFL] * len(STOPPED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_the_signal_is_told_though_another_interrupt_is_raised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def models() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # as Ray does

    monkeypatch.setattr("outward.environment.known_models", models)
    assert call("models") == 143
    assert capsys.readouterr().err == f"{SAID}\n"


def test_a_process_that_is_not_stopped_says_nothing_of_it() -> None:
    code, _, err = ended(begun("models"))
    assert (code, err) == (0, "")
