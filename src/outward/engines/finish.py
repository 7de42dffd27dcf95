"""All chunks -> a run: merged in their order, whoever made them."""

import shutil
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa

from outward.engines.kept import read_chunk
from outward.engines.plan import KIND, Pass, Plan, passes, read_plan
from outward.probe.tables import arrays, histograms, profile, samples
from outward.probe.tally import EMPTY, Chunk
from outward.results import MANIFEST, Result, ResultError, load, read_json, read_manifest, save

KEPT_OF_A_PASS = ("model", "takes", "coverage", "checks", "note")


def finish(out: Path) -> Result:
    """Merge, write, and remove the chunks. What is finished already is read."""
    plan, facts = read_plan(out)
    if is_finished(out):
        return load(out)
    result = merged(plan, facts, out / "chunks")
    save(result, out)
    if not result.manifest["failed"]:
        shutil.rmtree(out / "chunks", ignore_errors=True)  # the run is whole, with or without them
    return result


def is_finished(out: Path) -> bool:
    """Whether nothing is left to do."""
    return (out / MANIFEST).is_file() and not read_manifest(out)["failed"]


def merged(plan: Plan, facts: dict[str, Any], folder: Path) -> Result:
    """The result of the chunks in a folder."""
    series: dict[str, Chunk] = {}
    about: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    for one in passes(plan):
        about[one.series] = _about(one, folder)
        series[one.series], missing = _chunk(one, about[one.series]["chunks"], folder)
        failed += missing
    if not series["main"].documents:
        why = (series["main"].skipped + failed)[:1]
        raise ResultError(" ".join(["nothing could be measured.", *why]))
    return assemble(series, about, {"plan": asdict(plan), **facts}, failed, kind=plan.kind)


def assemble(
    series: dict[str, Chunk],
    about: dict[str, dict[str, Any]],
    facts: dict[str, Any],
    failed: list[str],
    *,
    kind: str = KIND,
) -> Result:
    """Tables, arrays and manifest of finished passes."""
    main = series["main"]
    if not main.layers:
        raise ResultError(_no_attention(about["main"]["coverage"]))
    skipped = list(dict.fromkeys(x for n, c in series.items() for x in about[n]["skipped"] + c.skipped))
    manifest = {
        "kind": kind,
        **facts,
        **{k: about["main"][k] for k in KEPT_OF_A_PASS},
        "windows": {n: len(c.documents) for n, c in series.items()},
        "documents": {n: len(set(c.documents)) for n, c in series.items()},
        "layers": [{"layer": x.layer, "module": x.module, "alone": x.alone} for x in main.layers],
        "measures": list(main.measures),
        "skipped": skipped,
        "failed": failed,
        "environment": {n: {k: a[k] for k in ("finished", "argv")} for n, a in about.items()},
    }
    tables = {
        "profile": pa.concat_tables(profile(n, c) for n, c in series.items()).unify_dictionaries(),
        "samples": pa.concat_tables(
            t for n, c in series.items() for t in samples(n, c)
        ).unify_dictionaries(),
    }
    kept = {k: v for n, c in series.items() for k, v in (histograms(n, c) | arrays(n, c)).items()}
    return Result(manifest, tables, kept)


def _no_attention(coverage: list[dict[str, Any]]) -> str:
    left_out = [row for row in coverage if row["status"] != "captured"]
    reasons = [f"{row['module']}: {row['reason']}" for row in left_out]
    why = reasons[0] if reasons else "no module of it calls itself attention"
    return f"the model ran, but no attention of it could be measured ({why})."


def _about(one: Pass, folder: Path) -> dict[str, Any]:
    file = folder / f"{one.series}.json"
    if not file.is_file():
        raise ResultError(
            f"{folder.parent} is not finished: nothing is there of {one.series!r}. Run the missing "
            "shards, or all of them with --resume."
        )
    return read_json(file)


def _chunk(one: Pass, count: int, folder: Path) -> tuple[Chunk, list[str]]:
    files = [folder / f"{one.series}.{n:06d}.chunk" for n in range(1, count + 1)]
    failed = [f.with_suffix(".failed") for f in files if f.with_suffix(".failed").is_file()]
    missing = [f for f in files if not f.is_file() and f.with_suffix(".failed") not in failed]
    if missing:
        raise ResultError(
            f"{folder.parent} is not finished: {len(missing)} of {count} chunks of {one.series!r} are "
            "missing. Run the missing shards, or all of them with --resume."
        )
    parts = (read_chunk(f) for f in files if f.is_file())
    return reduce(Chunk.merge, parts, EMPTY), [f.read_text() for f in failed]
