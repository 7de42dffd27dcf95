"""A model that is asked live: what is drawn, held against the model's own weights and float64."""

import io
import random
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import decoders
from torch import Tensor, nn

from explorer.serving import eventually, served
from outward.attention.call import AttentionCall, own_slots
from outward.attention.masks import causal_mask
from outward.attention.visible import visible
from outward.explorer import live as module
from outward.explorer.live import Live
from outward.explorer.matrices import MATRICES, UNDEFINED, head_arrays, kept, seen_run
from outward.explorer.pictures import MOST_PIXELS, as_seen, grid_of, names_of_patches, read_picture
from outward.explorer.safety import RefusedError
from outward.measures.bias import PER_TOKEN, bias
from outward.sources.errors import SourceError
from outward.sources.models import load_model
from outward.sources.source import Source
from outward.taps.capture import capture
from sources.tiny import MAKERS, byte_tokenizer, prefix_tokenizer, words

Folder = Callable[[str], Path]
SHOWN = ("self_weight", "self_similarity", "null_similarity")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The folder of a tiny model, by kind; written once."""
    made: dict[str, Path] = {}

    def of(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            transformers.logging.disable_progress_bar()
            for part in MAKERS[kind]():
                part.save_pretrained(made[kind])
        return made[kind]

    return of


def sharp(source: Source) -> Source:
    """With weights as initialised, attention is all but uniform."""
    torch.manual_seed(5)
    for name, p in source.model.named_parameters():
        if p.ndim == 2 and "embed" not in name:
            p.normal_(std=1.5 / p.shape[1] ** 0.5)
    return source


def asked(live: Live, given: str | bytes) -> dict[str, Any]:
    return live.run(given, Event())


def live_of(source: Source, *, max_tokens: int = 2048, max_seconds: float = 60.0) -> Live:
    return Live(source, max_tokens=max_tokens, max_seconds=max_seconds)


def loaded(folder: Folder, kind: str, **options: Any) -> Live:
    return live_of(sharp(load_model(str(folder(kind)))), **options)


def png(width: int = 32, height: int = 32, *, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def pixels_of(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


# ---- matrices, against loops


def naive(call: AttentionCall, head: int, P: Any) -> dict[str, Any]:
    """Every number of `head_arrays` in float64, one pair of tokens at a time."""
    y = call.y[0, head].double().numpy()
    v = call.v[0, head // call.group].double().numpy()
    z = y - (y * v).sum(1, keepdims=True) / (v * v).sum(1, keepdims=True) * v
    y_size, z_size = np.linalg.norm(y, axis=1), np.linalg.norm(z, axis=1)
    z[z_size < 1e-3 * y_size] = 0

    def cosines(a: Any, b: Any) -> Any:
        found = np.full((len(a), len(b)), np.nan)
        for i in range(len(a)):
            for j in range(len(b)):
                size = np.linalg.norm(a[i]) * np.linalg.norm(b[j])
                if size > 0:
                    found[i, j] = a[i] @ b[j] / size
        return found

    return {
        "context": cosines(y, y),
        "context_exclusive": cosines(z, z),
        "returns": cosines(y, v),
        "returns_exclusive": cosines(z, v),
        "attention": P,
        "removed": np.linalg.norm(y - z, axis=1) / y_size,
        "size": y_size,
        "size_exclusive": z_size,
    }


def assert_drawn(found: dict[str, Any], exact: dict[str, Any]) -> None:
    """Bytes are half a step off at most, and a rounding of float32; what has no cosine is said so."""
    for name in MATRICES[1:]:
        undefined = np.isnan(exact[name])
        np.testing.assert_array_equal(found[name] == UNDEFINED, undefined)
        drawn = found[name][~undefined] / 127.0 - 1
        assert np.abs(drawn - exact[name][~undefined]).max(initial=0) < 0.5 / 127 + 1e-5
    shares = found["attention"] / 255.0 * found["attention_max"][:, None]
    most = exact["attention"].max(axis=1)
    np.testing.assert_allclose(
        found["attention_max"], most, rtol=2**-11
    )  # of weights in half precision
    step = exact["attention"].max(axis=1, keepdims=True) / 255
    assert (np.abs(shares - exact["attention"]) <= 0.5 * step + 2**-11).all()
    for name in ("removed", "size", "size_exclusive"):
        np.testing.assert_allclose(found[name], exact[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_every_matrix_against_loops_and_the_models_own_weights(folder: Folder, kind: str) -> None:
    """Llama: causal, grouped heads. BERT: all see all."""
    live = loaded(folder, kind)
    told = asked(live, words(11))
    plain = sharp(load_model(str(folder(kind))))
    plain.body.set_attn_implementation("eager")
    ids = torch.tensor([live._last.given.batch.inputs["input_ids"][0].tolist()])  # type: ignore[union-attr]
    with torch.no_grad(), capture(plain.body) as calls:
        weights = plain.body(ids, output_attentions=True).attentions
    assert [x["layer"] for x in told["layers"]] == [0, 1]
    for layer, call in enumerate(calls):
        for head in range(4):
            found = live.head(told["id"], layer, head, None)
            exact = naive(call, head, weights[layer][0, head].double().numpy())
            assert_drawn(found, exact)
            assert {x.dtype for n, x in found.items() if n in MATRICES} == {np.dtype(np.uint8)}
            assert {x.dtype for n, x in found.items() if n not in MATRICES} == {np.dtype(np.float32)}


def test_the_comparison_bites(folder: Folder) -> None:
    """Another head, or y for z, is noticed."""
    live = loaded(folder, "llama")
    told = asked(live, words(11))
    (call,) = [x.call for x in live._last.layers if x.call.layer == 1]  # type: ignore[union-attr]
    one, other = live.head(told["id"], 1, 0, None), live.head(told["id"], 1, 1, None)
    P = one["attention"] / 255.0 * one["attention_max"][:, None]
    assert_drawn(one, naive(call, 0, P))
    for wrong in (
        other,
        {**one, "context_exclusive": one["context"]},
        {**one, "returns_exclusive": one["returns"]},
        {**one, "attention": one["attention"].T},
        {**one, "removed": 1 - one["removed"]},
    ):
        with pytest.raises(AssertionError):
            assert_drawn(wrong, naive(call, 0, P))


def test_what_the_exclusive_form_is(folder: Folder) -> None:
    """cos(z_i, v_i) is 0; and the first token, which sees only itself, has no z at all."""
    live = loaded(folder, "llama")
    told = asked(live, words(9))
    found = live.head(told["id"], 1, 2, None)
    assert found["returns_exclusive"].diagonal().tolist() == [UNDEFINED] + [127] * 8
    assert (found["context_exclusive"][0] == UNDEFINED).all()
    assert (found["context_exclusive"][1:, 0] == UNDEFINED).all()
    assert found["context"].diagonal().tolist() == [254] * 9
    assert found["removed"][0] == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(found["removed"][1:], np.abs(found["self_similarity"][1:]), atol=1e-5)
    assert np.isnan(found["self_weight"][0])


def test_only_what_is_asked_for_is_made(folder: Folder) -> None:
    live = loaded(folder, "llama")
    id = asked(live, words(5))["id"]  # noqa: A001
    numbers = {"self_weight", "self_similarity", "removed", "size", "size_exclusive"}
    numbers |= {"seen_from", "seen_to"}
    assert set(live.head(id, 0, 0, ())) == numbers
    assert set(live.head(id, 0, 0, ("context",))) == numbers | {"context"}
    assert set(live.head(id, 0, 0, ("attention",))) == numbers | {"attention", "attention_max"}
    with pytest.raises(RefusedError, match="No matrix 'all'") as error:
        live.head(id, 0, 0, ("attention", "all"))
    assert error.value.status == 400


def random_call(**options: Any) -> AttentionCall:
    torch.manual_seed(3)
    q, k, v = torch.randn(1, 4, 7, 5), torch.randn(1, 2, 8, 5), torch.randn(1, 2, 8, 6)
    y = torch.randn(1, 4, 7, 6)
    return AttentionCall(layer=0, module="m", tier="torch", q=q, k=k, v=v, y=y, **options)


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_which_tokens_each_one_sees(folder: Folder, kind: str) -> None:
    """Llama: those up to its own. BERT: all."""
    live = loaded(folder, kind)
    found = live.head(asked(live, words(6))["id"], 1, 2, ())
    many = len(found["size"])
    assert found["seen_from"].tolist() == [0] * many
    assert found["seen_to"].tolist() == ([*range(1, many + 1)] if kind == "llama" else [many] * many)


def seen_by_loops(call: AttentionCall) -> list[tuple[int, int]]:
    """The first token that each one sees, and the one after the last; of keys, only somebody's own."""
    own = own_slots(call).flatten().tolist()
    sees = [[call.mask is None or bool(call.mask[0, 0, i, k]) for k in own] for i in range(len(own))]
    if call.causal:
        sees = [[x and j <= i for j, x in enumerate(row)] for i, row in enumerate(sees)]
    return [(row.index(True), len(row) - row[::-1].index(True)) for row in sees]


SEEN = {
    "two documents": (torch.arange(8) // 4)[:, None] == (torch.arange(8) // 4),
    "a window": (torch.arange(8)[:, None] - torch.arange(8)).abs() < 3,
    "holes": (torch.arange(8)[:, None] - torch.arange(8)) % 3 == 0,
}


@pytest.mark.parametrize("mask", SEEN)
@pytest.mark.parametrize("nobodys", [0, 1])
def test_what_is_seen_in_documents_windows_and_masks_with_holes(mask: str, nobodys: int) -> None:
    """nobodys: keys before the first token that are no token's own, and are not counted."""
    tokens = 8 - nobodys
    q, k, v = torch.randn(1, 2, tokens, 5), torch.randn(1, 2, 8, 5), torch.randn(1, 2, 8, 6)
    call = AttentionCall(
        *(0, "m", "torch", v, torch.randn(1, 2, tokens, 6), q, k),
        mask=SEEN[mask][nobodys:][None, None],
        self_key=torch.arange(nobodys, 8) if nobodys else None,
    )
    found = seen_run(call, visible(call))
    assert list(zip(*found.int().tolist(), strict=True)) == seen_by_loops(call)


def test_a_key_that_is_nobodys_behind_the_last_token_lets_nobody_see_later_ones() -> None:
    call = random_call(
        mask=torch.ones(7, 8, dtype=torch.bool).tril()[None, None], self_key=torch.arange(7)
    )
    call.mask[..., 7] = True  # type: ignore[index]
    assert seen_run(call, visible(call)).tolist() == [[0] * 7, [*range(1, 8)]]


def test_keys_that_are_nobodys_own_have_no_column() -> None:
    """A key that the model adds to all: its weight counts, and is not drawn."""
    call = random_call(self_key=torch.arange(1, 8))
    found = head_arrays(call, 3, MATRICES)
    P = (call.q[0, 3] @ call.k[0, 1].T).softmax(dim=-1)[:, 1:]  # type: ignore[index]
    assert found["attention"].shape == (7, 7)
    np.testing.assert_allclose(found["attention_max"], P.amax(dim=1), rtol=1e-4)
    assert_drawn(found, naive_of(call, 3, P))


def naive_of(call: AttentionCall, head: int, P: Tensor) -> dict[str, Any]:
    own = AttentionCall(layer=0, module="m", tier="torch", v=call.v[:, :, 1:], y=call.y)
    return naive(own, head, P.double().numpy())


def test_masks_sinks_and_a_bound_on_scores_are_in_the_weights() -> None:
    mask = torch.randn(1, 4, 7, 8).masked_fill(torch.rand(1, 1, 7, 8) < 0.2, -torch.inf)
    sinks = torch.tensor([0.1, 5.0, -1.0, 2.0])
    options = {"mask": mask, "sinks": sinks, "softcap": 2.0, "scale": 0.7}
    call = random_call(self_key=torch.arange(1, 8), **options)
    s = 2.0 * torch.tanh(0.7 * call.q[0, 2] @ call.k[0, 1].T / 2.0) + mask[0, 2]  # type: ignore[index]
    P = torch.cat((s, sinks[2].expand(7, 1)), dim=1).softmax(dim=-1)[:, 1:8]
    assert_drawn(head_arrays(kept(call), 2, MATRICES), naive_of(call, 2, P))


def test_where_only_weights_were_seen_they_are_drawn() -> None:
    P = torch.rand(1, 4, 7, 7).masked_fill(~causal_mask(torch.arange(7), 7), 0)
    P = P / P.sum(dim=-1, keepdim=True)
    v = torch.randn(1, 4, 7, 6)
    call = AttentionCall(layer=0, module="m", tier="softmax", v=v, y=P @ v, weights=P)
    small = kept(call)
    assert small.weights is not None
    assert small.weights.dtype == torch.float16
    found = head_arrays(small, 1, MATRICES)
    assert_drawn(found, naive(call, 1, P[0, 1].double().numpy()))


def test_what_is_kept_is_a_copy() -> None:
    call = random_call(self_key=torch.arange(1, 8))
    small = kept(call)
    before = head_arrays(small, 0, MATRICES)
    for x in (call.q, call.k, call.v, call.y):
        x.zero_()  # type: ignore[union-attr]
    after = head_arrays(small, 0, MATRICES)
    assert all((before[name] == after[name]).all() for name in before)


def test_a_head_without_any_output_has_no_directions() -> None:
    v = torch.randn(1, 1, 3, 4)
    v[0, 0, 1] = 0
    y = torch.zeros(1, 1, 3, 4)
    y[0, 0, 2] = 1.0
    q = torch.randn(1, 1, 3, 2)
    found = head_arrays(AttentionCall(0, "m", "torch", v, y, q, q), 0, MATRICES)
    assert (found["context"] == UNDEFINED).tolist() == [[True] * 3, [True] * 3, [True, True, False]]
    assert (found["returns"][:, 1] == UNDEFINED).all()
    assert np.isnan(found["removed"][:2]).all()


# ---- tokens


@pytest.mark.parametrize("kind", ["llama", "bert", "vit"])
def test_the_numbers_of_each_token_are_the_measures(folder: Folder, kind: str) -> None:
    live = loaded(folder, kind)
    told = asked(live, png() if kind == "vit" else words(7))
    found = live.tokens(told["id"])
    batch = live._last.given.batch  # type: ignore[union-attr]
    with torch.no_grad(), capture(live.source.body) as calls:
        live.source.body(*batch.args, **batch.inputs)
    for layer, call in enumerate(calls):
        measured = bias(call)
        for name in SHOWN:
            exact = measured.tokens[PER_TOKEN.index(name), 0].masked_fill(~measured.kept[0], torch.nan)
            assert found[name].dtype == np.float16
            np.testing.assert_allclose(found[name][layer], exact.numpy(), rtol=2e-3, atol=1e-4)
    assert np.isnan(found["self_weight"][:, :, 0]).all() == (kind == "llama")


def test_what_is_said_of_a_text(folder: Folder) -> None:
    live = loaded(folder, "bert", max_tokens=20)
    assert live.info() == {
        "model": str(folder("bert")),
        "kind": "text",
        "layers": 2,
        "heads": 4,
        "max_tokens": 20,
    }
    told = asked(live, "w3 w1")
    assert told["tokens"] == ["[CLS]", "w3", "w1", "[SEP]"]
    assert told["layers"][1] == {
        "layer": 1,
        "module": "encoder.layer.1.attention.self",
        "heads": 4,
        "tokens": 4,
    }
    assert (told["kind"], told["cut"], told["grid"], told["prefix"]) == ("text", False, None, 0)
    assert told["left_out"] == []
    assert told["seconds"] > 0


@pytest.mark.parametrize(("most", "many"), [(2048, 48), (20, 20), (3, 3)])
def test_a_long_text_is_cut_within_the_models_own_limit(folder: Folder, most: int, many: int) -> None:
    live = loaded(folder, "bert", max_tokens=most)
    told = asked(live, words(60))
    assert told["cut"]
    assert len(told["tokens"]) == many
    assert told["tokens"][:2] == ["[CLS]", "w0"]
    assert told["tokens"][-1] == "[SEP]"
    assert not asked(live, words(many - 2))["cut"]


def test_no_room_for_a_text_is_told_at_once(folder: Folder) -> None:
    with pytest.raises(SourceError, match=r"--max-tokens 2: .* puts 2 tokens around every text"):
        loaded(folder, "bert", max_tokens=2)


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_a_text_without_tokens_is_refused(folder: Folder, text: str) -> None:
    live = loaded(folder, "bert")
    with pytest.raises(RefusedError, match="no token in this text") as error:
        asked(live, text)
    assert error.value.status == 422


def test_one_token_alone(folder: Folder) -> None:
    live = loaded(folder, "llama")
    told = asked(live, "w1")
    assert told["tokens"] == ["w1"]
    assert all(np.isnan(x).all() for x in live.tokens(told["id"]).values())
    found = live.head(told["id"], 0, 0, None)
    assert found["attention"].tolist() == [[255]]
    assert found["attention_max"].tolist() == [1]
    assert found["context_exclusive"].tolist() == [[UNDEFINED]]


def test_half_a_surrogate_pair_is_read_as_an_unknown_character(folder: Folder) -> None:
    assert asked(loaded(folder, "llama"), "w1 \ud800 w2")["tokens"] == ["w1", "[UNK]", "w2"]


def with_tokenizer(folder: Folder, tokenizer: Any) -> Live:
    source = load_model(str(folder("llama")))
    return live_of(Source(**{**vars(source), "processor": tokenizer}))


def test_spaces_before_words_are_kept(folder: Folder) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    told = asked(with_tokenizer(folder, tokenizer), "the cat sat")
    assert "".join(told["tokens"]) == "the cat sat"
    told = asked(with_tokenizer(folder, prefix_tokenizer()), "the cat")
    assert told["tokens"] == [" the", " cat"]


class Letters:
    """A tokenizer that is nobody's: a number for each letter."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) - ord("a") for c in text]


def test_a_tokenizer_with_no_more_than_encode(folder: Folder) -> None:
    live = with_tokenizer(folder, Letters())
    assert asked(live, "cab")["tokens"] == ["2", "0", "1"]
    with pytest.raises(RefusedError, match="cannot be run on it") as error:
        asked(live, "\U0010ffff")
    assert error.value.status == 422
    assert asked(live, "cab")["tokens"] == ["2", "0", "1"]


# ---- pictures


@pytest.mark.parametrize("kind", ["vit", "clip"])
def test_a_picture_its_grid_and_what_the_model_saw(folder: Folder, kind: str) -> None:
    live = loaded(folder, kind)
    told = asked(live, png())
    assert (told["kind"], told["grid"], told["prefix"], told["cut"]) == ("image", (4, 4), 1, False)
    assert len(told["tokens"]) == 17 == told["layers"][0]["tokens"]
    assert told["tokens"][:3] == ["before the patches 0", "row 0, column 0", "row 0, column 1"]
    seen = live.tokens(told["id"])["picture"]
    assert seen.dtype == np.uint8
    assert seen.shape == (32, 32, 3)
    assert np.abs(seen.astype(int) - pixels_of(png())).max() <= 1


def test_a_picture_without_a_processor_is_seen_from_minus_one_to_one() -> None:
    pixels = torch.tensor([-1.0, 0.0, 1.0]).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    seen = as_seen(pixels, None)
    assert seen is not None
    assert seen[0, 0].tolist() == [0, 128, 255]
    assert as_seen(torch.zeros(1, 5, 9), None) is None


def test_a_grid_is_found_by_the_first_convolution_or_not_at_all() -> None:
    pixels = torch.zeros(1, 3, 32, 48)
    patches = nn.Sequential(nn.Conv2d(3, 5, 8, stride=8))
    assert grid_of(patches, pixels, 24) == ((4, 6), 0)
    assert grid_of(patches, pixels, 29) == ((4, 6), 5)
    assert grid_of(patches, pixels, 23) == (None, 0)
    assert grid_of(patches, pixels, 200) == (None, 0)
    assert grid_of(patches, torch.zeros(1, 24, 64), 24) == (None, 0)
    assert grid_of(nn.Sequential(nn.Conv2d(3, 5, 7, stride=2)), pixels, 24) == (None, 0)
    assert grid_of(nn.Sequential(nn.Linear(2, 2)), pixels, 24) == (None, 0)
    assert names_of_patches(None, 0, 2) == ["token 0", "token 1"]


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def bomb(width: int, height: int) -> bytes:
    """A small PNG that says it is a large picture."""
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(("width", "status"), [(8_000, 413), (12_000, 422), (60_000, 422)])
def test_a_bomb_is_not_unpacked(width: int, status: int) -> None:
    """Above PIL's own bounds, PIL itself refuses; between ours and its, we do."""
    assert width * width > MOST_PIXELS
    with pytest.raises(RefusedError) as error:
        read_picture(bomb(width, width))
    assert error.value.status == status


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"


@pytest.mark.parametrize("data", [b"", b"no picture", SVG, EPS, png()[:60], png()[:-30], b"GIF89a"])
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedError, match="no picture that can be read") as error:
        read_picture(data)
    assert error.value.status == 422


def test_broken_pictures_are_refused_and_nothing_else_comes_of_them() -> None:
    """A thousand of them, in each format: a picture, or our refusal."""
    draw = random.Random(0)
    refused = 0
    for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF"):
        out = io.BytesIO()
        Image.open(io.BytesIO(png(9, 7))).save(out, kind)
        for _ in range(200):
            data = bytearray(out.getvalue())
            for _ in range(draw.randint(1, 6)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            try:
                assert read_picture(bytes(data)).mode == "RGB"
            except RefusedError:
                refused += 1
    assert refused > 100


def test_the_kind_of_input_must_be_the_models(folder: Folder) -> None:
    with pytest.raises(RefusedError, match="takes text"):
        asked(loaded(folder, "llama"), png())
    with pytest.raises(RefusedError, match="takes pictures"):
        asked(loaded(folder, "vit"), "w1")


def test_a_picture_of_too_many_tokens_is_refused(folder: Folder) -> None:
    with pytest.raises(SourceError, match="17 tokens, more than 16"):
        loaded(folder, "vit", max_tokens=16)


# ---- which models, and which layers


def test_a_model_that_listens_is_refused_by_name(folder: Folder) -> None:
    with pytest.raises(SourceError, match="takes audio; live, the explorer takes text and pictures"):
        live_of(load_model(str(folder("wav2vec2"))))


def test_windows_are_left_out_by_name(tmp_path: Path) -> None:
    """Of Swin, what is one window over all that is left of a picture is shown, with its own tokens."""
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    torch.manual_seed(0)
    transformers.SwinModel(config).save_pretrained(tmp_path)
    told = asked(live_of(load_model(str(tmp_path))), png())
    assert "it works in 4 windows of 16 tokens, not over all of them" in told["left_out"][0]
    assert [(x["layer"], x["tokens"]) for x in told["layers"]] == [(1, 16)]
    assert (told["grid"], told["prefix"], told["tokens"][:1]) == (None, 0, ["token 0"])


def test_a_model_of_which_nothing_can_be_shown_is_refused_by_name() -> None:
    with pytest.raises(
        SourceError, match=r"blocks-only-windows has no attention .*: it works in 2 windows"
    ):
        live_of(blocks("only-windows"))


def test_of_an_encoder_and_a_decoder_the_encoder_is_shown(tmp_path: Path) -> None:
    config = transformers.T5Config(
        vocab_size=1000, d_model=16, d_kv=4, d_ff=8, num_layers=2, num_heads=3, decoder_start_token_id=0
    )
    torch.manual_seed(0)
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    MAKERS["llama"]()[1].save_pretrained(tmp_path)
    live = live_of(load_model(str(tmp_path)))
    told = asked(live, words(5))
    assert [x["tokens"] for x in told["layers"]] == [5, 5]
    assert all(x["module"].startswith("encoder.") for x in told["layers"])
    said = " ".join(told["left_out"])
    assert "decoder.block.0.layer.0.SelfAttention: it sees 1 tokens, not the 5" in said
    assert "cross-attention" in said
    weights = live.head(told["id"], 0, 0, ("attention",))
    assert weights["attention"].shape == (5, 5)


class Blocks(nn.Module):
    """Two layers; of the second nothing can be shown, for one reason or another."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fault = fault
        self.embed = nn.Embedding(100, 12)
        self.first, self.second = (nn.MultiheadAttention(12, 3, batch_first=True) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        if self.fault != "only-windows":
            x = x + self.first(x, x, x, need_weights=False)[0]
        if self.fault == "fails":
            raise RuntimeError("the second layer\nis broken")
        if self.fault == "sleeps":
            time.sleep(0.3)
        if self.fault in ("windows", "only-windows"):
            x = x.unflatten(1, (2, -1)).flatten(0, 1)
        if self.fault == "nan":
            x = x * torch.nan
        mask = torch.rand(3, *2 * x.shape[1:2]) < 0.5 if self.fault == "heads" else None
        if mask is not None:
            mask = mask & ~torch.eye(x.shape[1], dtype=torch.bool)
        for _ in range(2 if self.fault == "parts" else 1):
            x = self.second(x, x, x, need_weights=False, attn_mask=mask)[0]
        return x


def blocks(fault: str) -> Source:
    model = Blocks(fault).eval().requires_grad_(False)
    return Source(f"blocks-{fault}", "text", model, model, Letters(), {}, None)


FAULTS = [
    ("windows", "second: it works in 2 windows of 2 tokens, not over all of them."),
    ("nan", "second: NaN or infinity comes out of it."),
    ("heads", "second: its mask shows different keys to different heads"),
]


@pytest.mark.parametrize(("fault", "said"), FAULTS)
def test_a_layer_that_cannot_be_shown_is_named_and_the_others_are(fault: str, said: str) -> None:
    live = live_of(blocks(fault))
    told = asked(live, "abcd")
    assert [x["module"] for x in told["layers"]] == ["first"]
    assert told["left_out"][0].startswith(said)
    assert live.tokens(told["id"])["self_weight"].shape == (1, 3, 4)
    with pytest.raises(RefusedError, match="Nothing is kept of a layer 1"):
        live.head(told["id"], 1, 0, None)


def test_without_a_fault_both_are_shown() -> None:
    told = asked(live_of(blocks("none")), "abcd")
    assert [x["module"] for x in told["layers"]] == ["first", "second"]
    assert told["left_out"] == []


def test_a_model_that_cannot_be_run_is_told_at_once() -> None:
    with pytest.raises(SourceError, match="blocks-fails cannot be run on it: the second layer"):
        live_of(blocks("fails"))


def test_what_does_not_fit_in_memory_is_refused(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = loaded(folder, "llama")
    monkeypatch.setattr(module, "MOST_KEPT", 4000)
    asked(live, "w1")
    with pytest.raises(RefusedError, match="does not fit") as error:
        asked(live, words(20))
    assert error.value.status == 422


# ---- one after the other, and an end


def test_only_the_last_one_is_kept(folder: Folder) -> None:
    live = loaded(folder, "llama")
    first, second = asked(live, words(4))["id"], asked(live, words(5))["id"]
    assert first != second
    with pytest.raises(RefusedError, match="Only the last input is kept") as error:
        live.tokens(first)
    assert error.value.status == 404
    with pytest.raises(RefusedError, match="Only the last input is kept"):
        live.head(first, 0, 0, None)
    assert live.tokens(second)["self_weight"].shape == (2, 4, 5)


@pytest.mark.parametrize(("layer", "head"), [(2, 0), (0, 4)])
def test_a_head_that_is_not_there(folder: Folder, layer: int, head: int) -> None:
    live = loaded(folder, "llama")
    with pytest.raises(RefusedError, match=f"Nothing is kept of a layer {layer} with a head {head}"):
        live.head(asked(live, "w1 w2")["id"], layer, head, None)


def hooks(live: Live) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in live.source.body.modules())


def test_what_takes_too_long_is_stopped_and_leaves_nothing_behind() -> None:
    live = live_of(blocks("sleeps"), max_seconds=0.1)
    before = hooks(live)
    with pytest.raises(RefusedError, match=r"longer than 0\.1 seconds.*--max-seconds") as error:
        asked(live, "abcd")
    assert error.value.status == 503
    assert hooks(live) == before
    assert asked(live_of(blocks("sleeps")), "abcd")["layers"]


def test_a_stop_is_heard_in_the_middle() -> None:
    live, stop = live_of(blocks("sleeps")), Event()
    threading.Timer(0.1, stop.set).start()
    with pytest.raises(RefusedError, match="nobody waits") as error:
        live.run("abcd", stop)
    assert error.value.status == 503
    assert asked(live, "abcd")["layers"]


def test_it_runs_in_a_server_and_stops_when_the_client_goes(folder: Folder) -> None:
    """The capture sees calls in its own thread only: here that is a worker's."""
    with served((), loaded(folder, "llama")) as server:
        told = server.text("w1 w2 w3").json
        assert told["tokens"] == ["w1", "w2", "w3"]
        assert server.ask(f"/api/live/{told['id']}/tokens").status == 200
        assert server.ask(f"/api/live/{told['id']}/heads/1/3").status == 200
        assert server.ask(f"/api/live/{told['id']}/heads/1/4").status == 404
        assert server.ask(f"/api/live/{told['id']}/heads/1/3?matrices=all").status == 400
        assert server.text("").status == 422
        assert server.told == []
    live = live_of(blocks("sleeps"))
    ended: list[str] = []
    run = live.run

    def heard(given: Any, stop: Event) -> Any:
        try:
            return run(given, stop)
        except RefusedError as error:
            ended.append(str(error))
            raise

    live.run = heard  # type: ignore[method-assign]
    with served((), live) as server:
        body = b'{"text": "abcd"}'
        with server.connected() as opened:
            opened.sendall(
                b"POST /api/live HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                + f"X-Outward-Token: {server.access.token}\r\n".encode()
                + f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            time.sleep(0.1)
        eventually(lambda: ended)
    assert "nobody waits" in ended[0]
