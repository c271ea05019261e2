"""The randomised single-term estimator: every input that is drawn gets one random level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.evaluation.estimates import Reading, reading_of
from mlmc_dropout.evaluation.goal import TOP, Shares
from mlmc_dropout.evaluation.levels import LevelState, passes_of
from mlmc_dropout.evaluation.metrics import Metric
from mlmc_dropout.evaluation.statistics import Statistics

__all__ = ["level_probabilities", "mean_cost", "single_term_readings"]

Array = NDArray[np.float64]

SURE = 20  # expected draws of a level that is certain to be drawn (but for 2 in 10⁹)
DECAY = 1.5  # levels are drawn with probability ∝ 2^(−1.5 ℓ), the optimum if variances fall like T^(−2)


def level_probabilities() -> Array:
    """With which probability a single term is of which level."""
    p = 2.0 ** (-DECAY * np.arange(TOP + 1))
    return np.asarray(p / p.sum())


def mean_cost() -> float:
    """Passes that a draw costs on average."""
    return float(level_probabilities() @ np.array([passes_of(level) for level in range(TOP + 1)]))


def single_term_readings(
    states: Sequence[LevelState], metrics: Sequence[Metric], shares: Shares, rows: int
) -> list[Reading]:
    """Estimates of the randomised single-term estimator (Rhee & Glynn 2015).

    An input that is drawn for level ℓ with probability p_ℓ counts Δ_ℓ/p_ℓ, with Δ_0 = f_0: no level is left out,
    and so there is no bias. Levels of which many inputs are certain to be drawn count by their means instead, which
    removes the noise of their number (stratification, Vihola 2018).

    Args:
        states: One per level.
        metrics: The metrics.
        shares: What the levels have used.
        rows: Number of inputs.

    Returns:
        One reading per metric.
    """
    p = level_probabilities()
    draws = shares[0][0] / float(p[0]) * rows
    statistics = Statistics(states, metrics, rows)
    K = states[0].components
    total, covariance, second = np.zeros(K), np.zeros((K, K)), np.zeros((K, K))
    for level, state in enumerate(states):
        part = slice(0, K) if level == 0 else slice(K, 2 * K)
        mean, expected = state.mean[part], draws * float(p[level])
        if expected >= SURE and state.count > 1:
            total = total + mean
            covariance = covariance + statistics.covariance_of_mean(level)[part, part]
            second = state.covariance[part, part] + np.outer(mean, mean)
        else:
            total = total + state.count / expected * mean
            second = 0.25 * second  # from the levels below: what is drawn now and then tells little
            covariance = covariance + second / expected
    return [reading_of(metric, total[at], covariance[at, at], 0.0) for metric, at in statistics.named_parts()]
