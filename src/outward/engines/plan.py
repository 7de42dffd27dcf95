"""What a run will do, written down before it begins."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from outward.measures.bias import DEFAULT
from outward.measures.context import Options
from outward.measures.optional import OPTIONAL, requests_for
from outward.probe.context import Form
from outward.results import MANIFEST, ResultError, as_json, claim, read_json, write_file
from outward.sources.batch import Batch
from outward.sources.batches import batches
from outward.sources.models import load_model
from outward.sources.source import Source
from outward.sources.text import shuffled

CHUNK = 4
"""Batches in a chunk, whatever the number of workers: what is done again when a worker dies."""
KIND, CONTEXT = "measure", "context"
PLAN = "plan.json"
MODEL = "model."
"""How files in chunks/ begin that say which model was loaded."""
KERNELS = ("auto", "native", "torch")
BASELINES = ("random-weights", "shuffled-tokens")
FORMS: dict[str, Form] = {"rotated-values": "rotated", "exclusive-form": "exclusive"}
"""Of context similarity only: what else is made of the same weights and values."""


@dataclass(frozen=True)
class Plan:
    """The options of a run. Two workers with equal plans do parts of the same run.

    measures: what is computed beside the default ones; of any names, what they ask for is kept.
    context: context similarity is looked at, and how; None: the bias. whole: only windows of the full
    length, none that ends before.
    """

    model: str
    data: str | None = None
    field: str | None = None
    length: float | int | None = None
    samples: int = 64
    batch: int = 8
    special_tokens: str = "auto"
    dtype: str = "auto"
    device: str = "auto"
    seed: int = 0
    threads: int = 0
    baselines: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    layers: tuple[int, ...] | None = None
    kernel: str = "auto"
    allow_pickle: bool = False
    measures: tuple[str, ...] = ()
    context: Options | None = None
    whole: bool = False

    @property
    def kind(self) -> str:
        """Of the run that it makes."""
        return KIND if self.context is None else CONTEXT

    def __post_init__(self) -> None:
        object.__setattr__(self, "measures", asked_for(self.measures))
        known = BASELINES if self.context is None else (*BASELINES, *FORMS)
        unknown = set(self.baselines) - set(known)
        if unknown:
            raise ResultError(
                f"no baseline {', '.join(sorted(unknown))}: there are {', '.join(known)}."
            )
        if self.kernel not in KERNELS:
            raise ResultError(f"kernel {self.kernel!r}: it is one of {', '.join(KERNELS)}.")
        self._refuse_numbers()

    def _refuse_numbers(self) -> None:
        if self.length is not None and not math.isfinite(self.length):
            raise ResultError(f"length {self.length}: it is a number of tokens, or seconds of sound.")
        if self.samples < 1 or self.batch < 1:
            raise ResultError(f"samples {self.samples}, batch {self.batch}: both must be at least 1.")
        if not -(2**63) <= self.seed < 2**63:
            raise ResultError(f"seed {self.seed}: it has 64 bits, from -2**63 to 2**63 - 1.")
        if self.threads < 0:
            raise ResultError(
                f"threads {self.threads}: give the number for each worker, or 0 for all cores."
            )


def asked_for(measures: Iterable[str]) -> tuple[str, ...]:
    """The requests behind names of measures, sorted; the default measures need none."""
    names = tuple(measures)
    unknown = [n for n in names if n not in (*DEFAULT, *OPTIONAL)]
    if unknown:
        raise ResultError(
            f"no measure {', '.join(unknown)}: there are {', '.join(DEFAULT)}; and, computed only if "
            f"they are named, {', '.join(OPTIONAL)}."
        )
    return requests_for(names)


@dataclass(frozen=True)
class Pass:
    """One way through the data: the main one, a baseline, or another length."""

    series: str
    length: float | int | None
    random_weights: bool = False
    shuffled: bool = False
    form: Form = "standard"


def passes(plan: Plan) -> list[Pass]:
    """The main one first. Lengths share the documents, and are cut from their beginnings."""
    found = [Pass("main", plan.length)]
    if "shuffled-tokens" in plan.baselines:
        found.append(Pass("shuffled-tokens", plan.length, shuffled=True))
    found += [Pass(x, plan.length, form=FORMS[x]) for x in FORMS if x in plan.baselines]
    found += [Pass(f"length={n}", n) for n in plan.lengths]
    if "random-weights" in plan.baselines:
        found.append(Pass("random-weights", plan.length, random_weights=True))
    return found


def load(plan: Plan, one: Pass) -> Source:
    """The model of a pass."""
    seed = plan.seed if one.random_weights else None
    return load_model(
        plan.model,
        dtype=plan.dtype,
        device=plan.device,
        allow_pickle=plan.allow_pickle,
        random_weights_seed=seed,
    )


def chunks(plan: Plan, one: Pass, source: Source, skipped: list[str]) -> Iterator[tuple[Batch, ...]]:
    """The batches of a pass, in the same chunks for whoever asks. A wrong length is refused at once."""
    made = batches(
        source,
        plan.data,
        length=one.length,
        samples=plan.samples,
        batch=plan.batch,
        seed=plan.seed,
        special_tokens=plan.special_tokens,  # type: ignore[arg-type]
        field=plan.field,
        whole=plan.whole,
        skipped=skipped,
    )
    if one.shuffled:
        made = (shuffled(b, seed=plan.seed) for b in made)
    return iter(lambda: tuple(islice(made, CHUNK)), ())


def begin(plan: Plan, out: Path, *, resume: bool, shared: bool, facts: dict[str, Any]) -> None:
    """Write the plan down, or see that the one that is there is the same.

    facts: what else must agree for the same bytes to come out: versions, hashes of model and data.
    shared: other workers may have begun already; otherwise going on must be asked for.
    """
    claim(out, plan.kind)
    written = json.loads(as_json({"plan": asdict(plan), **facts}))
    file = out / PLAN
    if (out / MANIFEST).is_file() and not (resume and file.is_file()):
        raise ResultError(f"{out} holds a finished run; give another --out, or remove it.")
    if not file.is_file():
        write_file(file, as_json(written).encode())
        return
    found = read_json(file)
    if found != written:
        names = [k for k in written if found.get(k) != written[k]]
        inner = [k for k in written["plan"] if found.get("plan", {}).get(k) != written["plan"][k]]
        raise ResultError(
            f"{out} was begun with other options ({', '.join(inner)}); give the same, or another --out."
            if inner
            else f"{out} was begun with another state of {' and '.join(names)}: what that names has "
            "changed since; bring it back, or give another --out."
        )
    if not (resume or shared):
        raise ResultError(f"{out} was begun and not finished: --resume goes on with it.")


def abandon(out: Path) -> None:
    """Take the plan back where nothing came of it: a slip in the options is no run to go on with."""
    found = list((out / "chunks").glob("*"))
    if all(file.name.startswith(MODEL) for file in found):
        for file in (*found, out / PLAN):
            file.unlink(missing_ok=True)


def read_plan(out: Path) -> tuple[Plan, dict[str, Any]]:
    """The plan of a run that was begun."""
    file = out / PLAN
    if not file.is_file():
        raise ResultError(f"{out}: no run was begun there (it has no {PLAN}).")
    facts = read_json(file)
    fields = facts.pop("plan")
    tuples = _tuples(fields)
    if tuples.get("context") is not None:
        tuples["context"] = Options(**_tuples(tuples["context"]))
    return Plan(**tuples), facts


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
