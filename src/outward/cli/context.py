"""outward context."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from outward.cli.measuring import kept, plan_of, run_plan, way_of
from outward.cli.options import UsageError, numbers, thresholds
from outward.cli.printing import DONE, PARTIAL, print_context

if TYPE_CHECKING:
    from outward.run import Run


def context(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    data: Annotated[Positional[str | None], arg(metavar="[DATA]")] = None,
    /,
    *,
    length: int = 128,
    samples: int = 256,
    batch: int = 32,
    similarity: Literal["dot", "cosine", "centred"] = "dot",
    similarity_threshold: Annotated[str, arg(metavar="T[:T]")] = "0.8",
    mask_threshold: Annotated[str, arg(metavar="T[:T]")] = "0.3",
    baseline: Annotated[str, arg(metavar="NAMES")] = "",
    lengths: Annotated[str, arg(metavar="N,N,...")] = "",
    short: Literal["pad", "drop"] = "pad",
    agreement: bool = False,
    out: Annotated[Path | None, arg(metavar="RUN")] = None,
    resume: bool = False,
    json: bool = False,
    field: Annotated[str | None, arg(metavar="NAME")] = None,
    special_tokens: Literal["auto", "never"] = "auto",
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    device: Annotated[str, arg(metavar="NAME")] = "auto",
    threads: int = 0,
    seed: int = 0,
    shard: Annotated[str | None, arg(metavar="I/N")] = None,
    engine: Annotated[str, arg(metavar="local|ray[:ADDRESS]")] = "local",
    workers: Annotated[int | None, arg(metavar="N")] = None,
    verify: bool = True,
    allow_pickle: bool = False,
    debug: bool = False,
) -> int:
    """Context similarity: which tokens each head makes alike, how far apart, and what chance gives.

    Args:
        model, data: as of `outward measure`; texts only.
        length: tokens in a window.
        samples: how many windows at most.
        batch: windows in a forward pass.
        similarity: of outputs as they are (dot), of their directions (cosine), or less their mean.
        similarity_threshold: from which share of the largest similarity on a pair is high; 0.5:0.95
            tries several, in steps of 0.1.
        mask_threshold: from which share of the most attended token on a token is in the mask; likewise.
        baseline: with commas: shuffled-tokens, random-weights, rotated-values (values of random
            directions), exclusive-form (of outputs without their own value).
        lengths: other lengths to compare, as in 64,256.
        short: texts shorter than the length are padded, or dropped.
        agreement: also the rank correlation with attention, of the first text of each batch.
        out: a directory to keep the run in.
        resume: go on with what --out holds of the same run.
        json: print one JSON document instead of the table.
        field: of the text in JSONL and Parquet.
        special_tokens: auto: those that the tokenizer itself adds, within the length.
        dtype: of weights and activations; auto: as the model is saved.
        device: cpu, cuda, cuda:1, mps; auto: an accelerator if there is one.
        threads: of each worker; 0: all cores.
        seed: of random weights, shuffling and rotation.
        shard: i/n: do this part of the work, into the same --out; `outward merge` joins them.
        engine: local, or ray[:ADDRESS].
        workers: how many actors of Ray.
        verify: leave out the proof, on the first batch, that watching changes nothing.
        allow_pickle: also load weights that are no safetensors (by torch's weights_only).
        debug: show the traceback of an error.
    """
    from outward.measures.context import Options

    way = way_of(engine, workers, shard, verify=verify, resume=resume)
    if length < 2:
        raise UsageError(f"--length {length}: a pair takes two tokens, so it is 2 or more.")
    options = Options(
        similarity=similarity,
        similarity_thresholds=thresholds("--similarity-threshold", similarity_threshold, 0.8),
        mask_thresholds=thresholds("--mask-threshold", mask_threshold, 0.3),
        ranked=agreement,
    )
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
        allow_pickle=allow_pickle,
        context=options,
        whole=short == "drop",
    )
    with kept(out, way) as folder:
        run = run_plan(plan, folder, way)
        return DONE if run is None else _printed(run, json=json, kept_in=out)


def _printed(run: "Run", *, json: bool, kept_in: Path | None) -> int:
    print_context(run.result, json=json, kept_in=kept_in)
    return PARTIAL if run.manifest["failed"] or run.manifest["skipped"] else DONE
