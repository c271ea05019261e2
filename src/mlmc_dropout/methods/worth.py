"""What the passes of a run are worth: its squared errors beside those of plain averaging, on the same footing.

With c passes of variance μ2 and fourth central moment μ4, plain averaging has squared errors of

    μ2/c for the mean,    (μ4 − (c−3)/(c−1) μ2²)/c = (A + 2 μ2²/(c−1))/c with A = μ4 − μ2² for the variance.

μ2, A and the errors of the run come from the same passes, as these show them: nothing is added on either side for
tails, rare masks or few samples, which standard errors allow for. Where few passes carry most of a variance both are
too small together, so that their ratio is known better than either of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.moments import MomentBlock

__all__ = ["Worth", "errors_doubted", "excess", "gain", "plain_passes"]

Array = NDArray[np.float64]

FEWEST = 8.0  # samples behind the errors of a run below which they say nothing about passes saved
MOST_DOUBT = 0.4  # relative standard error of a sum of squared errors: the worth is within a factor 1.5, mostly


@dataclass(frozen=True, slots=True)
class Worth:
    """Sums over the outputs of every input, (rows,).

    Attributes:
        spread: μ2.
        squared: μ2².
        excess: A = μ4 − μ2².
        mean: Squared errors of the mean.
        variance: Squared errors of the variance.
        mean_doubt: Standard errors of ``mean``, the outputs of an input taken as fully correlated.
        variance_doubt: The same of ``variance``.
        samples: Samples behind both.
    """

    spread: Array
    squared: Array
    excess: Array
    mean: Array
    variance: Array
    mean_doubt: Array
    variance_doubt: Array
    samples: Array

    @classmethod
    def of(
        cls,
        spread: Array,
        excess: Array,
        mean: Array,
        variance: Array,
        doubts: tuple[Array, Array],
        samples: float,
    ) -> Worth:
        """From the numbers of every output, (rows, width).

        Args:
            spread: μ2.
            excess: A.
            mean: Squared errors of the mean.
            variance: Squared errors of the variance.
            doubts: Relative standard errors of both.
            samples: Samples behind them.

        Returns:
            The sums.
        """
        return cls(
            _sums(spread),
            _sums(np.square(spread)),
            _sums(excess),
            _sums(mean),
            _sums(variance),
            _sums(mean * doubts[0]),
            _sums(variance * doubts[1]),
            np.full(len(spread), float(samples)),
        )

    def at_least(self, mean: Array, variance: Array) -> Worth:
        """With squared errors that rounding keeps from being smaller.

        Args:
            mean: Squared errors of the mean (rows, width) that come from rounding.
            variance: The same of the variance.

        Returns:
            The larger ones.
        """
        return replace(
            self,
            mean=np.maximum(self.mean, mean.sum(axis=1)),
            variance=np.maximum(self.variance, variance.sum(axis=1)),
        )


def _sums(values: Array) -> Array:
    """Over the outputs; infinite where one is not a number."""
    return np.asarray(np.where(np.isnan(values), np.inf, values).sum(axis=1))


def excess(block: MomentBlock) -> Array:
    """An estimate of A = μ4 − μ2² without bias, from the cumulants: A = κ4 + 2 κ2².

    Args:
        block: At least four independent samples, with sums up to the fourth power.

    Returns:
        A, componentwise; NaN for fewer samples.
    """
    n = float(block.count)
    if n < 4:
        return np.full_like(block.mean, np.nan)
    m2, m4 = block.s2 / n, block.fourth
    k4 = n**2 * ((n + 1) * m4 - 3 * (n - 1) * m2**2) / ((n - 1) * (n - 2) * (n - 3))
    return np.asarray(k4 + 2 * (n - 1) / (n + 1) * (np.square(block.variance) - k4 / n))


def errors_doubted(kurtosis: Array, samples: float) -> Array:
    """The relative standard error of a variance of n samples of kurtosis κ, sqrt((κ − 1)/n).

    Args:
        kurtosis: κ; what is not known counts as 3, and so does what is smaller.
        samples: n.

    Returns:
        The error, componentwise.
    """
    tails = np.maximum(np.nan_to_num(kurtosis, nan=3.0), 3.0)
    return np.asarray(np.sqrt((tails - 1.0) / max(samples, 1.0)))


def gain(plain: Array, error2: Array, cost: float) -> Array:
    """How many passes of plain averaging a pass is worth, output by output.

    Args:
        plain: μ2 or A.
        error2: The squared error of the run.
        cost: Its passes.

    Returns:
        The ratios; infinite where nothing is left to chance, NaN where there is no spread either.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(plain / cost / error2)


def plain_passes(parts: Sequence[Worth], together: bool) -> tuple[float, float]:
    """Passes per input with which plain averaging would have the same average squared errors.

    Args:
        parts: Of the inputs, in parts.
        together: Whether all inputs have the same masks, so that their errors are correlated.

    Returns:
        For the mean and for the variance; NaN where the passes tell too little, infinite where nothing is left to
        chance.
    """
    rows = {name: np.concatenate([getattr(part, name) for part in parts]) for name in Worth.__dataclass_fields__}
    total = {name: float(values.sum()) for name, values in rows.items()}
    few = rows["samples"].min() < FEWEST
    found = []
    for moment in ("mean", "variance"):
        error2, doubts = total[moment], rows[f"{moment}_doubt"]
        doubt = float(doubts.sum() if together else np.sqrt(np.square(doubts).sum()))
        if few or not np.isfinite(error2) or not doubt <= MOST_DOUBT * error2:
            found.append(np.nan)
        elif moment == "mean":
            found.append(_ratio(total["spread"], error2))
        else:
            found.append(_for_variance(total["excess"], total["squared"], error2))
    return found[0], found[1]


def _ratio(above: float, below: float) -> float:
    if below > 0:
        return above / below if above > 0 else np.nan
    return np.inf if above > 0 else np.nan


def _for_variance(A: float, squared: float, error2: float) -> float:
    """The c for which (A + 2 μ2²/(c − 1))/c is the squared error."""
    if error2 <= 0 or squared <= 0:
        return _ratio(squared, error2)
    half = (error2 + A) / 2
    root = half**2 - error2 * (A - 2 * squared)
    return float((half + np.sqrt(max(root, 0.0))) / error2)
