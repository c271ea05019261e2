"""What a page derives from a result: matrices, averages, and plain Monte Carlo at the same accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.result import Result
from mlmc_dropout.result.arrays import leaves

__all__ = ["Comparison", "Matrices", "average", "compare", "matrices", "matrix"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Matrices:
    """The estimates as matrices (inputs, components).

    Attributes:
        mean: Mean of a pass.
        variance: Variance of a pass.
        mean_stderr: Standard error of the mean.
        variance_stderr: Standard error of the variance.
    """

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
    def score_interval(self) -> tuple[Array, Array]:
        """Two standard errors either way: roots of those of the mean variance, components taken as fully correlated.

        A standard error of the root itself would be far too large where the variance is known to be small only.
        """
        variance, error = self.variance.mean(axis=1), np.nan_to_num(self.variance_stderr.mean(axis=1))
        low, high = (np.sqrt(np.maximum(variance + sign * 2 * error, 0.0)) for sign in (-1, 1))
        return low, high


def matrix(value: Any) -> NDArray[Any]:
    """A structured estimate as one matrix.

    Args:
        value: An array, or a structure of arrays with the inputs first.

    Returns:
        (inputs, components).
    """
    return np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in leaves(value)], axis=1)


def matrices(result: Result) -> Matrices:
    """The four matrices of a result.

    Args:
        result: The result.

    Returns:
        Its matrices.
    """
    return Matrices(*(matrix(v) for v in (result.mean, result.variance, result.mean_stderr, result.variance_stderr)))


def average(value: Any) -> float:
    """Mean over everything finite.

    Args:
        value: An array, or a structure of arrays with the inputs first.

    Returns:
        The mean; NaN if nothing is finite.
    """
    flat = matrix(value).ravel()
    flat = flat[np.isfinite(flat)]
    return float(flat.mean()) if flat.size else float("nan")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Passes that plain Monte Carlo needs for the average squared standard error of this run.

    Attributes:
        cost: Passes per input spent here.
        plain_mean: Passes per input for the same error of the mean; NaN where the passes tell too little.
        plain_variance: Passes per input for the same error of the variance; NaN likewise.
    """

    cost: float
    plain_mean: float
    plain_variance: float

    @property
    def unknown(self) -> bool:
        """Whether the passes tell nothing about either."""
        return math.isnan(self.plain_mean) and math.isnan(self.plain_variance)

    @property
    def gain_mean(self) -> float:
        """Plain passes per pass of this run, for the mean."""
        return self.plain_mean / self.cost

    @property
    def gain_variance(self) -> float:
        """The same for the variance."""
        return self.plain_variance / self.cost


def compare(result: Result) -> Comparison:
    """A result beside plain Monte Carlo: the one gain that terminal and page state.

    Args:
        result: The result.

    Returns:
        Passes spent, and those of plain Monte Carlo for the same standard errors.
    """
    return Comparison(result.cost, *result.plain_passes)
