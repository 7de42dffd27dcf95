"""The command line: parses, calls, prints. Results go to stdout, progress and warnings to stderr."""

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import tyro
from tyro.conf import FlagCreatePairsOff, Positional, UseAppendAction, arg

if TYPE_CHECKING:
    from rich.console import Console

    from outward.engines.plan import Plan
    from outward.engines.work import Share
    from outward.run import Run

T = TypeVar("T")
DESCRIPTION = (
    "How much does attention hand each token back to itself? Begin with: outward measure smollm2. "
    "Results go to stdout, progress and warnings to stderr."
)
EVERY = 10.0  # seconds from one line of progress to the next, where stderr is no terminal
DONE, FAILED, USAGE, PARTIAL, CONDITION = 0, 1, 2, 3, 4
STOPPED = {signal.SIGINT: 130, signal.SIGTERM: 143}

PIPE = 141  # as of a program that the closing of its pipe ends


class UsageError(Exception):
    """An option that makes no sense; exits with USAGE."""


class Stop:
    """What to do on a signal. It remembers which: Ray raises a KeyboardInterrupt of its own instead."""

    by = signal.SIGINT

    def __call__(self, number: int, frame: Any) -> NoReturn:
        """End whatever is done; a second signal does not wait for anything."""
        self.by = signal.Signals(number)
        for each in STOPPED:
            signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt


def measure(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    data: Annotated[Positional[str | None], arg(metavar="[DATA]")] = None,
    /,
    *,
    length: Annotated[float | None, arg(metavar="N")] = None,
    samples: int = 64,
    batch: int = 8,
    out: Annotated[Path | None, arg(metavar="RUN")] = None,
    resume: bool = False,
    json: bool = False,
    baseline: Annotated[str, arg(metavar="NAMES")] = "",
    lengths: Annotated[str, arg(metavar="N,N,...")] = "",
    layers: Annotated[str, arg(metavar="N-N,N")] = "",
    measures: Annotated[str, arg(metavar="NAMES")] = "",
    fail_if: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="CONDITION")] = (),
    special_tokens: Literal["auto", "never"] = "auto",
    field: Annotated[str | None, arg(metavar="NAME")] = None,
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    device: Annotated[str, arg(metavar="NAME")] = "auto",
    threads: int = 0,
    kernel: Literal["auto", "native", "torch"] = "auto",
    seed: int = 0,
    shard: Annotated[str | None, arg(metavar="I/N")] = None,
    engine: Annotated[str, arg(metavar="local|ray[:ADDRESS]")] = "local",
    workers: Annotated[int | None, arg(metavar="N")] = None,
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
        measures: which to show, with commas; the main ones unless given. These are computed only if
            named here or in --fail-if, and cost extra: entropy; orthogonal_similarity, which brings
            mean_removed_similarity, exclusive_similarity and equicorrelated_similarity.
        fail_if: exit with 4 if it is true of a layer, as in 'self_similarity>0.6@layer>=20'.
        special_tokens: auto: those that the tokenizer itself adds, within the length.
        field: of the text in JSONL and Parquet.
        dtype: of weights and activations; auto: as the model is saved.
        device: cpu, cuda, cuda:1, mps; auto: an accelerator if there is one.
        threads: of each worker; 0: all cores.
        kernel: what computes the measures on CPUs: native is compiled at first use by the machine's C++
            compiler, auto takes it where there is one.
        seed: of random weights, shuffling and generated data.
        shard: i/n: do this part of the work, into the same --out; `outward merge` joins them.
        engine: local, or ray[:ADDRESS].
        workers: how many actors of Ray.
        verify: prove on the first batch that watching changes nothing and sees what is computed.
        allow_pickle: also load weights that are no safetensors (by torch's weights_only).
        debug: show the traceback of an error.
    """
    conditions = [Condition(text) for text in fail_if]
    shown = _known_measures(measures)
    way = _way(engine, workers, shard, verify=verify, resume=resume)
    if way.shard and conditions:
        raise UsageError("--fail-if: a shard alone has no result; give it to outward merge.")
    plan = _plan(
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
        kernel=kernel,
        allow_pickle=allow_pickle,
        measures=(*shown, *(c.measure for c in conditions)),
    )
    with _kept(out, way) as folder:
        run = _run(plan, folder, way)
        if run is None:
            return DONE
        return _print(run, json=json, shown=shown, conditions=conditions, kept=out is not None)


def merge(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    /,
    *,
    json: bool = False,
    measures: Annotated[str, arg(metavar="NAMES")] = "",
    fail_if: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="CONDITION")] = (),
    debug: bool = False,
) -> int:
    """Join the shards of a run that were done apart, or the steps of a watched training, and print it.

    Args:
        run: the directory that the shards were given as --out, or the `out` of outward.watch.
        json: print one JSON document instead of the table.
        measures: which to show, with commas; the main ones unless given.
        fail_if: exit with 4 if it is true of a layer, as in 'self_similarity>0.6@layer>=20'.
        debug: show the traceback of an error.
    """
    from outward.engines.finish import finish
    from outward.engines.steps import gather, is_watched
    from outward.run import Run

    conditions, shown = [Condition(text) for text in fail_if], _known_measures(measures)
    result = gather(run) if is_watched(run) else finish(run)
    return _print(Run(result, run), json=json, shown=shown, conditions=conditions, kept=True)


def models(*, json: bool = False, debug: bool = False) -> int:
    """Names that work here as MODEL, and what the others need.

    Args:
        json: print one JSON document.
        debug: show the traceback of an error.
    """
    from outward.environment import known_models

    return _listing(known_models(), json)


def doctor(*, json: bool = False, debug: bool = False) -> int:
    """Versions, devices, and what is broken.

    Args:
        json: print one JSON document.
        debug: show the traceback of an error.
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
    stop = Stop()
    for number in STOPPED:
        signal.signal(number, stop)
    sys.exit(_code(args, stop))


def _code(args: list[str], stop: Stop) -> int:
    try:
        code = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="outward",
            args=args,
            description=DESCRIPTION,
            sort_subcommands=False,
            config=(FlagCreatePairsOff,),
        )
        sys.stdout.flush()
    except UsageError as error:
        _say(str(error))
        return USAGE
    except KeyboardInterrupt:
        _say("stopped; what is finished is kept where --out was given, and --resume goes on with it")
        return STOPPED[stop.by]
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE
    except Exception as error:
        if "--debug" in args:
            raise
        _say(_explained(error))
        return FAILED
    return code


# ---- running


@dataclass(frozen=True)
class Way:
    """How the work is done, and by whom: none of it changes the result."""

    ray: bool
    address: str | None
    workers: int | None
    shard: "Share | None"
    verify: bool
    resume: bool


def _way(engine: str, workers: int | None, shard: str | None, *, verify: bool, resume: bool) -> Way:
    from outward.engines.group import shard as share_of

    name, _, address = engine.partition(":")
    if engine != "local" and name != "ray":
        raise UsageError(f"--engine {engine}: it is local, or ray, or ray:ADDRESS.")
    if workers is not None and (name != "ray" or workers < 1):
        raise UsageError(f"--workers {workers}: it is the number of actors of --engine ray, 1 or more.")
    if shard and (name == "ray" or _is_torchrun()):
        raise UsageError(
            f"--shard {shard}: Ray and torchrun share the work out themselves; leave it out."
        )
    share = _as_usage(lambda: share_of(shard)) if shard else None
    return Way(name == "ray", address or None, workers, share, verify, resume)


def _is_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def _plan(**options: Any) -> "Plan":
    from outward.engines.plan import Plan

    return _as_usage(lambda: Plan(**options))


def _as_usage(make: Callable[[], T]) -> T:
    from outward.results import ResultError

    try:
        return make()
    except ResultError as error:
        raise UsageError(str(error)) from error


def _run(plan: "Plan", folder: Path, way: Way) -> "Run | None":
    """The finished run, or None where other workers have parts of it still."""
    from outward.engines.finish import finish, is_finished
    from outward.engines.group import of_torchrun
    from outward.engines.plan import abandon, begin
    from outward.engines.work import Share, facts_of
    from outward.run import Run

    _quiet()
    share = way.shard or of_torchrun() or Share()
    begin(plan, folder, resume=way.resume, shared=share.count > 1, facts=facts_of(plan))
    if not is_finished(folder):
        try:
            _work(plan, share, folder, way)
        except BaseException:
            if way.shard is None:
                abandon(folder)
            raise
        if way.shard and share.count > 1:
            _say(f"its part is done; when all are: outward merge {folder}")
            return None
    if _is_torchrun() and share.index != 0:
        return None
    return Run(finish(folder), folder)


def _work(plan: "Plan", share: "Share", folder: Path, way: Way) -> None:
    from outward.engines.group import together
    from outward.engines.work import work

    with _progress(plan.samples, share.count) as progress:
        if way.ray:
            from outward.engines.ray import work as ray_work

            ray_work(
                plan,
                folder,
                address=way.address,
                workers=way.workers,
                verify=way.verify,
                progress=progress,
            )
            return
        with together() if _is_torchrun() else nullcontext():
            work(plan, share, folder, verify=way.verify, progress=progress)


@contextmanager
def _kept(out: Path | None, way: Way) -> Iterator[Path]:
    """The run directory, or one that is gone afterwards."""
    if out is not None:
        yield out
        return
    if way.resume or way.shard or _is_torchrun():
        raise UsageError(
            "--resume, --shard and torchrun need --out: the directory that the parts share."
        )
    with tempfile.TemporaryDirectory(prefix="outward-") as folder:
        yield Path(folder)


def _quiet() -> None:
    """What transformers says while loading is not ours to show."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@contextmanager
def _progress(samples: int, workers: int) -> Iterator[Callable[[str, int, int], None]]:
    """Windows done, rate and time left on stderr; where that is no terminal, a line now and then."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    told = Told(samples, workers)
    if console.is_terminal:
        with console.status("loading the model") as status:
            yield lambda *done: status.update(told.line(*done))
        return
    last = time.monotonic()

    def now_and_then(*done: Any) -> None:
        nonlocal last
        line = told.line(*done)
        if time.monotonic() - last > EVERY:
            last = time.monotonic()
            _say(line)

    yield now_and_then


class Told:
    """What is said of progress: of at most so many windows, shared by so many workers."""

    def __init__(self, samples: int, workers: int) -> None:
        self.samples, self.workers = samples, workers
        self.series, self.began, self.before = "", time.monotonic(), 0

    def line(self, series: str, done: int, windows: int) -> str:
        """After `done` windows of this worker, and `windows` of the pass."""
        now = time.monotonic()
        rate = (done - self.before) / max(now - self.began, 1e-3)
        if (
            series != self.series
        ):  # the rate is measured from the first chunk on: before it, the model loads
            self.series, self.began, self.before = series, now, done
            rate = 0.0
        said = f"{series}: {windows} of at most {self.samples} windows"
        if rate > 0:
            left = max(0, self.samples - windows) / self.workers / rate
            said += f", {rate:.3g} a second, {_duration(left)} left"
        return said


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


# ---- printing


def _print(
    run: "Run",
    *,
    json: bool,
    shown: tuple[str, ...],
    conditions: list["Condition"],
    kept: bool,
) -> int:
    from outward.report.terminal import show
    from outward.results import as_json

    document = {**run.document, "run": str(run.path) if kept else None}
    _refuse_missing((*shown, *(c.measure for c in conditions)), run)
    true = [c.text for c in conditions if c.holds(document["layers"])]
    if json:
        _result(as_json(document))
    else:
        wide = None if sys.stdout.isatty() else 120
        show(document, run.reading, _console(width=wide), shown)
        if kept:
            _result(f"kept in {run.path}")
    for text in true:
        _say(f"--fail-if {text}: it is true")
    if true:
        return CONDITION
    return PARTIAL if run.manifest["failed"] or run.manifest["skipped"] else DONE


def _refuse_missing(measures: tuple[str, ...], run: "Run") -> None:
    """A run has the optional measures that it was begun with: of others nothing can be said."""
    missing = [n for n in measures if n not in run.manifest["measures"]]
    if missing:
        raise UsageError(
            f"{run.path} holds no {', '.join(missing)}: measures that cost extra must be named "
            "when a run begins; measure again, with --measures."
        )


def _listing(rows: list[dict[str, Any]], json: bool) -> int:
    from rich.table import Table

    from outward.results import as_json

    if json:
        _result(as_json(rows))
        return DONE
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(str(x) for x in row.values()))
    _console(markup=False).print(table)
    return DONE


def _console(**options: Any) -> "Console":
    """Of stdout; where that is closed, rich would end the process as if it had failed."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Piped(highlight=False, **options)


def _result(text: str) -> None:
    sys.stdout.write(text + "\n")


def _say(message: str) -> None:
    sys.stderr.write(f"outward: {message}\n")
    sys.stderr.flush()


def _explained(error: Exception) -> str:
    """Errors that speak for themselves do; of the others, what they are and how to learn more."""
    if isinstance(error, _expected()):
        return str(error)
    said = next((line for line in str(error).splitlines() if line.strip()), "nothing is said")
    return f"{type(error).__name__}: {said}. That was not foreseen; --debug shows where it comes from."


def _expected() -> tuple[type[Exception], ...]:
    """Late, and only where they can have been raised: the rooms that raise them import torch."""
    homes = {"results": "ResultError", "sources.errors": "SourceError", "taps.proof": "ProofError"}
    loaded = {sys.modules.get(f"outward.{room}"): name for room, name in homes.items()}
    return tuple(getattr(room, name) for room, name in loaded.items() if room is not None)


# ---- reading options


class Condition:
    """MEASURE>NUMBER or MEASURE<NUMBER, of any layer, or of those that @layer names."""

    FORM = re.compile(r"(\w+)(>=|<=|>|<)([-+.\deE]+)(?:@layer(>=|<=|==|>|<)(\d+))?")

    def __init__(self, text: str) -> None:
        found = self.FORM.fullmatch(text.replace(" ", ""))
        if not found:
            raise UsageError(
                f"--fail-if {text}: it is MEASURE>NUMBER or MEASURE<NUMBER (also >=, <=), and then "
                "@layer>=N (also <=, ==, >, <) if it is of some layers only, as in "
                "'self_similarity>0.6@layer>=20'."
            )
        self.text = text
        self.measure, self.sign, number, self.layer_sign, layer = found.groups()
        _known_measures(self.measure)
        try:
            self.number = float(number)
        except ValueError:
            raise UsageError(f"--fail-if {text}: {number} is no number.") from None
        self.layer = int(layer or 0)

    def holds(self, layers: list[dict[str, Any]]) -> bool:
        """Whether it is true of one of the layers."""
        return any(
            _compare(x[self.measure], self.sign, self.number)
            for x in layers
            if x.get(self.measure) is not None
            and (self.layer_sign is None or _compare(x["layer"], self.layer_sign, self.layer))
        )


def _compare(a: int | float, sign: str, b: int | float) -> bool:
    return {">": a > b, "<": a < b, ">=": a >= b, "<=": a <= b, "==": a == b}[sign]


def _known_measures(text: str) -> tuple[str, ...]:
    from outward.engines.plan import asked_for

    names = tuple(x.strip() for x in text.split(",") if x.strip())
    _as_usage(lambda: asked_for(names))
    return names


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(x) for x in text.split(",") if x.strip()))
    except ValueError:
        raise UsageError(
            f"{option} {text}: it is whole numbers with commas, as in 64,128,256."
        ) from None


def _ranges(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise UsageError(f"--layers {text}: it is numbers and ranges with commas, as in 0-5,11.")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise UsageError(f"--layers {part}: it ends before it begins; give {last}-{first}.")
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))
