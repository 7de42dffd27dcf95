"""Which models the taps can watch: one small random model of every architecture of the libraries.

    python -m benchmarks.census [--library transformers,timm,open_clip,torch] [--only NAME,...]
                                [--out results/census] [--table docs/models.md]

Every model runs twice as it is and once watched. The three outputs must be the same bits; every
attention module that ran must be captured, or refused with a reason; and y of every call must follow
from its q, k, v and mask (or weights) in float64, within what rounding explains.
"""

import argparse
import json
import multiprocessing
import platform
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import tiny
from outward.attention.call import AttentionCall
from outward.taps.capture import Capture, capture
from outward.taps.coverage import ModuleCoverage
from outward.taps.proof import difference, same_road, tensors_in, y_error

LIMIT = 60  # seconds for one model
RIGHT = ("cross-attention", "no softmax", "deformable", "over channels", "mixes no tokens")
CROSS = r"cross|encoder_attn|EncDec|enc_dec|encdec|multihead_attn"  # names that must not be captured
Forward = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """What became of one architecture. `error` says why there is nothing more to say."""

    library: str
    name: str
    error: str | None = None
    repeats: bool = False
    identical: bool = False
    called: int = 0
    captured: int = 0
    calls: int = 0
    tiers: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    y_error: float = 0.0
    y_share: float = 0.0
    kept: bool = True

    @property
    def ran(self) -> bool:
        return self.error is None

    @property
    def whole(self) -> bool:
        """Whether nothing that calls itself attention, and is softmax over keys, was missed."""
        return not self.missed and self.y_share <= 1 and self.kept

    @property
    def has_attention(self) -> bool:
        """Whether softmax over keys was seen, or missed."""
        return bool(self.captured or self.missed)


# ---- one model


class Check:
    """Computes y of each call again, and keeps sums of what was captured to see that nobody writes in it."""

    def __init__(self) -> None:
        self.error = self.share = 0.0
        self.calls: list[tuple[AttentionCall, list[Tensor]]] = []

    def __call__(self, call: AttentionCall) -> None:
        error, share = y_error(call)
        self.error, self.share = max(self.error, error), max(self.share, share)
        self.calls.append((call, [x.clone() for x in _kept(call)]))

    def still_the_same(self) -> bool:
        return all(
            torch.equal(x.nan_to_num(), y.nan_to_num())
            for call, copies in self.calls
            for x, y in zip(_kept(call), copies, strict=True)
        )


def _kept(call: AttentionCall) -> list[Tensor]:
    return [x for x in (call.q, call.k, call.v, call.y) if x is not None]


def census(library: str, name: str, model: nn.Module, run: Forward) -> Row:
    """Run a model plain, plain and watched, and compare."""
    check = Check()
    with same_road(), torch.no_grad():
        first = _outputs(run)
        own = difference(first, _outputs(run))
        with capture(model, check) as calls:
            watched = difference(first, _outputs(run))
    return _row(library, name, own, watched, calls, check)


def _row(library: str, name: str, own: float, watched: float, calls: Capture, check: Check) -> Row:
    rows = [r for r in calls.coverage if r.status != "not called"]
    captured = [r for r in rows if r.status == "captured"]
    refused = [r for r in rows if r.status == "refused" and _is_right(str(r.reason))]
    missed = [r for r in rows if r.status == "refused" and not _is_right(str(r.reason))]
    missed += [r for r in captured if re.search(CROSS, r.module)]
    return Row(
        library,
        name,
        repeats=own == 0,
        identical=watched == 0 if own == 0 else watched <= 4 * own,
        called=len(rows),
        captured=len(captured),
        calls=len(check.calls),
        tiers=sorted({str(r.tier) for r in captured}),
        refused=_reasons(refused),
        missed=_reasons(missed),
        y_error=check.error,
        y_share=check.share,
        kept=check.still_the_same(),
    )


def _is_right(reason: str) -> bool:
    """Whether a refusal names what is no softmax over keys, or cross-attention."""
    return any(said in reason for said in RIGHT)


def _reasons(rows: list[ModuleCoverage]) -> list[str]:
    counted = Counter(f"{r.kind}: {r.reason}" for r in rows)
    return [f"{n} x {what}" for what, n in sorted(counted.items())]


def _outputs(run: Forward) -> list[Tensor]:
    with torch.random.fork_rng(devices=[]):
        return [x.detach().clone() for x in tensors_in(run())]


# ---- the libraries


def transformers_names() -> list[str]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return list(CONFIG_MAPPING_NAMES)


def of_transformers(name: str) -> tuple[nn.Module, Forward]:
    """The smallest model that runs, and its inputs."""
    import transformers

    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    said = None
    for model in tiny.small_models(name):
        for inputs in tiny.inputs_of(model):
            run = partial(_fresh, model, inputs)
            try:
                with torch.no_grad():
                    outputs = [x for x in tensors_in(run()) if x.is_floating_point()]
            except Exception as error:  # not these inputs, then
                said = tiny.one_line(error)
                continue
            if not all(x.isfinite().all() for x in outputs[:1]):
                tiny.calm(model)
            return model, run
    raise LookupError(f"no inputs fit: {said}" if said else f"not built: {tiny.why_not(name)}")


def _fresh(model: nn.Module, inputs: dict[str, Any]) -> Any:
    """With inputs that nobody has written into."""
    return model(**{n: x.clone() if isinstance(x, Tensor) else x for n, x in inputs.items()})


def timm_names() -> list[str]:
    """The smallest variant of every module of timm that is said to be a transformer of some kind, or any."""
    import timm

    names = []
    for module in timm.list_modules():
        found = timm.list_models(module=module)
        if found:
            names.append(min(found, key=_size_in_name))
    return names


_SIZES = (
    "atto",
    "femto",
    "pico",
    "nano",
    "xxt",
    "xxs",
    "xt",
    "xs",
    "tiny",
    "_t",
    "small",
    "_s",
    "mini",
)


def _size_in_name(name: str) -> tuple[int, int]:
    return next((i for i, s in enumerate(_SIZES) if s in name), len(_SIZES)), len(name)


def of_timm(name: str) -> tuple[nn.Module, Forward]:
    """At the size it is made for, one picture at a time: many know no other."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False).eval()
    size = model.default_cfg.get("test_input_size") or model.default_cfg["input_size"]
    x = torch.randn(2, *size)
    return model, partial(model, x)


def open_clip_names() -> list[str]:
    return [
        "ViT-S-32-alt",
        "ViT-B-32",
        "ViT-B-32-quickgelu",
        "RN50",
        "coca_base",
        "EVA02-B-16",
        "nllb-clip-base",
        "ViT-B-16-SigLIP",
        "roberta-ViT-B-32",
        "MobileCLIP-S1",
    ]


def of_open_clip(name: str) -> tuple[nn.Module, Forward]:
    """The tower of images."""
    import open_clip

    torch.manual_seed(0)
    config = open_clip.get_model_config(name)
    vision = open_clip.model.CLIPVisionCfg(**config["vision_cfg"])
    for attribute, most in (("layers", 2), ("width", 128), ("head_width", 32)):
        value = getattr(vision, attribute)
        if isinstance(value, int):
            setattr(vision, attribute, min(value, most))
    vision.timm_model_pretrained = False
    model = open_clip.model._build_vision_tower(64, vision, config.get("quick_gelu", False)).eval()
    size = vision.image_size if isinstance(vision.image_size, int) else vision.image_size[0]
    return model, partial(model, torch.randn(2, 3, size, size))


def torch_names() -> list[str]:
    return [
        "MultiheadAttention, weights",
        "MultiheadAttention",
        "TransformerEncoder",
        "Transformer",
        "vit_b_32",
        "swin_t",
        "swin_v2_t",
        "maxvit_t",
    ]


def of_torch(name: str) -> tuple[nn.Module, Forward]:
    """torch's own layers, and torchvision's models."""
    torch.manual_seed(0)
    x = torch.randn(2, 9, 32)
    if name.startswith("MultiheadAttention"):
        attention = nn.MultiheadAttention(32, 4, batch_first=True).eval()
        return attention, partial(attention, x, x, x, need_weights="weights" in name)
    if name == "TransformerEncoder":
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        return encoder, partial(encoder, x, src_key_padding_mask=torch.arange(9).expand(2, 9) > 6)
    if name == "Transformer":
        both = nn.Transformer(32, 4, 2, 2, 64, batch_first=True).eval()
        return both, partial(both, x, x[:, :5])
    import torchvision

    model = torchvision.models.get_model(name, weights=None).eval()
    return model, partial(model, torch.randn(2, 3, 224, 224))


LIBRARIES: dict[str, tuple[Callable[[], list[str]], Callable[[str], tuple[nn.Module, Forward]]]] = {
    "transformers": (transformers_names, of_transformers),
    "timm": (timm_names, of_timm),
    "open_clip": (open_clip_names, of_open_clip),
    "torch": (torch_names, of_torch),
}


# ---- all of them, one process at a time


class _TooLongError(BaseException):
    """Past the limit; not an Exception, so that no model swallows it."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise _TooLongError


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def one(library: str, name: str) -> Row:
    """The row of one architecture, whatever happens."""
    try:
        with _within(LIMIT), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, run = LIBRARIES[library][1](name)
            return census(library, name, model, run)
    except _TooLongError:
        return Row(library, name, error=f"longer than {LIMIT} s")
    except Exception as error:
        return Row(library, name, error=tiny.one_line(error))


def _worker(pipe: Any) -> None:
    torch.set_num_threads(1)
    while True:
        pipe.send(one(*pipe.recv()))


class Worker:
    """A process of its own for the models: some fall over in ways that take the process with them."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._start()

    def _start(self) -> None:
        self._pipe, other = self._context.Pipe()
        self._process = self._context.Process(target=_worker, args=(other,), daemon=True)
        self._process.start()
        other.close()

    def __call__(self, library: str, name: str) -> Row:
        self._pipe.send((library, name))
        try:
            if self._pipe.poll(2 * LIMIT):
                return self._pipe.recv()
            said = "hangs"
        except EOFError:
            said = "takes the process with it"
        self.close()
        self._start()
        return Row(library, name, error=said)

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def run_census(libraries: list[str], only: list[str], tell: Callable[[Row], None]) -> list[Row]:
    """Every architecture of the libraries, in order."""
    worker = Worker()
    rows = []
    try:
        for library in libraries:
            for name in only or LIBRARIES[library][0]():
                rows.append(worker(library, name))
                tell(rows[-1])
    finally:
        worker.close()
    return rows


# ---- what is said of it


def summary(rows: list[Row]) -> dict[str, Any]:
    """The figures: everything that ran, and of that, what has softmax attention."""
    ran = [r for r in rows if r.ran]
    attending = [r for r in ran if r.has_attention]
    tiers = Counter(t for r in attending for t in r.tiers)
    return {
        "architectures": len(rows),
        "ran": len(ran),
        "identical": sum(r.identical for r in ran),
        "with softmax attention": len(attending),
        "captured whole": sum(r.whole for r in attending),
        "only refused, with a reason": sum(bool(r.refused) and not r.has_attention for r in ran),
        "without attention": sum(not r.refused and not r.has_attention for r in ran),
        "tiers": dict(tiers),
        "largest y error": max((r.y_error for r in ran), default=0.0),
        "largest share of what rounding explains": max((r.y_share for r in ran), default=0.0),
    }


def line(row: Row) -> str:
    if not row.ran:
        return f"{row.library} {row.name}: {row.error}"
    marks = "same" if row.identical else "DIFFERS"
    marks += "" if row.repeats else " (differs from itself)"
    marks += "" if row.kept else " WRITTEN INTO"
    found = f"{row.captured}/{row.called} {','.join(row.tiers)} y {row.y_error:.0e} ({row.y_share:.2g})"
    extra = "".join(f"\n    refused {x}" for x in row.refused)
    extra += "".join(f"\n    MISSED {x}" for x in row.missed)
    return f"{row.library} {row.name}: {marks} {found}{extra}"


def table(rows: list[Row]) -> str:
    """One library's rows in Markdown."""
    head = "| model | same bits | captured | tier | y error | refused, and why |\n|---|---|---|---|---|---|\n"
    return head + "".join(_table_row(r) for r in rows if r.ran)


def _table_row(row: Row) -> str:
    same = "yes" if row.identical else "NO"
    same += "" if row.repeats else " (differs from itself)"
    why = "; ".join([*row.refused, *(f"missed: {x}" for x in row.missed)]).replace("|", "/")
    captured = f"{row.captured} of {row.called}" if row.called else "no attention"
    error = f"{row.y_error:.0e}" if row.calls else ""
    return f"| {row.name} | {same} | {captured} | {', '.join(row.tiers)} | {error} | {why} |\n"


def document(rows: list[Row], command: str) -> str:
    """docs/models.md."""
    parts = [
        "# Models that can be watched",
        "",
        f"Written by `{command}`: one small random model of every architecture. It runs twice plain and "
        "once watched; *same bits* compares all tensors of the outputs. *captured* counts attention modules "
        "that ran. *y error* is that of the captured output of attention, relative to its largest entry, "
        "from what q, k, v and mask give in float64.",
        "",
    ]
    for library in dict.fromkeys(r.library for r in rows):
        own = [r for r in rows if r.library == library]
        parts += [f"## {library}", "", _figures(own), "", table(own)]
        silent = [f"{r.name} ({r.error})" for r in own if not r.ran]
        if silent:
            parts += [
                "Not run, as no small model or no inputs came out of a generic recipe: ",
                "",
                ", ".join(r.name for r in own if not r.ran) + ".",
                "",
            ]
    return "\n".join(parts)


def _figures(rows: list[Row]) -> str:
    s = summary(rows)
    return (
        f"{s['ran']} of {s['architectures']} ran; {s['identical']} of {s['ran']} returned the same bits. "
        f"{s['with softmax attention']} have softmax attention, and {s['captured whole']} of these were captured "
        f"whole; {s['only refused, with a reason']} have other attention only, and were refused by name; "
        f"{s['without attention']} have none."
    )


def versions() -> dict[str, str]:
    import timm
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "timm": timm.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", default=",".join(LIBRARIES))
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    started = time.time()
    only = [x for x in options.only.split(",") if x]
    rows = run_census(options.library.split(","), only, lambda row: print(line(row), flush=True))
    print(json.dumps(summary(rows), indent=1))
    command = " ".join(["python -m benchmarks.census", *sys.argv[1:]])
    if options.out:
        _write(options.out, rows, command, time.time() - started)
    if options.table:
        options.table.parent.mkdir(parents=True, exist_ok=True)
        options.table.write_text(document(rows, command))


def _write(folder: Path, rows: list[Row], command: str, seconds: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for library in dict.fromkeys(r.library for r in rows):
        own = [r for r in rows if r.library == library]
        record = {
            "command": command,
            "versions": versions(),
            "seconds for all": round(seconds),
            "summary": summary(own),
            "rows": [asdict(r) for r in own],
        }
        (folder / f"{library}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
