"""When to stop: a budget of passes, a tolerance for either moment, or both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.errors import InputError

__all__ = ["Goal", "Look"]

Array = NDArray[np.float64]

PILOT = 128  # passes spent before the first look at the standard errors
MARGIN = 1.05  # ask for a little more than the standard errors seem to need: they are estimates too
MAX_GROWTH = 8.0  # never trust a look enough to multiply the passes by more than this


class Look(Protocol):
    """Estimates so far, as a stop rule sees them: matrices (rows, width) and the passes spent per input."""

    @property
    def mean(self) -> Array: ...
    @property
    def variance(self) -> Array: ...
    @property
    def mean_stderr(self) -> Array: ...
    @property
    def variance_stderr(self) -> Array: ...
    @property
    def cost(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Goal:
    """Standard errors to reach and passes that may be spent on it.

    A tolerance is met when the share ``quantile`` of all components (inputs × outputs) has a
    standard error at or below it. With ``relative`` it is multiplied, output component by output
    component, with the largest absolute estimate over the inputs.
    """

    budget: float | None = None
    tolerance: float | None = None
    tolerance_variance: float | None = None
    relative: bool = False
    quantile: float = 1.0

    def __post_init__(self) -> None:
        if self.budget is None and not self.has_tolerance:
            raise InputError("give a stop rule: budget= (passes per input), tolerance= or tolerance_variance=")
        if self.budget is not None and not (math.isfinite(self.budget) and self.budget >= 1):
            raise InputError(f"budget is a number of passes per input, at least 1: got {self.budget}")
        for name in ("tolerance", "tolerance_variance"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} is a standard error to reach and must be positive: got {value}")
        if not 0 < self.quantile <= 1:
            raise InputError(f"quantile is the share of components that must meet the tolerance: got {self.quantile}")

    @property
    def has_tolerance(self) -> bool:
        """Whether any accuracy is asked for."""
        return self.tolerance is not None or self.tolerance_variance is not None

    def first(self, least: float) -> float:
        """Passes of the first round: everything, or a pilot of at least ``least`` if the accuracy decides."""
        if not self.has_tolerance:
            assert self.budget is not None
            return self.budget
        pilot = max(PILOT, least)
        return pilot if self.budget is None else min(pilot, self.budget)

    def shortfall(self, found: Look) -> float:
        """How many times more passes the tolerance needs: the (quantile of the) largest (stderr / tolerance)²."""
        ratios = [
            (stderr / (tolerance * _scale(values, self.relative))) ** 2
            for stderr, values, tolerance in (
                (found.mean_stderr, found.mean, self.tolerance),
                (found.variance_stderr, found.variance, self.tolerance_variance),
            )
            if tolerance is not None
        ]
        return max(float(np.quantile(r, self.quantile, method="inverted_cdf")) for r in ratios)

    def more(self, found: Look) -> float:
        """Passes still to spend after a look; 0 when the tolerance is met or the budget leaves none."""
        if not self.has_tolerance:
            return 0.0
        short = self.shortfall(found)
        if short <= 1:
            return 0.0
        wanted = found.cost * min(short * MARGIN, MAX_GROWTH)
        return min(wanted, self.budget or math.inf) - found.cost


def _scale(values: Array, relative: bool) -> Array | float:
    if not relative:
        return 1.0
    largest = np.abs(values).max(axis=0, keepdims=True)
    return np.where(largest > 0, largest, 1.0)
