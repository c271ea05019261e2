"""Whether a sample shows enough of its distribution for its standard errors to be believed.

Where few samples carry most of a variance, as with probabilities close to 0 or 1, those that were not drawn would have
carried more: estimates and standard errors are then too small together. Skewness γ and kurtosis κ tell, of n samples,
and with h = max(1, n/100):

- a mean is taken to be reliable if γ² ≤ 7 h^¾ and κ ≤ 14 h^⅖,
- a variance if κ ≤ 14 h^⅕ and κ − γ² ≤ 7 max(1, n/500)^⅖; κ − γ² is 1 for two values, 3 for a Gaussian, 5 for an
  exponential distribution, and grows without bound with the tails,
- neither if γ² > 0.6 n: a single sample carries nearly everything,
- neither if they may be probabilities that rare passes turn over: a mean in [0, 1], closer to one of its ends than 12/n
  (40/n for the variance), and a skewness above 1 away from that end. Until such a pass is drawn, γ and κ are small,
- both if there are nearly only two values (κ − γ² ≤ 1.5), the rarer of which came up twelve times (n ≥ 12 κ).

The limits were set by simulation: 100 or more Gaussian or uniform samples are found unreliable less than once in a
thousand times, exponential ones less than once in ten. What never moved tells nothing about how it moves, and is
unreliable: a softmax that is 1 in single precision, with a derivative of 0, may be 0.9 in the next pass.

Few samples of a skewed law are mostly those of its bulk, with a mean and a scatter that are too small together.
Standard errors from n samples are widened by 1 + 27 (γ²/n)^2½, where γ²/n lies between 0 and 1. A variance V is known
on a logarithmic scale rather than a linear one: an error of s V is widened by 1 + 3 s² as well, which comes close to
the interval of a χ² law with 2/s² degrees of freedom.

What one component shows of its skewness or kurtosis in n passes is drawn towards what all of them show, weighted by
their variances: the share of all is 1/(1 + (n/70)²). The kurtosis that all show is an average of unbiased ones for
Gaussian samples (Fisher's G2), plus half its standard error, since it may be too small by chance where components are
few. Of heavy tails samples show too little: of gamma laws, in 10 to 100 samples, an excess e falls short by 5 to
20 e²/n, and 15 e²/n are added.

Where an expansion leaves nothing but what rare masks do, few passes without these show hardly any error. Other outputs
tell how much an expansion leaves: relative to the variance, a standard error of n passes counts as at least
½/(1 + (n/30)²) of that of all outputs together.

An output that has not moved in n passes while it moves at other inputs waits for a mask. If the rarest draw of any site
has probability q, that happens with probability (1 − q)^n, and as long as this is above 5 % an error of 0 would not do.
The hidden pass lies a away, so that the mean is off by q a and the variance by q (1 − q) a². The latter is taken to be
the variance V' at the other inputs: half-widths of the 95 % intervals are √(V' q/(1 − q)) and V'.

These numbers were set on simulated laws and on the models of the test suite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.quantities.student import student_factor

__all__ = [
    "Trust",
    "errors_of_still",
    "kurtosis_of_few",
    "student_factor",
    "trust",
    "widened_for_others",
    "widened_for_scale",
    "widened_for_skewness",
    "widened_for_tails",
]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_FEW_VALUES, _EVENTS = 1.5, 12.0
_EVENTS_V = 40.0  # the same for a variance, next to 0 or 1
_LEANING = 1.0  # skewness away from the nearer end
_SINGLE = 0.6  # of the largest γ², which a single sample apart from all others has
_NEGLIGIBLE = 0.01  # of the standard deviation of a pass, or of the variance: errors that no tail makes large
_WIDENING, _WIDENING_OF_FEW = 4.0, 20.0
_ROUNDING = 1e-24  # squared, relative
_TINY = 1e-300
_SKEWED, _STEEP = 27.0, 2.5  # widening for the skewness of few samples
_ALIKE = 70.0  # passes from which on a component's own skewness and kurtosis count more than those of all
_DOUBT = 0.5  # standard errors by which the kurtosis of all may be too small
_SHORT = 15.0  # e²/n that an excess kurtosis e of heavy tails falls short by
_LEFT_OUT = 0.05  # probability that a 95 % interval may miss
_SCALE = 3.0
_OTHERS, _OTHERS_UNTIL = 0.5, 30.0  # share of the common relative error that none is below, and passes that halve it


@dataclass(frozen=True, slots=True)
class Trust:
    """Per component, whether the standard errors of the mean and of the variance can be believed."""

    mean: Flags
    variance: Flags

    def __and__(self, other: Trust) -> Trust:
        return Trust(self.mean & other.mean, self.variance & other.variance)

    def where_it_matters(self, mean_share: Array, variance_share: Array) -> Trust:
        """Trust everything that is known to a negligible error.

        Args:
            mean_share: Standard error of the mean over the standard deviation of a pass.
            variance_share: Standard error of the variance over the variance.

        Returns:
            Flags in which negligible errors count as reliable.
        """
        return Trust(self.mean | (mean_share <= _NEGLIGIBLE), self.variance | (variance_share <= _NEGLIGIBLE))


def trust(block: MomentBlock, are_outputs: bool = True) -> Trust:
    """What a block of samples, with sums up to the fourth power, is worth.

    Args:
        block: Samples, with sums up to the fourth power.
        are_outputs: Whether they are outputs of passes or means of these, which may be probabilities.

    Returns:
        Flags for their mean and their variance.

    Example:
        >>> rare = np.zeros((500, 1))
        >>> rare[:3] = 1.0
        >>> trust(MomentBlock.of(rare)).mean, trust(MomentBlock.of(np.random.default_rng(0).normal(size=(500, 1)))).mean
        (array([False]), array([ True]))
    """
    hundreds = max(block.count / 100, 1.0)
    kurtosis, squared = block.kurtosis, np.square(block.skewness)
    with np.errstate(invalid="ignore"):
        tails = kurtosis - squared
        plenty = (tails <= _FEW_VALUES) & (block.count >= _EVENTS * kurtosis)
        mean = (squared <= 7 * hundreds**0.75) & (kurtosis <= 14 * hundreds**0.4)
        variance = (kurtosis <= 14 * hundreds**0.2) & (tails <= 7 * max(1.0, hundreds / 5) ** 0.4)
        several = squared <= _SINGLE * block.count
    mean, variance = mean & several, variance & several
    moved = _moved(block)
    if are_outputs:
        mean &= ~_may_turn_over(block, _EVENTS / block.count)
        variance &= ~_may_turn_over(block, _EVENTS_V / block.count)
    return Trust((mean | plenty) & moved, (variance | plenty) & moved)


def _moved(block: MomentBlock) -> Flags:
    """Which components differ by more than rounding."""
    return np.asarray(block.s2 > _ROUNDING * block.count * np.square(block.mean))


def _may_turn_over(block: MomentBlock, distance: float) -> Flags:
    """Where the mean lies this close to 0 or 1, within these, and values lean to the inside."""
    low = (block.mean >= 0.0) & (block.mean < min(distance, 0.5)) & (block.skewness > _LEANING)
    high = (block.mean <= 1.0) & (block.mean > 1.0 - min(distance, 0.5)) & (block.skewness < -_LEANING)
    return np.asarray(low | high)


def widened_for_tails(block: MomentBlock, share: Array | float = 1.0) -> Array:
    """A factor 1 + 4 κ/n + 20/n² for the standard error of a sample variance.

    Its law is the more skewed the larger κ is and the smaller n.

    Args:
        block: Passes, with sums up to the fourth power.
        share: The share of the scatter that is left to chance; the rest is known.

    Returns:
        The factor, componentwise.
    """
    n = max(block.count, 1)
    return np.asarray(1.0 + share * (_WIDENING * np.nan_to_num(block.kurtosis) / n + _WIDENING_OF_FEW / n**2))


def widened_for_skewness(samples: MomentBlock, passes: int, power: int = 1) -> Array:
    """A factor 1 + 27 (γ²/n)^2½ for the standard error of a mean of n samples of skewness γ.

    Args:
        samples: The samples, with sums up to the third power.
        passes: The number of passes that they were made of.
        power: The power of outputs that samples are made of: 2 for estimates of a variance.

    Returns:
        The factor, componentwise.
    """
    own = np.nan_to_num(np.square(samples.skewness))
    alike = _average(own, np.nan_to_num(samples.variance) ** (1.0 / power))
    share = _share_of_all(passes)
    drawn = (1.0 - share) * own + share * alike
    return np.asarray(1.0 + _SKEWED * (drawn / max(samples.count, 1)) ** _STEEP)


def kurtosis_of_few(block: MomentBlock) -> Array:
    """The kurtosis of the law that passes come from, as far as few of them tell.

    With n passes and e = (n−1)/((n−2)(n−3)) ((n+1)(κ−3) + 6), Fisher's unbiased excess, all components together show
    E, the average of e plus half its standard error. They are taken to have 3 + E + 15 E²/n, a single one 3 + e, and
    what is returned lies between the two on a logarithmic scale.

    Args:
        block: At least four passes, with sums up to the fourth power.

    Returns:
        The kurtosis, componentwise; that of all components where one has not moved.
    """
    n, moved = max(block.count, 4), _moved(block)
    excess = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * (np.where(moved, block.kurtosis, 3.0) - 3.0) + 6.0)
    weight = np.where(moved, block.variance, 0.0)
    components = weight.sum() ** 2 / max(np.square(weight).sum(), _TINY)
    error2 = 24.0 * n * (n - 1) ** 2 / ((n - 3) * (n - 2) * (n + 3) * (n + 5)) / max(components, 1.0)
    together = _average(excess, weight) + _DOUBT * error2**0.5
    together += _SHORT / n * max(together, 0.0) ** 2
    share = np.where(moved, _share_of_all(n), 1.0)
    return np.asarray(np.maximum(3.0 + excess, 1.0) ** (1.0 - share) * max(3.0 + together, 1.0) ** share)


def _average(values: Array, weight: Array) -> float:
    """A weighted average over all components; 0 if none has a weight."""
    total = weight.sum()
    return float((weight * values).sum() / total) if total > 0 else 0.0


def _share_of_all(passes: int) -> float:
    """How much what all components show counts beside what one shows by itself."""
    return 1.0 / (1.0 + (passes / _ALIKE) ** 2)


def errors_of_still(block: MomentBlock, rarest: float) -> tuple[Array, Array]:
    """Standard errors for outputs that have not moved yet, but do at other inputs.

    Args:
        block: Passes, (rows, width).
        rarest: Probability q of the rarest draw of any site.

    Returns:
        Standard errors of the mean and of the variance, so that 1.96 of them are √(V' q/(1 − q)) and V', with V' the
        average variance of the same output at inputs where it moves; 0 everywhere else.
    """
    still = ~_moved(block)
    if (1.0 - rarest) ** block.count <= _LEFT_OUT or not still.any():
        return np.zeros_like(block.mean), np.zeros_like(block.mean)
    moving = np.maximum((~still).sum(axis=0), 1)
    elsewhere = np.where(still, np.where(still, 0.0, block.variance).sum(axis=0) / moving, 0.0)
    z = ndtri(1.0 - _LEFT_OUT / 2)
    return np.sqrt(elsewhere * rarest / (1.0 - rarest)) / z, elsewhere / z


def widened_for_scale(error2: Array, variance: Array) -> Array:
    """A factor 1 + 3 s² for the standard error s V of a variance V: small variances have small errors.

    Args:
        error2: (s V)².
        variance: V.

    Returns:
        The factor, componentwise.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(variance > 0, error2 / np.square(variance), 1.0)
    return np.asarray(1.0 + _SCALE * np.minimum(share, 1.0))


def widened_for_others(stderr: Array, variance: Array, passes: int) -> Array:
    """A factor for standard errors of variances that are small beside those of other outputs.

    Args:
        stderr: Standard errors of the variances, (rows, width).
        variance: The variances.
        passes: The number of passes behind them.

    Returns:
        The factor, componentwise.

    Example:
        >>> stderr, variance = np.array([[0.5], [0.01]]), np.ones((2, 1))
        >>> [widened_for_others(stderr, variance, n).round(1).tolist() for n in (10, 1000)]
        [[[1.0], [15.9]], [[1.0], [1.0]]]
    """
    size = np.maximum(np.nan_to_num(variance), 0.0)
    total = np.square(size).sum()
    if total <= 0:
        return np.ones_like(stderr)
    relative = np.sqrt(np.square(np.nan_to_num(stderr)).sum() / total)
    least = _OTHERS / (1.0 + (passes / _OTHERS_UNTIL) ** 2) * relative * size
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(stderr > 0, np.maximum(least / stderr, 1.0), 1.0))
