"""When to stop: a budget of passes, a tolerance for either moment, or both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from mlmc_dropout.errors import InputError

__all__ = ["Goal", "Look", "stderr_upper_factor"]

Array = NDArray[np.float64]

PILOT = 128  # passes spent before the first look at the standard errors
TRUSTED = 16  # samples (passes, replicates, pairs of designs) from which a standard error is believed
MAX_GROWTH = 8.0  # never trust a look enough to multiply the passes by more than this
MIN_GROWTH = 1.05  # nor look again after less than this
EXTREME_SHARE = 0.25  # the share of a largest standard error's overstatement that more passes are likely to take away
STEP_SHARE = 0.75  # the share of a long way that is gone before looking again


class Look(Protocol):
    """Estimates so far, as a stop rule sees them: matrices (rows, width) and the passes spent per input.

    ``overhead`` is the part of these that came before the first sample and does not grow with the samples.
    """

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
    @property
    def overhead(self) -> float: ...


def _number(value: object) -> bool:
    """Whether ``value`` is a finite number."""
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Goal:
    """Standard errors to reach and passes that may be spent on it.

    A tolerance is met when the share ``quantile`` of all components (inputs × outputs) has a
    standard error at or below it. With ``relative`` it is multiplied, output component by output
    component, with the largest absolute estimate over the inputs.

    >>> Goal(tolerance=0.01, budget=1000).has_tolerance
    True
    """

    budget: float | None = None
    tolerance: float | None = None
    tolerance_variance: float | None = None
    relative: bool = False
    quantile: float = 1.0

    def __post_init__(self) -> None:
        if self.budget is None and not self.has_tolerance:
            raise InputError("give a stop rule: budget= (passes per input), tolerance= or tolerance_variance=")
        if self.budget is not None and not (_number(self.budget) and self.budget >= 1):
            raise InputError(f"budget is a number of passes per input, at least 1: got {self.budget!r}")
        for name in ("tolerance", "tolerance_variance"):
            value = getattr(self, name)
            if value is not None and not (_number(value) and value > 0):
                raise InputError(f"{name} is a standard error to reach and must be a positive number: got {value!r}")
        if not (_number(self.quantile) and 0 < self.quantile <= 1):
            raise InputError(f"quantile is the share of components that must meet the tolerance: got {self.quantile!r}")

    @property
    def has_tolerance(self) -> bool:
        """Whether any accuracy is asked for."""
        return self.tolerance is not None or self.tolerance_variance is not None

    def pilot(self, least: float) -> float:
        """Passes before the first look; ``least`` is the smallest run that gives standard errors."""
        passes = max(PILOT, least)
        return passes if self.budget is None else min(passes, self.budget)

    def first(self, least: float) -> float:
        """Passes of the first round: everything, or a pilot if the accuracy decides."""
        if self.has_tolerance:
            return self.pilot(least)
        assert self.budget is not None
        return self.budget

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
        known = [np.where(np.isnan(r), np.inf, r) for r in ratios]  # no standard error yet: anything is possible
        return max(float(np.quantile(r, self.quantile, method="inverted_cdf")) for r in known)

    def met(self, found: Look, samples: float) -> bool:
        """Whether the tolerance is met, by standard errors that can be believed, or by upper limits for them."""
        return self.has_tolerance and self.shortfall(found) * stderr_upper_factor(samples) <= 1

    def more(self, found: Look, samples: float) -> float:
        """Passes to spend after a look; 0 when the goal is reached.

        The largest of m standard errors, each estimated from n ``samples``, overstates the truth by
        a factor of about 1 + sqrt(2/n)·sqrt(2 log m) in its square. Most of it is still there at the
        next look, and the stop waits for the largest; the way to go is shortened by ``EXTREME_SHARE`` of it, and
        a long way is not gone in one step, least of all after few samples, so that a noisy look does not
        overshoot. The stop itself relies on the standard errors as they are reported, or, with fewer than
        ``TRUSTED`` samples behind them, on upper limits for them.
        """
        left = math.inf if self.budget is None else self.budget - found.cost
        if not self.has_tolerance:
            return max(left, 0.0)
        if self.met(found, samples):
            return 0.0
        spent = found.cost - found.overhead
        if samples < TRUSTED:
            return min(spent * min(TRUSTED / max(samples, 1.0) - 1.0, 1.0), left)
        short = self.shortfall(found)
        luck = EXTREME_SHARE * math.sqrt(2.0 / max(samples, 2.0)) * math.sqrt(2.0 * math.log(max(found.mean.size, 1)))
        growth = short / (1.0 + luck) * (STEP_SHARE if short > 2 else 1.0)
        most = min(1.0 + samples / TRUSTED, MAX_GROWTH)
        return max(0.0, min(spent * (min(max(growth, MIN_GROWTH), most) - 1.0), left))


def stderr_upper_factor(samples: float) -> float:
    """Upper 99 % limit of a squared standard error over its estimate (n−1 degrees of freedom), 1 if it is trusted.

    >>> stderr_upper_factor(100), round(stderr_upper_factor(5), 1)
    (1.0, 13.5)
    """
    if samples >= TRUSTED:
        return 1.0
    return math.inf if samples < 2 else float((samples - 1) / (2.0 * gammaincinv((samples - 1) / 2, 0.01)))


def _scale(values: Array, relative: bool) -> Array | float:
    if not relative:
        return 1.0
    largest = np.abs(values).max(axis=0, keepdims=True)
    return np.where(largest > 0, largest, 1.0)
