"""outward compare, outward report: what is printed, what is written, and what is refused."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.command import call, environment
from outward.results import Result, claim, save
from report.made import made

Said = pytest.CaptureFixture[str]
A = {"p": [0.1, 0.3], "q": [0.5, 0.9], "r": [0.2, 0.2]}
B = {k: [x + 0.05, y + 0.05] for k, (x, y) in A.items()}


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    found = []
    for name, values in (("first", A), ("second", B)):
        save(made(values, series=("main", "random-weights")), tmp_path / name)
        found.append(str(tmp_path / name))
    return found


# ---- compare


def test_compare_prints_a_table(runs: list[str], capsys: Said) -> None:
    assert call("compare", *runs) == 0
    said = capsys.readouterr()
    assert said.err == ""
    line = next(x for x in said.out.splitlines() if x.startswith("cos(y, v) "))
    assert "0.417" in line
    assert "+0.050 [+0.050, +0.050] *" in line
    assert "second − first" in said.out


def test_compare_prints_one_json_document(runs: list[str], capsys: Said) -> None:
    assert call("compare", *runs, "--json", "--measures", "self_similarity") == 0
    found = json.loads(capsys.readouterr().out)
    assert [r["name"] for r in found["runs"]] == ["first", "second"]
    assert found["measures"][0]["runs"][1]["difference"]["value"] == pytest.approx(0.05)
    assert found["paired"] == [True, True]


def test_compare_prints_csv(runs: list[str], capsys: Said) -> None:
    assert call("compare", *runs, "--csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {r["run"] for r in rows} == {"first", "second"}
    assert {r["along"] for r in rows} == {"all", "depth", "layer"}


def test_compare_of_a_baseline(runs: list[str], capsys: Said) -> None:
    assert call("compare", *runs, "--series", "random-weights", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measures"][0]["runs"][0]["value"] == pytest.approx(2.2 / 6 + 1 / 16)


# ---- report


def test_report_writes_one_file(runs: list[str], tmp_path: Path, capsys: Said) -> None:
    page = tmp_path / "r.html"
    assert call("report", *runs, "-o", str(page), "--title", "A title") == 0
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "<h1>A title</h1>" in text
    assert not list(tmp_path.glob("*.tmp"))


def test_report_writes_figures(runs: list[str], tmp_path: Path, capsys: Said) -> None:
    figures = tmp_path / "figures"
    page = str(tmp_path / "r.html")
    assert call("report", runs[0], "--out", page, "--figures", str(figures)) == 0
    names = {f.name for f in figures.iterdir()}
    assert {"bias-over-depth.svg", "bias-over-depth.png", "bias-over-depth.pdf"} <= names
    assert str(figures / "bias-over-depth.svg") in capsys.readouterr().err


def test_a_report_on_stdout_and_in_the_runs_own_folder(runs: list[str], capsysbinary: Any) -> None:
    assert call("report", runs[0], "-o", "-") == 0
    assert capsysbinary.readouterr().out.startswith(b"<!doctype html>")
    assert call("report", runs[0], "-o", f"{runs[0]}/report.html") == 0
    claim(Path(runs[0]), "measure")  # as who goes on with the run does


def test_runs_of_one_name_are_told_apart(tmp_path: Path, capsys: Said) -> None:
    for place in ("a", "b"):
        save(made(A), tmp_path / place / "run")
    both = [str(tmp_path / x / "run") for x in ("a", "b")]
    assert call("compare", *both, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [r["name"] for r in found["runs"]] == ["a/run", "b/run"]


def test_neither_needs_torch(runs: list[str], tmp_path: Path) -> None:
    """Who only looks waits for no torch."""
    code = (
        "import sys\nfrom outward.cli import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n    assert 'torch' not in sys.modules\n"
    )
    for command in (["compare", *runs], ["report", *runs, "-o", str(tmp_path / "r.html")]):
        made = subprocess.run(
            [sys.executable, "-c", code, *command],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr


# ---- what is refused


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["report"], 2, "report takes a run"),
        (["compare", "first"], 2, "compare takes two runs or more"),
        (["compare"], 2, "compare takes two runs or more"),
        (["compare", "first", "second", "--json", "--csv"], 2, "give one of them"),
        (["compare", "first", "first"], 2, "first is named twice"),
        (["compare", "first", "none"], 1, "none: no such run directory"),
        (["compare", "first", "second", "--measures", "entropy"], 1, "first has no measure entropy"),
        (["compare", "first", "second", "--measures", "nonsense"], 1, "first has no measure nonsense"),
        (["compare", "first", "second", "--series", "length=8"], 1, "first has no series length=8"),
        (["report", "."], 2, ". holds runs (first, foreign, second): name those that you mean"),
        (["report", "first/run.json"], 2, "name its directory, first"),
        (["report", "empty"], 1, "no run.json"),
        (["report", "first", "-o", "empty"], 2, "it is a folder"),
        (["report", "first", "-o", "second/run.json"], 2, "it is a file of a run"),
        (["report", "first", "-o", "/dev/null"], 2, "it is no file"),
        (["report", "foreign", "-o", "r.html"], 1, "foreign: not as outward writes a run"),
        (["report", "first", "-o", "none/r.html"], 1, "such file or directory. Give another --out."),
        (["report", "first", "--figures", "file"], 1, "file cannot be made"),
        (["report", "first", "--figures", "file/x"], 1, "file/x cannot be made"),
    ],
)
def test_what_cannot_be_done_is_said(
    runs: list[str],
    tmp_path: Path,
    capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    code: int,
    message: str,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    save(Result(made(A).manifest | {"windows": {}}, made(A).tables), tmp_path / "foreign")
    monkeypatch.chdir(tmp_path)
    assert call(*command) == code
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") <= 2
    assert "Traceback" not in said.err
