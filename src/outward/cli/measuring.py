"""outward measure, outward merge."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from outward.cli.options import Condition, UsageError, as_usage, known_measures, numbers, ranges
from outward.cli.printing import DONE, PARTIAL, print_context, print_run, say
from outward.cli.progress import progress

if TYPE_CHECKING:
    from outward.engines.plan import Plan
    from outward.engines.work import Share
    from outward.run import Run


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
        fail_if: exit with 4 if it is true of a layer, as in 'self_similarity>0.6@layer>=20'; with 2 if
            it speaks of no layer that was measured, or of a measure known in none of them.
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
        verify: leave out the proof, on the first batch, that watching changes nothing and sees what is
            computed.
        allow_pickle: also load weights that are no safetensors (by torch's weights_only).
        debug: show the traceback of an error.
    """
    conditions = [Condition(text) for text in fail_if]
    shown = known_measures(measures)
    way = way_of(engine, workers, shard, verify=verify, resume=resume)
    if way.shard and conditions:
        raise UsageError("--fail-if: a shard alone has no result; give it to outward merge.")
    plan = plan_of(
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
        lengths=numbers("--lengths", lengths),
        layers=ranges(layers) if layers else None,
        kernel=kernel,
        allow_pickle=allow_pickle,
        measures=(*shown, *(c.measure for c in conditions)),
    )
    with kept(out, way) as folder:
        run = run_plan(plan, folder, way)
        if run is None:
            return DONE
        return print_run(run, json=json, shown=shown, conditions=conditions, kept=out is not None)


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
        fail_if: exit with 4 if it is true of a layer, as in 'self_similarity>0.6@layer>=20'; with 2 if
            it speaks of no layer that was measured, or of a measure known in none of them.
        debug: show the traceback of an error.
    """
    from outward.engines.finish import finish
    from outward.engines.steps import gather, is_watched
    from outward.run import Run

    conditions, shown = [Condition(text) for text in fail_if], known_measures(measures)
    result = gather(run) if is_watched(run) else finish(run)
    if result.manifest["kind"] != "measure":
        if shown or conditions:
            raise UsageError(
                f"--measures, --fail-if: {run} is a run of {result.manifest['kind']}, not of measure."
            )
        print_context(result, json=json, kept_in=run)
        return PARTIAL if result.manifest["failed"] or result.manifest["skipped"] else DONE
    return print_run(Run(result, run), json=json, shown=shown, conditions=conditions, kept=True)


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


def way_of(engine: str, workers: int | None, shard: str | None, *, verify: bool, resume: bool) -> Way:
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
    share = as_usage(lambda: share_of(shard)) if shard else None
    return Way(name == "ray", address or None, workers, share, verify, resume)


def _is_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def plan_of(**options: Any) -> "Plan":
    from outward.engines.plan import Plan

    return as_usage(lambda: Plan(**options))


def run_plan(plan: "Plan", folder: Path, way: Way) -> "Run | None":
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
            say(f"its part is done; when all are: outward merge {folder}")
            return None
    if _is_torchrun() and share.index != 0:
        return None
    return Run(finish(folder), folder)


def _work(plan: "Plan", share: "Share", folder: Path, way: Way) -> None:
    from outward.engines.group import together
    from outward.engines.plan import passes
    from outward.engines.work import work

    with progress(plan.samples, share.count, [p.series for p in passes(plan)]) as told:
        if way.ray:
            from outward.engines.ray import work as ray_work

            ray_work(
                plan,
                folder,
                address=way.address,
                workers=way.workers,
                verify=way.verify,
                progress=told,
            )
            return
        with together() if _is_torchrun() else nullcontext():
            work(plan, share, folder, verify=way.verify, progress=told)


@contextmanager
def kept(out: Path | None, way: Way) -> Iterator[Path]:
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
