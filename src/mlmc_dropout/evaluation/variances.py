"""Covariances of level samples that rest on few samples: what to believe of them.

A level has the numbers z = (f, Δ), K of each, and a covariance (2 K, 2 K) over its samples. Samples have heavy tails,
because few inputs carry most of Δ: the variance of some dozens of them is mostly too small, and it is small in the very
runs in which the mean is small as well. A run that believed it would stop too early with too small a value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.evaluation.levels import LevelState

__all__ = ["extrapolated_within", "pooled", "raised", "student_doubt"]

Array = NDArray[np.float64]

_PRIOR = 50  # samples that the variance predicted from the level below and the rates stands for, at most
_Z = 1.96


def student_doubt(kurtosis: Array, count: int) -> Array:
    """By which share Student's factor widens a variance.

    A variance of n samples with kurtosis κ has ν = 2 n/(κ − 1) degrees of freedom, and

        (t_ν / z)² − 1 ≈ (z² + 1)/(2 ν) = (z² + 1)/4 · (κ − 1)/n.

    Of a sum of variances with shares s_ℓ it is Σ s_ℓ² times those of its terms (Welch–Satterthwaite).

    Args:
        kurtosis: Kurtosis κ of each number; NaN where it is not known, which counts as that of a normal law.
        count: Number n of samples.

    Returns:
        One share per number.

    Examples:
        >>> student_doubt(np.array([3.0, 21.0]), 100).round(3)
        array([0.024, 0.242])
    """
    known = np.nan_to_num(kurtosis, nan=3.0)
    return np.asarray(0.25 * (_Z**2 + 1.0) * np.maximum(known - 1.0, 2.0) / max(count, 2))


def pooled(covariance: Array, predicted: Array, count: int, below: int) -> Array:
    """The covariance with variances of Δ drawn to what the level below and the rates predict.

    The prediction counts like some further samples, not more than it rests on: with many samples of its own a level is
    believed.

    Args:
        covariance: Covariance of (f, Δ), (2 K, 2 K).
        predicted: Predicted variances of Δ, (K,).
        count: Number of samples.
        below: Number of samples of the level below.

    Returns:
        The covariance.
    """
    K, weight = len(predicted), min(_PRIOR, below)
    own = np.diagonal(covariance)[K:]
    wanted = (count * own + weight * predicted) / (count + weight)
    scale, short = np.ones(2 * K), np.zeros(2 * K)
    scale[K:] = np.sqrt(np.minimum(wanted / np.maximum(own, 1e-300), 1.0))
    short[K:] = np.maximum(wanted - own, 0.0)
    return np.asarray(covariance * np.outer(scale, scale) + np.diag(short))


def raised(covariance: Array, least: Array) -> Array:
    """The covariance of (f, Δ), with variances not below given ones.

    Args:
        covariance: The covariance, (2 K, 2 K).
        least: The least variances, of f (K,) or of f and Δ (2 K,).

    Returns:
        The covariance.
    """
    if not least.any():
        return covariance
    size = len(least)
    short = np.zeros(len(covariance))
    short[:size] = np.maximum(least - np.diagonal(covariance)[:size], 0.0)
    return np.asarray(covariance + np.diag(short))


def extrapolated_within(state: LevelState, level: int) -> Array:
    """Covariance over passes at one input, from that of the halves, which are one level below.

    Args:
        state: Samples of the level, two at least.
        level: The level, 1 at least.

    Returns:
        The covariance of (f, Δ), (2 K, 2 K).
    """
    K, below = state.components, state.covariance_within
    ratio = np.full(2 * K, 0.52)  # of variances, from there to here: a half, and what bias took away below
    ratio[K:] = 0.25
    if level >= 2:  # of Δ: from its variances over inputs and passes, at the halves and here
        halves = state.block.variance[3 * K :] + 0.5 * np.diagonal(below)[K:]
        ratio[K:] = np.clip(np.diagonal(state.covariance)[K:] / np.maximum(halves, 1e-300), 0.0, 1.0)
    scale = np.sqrt(ratio)
    W = below * np.outer(scale, scale)
    if level == 1:  # of single passes there are no differences: nothing is known
        W[K:, :], W[:, K:] = state.covariance[K:, :], state.covariance[:, K:]
    return np.asarray(W)
