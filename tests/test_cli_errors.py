"""Errors of the command: the thing, the rule, the way out, in a line or two on stderr; no traceback."""

import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import GatedRepoError
from safetensors.torch import load_file, save_file

from engines.command import call, options, texts, tiny, waiting
from outward.results import ResultError
from outward.sources.errors import SourceError
from sources.tiny import vit

Said = pytest.CaptureFixture[str]
NAMES = "A model is one of: smollm2, minilm"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that is wrong."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "empty.txt").write_text("")
    (folder / "one.txt").write_text("w1")
    (folder / "nul.txt").write_bytes(b"w1 w2\0w3" * 50)
    (folder / "latin.txt").write_bytes("w1 é w2".encode("latin-1"))
    (folder / "raises.py").write_text(
        "def model():\n    raise ZeroDivisionError('of none\\nby none')\n"
    )
    (folder / "exits.py").write_text("import sys\n\ndef model():\n    sys.exit(0)\n")
    (folder / "key.py").write_text("known = {}\n\nfound = known['none']\n")
    (folder / "syntax.py").write_text("def model():\n    return return\n")
    (folder / "context").mkdir()
    (folder / "context" / "run.json").write_text('{"schema": 1, "kind": "context", "files": {}}')
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("mine")
    shutil.copytree(tiny(), folder / "pickled")
    (folder / "pickled" / "model.safetensors").unlink()
    torch.save({}, folder / "pickled" / "pytorch_model.bin")
    shutil.copytree(tiny(), folder / "nan")
    weights = load_file(folder / "nan" / "model.safetensors")
    weights["model.layers.1.self_attn.v_proj.weight"] *= torch.nan
    save_file(weights, folder / "nan" / "model.safetensors", metadata={"format": "pt"})
    return folder


def assert_says(capsys: Said, code: int, wanted: int, *parts: str) -> None:
    """The exit code; nothing on stdout; on stderr one line or two that have all this in them."""
    said = capsys.readouterr()
    assert code == wanted, said.err
    assert said.out == ""
    assert 1 <= len(said.err.splitlines()) <= 2
    assert said.err.startswith("outward: ")
    assert "Traceback" not in said.err
    for part in parts:
        assert part in said.err


MODELS = [
    ("no/such/folder", ["no/such/folder: there is no such file or folder", NAMES]),
    ("nobody/nothing", ["nobody/nothing is not in the local cache", "HF_HUB_OFFLINE", "local folder"]),
    ("{place}/one.txt", ["one.txt is a file that is no model by itself", NAMES]),
    ("{place}/mine", ["mine is no model's folder: it has no config.json"]),
    ("{place}/pickled", ["pytorch_model.bin", "can carry code", "--allow-pickle"]),
    ("{place}/none.py:model", ["there is no file", "FILE.py:FUNCTION"]),
    ("{place}/raises.py:model", ["raises.py, line 2: ZeroDivisionError: of none.", "--debug"]),
    ("{place}/exits.py:model", ["exits.py:model made no model", "exits.py, line 4: SystemExit: 0"]),
    ("{place}/exits.py:other", ["no function 'other'; it has: model"]),
    ("{place}/key.py:model", ["key.py, line 3: KeyError: 'none'"]),
    ("{place}/syntax.py:model", ["syntax.py, line 2: SyntaxError"]),
    ("{place}/nan", ["nothing could be measured", "NaN or infinity comes out of layers.1.self_attn"]),
]
DATA = [
    ("{place}/none.txt", ["none.txt: there is no such file or folder"]),
    ("{place}/empty.txt", ["holds no text of 2 tokens or more", "empty.txt is empty"]),
    ("{place}/one.txt", ["one.txt has fewer than 2 tokens"]),
    ("{place}/nul.txt", ["nul.txt is no text: it holds NUL bytes"]),
    ("{place}/latin.txt", ["latin.txt is not UTF-8", "save it as UTF-8"]),
]
OPTIONS = [
    (1, "--length 65", ["length 65: ", "takes at most 64; give that or less"]),
    (1, "--length 1", ["length 1: a window needs at least 2 tokens"]),
    (1, "--length 0", ["length 0: it must be positive"]),
    (1, "--length 2.5", ["length 2.5: ", "a whole number of tokens"]),
    (1, "--lengths 8,100", ["length 100: ", "takes at most 64"]),
    (1, "--layers 0,7", ["no layer 7: this model has 2, 0 to 1"]),
    (1, "--device tpu9", ["device 'tpu9' is none that torch knows"]),
    (1, "--device meta", ["device 'meta' holds no numbers"]),
    (2, "--samples 0", ["samples 0", "at least 1"]),
    (2, "--batch -3", ["batch -3", "at least 1"]),
    (2, "--length nan", ["length nan: it is a number of tokens"]),
    (2, "--length inf", ["length inf: it is a number of tokens"]),
    (2, f"--seed {2**63}", [f"seed {2**63}: it has 64 bits"]),
    (2, "--layers 0-99999999999", ["--layers 0-99999999999: no model has so many", "100000"]),
    (1, "--field text", ["field 'text'", "has no fields"]),
    (1, "--out {place}/one.txt", ["one.txt is a file; a run is a directory", "another --out"]),
    (1, "--out {place}/one.txt/run", ["one.txt/run cannot be made: Not a directory"]),
    (1, "--out /proc/none/run", ["/proc/none/run cannot be made", "another --out"]),
    (1, "--out {place}/mine", ["mine holds 'thesis.txt', which no run writes"]),
    (1, "--out {place}/context", ["is a run of `context`, not of `measure`", "another --out"]),
    (2, "--measures weight", ["no measure weight: there are value_similarity, self_weight"]),
    (2, "--baseline nothing", ["no baseline nothing: there are random-weights, shuffled-tokens"]),
    (2, "--shard 3/2 --out {place}/o", ["--shard 3/2: it is i/n", "as in 2/8"]),
    (2, "--shard 0/2 --out {place}/o", ["--shard 0/2: it is i/n"]),
    (2, "--shard 1/2", ["--shard", "need --out"]),
    (2, "--shard 1/2 --out {place}/o --engine ray", ["--shard 1/2: Ray", "leave it out"]),
    (2, "--shard 1/2 --out {place}/o --fail-if self_weight>1", ["--fail-if", "outward merge"]),
    (2, "--resume", ["--resume", "need --out"]),
    (2, "--engine slurm", ["--engine slurm: it is local, or ray, or ray:ADDRESS"]),
    (2, "--workers 2", ["--workers 2: it is the number of actors of --engine ray"]),
    (2, "--engine ray --workers 0", ["--workers 0", "1 or more"]),
    (2, "--threads -1", ["threads -1: ", "0 for all cores"]),
    (2, "--layers 3-1", ["--layers 3-1: it ends before it begins; give 1-3"]),
    (2, "--layers all", ["--layers all: it is numbers and ranges"]),
    (2, "--lengths 8,x", ["--lengths 8,x: it is whole numbers with commas"]),
    (2, "--fail-if self_weight", ["--fail-if self_weight: it is MEASURE>NUMBER"]),
]


@pytest.mark.parametrize(("model", "parts"), MODELS)
def test_models(model: str, parts: list[str], place: Path, capsys: Said) -> None:
    code = call("measure", model.format(place=place), str(texts()), "--length", "16", "--samples", "2")
    assert_says(capsys, code, 1, *parts)


@pytest.mark.parametrize(("data", "parts"), DATA)
def test_data(data: str, parts: list[str], place: Path, capsys: Said) -> None:
    assert_says(capsys, call("measure", str(tiny()), data.format(place=place)), 1, *parts)


@pytest.mark.parametrize(("wanted", "more", "parts"), OPTIONS)
def test_options(wanted: int, more: str, parts: list[str], place: Path, capsys: Said) -> None:
    more = more.format(place=place)
    assert_says(capsys, call("measure", str(tiny()), str(texts()), *more.split()), wanted, *parts)
    assert not (place / "o").exists()


@pytest.mark.parametrize(
    "args",
    [[], ["nothing"], ["measure"], ["measure", "a", "--nothing"], ["measure", "a", "--length", "b"]],
)
def test_what_the_parser_refuses(args: list[str], capsys: Said) -> None:
    assert call(*args) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err
    assert "Traceback" not in said.err


def test_a_run_without_errors_would_not_pass(capsys: Said) -> None:
    with pytest.raises(AssertionError):
        assert_says(capsys, call("models"), 0)


def test_baselines_that_cannot_be_had_are_refused_before_any_work(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in vit():
        part.save_pretrained(tmp_path / "vit")
    monkeypatch.setattr("outward.engines.work.Watched.measure", None)  # would be called in vain
    code = call(*options(tmp_path / "a", "--baseline", "random-weights", model=waiting()))
    assert_says(
        capsys, code, 1, "waits.py:model makes its own weights", "returns the model with random"
    )
    code = call("measure", str(tmp_path / "vit"), "--baseline", "shuffled-tokens")
    assert_says(
        capsys, code, 1, "baseline shuffled-tokens: it is for text", "takes image; leave it out"
    )


# ---- a directory that has a run already


def test_a_run_is_not_written_over(tmp_path: Path, capsys: Said) -> None:
    assert call(*options(tmp_path)) == 0
    capsys.readouterr()
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert_says(capsys, call(*options(tmp_path)), 1, "holds a finished run; give another --out")
    code = call(*options(tmp_path, "--resume", "--length", "13"))
    assert_says(capsys, code, 1, "was begun with other options (length); give the same")
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert call(*options(tmp_path, "--resume")) == 0  # nothing is left to do: it is shown


def test_data_that_changed_are_not_gone_on_with(tmp_path: Path, capsys: Said) -> None:
    data, out = tmp_path / "text.txt", tmp_path / "run"
    data.write_text("w1 w2 w3 w4")
    args = ("measure", str(tiny()), str(data), "--out", str(out))
    assert call(*args) == 0
    (out / "run.json").unlink()
    data.write_text("w1 w2 w3 w5")
    capsys.readouterr()
    parts = ("was begun with another state of data", "has changed since")
    assert_says(capsys, call(*args, "--resume"), 1, *parts)


def test_a_slip_leaves_no_run_behind(tmp_path: Path, capsys: Said) -> None:
    assert_says(capsys, call(*options(tmp_path, "--layers", "7")), 1, "no layer 7")
    assert call(*options(tmp_path)) == 0  # without --resume


def test_what_is_no_run_is_not_merged(tmp_path: Path, capsys: Said) -> None:
    assert_says(capsys, call("merge", str(tmp_path)), 1, "no run was begun there")
    assert_says(capsys, call("merge", str(tmp_path / "none")), 1, "no run was begun there")
    (tmp_path / "plan.json").write_text("{")
    assert_says(capsys, call("merge", str(tmp_path)), 1, "plan.json is damaged")


# ---- --debug


def test_debug_shows_where_it_comes_from(place: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        call("measure", str(place / "mine"), "--debug")
    with pytest.raises(SourceError, match="ZeroDivisionError"):
        call("measure", f"{place / 'raises.py'}:model", "--debug")
    with pytest.raises(ResultError):
        call("merge", str(tmp_path), "--debug")


def test_gated_models_say_what_to_do(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def gated(*args: object, **options: object) -> None:
        raise GatedRepoError.__new__(GatedRepoError, "401")

    monkeypatch.setattr("huggingface_hub.snapshot_download", gated)
    code = call("measure", "meta/gated", str(texts()))
    assert_says(capsys, code, 1, "meta/gated is gated: accept its terms", "hf auth login")
