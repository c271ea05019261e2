"""Norms over the grid, straight-line fits and the intervals that go with them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

__all__ = ["CONFIDENCE", "LineFit", "fit_line", "jackknife", "l1_norm", "line_slope", "variance_interval"]

Array = NDArray[np.float64]

CONFIDENCE = 0.99


def l1_norm(values: ArrayLike) -> float:
    """Σ |g(x_i)| Δx over the uniform grid on [0, 1] along the last axis (eq:numerics:L1_proxy).

    Args:
        values: g at the grid points, both ends included.

    Returns:
        The norm.

    Examples:
        >>> round(l1_norm(np.ones(201)), 3)
        1.005
    """
    g = np.abs(np.asarray(values, dtype=float))
    return float(g.sum() / (g.shape[-1] - 1))


@dataclass(frozen=True, slots=True)
class LineFit:
    """Least squares y = intercept + slope·x with a confidence interval for the slope.

    Attributes:
        slope: The slope b.
        low: Lower end of its 99 % interval.
        high: Upper end.
        intercept: Value at x = 0.
        residual_sd: Standard deviation s of the residuals, n − 2 degrees of freedom.
        centre: Mean x̄ of the abscissae.
        spread: Σ (x − x̄)².
        count: Number n of points.
    """

    slope: float
    low: float
    high: float
    intercept: float
    residual_sd: float
    centre: float
    spread: float  # Σ (x − centre)²
    count: int

    def line(self, x: ArrayLike) -> Array:
        """The fitted line.

        Args:
            x: Abscissae, any shape.

        Returns:
            Its ordinates.
        """
        return np.asarray(self.intercept + self.slope * np.asarray(x, dtype=float))

    def half_width(self, x: ArrayLike) -> Array:
        """Half the width of the 99 % confidence band of the line.

        Args:
            x: Abscissae, any shape.

        Returns:
            The half widths.
        """
        lever = 1.0 / self.count + np.square(np.asarray(x, dtype=float) - self.centre) / self.spread
        return np.asarray(_student(self.count - 2) * self.residual_sd * np.sqrt(lever))

    def contains(self, slope: float) -> bool:
        """Whether the interval holds a slope.

        Args:
            slope: The slope in question.

        Returns:
            Whether it does.
        """
        return bool(self.low <= slope <= self.high)


def fit_line(x: ArrayLike, y: ArrayLike) -> LineFit:
    """Fit a line to points with errors of equal variance, independent of each other.

    The slope's interval is b ± t·s/√Σ(x−x̄)², with s from the residuals and Student's t with n − 2 degrees of freedom.
    It suits log ‖S²‖ against log T because no two T share passes, and because the variance of the logarithm of a sample
    variance of M replicates depends on M alone.

    Args:
        x: Abscissae, (n,), n > 2.
        y: Ordinates, (n,).

    Returns:
        The fit.

    Examples:
        >>> fit = fit_line([0.0, 1.0, 2.0, 3.0], [1.0, 0.1, -1.1, -2.0])
        >>> round(fit.slope, 2), fit.contains(-1.0), fit.contains(-2.0)
        (-1.02, True, False)
    """
    a = np.asarray(x, dtype=float)
    centre, spread = float(a.mean()), float(np.square(a - a.mean()).sum())
    line = stats.linregress(a, np.asarray(y, dtype=float))
    slope, half = float(line.slope), _student(len(a) - 2) * float(line.stderr)
    residual_sd = float(line.stderr) * math.sqrt(spread)
    return LineFit(slope, slope - half, slope + half, float(line.intercept), residual_sd, centre, spread, len(a))


def line_slope(x: ArrayLike, y: ArrayLike) -> float:
    """The least-squares slope alone, for values without noise.

    Args:
        x: Abscissae, (n,).
        y: Ordinates, (n,).

    Returns:
        The slope.
    """
    return float(stats.linregress(x, y).slope)


def _student(dof: int, comparisons: int = 1) -> float:
    return float(stats.t.ppf(1 - (1 - CONFIDENCE) / 2 / comparisons, dof))


def jackknife(whole: ArrayLike, without: ArrayLike, comparisons: int = 1) -> tuple[Array, Array]:
    """Simultaneous 99 % confidence interval for a statistic from its leave-one-out values.

    Args:
        whole: The statistic of all n parts.
        without: Its values with one part left out, (n, …).
        comparisons: Number of intervals that shall hold together (Bonferroni).

    Returns:
        Lower and upper ends, in the shape of ``whole``.
    """
    parts, value = np.asarray(without, dtype=float), np.asarray(whole, dtype=float)
    n = len(parts)
    error = np.sqrt((n - 1) / n * np.square(parts - parts.mean(axis=0)).sum(axis=0))
    half = _student(n - 1, comparisons) * error
    return value - half, value + half


def variance_interval(pointwise: Array, repetitions: int) -> tuple[float, float]:
    """99 % interval for ‖variance‖ from sample variances at independent points.

    Their sum is taken as χ² with (R−1)·(Σv)²/Σv² degrees of freedom (Satterthwaite).

    Args:
        pointwise: Sample variances v, (points,).
        repetitions: Number R of values behind each.

    Returns:
        Its ends.
    """
    v: Any = np.asarray(pointwise, dtype=float)
    dof = (repetitions - 1) * float(v.sum() ** 2 / np.square(v).sum())
    tail = (1 - CONFIDENCE) / 2
    norm = l1_norm(v)
    return norm * dof / float(stats.chi2.ppf(1 - tail, dof)), norm * dof / float(stats.chi2.ppf(tail, dof))
