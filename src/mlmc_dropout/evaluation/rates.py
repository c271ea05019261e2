"""Rates at which differences fall, and what they tell of the levels that are left out.

If means of Δ fall like T^(−α), all later ones sum to m Δ_L with m = 1/(2^α − 1). The rate of what is smooth rises to 1,
slowly: the sum lies between Δ_L and m Δ_L, nearer to the latter. Four fifths of the way are taken.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.evaluation.estimates import Rate

__all__ = ["believed_rate", "extrapolation_for", "fitted_rate", "paired_rate", "remaining", "value_or"]

Array = NDArray[np.float64]

_USUAL = (0.8, 0.12)  # rate at which means of differences fall, and its spread: 1 for what is smooth, less at first
_TAKEN = 0.8  # of the way from 1 to m
_LEAST = 0.15  # of the last difference: bias that may be left, at least


def believed_rate(value: float, stderr: float) -> tuple[float, float]:
    """What was measured and what is usual, together.

    Args:
        value: The rate α that was measured, or NaN.
        stderr: Its standard error.

    Returns:
        Rate and standard error.
    """
    if not np.isfinite(value):
        return _USUAL
    weights = np.array([stderr, _USUAL[1]]) ** -2.0
    return float(np.average([value, _USUAL[0]], weights=weights)), float(weights.sum() ** -0.5)


def _sum_of_later(alpha: float) -> float:
    """The multiple m of the last difference that all later ones sum to, if they fall at this rate."""
    return float(1.0 / (2.0 ** min(max(alpha, 0.5), 1.0) - 1.0))


def extrapolation_for(alpha: float) -> float:
    """How often the last difference is added once more.

    Args:
        alpha: The rate α.

    Returns:
        The weight w.
    """
    return float(1.0 + _TAKEN * (_sum_of_later(alpha) - 1.0))


def remaining(alpha: float, stderr: float, extrapolated: float) -> float:
    """The bias that may be left, as a multiple of the last difference: the rest of the way, and what α is not known by.

    Args:
        alpha: The rate α.
        stderr: Its standard error.
        extrapolated: How often the last difference was added once more.

    Returns:
        The multiple.
    """
    later = _sum_of_later(alpha)
    doubt = _TAKEN * (_sum_of_later(alpha - stderr) - later)
    return float(np.hypot(max(abs(later - extrapolated), _LEAST), doubt))


def paired_rate(means: Array, covariance: Array) -> tuple[float, float]:
    """The rate from differences of the whole and of the halves at the same inputs.

    Args:
        means: Means of Δ and of Δ of the halves, (2,).
        covariance: Covariance of these means, (2, 2).

    Returns:
        Rate and standard error; NaN if differences have no common sign.
    """
    if not means[0] * means[1] > 0:
        return math.nan, math.nan
    gradient = np.array([-1.0, 1.0]) / (means * math.log(2.0))
    return math.log2(means[1] / means[0]), math.sqrt(max(float(gradient @ covariance @ gradient), 1e-12))


def fitted_rate(values: Array, spread: Array, usable: Any) -> Rate:
    """Weighted least squares of log2 values on the level, as a falling rate.

    Args:
        values: One per level, from level 1 on.
        spread: Their relative standard errors.
        usable: Which of them to use.

    Returns:
        The rate; NaN if fewer than two levels can be used.
    """
    usable = np.asarray(usable) & np.isfinite(spread) & (values > 0)
    level = np.arange(1, len(values) + 1)[usable]
    if len(level) < 2:
        return Rate(float("nan"), float("nan"))
    y, weight = np.log2(values[usable]), 1.0 / np.maximum(spread[usable] / np.log(2.0), 1e-3) ** 2
    centre = np.average(level, weights=weight)
    square = float(np.sum(weight * (level - centre) ** 2))
    slope = float(np.sum(weight * (level - centre) * y) / square)
    return Rate(-slope, square**-0.5)


def value_or(value: float, default: float, low: float, high: float) -> float:
    """A rate within limits, or a default if it is NaN.

    Args:
        value: The rate.
        default: What stands for NaN.
        low: The least it may be.
        high: The most it may be.

    Returns:
        The rate.
    """
    return float(np.clip(value if np.isfinite(value) else default, low, high))
