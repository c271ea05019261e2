"""Weights of levels, and what estimates look like: values that planning and results share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.evaluation.metrics import Metric

__all__ = ["Design", "Rate", "Reading", "gradient", "ladder", "reading_of", "weighted"]

Array = NDArray[np.float64]

_BOOTSTRAP = 512  # draws for averages that are reduced by a function


@dataclass(frozen=True, slots=True)
class Design:
    """Weights of the levels.

    Attributes:
        weights: Per level, a and c of each component: arrays (2, K).
        extrapolated: How often the last difference is added once more, per component, (K,).
    """

    weights: Mapping[int, Array]
    extrapolated: Array

    @property
    def top(self) -> int:
        """The finest level."""
        return max(self.weights)

    @property
    def base(self) -> int:
        """The coarsest level."""
        return min(self.weights)


def ladder(base: int, top: int, extrapolated: Array) -> Design:
    """Levels base, …, top; the last difference counts 1 + w times (Richardson extrapolation).

    Args:
        base: The coarsest level.
        top: The finest level.
        extrapolated: The weight w of each component, 1 if the bias is c/T, 0 for none, (K,).

    Returns:
        The design. With base = top it is the jackknife over two halves (w = 1), or plug-in (w = 0).
    """
    one, zero = np.ones_like(extrapolated), np.zeros_like(extrapolated)
    weights = {level: np.stack([zero, one]) for level in range(base, top + 1)}
    weights[base] = np.stack([one, zero])
    weights[top] = weights[top] + np.stack([zero, extrapolated])
    return Design(weights, extrapolated)


@dataclass(frozen=True, slots=True)
class Rate:
    """A fitted power of T, with its standard error; NaN where it could not be measured."""

    value: float
    stderr: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known about a metric.

    Attributes:
        value: The estimate.
        stderr: Its standard error.
        bias: Estimated size of the bias that is left.
    """

    value: float
    stderr: float
    bias: float


def reading_of(metric: Metric, averages: Array, covariance: Array, bias: float) -> Reading:
    """Value, standard error and bias of a metric from the averages of its components.

    Args:
        metric: The metric.
        averages: Estimated averages over the data set.
        covariance: Covariance of these estimates.
        bias: Bias that is left in the averages, along the gradient of the metric.

    Returns:
        The reading. Where a function reduces the averages, what their noise does to it counts as bias.
    """
    value = float(metric.reduced(averages))
    if metric.reduce is None:
        return Reading(value, float(np.sqrt(max(float(covariance[0, 0]), 0.0))), bias)
    stderr, shift = _bootstrap(metric, averages, covariance)
    return Reading(value, stderr, bias + abs(shift))


def weighted(covariance: Array, weights: Array, part: slice) -> Array:
    """Covariance of a f + c Δ for the components of a metric.

    Args:
        covariance: Covariance of (f, Δ), (2 K, 2 K).
        weights: The weights a and c of each component, (2, K).
        part: Where the components of the metric are.

    Returns:
        A matrix with a row per component.
    """
    K = len(covariance) // 2
    a, c = weights[0][part], weights[1][part]
    ff, fd, dd = covariance[:K, :K], covariance[:K, K:], covariance[K:, K:]
    out = np.outer(a, a) * ff[part, part] + np.outer(c, c) * dd[part, part]
    cross = np.outer(a, c) * fd[part, part]
    return np.asarray(out + cross + cross.T)


def gradient(metric: Metric, averages: Array) -> Array:
    """Derivatives of a metric's value with respect to its averages, by central differences.

    Args:
        metric: The metric.
        averages: Averages of its components over the data set.

    Returns:
        One derivative per component.
    """
    if metric.reduce is None:
        return np.ones(1)
    step = 1e-6 * max(1.0, float(np.abs(averages).max()))
    shifts = step * np.eye(len(averages))
    high, low = metric.reduced(averages + shifts), metric.reduced(averages - shifts)
    return np.asarray((high - low) / (2 * step))


def _bootstrap(metric: Metric, averages: Array, covariance: Array) -> tuple[float, float]:
    """Standard error and shift of a reduced value, if the averages are normal around their estimates."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    normal = np.random.Generator(np.random.PCG64(0)).standard_normal((_BOOTSTRAP, len(averages)))
    draws = metric.reduced(averages + np.concatenate([normal, -normal]) @ root.T)
    draws = draws[np.isfinite(draws)]
    if len(draws) < _BOOTSTRAP // 4:
        return float("inf"), 0.0
    return float(draws.std()), float(draws.mean() - metric.reduced(averages))
