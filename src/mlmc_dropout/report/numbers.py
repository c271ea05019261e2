"""What a page derives from a result: matrices, averages, and plain Monte Carlo at the same accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout import theory
from mlmc_dropout.result import Result, leaves

__all__ = ["Comparison", "Matrices", "average", "compare", "matrices", "matrix", "short"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Matrices:
    """The estimates as (inputs, components)."""

    mean: Array
    variance: Array
    mean_stderr: Array
    variance_stderr: Array

    @property
    def std(self) -> Array:
        """√ of the positive part of the variance."""
        return np.sqrt(np.maximum(self.variance, 0.0))

    @property
    def std_stderr(self) -> Array:
        """Standard error of the standard deviation, to first order: stderr(V) / (2 std); NaN at zero."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.std > 0, self.variance_stderr / (2 * self.std), np.nan)

    @property
    def score(self) -> Array:
        """One number per input: root mean square of the standard deviations over the components."""
        return np.asarray(np.sqrt(np.maximum(self.variance, 0.0).mean(axis=1)))

    @property
    def score_stderr(self) -> Array:
        """Standard error of the score, to first order, components taken as fully correlated (cautious)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.score > 0, self.variance_stderr.mean(axis=1) / (2 * self.score), np.nan)


def matrix(value: Any) -> Array:
    """A structured estimate as one matrix (inputs, components)."""
    return np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in leaves(value)], axis=1)


def matrices(result: Result) -> Matrices:
    """All four at once."""
    return Matrices(*(matrix(v) for v in (result.mean, result.variance, result.mean_stderr, result.variance_stderr)))


def average(value: Any) -> float:
    """Mean over everything finite."""
    flat = matrix(value).ravel()
    flat = flat[np.isfinite(flat)]
    return float(flat.mean()) if flat.size else float("nan")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Passes that plain Monte Carlo needs for the average squared standard error of this run."""

    cost: float
    plain_mean: float
    plain_variance: float

    @property
    def gain_mean(self) -> float:
        """Plain passes per pass of this run, for the mean."""
        return self.plain_mean / self.cost

    @property
    def gain_variance(self) -> float:
        """The same for the variance."""
        return self.plain_variance / self.cost


def compare(result: Result) -> Comparison:
    """C = Σ μ2 / Σ stderr² for the mean; for the variance c solves Σ Var V(c) = Σ stderr², kurtosis as measured
    by plain Monte Carlo where that was run, otherwise that of a Gaussian.
    """
    m = matrices(result)
    mu2 = np.maximum(m.variance, 0.0)
    if result.method == "pooled":
        return Comparison(result.cost, result.cost, result.cost)
    squares_mean, squares_variance = np.square(m.mean_stderr).sum(), np.square(m.variance_stderr).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        plain_mean = float(mu2.sum() / squares_mean)
        plain_variance = float(theory.closure(mu2).sum() - np.square(mu2).sum()) / squares_variance + 1
    return Comparison(result.cost, plain_mean, float(plain_variance))


def short(value: float, digits: int = 3) -> str:
    """A number for people: few digits, thousands separated by thin spaces, a true minus sign.

    >>> short(41234.0), short(0.0001234), short(-1.5)
    ('41\u202f200', '1.23e−4', '−1.5')
    """
    if not np.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if abs(value) >= 1e7 or abs(value) < 1e-3:
        head, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{head}e{int(exponent)}".replace("-", "−")
    rounded = float(f"{value:.{max(digits, 1)}g}")
    text = f"{rounded:,.{max(0, digits - 1 - int(np.floor(np.log10(abs(rounded)))))}f}".replace(",", "\u202f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "−")
