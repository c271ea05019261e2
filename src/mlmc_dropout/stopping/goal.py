"""When to stop: a budget of passes, a tolerance for either moment, or both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from mlmc_dropout.errors import InputError

__all__ = ["Decision", "Estimates", "Goal", "stderr_upper_factor"]

Array = NDArray[np.float64]

PILOT_SHARE = 0.25  # of a budget that is to be spent where it is needed most
PILOT = 128  # passes spent before the standard errors are first looked at
TRUSTED = 16  # samples (passes, replicates, designs) from which a standard error is trusted
MAX_GROWTH = 8.0  # the passes are multiplied by at most this from one round to the next
MIN_GROWTH = 1.05  # and by at least this
EXTREME_SHARE = 0.5  # of the excess that the largest of independent standard errors would have
MAX_BUDGET = 10**15  # passes are numbered, and their numbers are exact as floats
TOLERANCES = (1e-100, 1e100)  # their squares are numbers, too
MAX_ROUND = 10**7  # passes of a round: its tasks are listed
FADED = 2.0  # times as many passes leave little of what was added to standard errors for tails
STEP_SHARE = 0.75  # share of a large need that is spent before looking again


class Estimates(Protocol):
    """Estimates so far, as a stop rule sees them; arrays are (rows, width)."""

    @property
    def mean(self) -> Array:
        """Estimate of the mean."""

    @property
    def variance(self) -> Array:
        """Estimate of the variance."""

    @property
    def mean_stderr(self) -> Array:
        """Standard error of the mean; NaN where it is not known yet."""

    @property
    def variance_stderr(self) -> Array:
        """Standard error of the variance; NaN where it is not known yet."""

    @property
    def cost(self) -> float:
        """Passes spent per input."""

    @property
    def overhead(self) -> float:
        """The part of the cost that came before the first sample and does not grow with the samples."""

    @property
    def widening(self) -> tuple[Array, Array] | None:
        """Factors in both standard errors for tails that few samples show, if there are any."""


def _is_finite_number(value: object) -> bool:
    """Whether ``value`` is a finite number, also as a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be decided, as plain data.

    Attributes:
        kind: "label", "above" (of the mean) or "top".
        confidence: Of each decision, or of all together.
        familywise: Whether all decisions together shall be right with that confidence.
        threshold: Of "above".
        k: Of "top": how many inputs.
        by: Of "top": name of the quantity.
    """

    kind: Literal["label", "above", "top"]
    confidence: float = 0.99
    familywise: bool = False
    threshold: float = 0.0
    k: int = 0
    by: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """Standard errors to reach and passes that may be spent on it.

    A tolerance is met when the share ``quantile`` of all components (inputs × outputs) has a standard error at or below
    it.

    Attributes:
        budget: Passes per input that may be spent; no limit by default.
        tolerance: Standard error of the mean to reach; ``None`` (default) asks for none.
        tolerance_variance: Standard error of the variance to reach; ``None`` (default) asks for none.
        relative: Whether tolerances are relative: multiplied, for each output component, by the largest absolute
            estimate over the inputs.
        quantile: Share of the components that must meet the tolerance, in (0, 1]; all by default.
        adaptive: Whether inputs stop one by one (``rows``); the budget is then their average.
        decision: What is to be decided (``decisions``); the budget is then the most that any input gets.

    Examples:
        >>> Goal(tolerance=0.01, budget=1000).has_tolerance
        True
    """

    budget: float | None = None
    tolerance: float | None = None
    tolerance_variance: float | None = None
    relative: bool = False
    quantile: float = 1.0
    adaptive: bool = False
    decision: Decision | None = None

    def __post_init__(self) -> None:
        if self.budget is None and not self.has_tolerance:
            raise InputError(
                "give a stop rule: budget= (passes per input), tolerance=, tolerance_variance= or decision="
            )
        if self.budget is not None and not (_is_finite_number(self.budget) and self.budget >= 1):
            raise InputError(f"budget is a number of passes per input, at least 1: got {_shown(self.budget)}")
        if self.budget is not None and self.budget > MAX_BUDGET:
            raise InputError(
                f"a budget of {self.budget:g} passes per input would never end; {MAX_BUDGET:g} are the most"
            )
        for name in ("tolerance", "tolerance_variance"):
            value = getattr(self, name)
            low, high = TOLERANCES
            if value is not None and not (_is_finite_number(value) and low <= value <= high):
                raise InputError(
                    f"{name} is a standard error to reach, a number between {low:g} and {high:g}: got {_shown(value)}"
                )
        if not (_is_finite_number(self.quantile) and 0 < self.quantile <= 1):
            raise InputError(f"quantile is the share of components that must meet the tolerance: got {self.quantile!r}")

    @property
    def has_tolerance(self) -> bool:
        """Whether any accuracy is asked for."""
        return self.tolerance is not None or self.tolerance_variance is not None

    def pilot(self, min_cost: float) -> float:
        """Passes to spend before the standard errors are looked at for the first time.

        Args:
            min_cost: Passes of the smallest run that gives standard errors.

        Returns:
            ``PILOT`` passes or ``min_cost``, whichever is more, within the budget.
        """
        passes = max(PILOT, min_cost)
        return passes if self.budget is None else min(passes, self.budget)

    def first(self, min_cost: float) -> float:
        """Passes of the first round: the whole budget, up to ``MAX_ROUND``, or a pilot if there is a tolerance.

        Args:
            min_cost: Passes of the smallest run that gives standard errors.

        Returns:
            The number of passes per input.
        """
        if self.has_tolerance:
            return self.pilot(min_cost)
        assert self.budget is not None
        if self.adaptive:
            return min(self.budget, max(min(PILOT, self.budget * PILOT_SHARE), min_cost))
        return min(self.budget, MAX_ROUND)

    def shortfall(self, estimates: Estimates, widened: bool = True) -> float:
        """How many times as many passes the tolerance needs: the (quantile of the) largest (stderr / tolerance)².

        Args:
            estimates: The estimates so far.
            widened: Whether with what standard errors are widened by for the tails that few samples show.

        Returns:
            The factor, at most 1 if the tolerance is met; infinite where there is no standard error yet.
        """
        of_mean, of_variance = (1.0, 1.0) if widened or estimates.widening is None else estimates.widening
        with np.errstate(over="ignore", divide="ignore", invalid="ignore", under="ignore"):  # tolerances like 1e-300
            ratios = [
                (stderr / (tolerance * _scale(values, self.relative) * widening)) ** 2
                for stderr, values, tolerance, widening in (
                    (estimates.mean_stderr, estimates.mean, self.tolerance, of_mean),
                    (estimates.variance_stderr, estimates.variance, self.tolerance_variance, of_variance),
                )
                if tolerance is not None
            ]
        factors = [np.where(np.isnan(r), np.inf, r) for r in ratios]  # no standard error yet
        return max(float(np.quantile(r, self.quantile, method="inverted_cdf")) for r in factors)

    def met(self, estimates: Estimates, samples: float) -> bool:
        """Whether the tolerance is met.

        Args:
            estimates: The estimates so far.
            samples: Number of samples n behind their standard errors; below ``TRUSTED``, upper limits for the standard
                errors must meet the tolerance.

        Returns:
            True if there is a tolerance and it is met.
        """
        return self.has_tolerance and self.shortfall(estimates) * stderr_upper_factor(samples) <= 1

    def more(self, estimates: Estimates, samples: float) -> float:
        """Passes to spend next; 0 when the goal is reached.

        The largest of m standard errors, each estimated from n ``samples``, overstates the truth by a factor of about
        1 + e, e = sqrt(2/n)·sqrt(2 log m), in its square if they are independent; ``EXTREME_SHARE`` of that is taken,
        since most are not. The passes so far keep their excess, and those to come have none: with g times the passes
        the square is 1/g + (1 − 1/g)/(1 + e) of what it is, over g. A large need is met in several rounds, with
        smaller steps after few samples, so that a noisy estimate does not overshoot. The stop itself relies on the
        standard errors as they are reported or, with fewer than ``TRUSTED`` samples behind them, on upper limits.

        Args:
            estimates: The estimates so far.
            samples: Number of samples n behind their standard errors.

        Returns:
            The number of passes per input, within the budget, at most ``MAX_ROUND``.
        """
        remaining = MAX_ROUND if self.budget is None else min(self.budget - estimates.cost, MAX_ROUND)
        if not self.has_tolerance:
            return max(remaining, 0.0)
        if self.met(estimates, samples):
            return 0.0
        spent = estimates.cost - estimates.overhead
        if samples < TRUSTED:
            return min(spent * min(TRUSTED / max(samples, 1.0) - 1.0, 1.0), remaining)
        needed = self.shortfall(estimates)
        excess = (
            EXTREME_SHARE * math.sqrt(2.0 / max(samples, 2.0)) * math.sqrt(2.0 * math.log(max(estimates.mean.size, 1)))
        )
        if estimates.widening is not None:  # it fades much faster than errors do
            needed = max(self.shortfall(estimates, widened=False), min(needed, FADED))
        half = needed / (1.0 + excess) / 2.0
        growth = half + math.sqrt(half * half + 2.0 * half * excess)  # g² = needed (1 + (g − 1)/(1 + e))
        growth *= STEP_SHARE if needed > 2 else 1.0
        max_growth = min(1.0 + samples / TRUSTED, MAX_GROWTH)
        return max(0.0, min(spent * (min(max(growth, MIN_GROWTH), max_growth) - 1.0), remaining))


def _shown(value: object) -> str:
    """A value in a message, whatever it is: an integer can have more digits than can be printed."""
    try:
        text = repr(value)
    except ValueError:
        return "an integer of thousands of digits"
    return text if len(text) <= 40 else f"{text[:37]}…"


def stderr_upper_factor(samples: float) -> float:
    """Upper 99 % limit of a squared standard error, relative to its estimate (n−1 degrees of freedom).

    Args:
        samples: Number of samples n behind the estimate.

    Returns:
        The factor: 1 from ``TRUSTED`` samples on, infinite below 2.

    Examples:
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
