"""The command line: results on stdout, all else on stderr, exit codes, conditions, help."""

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from engines.command import SAMPLES, begun, call, ended, environment, options, texts, tiny
from outward.cli.options import Condition, UsageError
from outward.cli.printing import heading
from outward.cli.progress import Told
from outward.measures.bias import DEFAULT
from outward.run import load

KEYS = ("layers", "heads", "trend", "baselines", "lengths", "coverage", "checks", "warnings", "run")
Said = pytest.CaptureFixture[str]
PATCHES = pytest.MonkeyPatch


def no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def document(text: str) -> dict[str, Any]:
    """One JSON document as the standard has it, and nothing else."""
    found: dict[str, Any] = json.loads(text, parse_constant=no_constant)
    return found


# ---- what is printed, and where


def test_json_is_one_document_and_all_of_stdout(tmp_path: Path, capsys: Said) -> None:
    more = ("--lengths", "8", "--baseline", "shuffled-tokens,random-weights")
    assert call(*options(tmp_path, "--json", *more)) == 0
    said = capsys.readouterr()
    assert said.err == ""
    found = document(said.out)
    assert [key for key in found if key in KEYS] == list(KEYS)
    assert [x["layer"] for x in found["layers"]] == [0, 1]
    assert [(x["layer"], x["head"]) for x in found["heads"]] == [
        (n, h) for n in (0, 1) for h in range(4)
    ]
    assert all(set(DEFAULT) <= set(x) for x in found["layers"] + found["heads"])
    low, high = found["layers"][0]["self_similarity_interval"]
    assert low < found["layers"][0]["self_similarity"] < high
    assert set(DEFAULT) <= set(found["trend"])
    assert {k: len(v) for k, v in found["baselines"].items()} == {
        "shuffled-tokens": 2,
        "random-weights": 2,
    }
    assert {k: len(v) for k, v in found["lengths"].items()} == {"8": 2}
    assert [c["status"] for c in found["coverage"]] == ["captured", "captured"]
    assert found["checks"]["identical"]
    assert found["run"] == str(tmp_path)
    assert found == json.loads(json.dumps(load(tmp_path).document))


def test_text_after_json_would_be_seen() -> None:
    with pytest.raises(ValueError, match="Extra data"):
        document("{}\nkept in run\n")
    with pytest.raises(AssertionError, match="NaN"):
        document('{"mean": NaN}')


def test_without_out_nothing_is_kept(tmp_path: Path, capsys: Said, monkeypatch: PATCHES) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert call(*options(None, "--json")) == 0
    assert document(capsys.readouterr().out)["run"] is None
    assert list(tmp_path.iterdir()) == []


def test_the_table_has_what_was_asked_for(tmp_path: Path, capsys: Said) -> None:
    assert call(*options(tmp_path, "--measures", "self_weight, null_similarity")) == 0
    said = capsys.readouterr()
    assert said.err == ""
    title, head, *rows = said.out.splitlines()
    assert f"on {texts()}: windows {SAMPLES}" in title
    assert head.split("1", 1)[1].split("  ") == ["", "self weight", "null similarity"]
    run = load(tmp_path)
    for layer, row in enumerate(rows[:2]):
        known = run.layers.loc[layer, ["self_weight", "null_similarity"]]
        assert row.split()[-2:] == [f"{x:.3f}" for x in known]
    assert rows[-1] == f"kept in {tmp_path}"


def test_progress_goes_to_stderr(tmp_path: Path, capsys: Said, monkeypatch: PATCHES) -> None:
    monkeypatch.setattr("outward.cli.progress.EVERY", -1.0)  # a line for each chunk
    assert call(*options(tmp_path, "--json")) == 0
    said = capsys.readouterr()
    document(said.out)
    lines = said.err.splitlines()
    assert [int(re.search(r"main: (\d+) of at most 30 windows", x)[1]) for x in lines] == [
        8,
        16,
        24,
        30,
    ]  # type: ignore[index]
    assert all(x.startswith("outward: ") for x in lines)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(2.0, "main: 20 of at most 80 windows, 5 a second, 6 s left"), (0.05, "100 a second, 0 s left")],
)
def test_the_rate_is_from_the_first_chunk_on(seconds: float, said: str, monkeypatch: PATCHES) -> None:
    clock = iter([0.0, 50.0, 50.0 + seconds])  # the model loads for most of the first fifty seconds
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    told = Told(80, 2, ["main"])
    assert told.line("main", 10, 10) == "main: 10 of at most 80 windows"
    windows = 20 if seconds == 2.0 else 80
    done = 20 if seconds == 2.0 else 15
    assert told.line("main", done, windows).endswith(said)


def test_progress_says_which_pass_of_how_many() -> None:
    told = Told(80, 1, ["main", "length=8"])
    assert told.line("length=8", 10, 10).startswith("length=8 (2 of 2): 10 of at most 80 windows")


# ---- exit codes and conditions


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        (["self_weight>0.05"], 4),
        (["self_weight>0.9"], 0),
        (["self_weight>0.9", "self_weight < 0.9"], 4),
        (["self_weight>0.9@layer>=1"], 0),
    ],
)
def test_a_condition_that_is_true_makes_four(
    conditions: list[str], code: int, finished: Path, capsys: Said
) -> None:
    args = [x for c in conditions for x in ("--fail-if", c)]
    assert call("merge", str(finished), "--json", *args) == code
    said = capsys.readouterr()
    document(said.out)
    true = [c for c in conditions if c in ("self_weight>0.05", "self_weight < 0.9")]
    assert said.err.splitlines() == [f"outward: --fail-if {c}: it is true" for c in true]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is done."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert call(*options(out)) == 0
    return out


def test_a_condition_that_speaks_of_no_layer_is_no_pass(finished: Path, capsys: Said) -> None:
    text = "self_weight>0.05@layer>=99"
    assert call("merge", str(finished), "--json", "--fail-if", text) == 2
    said = capsys.readouterr()
    document(said.out)
    assert said.err == (
        f"outward: --fail-if {text}: it speaks of no layer; 2 were measured, "
        "the first 0 and the last 1.\n"
    )


def test_the_run_is_kept_all_the_same(tmp_path: Path) -> None:
    assert call(*options(tmp_path, "--fail-if", "self_weight>0.05@layer>=99")) == 2
    assert load(tmp_path).manifest["failed"] == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("self_weight>0.9@layer==1", "speaks of no layer; 2 were measured, the first 0 and the last 3"),
        ("centred_similarity>1@layer==0", "centred_similarity is not known in any layer"),
        ("centred_similarity>1", None),
        ("self_weight>0.9@layer==3", None),
    ],
)
def test_conditions_without_an_answer(text: str, complaint: str | None) -> None:
    refused = nullcontext() if complaint is None else pytest.raises(UsageError, match=complaint)
    with refused:
        Condition(text).refuse_silence(LAYERS)


def test_measuring_ends_with_four_too(tmp_path: Path) -> None:
    assert call(*options(tmp_path, "--fail-if", "self_similarity>-1")) == 4
    assert load(tmp_path).manifest["failed"] == []


LAYERS = [
    {"layer": 0, "self_weight": 0.25, "centred_similarity": None},
    {"layer": 3, "self_weight": 0.5, "centred_similarity": -0.125},
]


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("self_weight>0.4", True),
        ("self_weight>0.5", False),
        ("self_weight>=0.5", True),
        ("self_weight<0.25", False),
        ("self_weight<=0.25", True),
        ("self_weight > 4e-1", True),
        ("self_weight>0.4@layer<3", False),
        ("self_weight>0.4@layer<=3", True),
        ("self_weight<0.4@layer>0", False),
        ("self_weight<0.4 @ layer == 0", True),
        ("self_weight>0.4@layer==1", False),
        ("centred_similarity<-.1", True),
        ("centred_similarity<1@layer==0", False),  # nothing is known there
    ],
)
def test_conditions(text: str, holds: bool) -> None:
    assert Condition(text).holds(LAYERS) is holds


@pytest.mark.parametrize(
    "text",
    [
        "self_weight",
        "self_weight=0.5",
        "self_weight>",
        ">0.5",
        "self_weight>0.5@layer",
        "self_weight>0.5@layer>1.5",
        "self_weight>0.5@head>1",
        "self_weight>1e-e",
        "weight>0.5",
        "self_weight>nan",
        "0.5<self_weight",
    ],
)
def test_conditions_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"it is MEASURE>NUMBER|is no number|no measure weight"):
        Condition(text)


# ---- help, models, doctor, pipes


def imported(program: str) -> set[str]:
    """The modules that a program leaves imported."""
    code = f"import sys\ntry:\n    {program}\nexcept SystemExit:\n    pass\n"
    code += "sys.stderr.write(' '.join(sys.modules))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    return set(done.stderr.split())


HEAVY = {"torch", "transformers", "pandas", "pyarrow", "numpy"}


@pytest.mark.parametrize("command", ["--help", "measure --help"])
def test_help_waits_for_nothing(command: str) -> None:
    assert not HEAVY & imported(f"from outward.cli import main; main({command.split()})")


def test_models_does_not_wait_for_torch() -> None:
    assert not {"torch", "transformers", "pandas"} & imported(
        "from outward.cli import main; main(['models'])"
    )


def test_a_heavy_import_would_be_seen() -> None:
    assert {"pandas", "numpy"} <= imported("import outward.run")


def test_help_tells_what_there_is(capsys: Said) -> None:
    assert call("--help") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("measure", "merge", "models", "doctor"))
    assert call("measure", "--help") == 0
    said = capsys.readouterr().out
    names = ("--length", "--fail-if", "--resume", "--shard", "--engine", "--baseline", "--json")
    assert all(name in said for name in names)


def test_models_are_listed(capsys: Said) -> None:
    assert call("models", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"smollm2", "minilm"} <= {row["name"] for row in rows}
    assert all(set(row) == {"name", "what", "here"} for row in rows)
    assert call("models") == 0
    assert "smollm2" in capsys.readouterr().out


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("not installed", 0), ("broken", 1)])
def test_the_doctor_fails_where_something_is_broken(
    state: str, code: int, capsys: Said, monkeypatch: PATCHES
) -> None:
    rows = [{"what": "torch", "state": state, "detail": "2.13.0"}]
    monkeypatch.setattr("outward.environment.diagnosis", lambda: rows)
    assert call("doctor", "--json") == code
    assert json.loads(capsys.readouterr().out) == rows
    assert call("doctor") == code
    assert state in capsys.readouterr().out


def test_a_closed_pipe_is_no_error() -> None:
    process = begun("models")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    code, _, err = ended(process)
    assert (code, err) == (141, "")


def test_the_module_is_the_command(tmp_path: Path) -> None:
    args = ("measure", str(tiny()), str(texts()), "--length", "16", "--samples", "3", "--json")
    code, out, err = ended(begun(*args))
    assert (code, err) == (0, "")
    assert document(out)["run"] is None


def test_the_heading_says_what_was_measured() -> None:
    manifest = {
        "model": {"id": "minilm", "class": "BertModel", "dtype": "float32"},
        "data": {"data": "book.txt"},
        "windows": {"main": 12, "length=16": 48},
        "documents": {"main": 3, "length=16": 3},
    }
    assert heading(manifest) == "minilm (BertModel, float32) on book.txt: windows 12, documents 3"
    unnamed = manifest | {"model": {"class": "Net"}, "data": None}
    assert heading(unnamed) == "a model (Net) on data of its own: windows 12, documents 3"
