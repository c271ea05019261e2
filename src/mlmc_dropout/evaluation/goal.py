"""When an evaluation is to stop, and what a step of it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.errors import InputError
from mlmc_dropout.evaluation.data import Slice
from mlmc_dropout.evaluation.estimates import Reading
from mlmc_dropout.result import Status

__all__ = ["TOP", "EvaluationGoal", "Shares", "Step"]

Array = NDArray[np.float64]
Shares = tuple[tuple[float, int], ...]  # per level: share of the data set that was used, and slices so far

TOP = 14  # the finest level there may be: 16 384 passes


@dataclass(frozen=True, slots=True)
class EvaluationGoal:
    """When to stop.

    Attributes:
        tolerance: Root mean square error to reach, statistical error and bias together; or ``None``.
        relative: The tolerance is a share of the value.
        budget: Passes per input, on average, at most; or ``None``.

    Raises:
        InputError: If neither is given, or a number makes no sense.
    """

    tolerance: float | None
    relative: bool
    budget: float | None

    def __post_init__(self) -> None:
        for name in ("tolerance", "budget"):
            value = getattr(self, name)
            number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
            if value is not None and not (number and math.isfinite(value) and value > 0):
                raise InputError(f"{name} is a positive number: got {value!r}")

    def targets(self, readings: Sequence[Reading]) -> Array:
        """The error to reach, per metric.

        Args:
            readings: What is known.

        Returns:
            Positive numbers; infinite without a tolerance.
        """
        if self.tolerance is None:
            return np.full(len(readings), np.inf)
        scale = [abs(r.value) if self.relative else 1.0 for r in readings]
        return self.tolerance * np.maximum(scale, 1e-12)


@dataclass(frozen=True, slots=True)
class Step:
    """What comes next.

    Attributes:
        slices: What to run; empty: nothing, the run is over.
        status: How it ended, if it did.
        note: A remark on that.
        design: More than 1: begin again with stratified designs of so many passes.
        sweeps: Whether all inputs are used in whole sweeps then.
        scoring: More than 0: sort the inputs into strata first, by so many passes each.
    """

    slices: tuple[Slice, ...] = ()
    status: Status | None = None
    note: str = ""
    design: int = 1
    scoring: int = 0
    sweeps: bool = False
