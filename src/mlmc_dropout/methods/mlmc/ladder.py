"""3 · Fidelities: strictly increasing numbers of passes T_0 < … < T_L."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlmc_dropout.errors import LadderError

__all__ = ["Ladder"]


@dataclass(frozen=True, slots=True, init=False)
class Ladder:
    """A strictly increasing ladder of fidelities.

    >>> Ladder((4, 8, 16)).steps
    (4, 4, 8)
    >>> Ladder.geometric(first=3, ratio=1.5, max_fidelity=12).fidelities
    (3, 5, 7, 11)
    >>> Ladder.dyadic(levels=3).fidelities
    (2, 4, 8)
    """

    fidelities: tuple[int, ...]

    def __init__(self, fidelities: Sequence[int]) -> None:
        if not isinstance(fidelities, Iterable) or isinstance(fidelities, (str, bytes)):
            raise LadderError(f"a ladder is a sequence of fidelities: got {fidelities!r}; give for example (4, 8, 16)")
        values = tuple(_integer(T) for T in fidelities)
        if not values:
            raise LadderError("a ladder needs at least one fidelity: got (); give for example (4, 8, 16)")
        if values[0] < 1:
            raise LadderError(f"fidelities are numbers of passes: got {values}; start at 1 or above")
        if any(b <= a for a, b in pairwise(values)):
            raise LadderError(f"fidelities must increase: got {values}; sort them and remove duplicates")
        object.__setattr__(self, "fidelities", values)

    @classmethod
    def geometric(cls, first: int, ratio: float, max_fidelity: int) -> Ladder:
        """T_ℓ = ceil(first · ratio^ℓ), up to the last T_ℓ ≤ max_fidelity.

        Args:
            first: T_0.
            ratio: Of neighbours.
            max_fidelity: The largest T that may occur.

        Returns:
            The ladder.
        """
        if not (math.isfinite(ratio) and ratio > 1):
            raise LadderError(f"the ratio of a geometric ladder must exceed 1: got {ratio}; 2 is a good choice")
        first, max_fidelity = _integer(first), _integer(max_fidelity)
        if first < 1 or max_fidelity < first:
            raise LadderError(
                f"a geometric ladder needs 1 <= first <= max_fidelity: got first={first}, max_fidelity={max_fidelity}"
            )
        values: list[int] = []
        while (T := math.ceil(round(first * ratio ** len(values), 9))) <= max_fidelity:
            if values and values[-1] >= T:
                raise LadderError(
                    f"fidelities must increase: ratio {ratio} from first={first} gives {(*values, T)}; "
                    "raise the ratio or the first fidelity"
                )
            values.append(T)
        return cls(values)

    @classmethod
    def dyadic(cls, levels: int) -> Ladder:
        """2, 4, 8, …: ``levels`` fidelities.

        Args:
            levels: How many.

        Returns:
            The ladder.
        """
        if _integer(levels) < 1:
            raise LadderError(f"a dyadic ladder needs at least one level: got {levels}")
        return cls([2 ** (level + 1) for level in range(levels)])

    @property
    def steps(self) -> tuple[int, ...]:
        """T_0 and the gaps T_ℓ − T_{ℓ−1}: new passes per level."""
        return (self.fidelities[0], *(b - a for a, b in pairwise(self.fidelities)))

    def require_variances(self) -> None:
        """Refuse ladders on which a sample variance, or that of a new block, is undefined."""
        if min(self.steps) < 2:
            raise LadderError(
                f"variances need T_0 >= 2 and gaps of at least 2: got {self.fidelities} with steps {self.steps}; "
                "widen the ladder, for example Ladder.dyadic(levels=4)"
            )

    def __len__(self) -> int:
        return len(self.fidelities)

    def __iter__(self) -> Iterator[int]:
        return iter(self.fidelities)


def _integer(value: object) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise LadderError(f"fidelities are whole numbers of passes: got {value!r}; round them") from None
