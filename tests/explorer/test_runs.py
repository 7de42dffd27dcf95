"""What is found, listed and told of runs, held against the runs themselves."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.command import SAMPLES, environment
from explorer.serving import run
from outward.explorer import runs as module
from outward.explorer.runs import FIRST, Runs
from outward.explorer.safety import RefusedError, as_bytes
from outward.glossary import MEASURES
from outward.measures.bias import DEFAULT
from outward.report.reading import reading
from outward.report.summary import summary
from outward.results import ResultError, load
from outward.stats.histogram import BINS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of runs: a copy, an unfinished one, one further down, and what is none."""
    shutil.copytree(run(), tmp_path / "one")
    (tmp_path / "begun" / "chunks").mkdir(parents=True)
    shutil.copytree(run(), tmp_path / "more" / "two")
    shutil.copytree(run(), tmp_path / "a" / "b" / "c")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "run.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("")
    return tmp_path


def by_name(runs: Runs) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in runs.listed()}


# ---- what is found


def test_runs_are_found_two_levels_down_and_no_further(folder: Path) -> None:
    assert sorted(by_name(Runs((folder,)))) == ["begun", "one", "two"]
    assert sorted(by_name(Runs((folder / "a",)))) == ["c"]


def test_a_run_is_found_by_its_own_name_and_once(folder: Path) -> None:
    found = by_name(Runs((folder / "one", folder, folder / "more" / ".." / "one")))
    assert sorted(found) == ["begun", "one", "two"]


@pytest.mark.parametrize(
    ("name", "why"), [("none", "there is no such folder"), ("empty", "no run is in it")]
)
def test_a_folder_without_runs_is_named(folder: Path, name: str, why: str) -> None:
    with pytest.raises(ResultError, match=why) as error:
        Runs((folder / "one", folder / name))
    assert str(folder / name) in str(error.value)
    assert "--out" in str(error.value)


def test_what_is_listed(folder: Path) -> None:
    found = by_name(Runs((folder,)))
    one = found["one"]
    assert one.pop("id") != found["two"]["id"]
    assert one.pop("finished").endswith("Z")
    assert one.pop("model").endswith("tiny")
    assert one.pop("data").endswith("texts")
    assert one == {
        "name": "one",
        "kind": "measure",
        "layers": 2,
        "heads": 4,
        "windows": SAMPLES,
        "documents": load(run()).manifest["documents"]["main"],
        "series": ["main", "shuffled-tokens", "length=8"],
        "problem": None,
    }


def test_one_that_did_not_finish_is_listed_with_its_problem(folder: Path) -> None:
    runs = Runs((folder,))
    begun = by_name(runs)["begun"]
    assert "--resume" in begun["problem"]
    assert begun["problem"].startswith("begun: ")
    assert str(folder) not in begun["problem"]
    assert begun["layers"] is None
    assert begun["series"] == []
    with pytest.raises(RefusedError, match="--resume") as error:
        runs.document(begun["id"])
    assert error.value.status == 422


BROKEN = [
    ('{"schema": 1, "kind": "context", "files": {}}', "a run of `context` is not shown here yet"),
    ('{"schema": 1, "kind": "measure", "files": {}}', "one: profile.parquet is missing"),
    ("[" * 100_000, "RecursionError"),
    ("no JSON", "damaged"),
    ("[]", "no JSON object"),
    ('{"schema": 99, "kind": "measure", "files": {}}', "schema is 99"),
    ('{"schema": 1, "kind": "measure", "files": ["profile.parquet"]}', "AttributeError"),
    ('{"schema": "x", "kind": "m", "files": {}}', "TypeError"),
    ('{"hello": 1}', "of another program"),
]


@pytest.mark.parametrize(("text", "problem"), BROKEN)
def test_a_run_json_of_others_is_a_problem_of_that_run_alone(
    folder: Path, text: str, problem: str
) -> None:
    (folder / "one" / "run.json").write_text(text)
    runs = Runs((folder,))
    found = by_name(runs)
    assert problem in found["one"]["problem"]
    assert str(folder) not in found["one"]["problem"]
    assert found["two"]["problem"] is None
    with pytest.raises(RefusedError) as error:
        runs.document(found["one"]["id"])
    assert error.value.status == 422


@pytest.mark.parametrize("name", ["profile.parquet", "samples.parquet", "arrays.safetensors"])
@pytest.mark.parametrize("left", [None, 9])
def test_a_file_that_is_lost_or_cut_short_is_in_the_list(
    folder: Path, name: str, left: int | None
) -> None:
    """left: bytes of it that are left."""
    file = folder / "one" / name
    assert by_name(Runs((folder,)))["one"]["problem"] is None
    file.unlink() if left is None else os.truncate(file, left)
    runs = Runs((folder,))
    found = by_name(runs)["one"]
    assert found["problem"].startswith(f"one: {name} is missing or cut short")
    with pytest.raises(RefusedError, match=r"^one: ") as error:
        runs.document(found["id"])
    assert str(folder) not in str(error.value)


def test_damaged_tables_are_a_problem_of_that_run_alone(folder: Path) -> None:
    for name in ("profile.parquet", "arrays.safetensors"):
        file = folder / "one" / name
        file.write_bytes(b"\xff" * file.stat().st_size)
        runs = Runs((folder,))
        found = by_name(runs)
        with pytest.raises(RefusedError) as error:
            runs.document(found["one"]["id"])
        assert error.value.status == 422
        assert str(error.value).startswith("one")
        assert str(folder) not in str(error.value)
        assert runs.document(found["two"]["id"])["name"] == "two"


def test_the_list_reads_nothing_but_the_first_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the list loads a run")

    monkeypatch.setattr(module, "load", refuse)
    for name in ("profile.parquet", "samples.parquet"):
        file = folder / "one" / name
        file.write_bytes(b"\xff" * file.stat().st_size)
    assert by_name(Runs((folder,)))["one"]["heads"] == 4
    with pytest.raises(AssertionError, match="loads a run"):
        Runs((folder,)).document(by_name(Runs((folder,)))["two"]["id"])


def test_equal_names_are_told_apart(tmp_path: Path) -> None:
    for parent in ("gpt2", "vit"):
        shutil.copytree(run(), tmp_path / parent / "run")
    assert sorted(by_name(Runs((tmp_path,)))) == ["gpt2/run", "vit/run"]


def test_ids_stay_and_tell_nothing_of_paths(folder: Path) -> None:
    first, second = Runs((folder,)), Runs((folder / "one", folder))
    assert by_name(first)["one"]["id"] == by_name(second)["one"]["id"]
    assert by_name(first)["one"]["id"].isalnum()
    for wrong in ("", "one", "../one", str(folder / "one"), by_name(first)["one"]["id"][:-1]):
        with pytest.raises(RefusedError, match="no such run") as error:
            first.document(wrong)
        assert error.value.status == 404


def test_what_is_new_on_disk_is_found_by_the_next_list(folder: Path) -> None:
    runs = Runs((folder,))
    shutil.copytree(run(), folder / "new")
    shutil.rmtree(folder / "one")
    found = by_name(runs)
    assert sorted(found) == ["begun", "new", "two"]
    assert runs.document(found["new"]["id"])["name"] == "new"


def test_a_name_that_is_no_unicode_can_be_sent(tmp_path: Path) -> None:
    name = os.fsdecode(b"run\xff<script>\xe2\x80\xae")
    shutil.copytree(run(), tmp_path / name)
    listed = Runs((tmp_path,)).listed()
    assert json.loads(as_bytes(listed))[0]["name"] == name


# ---- one run


def test_the_document_is_the_summary_and_the_reading(folder: Path) -> None:
    runs = Runs((folder,))
    found = runs.document(by_name(runs)["one"]["id"])
    result = load(folder / "one")
    assert found["summary"] == summary(result, "one")
    assert found["reading"] == reading(found["summary"])
    assert found["series"] == ["main", "shuffled-tokens", "length=8"]
    assert set(found["others"]) == {"shuffled-tokens", "length=8"}
    assert len(found["others"]["length=8"]["heads"]) == 8
    assert sorted(found["measures"]) == sorted(DEFAULT)
    assert set(FIRST) <= set(MEASURES)
    assert list(found["measures"])[:-1] == [name for name in FIRST if name in DEFAULT]
    assert list(found["measures"])[-1] == "value_similarity" != list(DEFAULT)[-1]
    for name, told in found["measures"].items():
        assert told == {"what": MEASURES[name].formula, "kind": MEASURES[name].kind}
    assert found["about"]["command"] == shlex.join(["outward", *sys.argv[1:]])
    assert json.loads(as_bytes(found))


def test_the_last_few_runs_are_kept_and_a_changed_one_is_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def counted(path: Path) -> Any:
        read.append(path.name)
        return load(path)

    monkeypatch.setattr(module, "load", counted)
    runs = Runs((folder,), keep=1)
    one, two = (by_name(runs)[name]["id"] for name in ("one", "two"))
    for asked in (one, one, two, one):
        runs.document(asked)
    assert read == ["one", "two", "one"]
    manifest = folder / "one" / "run.json"
    manifest.write_text(manifest.read_text() + " ")
    runs.document(one)
    assert read == ["one", "two", "one", "one"]


# ---- one head


def test_a_head_is_its_rows_of_the_profile() -> None:
    runs = Runs((run(),))
    (listed,) = runs.listed()
    result = load(run())
    profile = result.tables["profile"].to_pandas()
    for series in listed["series"]:
        found = runs.head(listed["id"], 1, 3, series)
        rows = profile[(profile.series == series) & (profile.layer == 1) & (profile["head"] == 3)]
        assert found["module"] == "layers.1.self_attn"
        for name in DEFAULT:
            of = rows[rows.measure == name]
            (whole,) = of[of.place.isna()].to_dict("records")
            assert found["measures"][name] == {k: whole[k] for k in found["measures"][name]}
            assert set(found["measures"][name]) == {
                "n",
                "mean",
                "std",
                "min",
                "max",
                "q05",
                "q50",
                "q95",
            }
            by_place = of[of.place.notna()].sort_values("place")
            assert [x["place"] for x in found["places"][name]] == by_place.place.tolist()
            assert [x["mean"] for x in found["places"][name]] == by_place["mean"].tolist()
            counts = found["histograms"][name]["counts"]
            assert sum(counts) == whole["n"]
            assert len(counts) == BINS == len(found["histograms"][name]["edges"]) - 1
    assert isinstance(found["measures"]["self_weight"]["n"], int)
    assert found["places"]["value_similarity"] == []


def test_a_measure_that_is_not_known_here_has_no_kind(folder: Path) -> None:
    manifest = folder / "one" / "run.json"
    document = json.loads(manifest.read_text())
    document["measures"].append("new")
    manifest.write_text(json.dumps(document))
    runs = Runs((folder,))
    found = runs.document(by_name(runs)["one"]["id"])
    assert found["measures"]["new"] == {"what": "", "kind": ""}


@pytest.mark.parametrize(("layer", "head", "series"), [(2, 0, "main"), (0, 4, "main"), (0, 0, "none")])
def test_a_head_that_is_not_there(layer: int, head: int, series: str) -> None:
    runs = Runs((run(),))
    with pytest.raises(RefusedError, match=f"no layer {layer} with a head {head}") as error:
        runs.head(runs.listed()[0]["id"], layer, head, series)
    assert error.value.status == 404


# ---- what must not be imported


NO_TORCH = """
import sys
from pathlib import Path
{first}
from outward.explorer.runs import Runs
from outward.explorer.server import app
runs = Runs((Path({run!r}),))
run = runs.listed()[0]["id"]
runs.document(run), runs.head(run, 0, 0, "main")
print("torch" in sys.modules)
"""


@pytest.mark.parametrize(("first", "said"), [("", "False"), ("import outward.probe.tally", "True")])
def test_looking_at_runs_imports_no_torch(first: str, said: str) -> None:
    code = NO_TORCH.format(first=first, run=str(run()))
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, env=environment(), capture_output=True, text=True
    )
    assert done.stdout == f"{said}\n", done.stderr


def test_a_folder_that_may_not_be_looked_into_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may look everywhere: so the refusal is played."""
    there = {run["name"] for run in Runs((folder,)).listed()}
    (folder / "locked").mkdir()
    exists = Path.exists

    def refuses(self: Path, **options: bool) -> bool:
        if self.parent.name == "locked":
            raise PermissionError(13, "Permission denied")
        return exists(self, **options)

    monkeypatch.setattr(Path, "exists", refuses)
    assert {run["name"] for run in Runs((folder,)).listed()} == there
