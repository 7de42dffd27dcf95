"""The command line: parses, calls, prints. Results go to stdout, progress and warnings to stderr."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import tyro
from tyro.conf import Positional, UseAppendAction, arg

if TYPE_CHECKING:
    from outward.engines.plan import Plan
    from outward.engines.work import Share
    from outward.run import Run

DONE, FAILED, USAGE, PARTIAL, CONDITION = 0, 1, 2, 3, 4
STOPPED = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Usage(Exception):
    """An option that makes no sense; exits with USAGE."""


def measure(
    model: Positional[str],
    data: Positional[str | None] = None,
    /,
    *,
    length: float | None = None,
    samples: int = 64,
    batch: int = 8,
    out: Path | None = None,
    resume: bool = False,
    json: bool = False,
    baseline: str = "",
    lengths: str = "",
    layers: str = "",
    measures: str = "",
    fail_if: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="CONDITION")] = (),
    special_tokens: Literal["auto", "never"] = "auto",
    field: str | None = None,
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    device: str = "auto",
    threads: int = 0,
    seed: int = 0,
    shard: str | None = None,
    engine: str = "local",
    workers: int | None = None,
    verify: bool = True,
    allow_pickle: bool = False,
    debug: bool = False,
) -> int:
    """Measure how much attention hands each token back to itself, per layer and head.

    Args:
        model: smollm2 or minilm (real ones, from the extra `demo`); a transformers id or folder, with
            @revision if need be; a .gguf file; timm/NAME; open_clip:NAME[/WEIGHTS]; file.py:function.
        data: a text file, a folder, JSONL, Parquet, hf:ORG/NAME[#CONFIG][:SPLIT], a folder of images or
            of audio. Without it, an English text that comes with Python, or generated images.
        length: tokens in a window of text (512, or what the model allows), seconds of audio.
        samples: how many windows at most.
        batch: windows in a forward pass.
        out: a directory to keep the run in.
        resume: go on with what --out holds of the same run.
        json: print one JSON document instead of the table.
        baseline: random-weights, shuffled-tokens, or both with a comma: what the same data give without
            training, and without order.
        lengths: other lengths to compare, as in 64,128,256,512.
        layers: which to measure, as in 0-5,11; all unless given.
        measures: which to show, with commas; the default ones unless given.
        fail_if: exit with 4 if it is true of a layer, as in 'self_similarity>0.6@layer>=20'.
        special_tokens: auto: those that the tokenizer itself adds, within the length.
        field: of the text in JSONL and Parquet.
        dtype: of weights and activations; auto: as the model is saved.
        device: cpu, cuda, cuda:1, mps; auto: an accelerator if there is one.
        threads: of each worker; 0: all cores.
        seed: of random weights, shuffling and generated data.
        shard: i/n: do this part of the work, into the same --out; `outward merge` joins them.
        engine: local, or ray[:ADDRESS].
        workers: how many actors of Ray.
        verify: prove on the first batch that watching changes nothing and sees what is computed.
        allow_pickle: also load weights that are no safetensors (by torch's weights_only).
        debug: show the traceback of an error.
    """
    from outward.engines.plan import Plan

    conditions = [_condition(text) for text in fail_if]
    plan = Plan(
        model=model,
        data=data,
        field=field,
        length=length,
        samples=samples,
        batch=batch,
        special_tokens=special_tokens,
        dtype=dtype,
        device=device,
        seed=seed,
        threads=threads,
        baselines=tuple(x for x in baseline.split(",") if x),
        lengths=_numbers("--lengths", lengths),
        layers=_ranges(layers) if layers else None,
        allow_pickle=allow_pickle,
    )
    shown = _known_measures(measures)
    with _kept(out, resume=resume, shard=shard) as folder:
        run = _run(plan, folder, resume, shard, engine, workers, verify)
        if run is None:
            return DONE
        return _print(run, json=json, shown=shown, conditions=conditions, kept=out is not None)


def merge(run: Positional[Path], /, *, json: bool = False, debug: bool = False) -> int:
    """Join the shards of a run that were done apart, and print it.

    Args:
        run: the directory that the shards were given as --out.
        json: print one JSON document instead of the table.
        debug: show the traceback of an error.
    """
    from outward.engines.finish import finish
    from outward.run import Run

    return _print(Run(finish(run), run), json=json, shown=(), conditions=[], kept=True)


def models(*, json: bool = False) -> int:
    """Names that work here as MODEL, and what the others need.

    Args:
        json: print one JSON document.
    """
    from outward.environment import known_models

    return _listing(known_models(), json)


def doctor(*, json: bool = False) -> int:
    """Versions, devices, and what is broken.

    Args:
        json: print one JSON document.
    """
    from outward.environment import diagnosis

    found = diagnosis()
    _listing(found, json)
    return FAILED if any(row["state"] == "broken" for row in found) else DONE


COMMANDS: dict[str, Callable[..., int]] = {
    "measure": measure,
    "merge": merge,
    "models": models,
    "doctor": doctor,
}


def main(args: list[str] | None = None) -> NoReturn:
    """Exits with 0 done, 1 failed, 2 usage, 3 partial, 4 a condition is true, 130 or 143 stopped."""
    args = sys.argv[1:] if args is None else args
    for number in STOPPED:
        signal.signal(number, _stop)
    try:
        code = tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="outward", args=args, description=__doc__, sort_subcommands=False
        )
    except Usage as error:
        _say(str(error))
        code = USAGE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = DONE
    except Exception as error:
        if "--debug" in args or not isinstance(error, _expected()):
            raise
        _say(str(error))
        code = FAILED
    sys.exit(code)


# ---- running


def _run(
    plan: "Plan",
    folder: Path,
    resume: bool,
    shard: str | None,
    engine: str,
    workers: int | None,
    verify: bool,
) -> "Run | None":
    """The finished run, or None where other workers have parts of it still."""
    from outward.engines.finish import finish
    from outward.engines.group import of_torchrun, together
    from outward.engines.group import shard as share_of
    from outward.engines.plan import begin
    from outward.engines.work import Share, facts_of
    from outward.run import Run

    _quiet()
    group = of_torchrun()
    share = share_of(shard) if shard else group or Share()
    begin(plan, folder, resume=resume, shared=share.count > 1, facts=facts_of(plan))
    with _progress() as progress:
        if engine.partition(":")[0] == "ray":
            from outward.engines.ray import work as ray_work

            address = engine.partition(":")[2] or None
            ray_work(plan, folder, address=address, workers=workers, verify=verify, progress=progress)
        elif engine != "local":
            raise Usage(f"--engine {engine}: it is local, or ray, or ray:ADDRESS.")
        else:
            _work(plan, share, folder, verify, progress, together if group else None)
    if shard and share.count > 1:
        _say(f"shard {shard} is done; when all are: outward merge {folder}")
        return None
    if group and group.index != 0:
        return None
    return Run(finish(folder), folder)


def _work(
    plan: "Plan", share: "Share", folder: Path, verify: bool, progress: Any, together: Any
) -> None:
    from contextlib import nullcontext

    from outward.engines.work import work

    with together() if together else nullcontext():
        work(plan, share, folder, verify=verify, progress=progress)


@contextmanager
def _kept(out: Path | None, *, resume: bool, shard: str | None) -> Iterator[Path]:
    """The run directory, or one that is gone afterwards."""
    import tempfile

    if out is not None:
        yield out
        return
    if resume or shard or "TORCHELASTIC_RUN_ID" in os.environ:
        raise Usage("--resume, --shard and torchrun need --out: the directory that the parts share.")
    with tempfile.TemporaryDirectory(prefix="outward-") as folder:
        yield Path(folder)


def _quiet() -> None:
    """What transformers says while loading is not ours to show."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Windows done, rate and time on stderr; where that is no terminal, a line now and then."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    began = last = time.monotonic()

    def told(series: str, done: int, windows: int) -> None:
        nonlocal last
        now = time.monotonic()
        line = f"{series}: {done} windows in {now - began:.0f} s"
        if console.is_terminal:
            console.print(line, end="\r")
        elif now - last > 10:
            last = now
            console.print(line)

    yield told
    if console.is_terminal:
        console.print(" " * 60, end="\r")


# ---- printing


def _print(
    run: "Run",
    *,
    json: bool,
    shown: tuple[str, ...],
    conditions: list["Condition"],
    kept: bool,
) -> int:
    from rich.console import Console

    from outward.report.terminal import show
    from outward.results import as_json

    document = {**run.document, "run": str(run.path) if kept else None}
    true = [c.text for c in conditions if c.holds(document["layers"])]
    if json:
        print(as_json(document))
    else:
        wide = None if sys.stdout.isatty() else 120
        show(document, run.reading, Console(width=wide, highlight=False), shown)
        if kept:
            print(f"kept in {run.path}")
    for text in true:
        _say(f"--fail-if {text}: it is true")
    if true:
        return CONDITION
    return PARTIAL if run.manifest["failed"] or run.manifest["skipped"] else DONE


def _listing(rows: list[dict[str, Any]], json: bool) -> int:
    from rich.console import Console
    from rich.table import Table

    from outward.results import as_json

    if json:
        print(as_json(rows))
        return DONE
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(str(x) for x in row.values()))
    Console(highlight=False, markup=False).print(table)
    return DONE


def _say(message: str) -> None:
    print(f"outward: {message}", file=sys.stderr)


def _stop(number: int, frame: Any) -> NoReturn:
    _say("stopped; what is finished is kept where --out was given, and --resume goes on with it")
    sys.exit(STOPPED[signal.Signals(number)])


def _expected() -> tuple[type[Exception], ...]:
    """Errors that speak for themselves. Late, because the rooms that raise them import torch."""
    from outward.results import ResultError

    found: list[type[Exception]] = [ResultError]
    if "outward.sources.errors" in sys.modules:
        from outward.sources.errors import SourceError

        found.append(SourceError)
    if "outward.taps.proof" in sys.modules:
        from outward.taps.proof import ProofError

        found.append(ProofError)
    return tuple(found)


# ---- reading options


class Condition:
    """MEASURE>NUMBER or MEASURE<NUMBER, of any layer, or of those that @layer names."""

    FORM = re.compile(r"(\w+)(>=|<=|>|<)([-+.\deE]+)(?:@layer(>=|<=|==|>|<)(\d+))?")

    def __init__(self, text: str) -> None:
        found = self.FORM.fullmatch(text.replace(" ", ""))
        if not found:
            raise Usage(
                f"--fail-if {text}: it is MEASURE>NUMBER or MEASURE<NUMBER (also >=, <=), then @layer>=N "
                "(also <=, ==, >, <) if it is of some layers only, as in 'self_similarity>0.6@layer>=20'."
            )
        self.text = text
        self.measure, self.sign, number, self.layer_sign, layer = found.groups()
        _known_measures(self.measure)
        try:
            self.number = float(number)
        except ValueError:
            raise Usage(f"--fail-if {text}: {number} is no number.") from None
        self.layer = int(layer or 0)

    def holds(self, layers: list[dict[str, Any]]) -> bool:
        """Whether it is true of one of the layers."""
        return any(
            _compare(x[self.measure], self.sign, self.number)
            for x in layers
            if x.get(self.measure) is not None
            and (self.layer_sign is None or _compare(x["layer"], self.layer_sign, self.layer))
        )


def _compare(a: float, sign: str, b: float) -> bool:
    return {">": a > b, "<": a < b, ">=": a >= b, "<=": a <= b, "==": a == b}[sign]


def _condition(text: str) -> Condition:
    return Condition(text)


def _known_measures(text: str) -> tuple[str, ...]:
    from outward.measures.bias import DEFAULT

    names = tuple(x.strip() for x in text.split(",") if x.strip())
    unknown = [n for n in names if n not in DEFAULT]
    if unknown:
        raise Usage(f"no measure {', '.join(unknown)}: there are {', '.join(DEFAULT)}.")
    return names


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(x) for x in text.split(",") if x.strip())
    except ValueError:
        raise Usage(f"{option} {text}: it is whole numbers with commas, as in 64,128,256.") from None


def _ranges(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise Usage(f"--layers {text}: it is numbers and ranges with commas, as in 0-5,11.")
        first, last = int(match[1]), int(match[2] or match[1])
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))
