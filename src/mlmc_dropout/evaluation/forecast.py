"""What ladders would cost: variances and biases of all levels, those that have not been run included.

Per level and metric, read along the gradient of the metric: variances of f and Δ over inputs and passes (V) and over
passes at one input (W). Levels beyond those that were run follow the measured rates: the variance of f within inputs is
halved, that of Δ falls like T^(−β), its mean like T^(−α).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.evaluation.levels import passes_of

__all__ = ["Forecast", "Variances", "cheapest", "counts_for", "smallest", "total_variance"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Variances:
    """Variances of one sample of each level, weights included, with one entry per metric.

    Attributes:
        total: Over inputs and passes, by level.
        within: Over passes at one input, by level.
    """

    total: Mapping[int, Array]
    within: Mapping[int, Array]

    def of(self, metric: int) -> tuple[dict[int, float], dict[int, float]]:
        """The same for one metric.

        Args:
            metric: Number of the metric.

        Returns:
            Total and within, by level.
        """
        return (
            {level: float(v[metric]) for level, v in self.total.items()},
            {level: float(v[metric]) for level, v in self.within.items()},
        )


@dataclass(frozen=True, slots=True)
class Forecast:
    """Arrays (levels, metrics).

    Attributes:
        f: Variance of f, total.
        f_within: Variance of f within inputs.
        delta: Variance of Δ, total.
        delta_within: Variance of Δ within inputs.
        both: Variance of f + w Δ, total.
        both_within: The same within inputs.
        bias: Size of the bias that is left with this level as the finest.
        extrapolated: The weight w, per metric.
        rows: Number of inputs.
    """

    f: Array
    f_within: Array
    delta: Array
    delta_within: Array
    both: Array
    both_within: Array
    bias: Array
    extrapolated: Array
    rows: int

    def of(self, metrics: Sequence[int]) -> Forecast:
        """The same for some of the metrics.

        Args:
            metrics: Their numbers.

        Returns:
            Arrays with as many columns.
        """
        chosen = list(metrics)
        return Forecast(
            self.f[:, chosen],
            self.f_within[:, chosen],
            self.delta[:, chosen],
            self.delta_within[:, chosen],
            self.both[:, chosen],
            self.both_within[:, chosen],
            self.bias[:, chosen],
            self.extrapolated[chosen],
            self.rows,
        )

    def variances(self, base: int, top: int) -> Variances:
        """Variances of the levels of a ladder.

        Args:
            base: The coarsest level.
            top: The finest level.

        Returns:
            The variances.
        """
        if base == top:
            return Variances({base: self.both[base]}, {base: self.both_within[base]})
        total, within = {base: self.f[base]}, {base: self.f_within[base]}
        for level in range(base + 1, top + 1):
            weight = (1.0 + self.extrapolated) ** 2 if level == top else np.ones_like(self.extrapolated)
            total[level] = weight * self.delta[level]
            within[level] = weight * self.delta_within[level]
        return Variances(total, within)


def total_variance(counts: Mapping[int, float], variances: Variances, rows: int) -> Array:
    """Variance of the estimate with these counts, per metric.

    Args:
        counts: Samples per level.
        variances: Variances of one sample.
        rows: Number of inputs.
    """
    parts = []
    for level, n in counts.items():
        V, W = variances.total[level], variances.within[level]
        parts.append((V - (V - W) * min(n / rows, 1.0)) / max(n, 1.0))
    return np.asarray(sum(parts))


def counts_for(factor: float, V: Mapping[int, float], W: Mapping[int, float], rows: int) -> dict[int, float]:
    """n_ℓ = λ √(V_ℓ/T_ℓ); beyond one sweep the variance within inputs counts, in whole sweeps.

    Args:
        factor: The factor λ.
        V: Variances over inputs and passes, by level.
        W: Variances over passes at one input, by level.
        rows: Number of inputs.

    Returns:
        Samples per level.
    """
    counts = {}
    for level in V:
        n = max(factor * math.sqrt(V[level] / passes_of(level)), 2.0)
        if n > 0.8 * rows:  # the last inputs pay: without them their variation would stay
            n = max(rows, math.ceil(factor * math.sqrt(W[level] / passes_of(level)) / rows) * rows)
        counts[level] = float(n)
    return counts


def _variance(counts: Mapping[int, float], V: Mapping[int, float], W: Mapping[int, float], rows: int) -> float:
    return sum((V[k] - (V[k] - W[k]) * min(n / rows, 1.0)) / n for k, n in counts.items())


def cheapest(variances: Variances, allowed: Array, rows: int) -> dict[int, float]:
    """The fewest passes that give every metric its variance: n_ℓ ∝ √(V_ℓ/T_ℓ), for the metric that needs most.

    Args:
        variances: Variances of one sample.
        allowed: Variance that is allowed, per metric.
        rows: Number of inputs.

    Returns:
        Samples per level.
    """
    counts = dict.fromkeys(variances.total, 2.0)
    for metric, limit in enumerate(allowed):
        V, W = variances.of(metric)
        low, high = 0.0, 1.0
        while _variance(counts_for(high, V, W, rows), V, W, rows) > limit and high < 1e30:
            low, high = high, 4.0 * high
        for _ in range(24):
            middle = 0.5 * (low + high)
            if _variance(counts_for(middle, V, W, rows), V, W, rows) > limit:
                low = middle
            else:
                high = middle
        of_metric = counts_for(high, V, W, rows)
        counts = {level: max(n, of_metric[level]) for level, n in counts.items()}
    return counts


def smallest(
    variances: Variances, metric: int, passes: float, rows: int, done: Mapping[int, float]
) -> dict[int, float]:
    """The smallest variance of a metric for so many further passes.

    Args:
        variances: Variances of one sample.
        metric: Number of the metric.
        passes: Passes that may be spent.
        rows: Number of inputs.
        done: Samples that there are.

    Returns:
        Samples per level, those that there are included.
    """
    V, W = variances.of(metric)

    def counts(factor: float) -> dict[int, float]:
        return {level: max(n, done.get(level, 0.0)) for level, n in counts_for(factor, V, W, rows).items()}

    def cost(factor: float) -> float:
        return sum((n - done.get(level, 0.0)) * passes_of(level) for level, n in counts(factor).items())

    low, high = 0.0, 1.0
    while cost(high) <= passes and high < 1e30:
        low, high = high, 4.0 * high
    for _ in range(24):
        middle = 0.5 * (low + high)
        if cost(middle) <= passes:
            low = middle
        else:
            high = middle
    return counts(low)
