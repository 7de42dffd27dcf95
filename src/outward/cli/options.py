"""What options say: conditions, numbers, ranges, names of measures."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
MOST_LAYERS = 100_000


class UsageError(Exception):
    """An option that makes no sense; exits with USAGE."""


def as_usage(make: Callable[[], T]) -> T:
    """What make() makes; what is wrong with the options it was made from is a UsageError."""
    from outward.results import ResultError

    try:
        return make()
    except ResultError as error:
        raise UsageError(str(error)) from error


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
        known_measures(self.measure)
        try:
            self.number = float(number)
        except ValueError:
            raise UsageError(f"--fail-if {text}: {number} is no number.") from None
        self.layer = int(layer or 0)

    def named(self, layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The layers that it speaks of."""
        sign = self.layer_sign
        return [x for x in layers if sign is None or _compare(x["layer"], sign, self.layer)]

    def refuse_silence(self, layers: list[dict[str, Any]]) -> None:
        """That no layer is meant, or nothing known of those that are, is no answer."""
        named = self.named(layers)
        if not named:
            raise UsageError(
                f"--fail-if {self.text}: it speaks of no layer; {len(layers)} were measured, the first "
                f"{layers[0]['layer']} and the last {layers[-1]['layer']}."
            )
        if all(x.get(self.measure) is None for x in named):
            raise UsageError(
                f"--fail-if {self.text}: {self.measure} is not known in any layer that it speaks of; "
                "take another measure, or other layers."
            )

    def holds(self, layers: list[dict[str, Any]]) -> bool:
        """Whether it is true of one of the layers."""
        return any(
            _compare(x[self.measure], self.sign, self.number)
            for x in self.named(layers)
            if x.get(self.measure) is not None
        )


def _compare(a: int | float, sign: str, b: int | float) -> bool:
    return {">": a > b, "<": a < b, ">=": a >= b, "<=": a <= b, "==": a == b}[sign]


def known_measures(text: str) -> tuple[str, ...]:
    from outward.engines.plan import asked_for

    names = tuple(x.strip() for x in text.split(",") if x.strip())
    as_usage(lambda: asked_for(names))
    return names


def numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(x) for x in text.split(",") if x.strip()))
    except ValueError:
        raise UsageError(
            f"{option} {text}: it is whole numbers with commas, as in 64,128,256."
        ) from None


def ranges(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise UsageError(f"--layers {text}: it is numbers and ranges with commas, as in 0-5,11.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last > MOST_LAYERS:
            raise UsageError(f"--layers {part}: no model has so many; give numbers to {MOST_LAYERS}.")
        if first > last:
            raise UsageError(f"--layers {part}: it ends before it begins; give {last}-{first}.")
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


STEP = 0.1


def thresholds(option: str, text: str, usual: float) -> tuple[float, ...]:
    """One between 0 and 1, or from:to in steps of STEP; the usual one first, if it is among them."""
    try:
        ends = [float(x) for x in text.split(":")]
    except ValueError:
        ends = []
    if not 1 <= len(ends) <= 2 or not all(0 < x < 1 for x in ends) or sorted(ends) != ends:
        raise UsageError(
            f"{option} {text}: it is a number between 0 and 1, or two, smaller first, as in 0.5:0.95."
        )
    many = int((ends[-1] - ends[0]) / STEP + 1e-9)
    found = [round(ends[0] + n * STEP, 6) for n in range(many + 1)]
    found += [ends[-1]] if ends[-1] - found[-1] > 1e-6 else []
    first = usual if usual in found else found[0]
    return (first, *(x for x in found if x != first))
