"""Whole sweeps: how many passes every input of a stratum gets.

Stratum h, a share a_h of the inputs, has T_h passes per sweep and k_h sweeps; the estimate is

    Q = Σ_h a_h mean_h(f + w Δ),    variance Σ_h a_h² W_h / (N_h k_h),

W_h being the variance within inputs: no sampling error over inputs is left. All strata begin with the same passes; then
finer sweeps come where they remove most bias per pass, and further ones where they reduce the variance most (Neyman's
allocation). Sweeps are there for metrics that are plain averages, one component each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlmc_dropout.evaluation.data import Slice
from mlmc_dropout.evaluation.estimates import Design, Reading, ladder
from mlmc_dropout.evaluation.goal import TOP, EvaluationGoal
from mlmc_dropout.evaluation.levels import passes_of
from mlmc_dropout.evaluation.rates import believed_rate, extrapolation_for, paired_rate, remaining
from mlmc_dropout.evaluation.statistics import Statistics
from mlmc_dropout.evaluation.strata import Part

__all__ = ["Sweeps", "first_sweeps", "next_sweeps"]

Array = NDArray[np.float64]

_FIRST = 2  # level of the first sweep: its quarters tell at which rate differences fall
_BIAS = 0.5  # share of the squared error that may be bias
_MANY = 6  # sweeps of a stratum that had better be fewer and finer
_STRATA = 1 << 20  # numbers of replicates of a stratum: the masks of two strata must not be the same


def first_sweeps(strata: int) -> tuple[Slice, ...]:
    """One sweep of each stratum, all with the same passes: scores do not tell variances well enough.

    Args:
        strata: Number of strata.

    Returns:
        What to run.
    """
    return tuple(_sweep(number, _FIRST, 0) for number in range(strata))


def _sweep(stratum: int, level: int, done: int) -> Slice:
    return Slice(level, float(done), done + 1.0, stratum * _STRATA + done, stratum)


@dataclass(frozen=True, slots=True)
class Sweeps:
    """What strata know together.

    Attributes:
        statistics: One per stratum.
        levels: The level that each stratum uses, its finest.
        metrics: Number of metrics.
    """

    statistics: tuple[Statistics, ...]
    levels: tuple[int, ...]
    metrics: int

    @classmethod
    def of(cls, parts: Sequence[Part], metrics: Sequence[object]) -> Sweeps:
        """Look at strata.

        Args:
            parts: The strata.
            metrics: The metrics.

        Returns:
            What they know.
        """
        statistics = tuple(Statistics(part.states, metrics, part.rows) for part in parts)  # type: ignore[arg-type]
        return cls(statistics, tuple(len(part.states) - 1 for part in parts), len(metrics))

    @property
    def shares(self) -> Array:
        """Shares of the inputs, per stratum."""
        rows = np.array([one.rows for one in self.statistics], dtype=np.float64)
        return np.asarray(rows / rows.sum())

    def _sum(self, values: Sequence[Array]) -> Array:
        return np.asarray(sum(a * v for a, v in zip(self.shares, values, strict=True)))

    @property
    def differences(self) -> Array:
        """Average of Δ over the data set, at the level of each stratum, per metric."""
        K = self.metrics
        return self._sum([one.states[level].mean[K:] for one, level in zip(self.statistics, self.levels, strict=True)])

    def rate(self, metric: int) -> tuple[float, float]:
        """At which rate means of Δ fall, and its standard error: from halves and the whole at the same inputs.

        Args:
            metric: Number of the metric.

        Returns:
            Rate and standard error; NaN if it cannot be told.
        """
        means, covariance = np.zeros(2), np.zeros((2, 2))
        for share, one, level in zip(self.shares, self.statistics, self.levels, strict=True):
            if level >= 2:
                of_pair = one.states[level].pair(metric)
                means = means + share * of_pair[0]
                covariance = covariance + share**2 * of_pair[1] / one.states[level].count
        return paired_rate(means, covariance)

    def weights(self) -> Array:
        """How often the last difference is added once more, per metric."""
        return np.array([extrapolation_for(believed_rate(*self.rate(m))[0]) for m in range(self.metrics)])

    def biases(self) -> Array:
        """Size of the bias that is left, per metric."""
        noise = np.sqrt(self._variances(np.zeros(self.metrics), np.ones(self.metrics)))
        last = np.abs(self.differences) + noise
        return np.array([last[m] * remaining(*believed_rate(*self.rate(m)), w) for m, w in enumerate(self.weights())])

    def spreads(self, value: Array, difference: Array) -> list[Array]:
        """Variances of (value f + difference Δ) within inputs, per stratum and metric.

        Args:
            value: Weight of f, per metric.
            difference: Weight of Δ, per metric.

        Returns:
            One array per stratum.
        """
        found = []
        for one, level in zip(self.statistics, self.levels, strict=True):
            within = one.within(level)
            K = self.metrics
            ff, fd, dd = (np.diagonal(part) for part in (within[:K, :K], within[:K, K:], within[K:, K:]))
            found.append(np.maximum(value**2 * ff + 2 * value * difference * fd + difference**2 * dd, 0.0))
        return found

    def _variances(self, value: Array, difference: Array, sweeps: Sequence[float] | None = None) -> Array:
        total = np.zeros(self.metrics)
        counts = self.sweeps if sweeps is None else sweeps
        for share, one, W, k in zip(self.shares, self.statistics, self.spreads(value, difference), counts, strict=True):
            total = total + share**2 * W / (one.rows * k)
        return total

    def variances(self, sweeps: Sequence[float] | None = None) -> Array:
        """Variances of the estimates, per metric.

        Args:
            sweeps: Sweeps per stratum; those that there are by default.

        Returns:
            The variances.
        """
        return self._variances(np.ones(self.metrics), self.weights(), sweeps)

    def errors(self) -> Array:
        """Standard errors of the estimates, widened by what their own variance is not known by (Student's factor).

        Returns:
            One per metric.
        """
        K = self.metrics
        spreads = self.spreads(np.ones(K), self.weights())
        variance, doubt = np.zeros(K), np.zeros(K)
        for share, one, level, W in zip(self.shares, self.statistics, self.levels, spreads, strict=True):
            state = one.states[level]
            own = share**2 * W / state.count
            kurtosis = np.nan_to_num(state.block.kurtosis[K : 2 * K], nan=3.0)
            variance, doubt = variance + own, doubt + own**2 * np.maximum(kurtosis - 1.0, 2.0) / state.count
        freedom = 2.0 * variance**2 / np.maximum(doubt, 1e-300)
        return np.asarray(np.sqrt(variance) * stats.t.ppf(0.975, np.maximum(freedom, 4.0)) / stats.norm.ppf(0.975))

    @property
    def sweeps(self) -> list[float]:
        """Sweeps so far, per stratum."""
        return [one.states[level].count / one.rows for one, level in zip(self.statistics, self.levels, strict=True)]

    def designs(self) -> list[Design]:
        """Weights of the levels, per stratum."""
        w = self.weights()
        return [ladder(level, level, w) for level in self.levels]

    def readings(self) -> list[Reading]:
        """Estimates for the whole data set, one per metric."""
        averages = [one.averages(design) for one, design in zip(self.statistics, self.designs(), strict=True)]
        values, errors, biases = self._sum(averages), self.errors(), self.biases()
        return [Reading(float(v), float(s), float(b)) for v, s, b in zip(values, errors, biases, strict=True)]


def next_sweeps(now: Sweeps, goal: EvaluationGoal) -> tuple[Slice, ...]:
    """Sweeps to add: finer ones where bias is too large, further ones where they reduce the variance most per pass.

    Args:
        now: What is known.
        goal: When to stop.

    Returns:
        What to run; nothing, if the error is small enough.
    """
    targets = goal.targets(now.readings())
    biases = now.biases()
    if (biases > math.sqrt(_BIAS) * targets).any():
        return _finer(now, targets)
    allowed = targets**2 - biases**2
    allowed = allowed * np.minimum(now.variances() / np.maximum(now.errors() ** 2, 1e-300), 1.0)
    sweeps = [round(k) for k in now.sweeps]
    spreads = now.spreads(np.ones(now.metrics), now.weights())
    costs = [one.rows * passes_of(level) for one, level in zip(now.statistics, now.levels, strict=True)]
    shares = now.shares
    added: list[Slice] = []
    while len(added) < 4096:
        ratio = now.variances(sweeps) / allowed
        if ratio.max() <= 1.0:
            break
        worst = int(np.argmax(ratio))
        gains = [
            shares[h] ** 2 * spreads[h][worst] / now.statistics[h].rows / (k * (k + 1.0)) / costs[h]
            for h, k in enumerate(sweeps)
        ]
        best = int(np.argmax(gains))
        added.append(_sweep(best, now.levels[best], sweeps[best]))
        sweeps[best] += 1
    return _as_few_sweeps(now, sweeps) or tuple(sorted(added, key=lambda part: (part.stratum, part.low)))


def _as_few_sweeps(now: Sweeps, wanted: Sequence[int]) -> tuple[Slice, ...]:
    """Finer sweeps in place of many: as many passes with less bias, at the price of the one sweep that there is."""
    finer = {
        h: min(now.levels[h] + max(k.bit_length() - 2, 0), TOP)
        for h, k in enumerate(wanted)
        if k >= _MANY and round(now.sweeps[h]) == 1
    }
    return tuple(_sweep(h, level, 0) for h, level in finer.items() if level > now.levels[h])


def _finer(now: Sweeps, targets: Array) -> tuple[Slice, ...]:
    """Sweeps with twice the passes where differences are largest for what they cost, until these are small enough."""
    K, levels = now.metrics, list(now.levels)
    parts = [
        share * np.abs(one.states[level].mean[K:]) / targets
        for share, one, level in zip(now.shares, now.statistics, now.levels, strict=True)
    ]
    excess = float(np.max(now.biases() / targets)) / math.sqrt(_BIAS)
    total, falls = float(np.max(np.sum(parts, axis=0))), 0.6
    while float(np.max(np.sum(parts, axis=0))) > total / excess and min(levels) < TOP:
        costs = [one.rows * passes_of(level) for one, level in zip(now.statistics, levels, strict=True)]
        open_ = (h for h in range(len(levels)) if levels[h] < TOP)
        best = max(open_, key=lambda h: float(np.max(parts[h])) / costs[h])
        levels[best] += 1
        parts[best] = falls * parts[best]
    changed = [h for h, level in enumerate(levels) if level > now.levels[h]]
    return tuple(_sweep(h, levels[h], 0) for h in changed)
