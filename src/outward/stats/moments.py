"""Count, mean, squared deviation, least and greatest: any number of cells, merged exactly."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Cells = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """Per cell. `merge` is associative up to rounding, and `empty` its identity."""

    count: Cells
    mean: Cells
    m2: Cells
    low: Cells
    high: Cells

    @staticmethod
    def empty(shape: tuple[int, ...]) -> "Moments":
        """Of nothing."""
        zero = np.zeros(shape)
        return Moments(zero, zero, zero, np.full(shape, np.inf), np.full(shape, -np.inf))

    @staticmethod
    def of(count: Cells, total: Cells, squares: Cells, low: Cells, high: Cells) -> "Moments":
        """From sums of the numbers and of their squares, in float64."""
        n = np.maximum(count, 1)
        mean = total / n
        m2 = np.maximum(squares - total * mean, 0)
        return Moments(count, np.where(count > 0, mean, 0), m2, low, high)

    def merge(self, other: "Moments") -> "Moments":
        """Of both together (Chan, Golub and LeVeque)."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        step = other.mean - self.mean
        return Moments(
            count,
            self.mean + step * share,
            self.m2 + other.m2 + step * step * self.count * share,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    def over(self, axis: int) -> "Moments":
        """The cells along an axis together, in order."""
        merged = Moments.empty(self.count.take(0, axis).shape)
        for i in range(self.count.shape[axis]):
            merged = merged.merge(Moments(*(np.take(x, i, axis) for x in self._fields())))
        return merged

    def at(self, index: Any) -> "Moments":
        """Some of the cells."""
        return Moments(*(x[index] for x in self._fields()))

    def beside(self, other: "Moments") -> "Moments":
        """More cells, along the last axis."""
        both = zip(self._fields(), other._fields(), strict=True)
        return Moments(*(np.concatenate(pair, axis=-1) for pair in both))

    def value(self) -> dict[str, Cells]:
        """n, mean, std (of a population), min and max; NaN in cells of nothing."""
        some = self.count > 0
        std = np.sqrt(self.m2 / np.maximum(self.count, 1))
        named = {"mean": self.mean, "std": std, "min": self.low, "max": self.high}
        return {"n": self.count} | {k: np.where(some, x, np.nan) for k, x in named.items()}

    def _fields(self) -> tuple[Cells, ...]:
        return self.count, self.mean, self.m2, self.low, self.high
