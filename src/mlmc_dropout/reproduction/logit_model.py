"""The four-parameter model of log ‖S²‖ against the dropout rate, fitted with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from mlmc_dropout.reproduction.statistics import CONFIDENCE

__all__ = ["LogitFit", "fit", "model"]

Array = NDArray[np.float64]


def model(p: ArrayLike, a1: float, a2: float, a3: float, a4: float) -> Array:
    """α1 + α2 log p^α4 − α3 log(1 − p^α4) (eq:numerics:logit_model).

    Slope α2 α4 in log p as p → 0; slope −α3 in log(1 − p) as p → 1.

    Args:
        p: Dropout rates in (0, 1).
        a1: α1, the level.
        a2: α2.
        a3: α3.
        a4: α4, positive.

    Returns:
        log ‖S²‖ at ``p``.
    """
    power = a4 * np.log(np.asarray(p, dtype=float))
    return np.asarray(a1 + a2 * power - a3 * np.log(-np.expm1(power)))


def jacobian(p: ArrayLike, a: Array) -> Array:
    """Derivatives of :func:`model` by its parameters.

    Args:
        p: Dropout rates, (points,).
        a: α1 … α4.

    Returns:
        A matrix (points, 4).
    """
    log_p = np.log(np.asarray(p, dtype=float))
    power = a[3] * log_p
    rest = -np.expm1(power)  # 1 − p^α4
    last = a[1] * log_p + a[2] * np.exp(power) * log_p / rest
    return np.stack([np.ones_like(log_p), power, -np.log(rest), last], axis=-1)


@dataclass(frozen=True, slots=True)
class LogitFit:
    """Least-squares parameters with their covariance.

    Attributes:
        parameters: α1 … α4.
        covariance: Their covariance, (4, 4), from the linearised model.
        residual_sd: Standard deviation of the residuals, n − 4 degrees of freedom.
        r_squared: Share of the variation explained.
        count: Number n of points.
    """

    parameters: Array
    covariance: Array
    residual_sd: float
    r_squared: float
    count: int

    @property
    def student(self) -> float:
        """The quantile of Student's t for a 99 % interval."""
        return float(stats.t.ppf(0.5 + CONFIDENCE / 2, self.count - 4))

    def interval(self, index: int) -> tuple[float, float]:
        """99 % interval of a parameter, from the linearised model.

        Args:
            index: 0 for α1, …, 3 for α4.

        Returns:
            Its ends.
        """
        half = self.student * float(np.sqrt(self.covariance[index, index]))
        return float(self.parameters[index] - half), float(self.parameters[index] + half)

    def half_width(self, p: ArrayLike) -> Array:
        """Half the width of the 99 % band of the curve.

        Args:
            p: Dropout rates, (points,).

        Returns:
            The half widths, (points,).
        """
        J = jacobian(p, self.parameters)
        return np.asarray(self.student * np.sqrt(np.einsum("ni,ij,nj->n", J, self.covariance, J)))

    def small_p_exponent(self) -> tuple[float, float, float]:
        """α2 α4 with its 99 % interval: the power of p for small p, better determined than either factor."""
        gradient = np.array([0.0, self.parameters[3], 0.0, self.parameters[1]])
        half = self.student * float(np.sqrt(gradient @ self.covariance @ gradient))
        value = float(self.parameters[1] * self.parameters[3])
        return value, value - half, value + half

    def largest_correlation(self) -> float:
        """The largest correlation between two parameters: near 1, the data fix only a combination of them."""
        scale = np.sqrt(np.diag(self.covariance))
        matrix = np.abs(self.covariance / np.outer(scale, scale))
        return float(np.max(matrix - np.eye(4)))


def fit(p: ArrayLike, y: ArrayLike) -> LogitFit:
    """Least squares. For a fixed α4 the model is linear in the others, so α4 is searched alone first.

    Args:
        p: Dropout rates, (n,), n > 4.
        y: log ‖S²‖ there.

    Returns:
        The parameters with their covariance.

    Examples:
        >>> p = np.linspace(0.05, 0.95, 19)
        >>> fitted = fit(p, model(p, -18.0, 0.25, 3.3, 5.0))
        >>> fitted.parameters.round(3).tolist()
        [-18.0, 0.25, 3.3, 5.0]
    """
    p, y = np.asarray(p, dtype=float), np.asarray(y, dtype=float)

    def linear(a4: float) -> tuple[float, Array]:
        design = jacobian(p, np.array([0.0, 0.0, 0.0, a4]))[:, :3]
        coefficients, *_ = np.linalg.lstsq(design, y, rcond=None)
        return float(np.square(y - design @ coefficients).sum()), coefficients

    best = min(np.geomspace(0.02, 40.0, 120), key=lambda a4: linear(a4)[0])
    start = np.array([*linear(best)[1], best])
    a, covariance = optimize.curve_fit(
        model,
        p,
        y,
        start,
        jac=lambda p, *a: jacobian(p, np.array(a)),
        bounds=([-np.inf, -np.inf, -np.inf, 1e-3], np.inf),
        x_scale="jac",
        xtol=1e-14,
        ftol=1e-14,
        gtol=1e-14,
        max_nfev=5000,
    )
    squares = float(np.square(y - model(p, *a)).sum())
    total = float(np.square(y - y.mean()).sum())
    return LogitFit(a, covariance, float(np.sqrt(squares / (len(p) - 4))), 1 - squares / total, len(p))
