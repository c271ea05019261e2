"""Level states -> estimates, variances, rates, remaining bias.

An estimate is a weighted sum of level means,

    Q = Σ_ℓ (a_ℓ f̄_ℓ + c_ℓ Δ̄_ℓ),

over levels with inputs and passes of their own, so that variances add. The mean of n samples of a level over N inputs
has the variance

    C/n − (C − W) min(n, N)/(n N),

C being the covariance over inputs and passes and W that over passes at one input: when all inputs have been used
equally often, only W/n is left.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.evaluation.estimates import Design, Rate, Reading, gradient, ladder, reading_of, weighted
from mlmc_dropout.evaluation.forecast import Forecast
from mlmc_dropout.evaluation.levels import LevelState, passes_of
from mlmc_dropout.evaluation.metrics import Metric
from mlmc_dropout.evaluation.rates import (
    believed_rate,
    extrapolation_for,
    fitted_rate,
    paired_rate,
    remaining,
    value_or,
)
from mlmc_dropout.evaluation.variances import extrapolated_within, pooled, raised, student_doubt

__all__ = ["Statistics"]

Array = NDArray[np.float64]
_Value = TypeVar("_Value")

_HEAVY = 0.5  # kurtosis over samples above which few of them carry most of the variance
_SIGNIFICANT = 3.0  # standard errors by which a mean must differ from 0 to be used for a rate
_ENOUGH = 32  # samples from which on a level tells the rate
_LAST = 4  # levels that say how fast means fall


def _once(method: Callable[..., _Value]) -> Callable[..., _Value]:
    """Compute what a method gives for the same arguments only once: statistics do not change."""

    @functools.wraps(method)
    def known(self: Statistics, *arguments: Any) -> _Value:
        key = (method.__name__, *arguments)
        if key not in self._known:
            self._known[key] = method(self, *arguments)
        value: _Value = self._known[key]
        return value

    return known


class Statistics:
    """Level states, looked at for the metrics.

    Args:
        states: One per level, from level 0 on.
        metrics: The metrics.
        rows: Number N of inputs.
    """

    def __init__(self, states: Sequence[LevelState], metrics: Sequence[Metric], rows: int) -> None:
        self.states, self.metrics, self.rows = states, metrics, rows
        ends = np.cumsum([0, *(metric.components for metric in metrics)])
        self.parts = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
        self._known: dict[tuple[Any, ...], Any] = {}

    # ---------------------------------------------------------------------- estimates

    def averages(self, design: Design) -> Array:
        """Estimated averages over the data set, (K,).

        Args:
            design: The weights.
        """
        K = self.states[0].components
        total = np.zeros(K)
        for level, (a, c) in design.weights.items():
            mean = self.states[level].mean
            total = total + a * mean[:K] + c * mean[K:]
        return total

    def readings(self, design: Design) -> list[Reading]:
        """Value, standard error and remaining bias of each metric.

        Args:
            design: The weights.

        Returns:
            One reading per metric.
        """
        averages = self.averages(design)
        found = []
        for index, (metric, part) in enumerate(self.named_parts()):
            covariance = self.covariance(design, part)
            found.append(reading_of(metric, averages[part], covariance, self.bias(design, index)))
        return found

    def named_parts(self) -> list[tuple[Metric, slice]]:
        """The metrics, and where their components are among the K numbers."""
        return list(zip(self.metrics, self.parts, strict=True))

    def covariance(self, design: Design, part: slice) -> Array:
        """Covariance of the estimated averages of a metric, widened by what it is not known by (Student's factor).

        Args:
            design: The weights.
            part: Where the components of the metric are.

        Returns:
            A matrix with a row per component.
        """
        own = [weighted(self.covariance_of_mean(level), weights, part) for level, weights in design.weights.items()]
        total = np.sum(own, axis=0)
        doubt = np.zeros(part.stop - part.start)
        for level, matrix in zip(design.weights, own, strict=True):
            of_value, of_difference = self.doubt(level).reshape(2, -1)[:, part]
            share = np.diagonal(matrix) / np.maximum(np.diagonal(total), 1e-300)
            doubt += share**2 * (of_value if level == design.base else of_difference)
        wider = np.sqrt(1.0 + doubt)
        return np.asarray(total * np.outer(wider, wider))

    @_once
    def covariance_of_mean(self, level: int) -> Array:
        """Covariance of the means of (f, Δ) on a level, (2 K, 2 K).

        Args:
            level: The level.
        """
        state = self.states[level]
        C, W = self._stated(level), self.within(level)
        share = min(state.count / self.rows, 1.0)
        return np.asarray((C - (C - W) * share) / max(state.count, 1))

    @_once
    def _stated(self, level: int) -> Array:
        """Covariance of a level for standard errors: what its samples say, or more if the level below predicts more."""
        return raised(self._own(level), np.diagonal(self._expected(level)))

    @_once
    def _own(self, level: int) -> Array:
        """Covariance of a level from its samples; of hits with what no input has shown yet."""
        state = self.states[level]
        C = raised(state.covariance, self._unsettled(level))
        if 1 < state.count < self.rows:
            C = raised(C, self._unseen(state.covariance, state.count))
        return C

    @_once
    def doubt(self, level: int) -> Array:
        """By which share the variances of (f, Δ) are to be widened; sums that a function reduces count as normal.

        Args:
            level: The level.

        Returns:
            One share per number, (2 K,).
        """
        state, K = self.states[level], self.states[0].components
        kurtosis = np.full(2 * K, 3.0)
        for metric, part in self.named_parts():
            if metric.reduce is None:
                places = [part.start, K + part.start]
                kurtosis[places] = state.block.kurtosis[places]
        return student_doubt(kurtosis, state.count)

    @_once
    def within(self, level: int) -> Array:
        """Covariance of (f, Δ) over passes at one input; what jumps varies as its unsettled inputs say, at least.

        Args:
            level: The level.
        """
        return raised(self._within(level), self._unsettled(level))

    def _within(self, level: int) -> Array:
        """The same from the halves of the level above, or extrapolated."""
        states = self.states
        if level + 1 < len(states) and states[level + 1].count >= 8:
            return states[level + 1].covariance_within
        if level == 0 or states[level].count < 2:
            return states[level].covariance
        return extrapolated_within(states[level], level)

    # ----------------------------------------------------------------------- unsettled

    @_once
    def _unsettled(self, level: int) -> Array:
        """Mean square by which f may jump, (K,); passes are noisier than on finer levels, which have to have inputs."""
        finer = [state for state in self.states[level + 1 :] if state.count >= _ENOUGH]
        known = [state.unsettled / state.count for state in (self.states[level], *finer) if state.count]
        return np.asarray(np.max(known, axis=0)) if known else np.zeros(self.states[0].components)

    def _unseen(self, samples: Array, count: int) -> Array:
        """Variances of hits that all samples so far share, (K,): as if one more input were to differ (Laplace)."""
        short = np.zeros(self.states[0].components)
        for metric, part in self.named_parts():
            if metric.kinks and metric.reduce is None and not samples[part, part].any():
                short[part] = 1.0 / (count + 2)
        return short

    # ------------------------------------------------------------------------ planning

    def forecast(self, extrapolated: Array, levels: int, stated: bool = False) -> Forecast:
        """Variances and biases of all levels, extrapolated beyond those that were run.

        Args:
            extrapolated: The weight w of the last difference, per component.
            levels: How many levels.
            stated: Whether variances are those of standard errors, which are not drawn down; else the most likely ones.

        Returns:
            The forecast.
        """
        known = [self._along_gradients(level, extrapolated, stated) for level in range(len(self.states))]
        w = np.array([float(extrapolated[part].max()) for part in self.parts])
        rates = [self.rates(metric) for metric in range(len(self.metrics))]
        fall = 2.0 ** -np.array([value_or(r["beta"].value, 1.0, 0.5, 2.0) for r in rates])
        fall_bias = 2.0 ** -np.array([min(max(self._believed_rate(m)[0], 0.5), 1.0) for m in range(len(rates))])
        bias = [
            np.array([self.bias_at(level, metric, float(weight)) for metric, weight in enumerate(w)])
            for level in range(len(self.states))
        ]
        for _ in range(len(self.states), levels):
            f, f_within, delta, delta_within, _, _ = known[-1]
            f, f_within = f - 0.5 * f_within, 0.5 * f_within
            delta, delta_within = fall * delta, fall * delta_within
            known.append((f, f_within, delta, delta_within, f + w**2 * delta, f_within + w**2 * delta_within))
            bias.append(fall_bias * bias[-1])
        f, f_within, delta, delta_within, both, both_within = (np.stack(c) for c in zip(*known, strict=True))
        return Forecast(f, f_within, delta, delta_within, both, both_within, np.stack(bias), w, self.rows)

    def _along_gradients(self, level: int, extrapolated: Array, stated: bool) -> tuple[Array, ...]:
        """Variances of f, Δ and f + w Δ, total and within, one entry per metric."""
        one, zero = np.ones_like(extrapolated), np.zeros_like(extrapolated)
        wider = np.sqrt(1.0 + self.doubt(level))
        C = self._stated(level) if stated else self._expected(level)
        C, W = (matrix * np.outer(wider, wider) for matrix in (C, self.within(level)))
        columns: list[Array] = []
        for weights in (np.stack([one, zero]), np.stack([zero, one]), np.stack([one, extrapolated])):
            pairs = [(self.direction(metric), part) for metric, part in enumerate(self.parts)]
            total = np.array([max(g @ weighted(C, weights, part) @ g, 0.0) for g, part in pairs])
            within = np.array([g @ weighted(W, weights, part) @ g for g, part in pairs])
            columns += [total, np.clip(within, 0.0, total)]
        return tuple(columns)

    @_once
    def _expected(self, level: int) -> Array:
        """Covariance of a level, to plan by: variances of few samples are drawn to what the level below predicts."""
        state, C = self.states[level], self._own(level)
        if level < 2 or self.states[level - 1].count < 2:
            return C
        predicted = np.diagonal(self._expected(level - 1))[state.components :].copy()
        for index, (metric, part) in enumerate(self.named_parts()):
            usual = 1.0 if metric.kinks else 2.0
            predicted[part] *= 2.0 ** -value_or(self.rates(index)["beta"].value, usual, 0.5, 2.0)
        return pooled(C, predicted, state.count, self.states[level - 1].count)

    # --------------------------------------------------------------------------- rates

    @_once
    def differences(self, metric: int) -> tuple[Array, Array, Array]:
        """Levels ℓ ≥ 1 of a metric: mean and variance of Δ, and the variance of f − f(first half).

        Args:
            metric: Number of the metric.

        Returns:
            Three arrays with one entry per level, read along the gradient of the metric.
        """
        part, K = self.parts[metric], self.states[0].components
        g = self.direction(metric)
        means, variances, plain = [], [], []
        for state in self.states[1:]:
            C = state.covariance[K:, K:][part, part]
            means.append(float(g @ state.mean[K:][part]))
            variances.append(max(float(g @ C @ g), 0.0))
            plain.append(float(np.sum(g**2 * state.block.variance[2 * K :][part])))
        return np.array(means), np.array(variances), np.array(plain)

    @_once
    def direction(self, metric: int) -> Array:
        """Derivatives of a metric with respect to the averages of its components.

        Args:
            metric: Number of the metric.
        """
        used = [level for level, state in enumerate(self.states) if state.count]
        averages = self.averages(ladder(used[0], used[-1], np.zeros(self.states[0].components)))
        return gradient(self.metrics[metric], averages[self.parts[metric]])

    @_once
    def kurtosis(self, metric: int) -> Array:
        """Kurtosis of Δ on the levels ℓ ≥ 1, the largest of a metric's components.

        Args:
            metric: Number of the metric.

        Returns:
            One entry per level; 3 where nothing varies.
        """
        part, K = self.parts[metric], self.states[0].components
        found = [state.block.kurtosis[K : 2 * K][part] for state in self.states[1:]]
        return np.array([float(np.nanmax(k)) if np.isfinite(k).any() else 3.0 for k in found])

    def heavy(self, level: int) -> bool:
        """Whether few inputs carry most of the variance of a level, so that it is not to be believed yet.

        Args:
            level: The level.
        """
        state, K = self.states[level], self.states[0].components
        kurtosis = state.block.kurtosis[:K] if level == 0 else state.block.kurtosis[K : 2 * K]
        plain = [kurtosis[part] for metric, part in self.named_parts() if metric.reduce is None]
        if not plain or not np.isfinite(np.concatenate(plain)).any():
            return False
        return bool(np.nanmax(np.concatenate(plain)) > _HEAVY * state.count)

    def matters(self, level: int, design: Design) -> bool:
        """Whether a level has more than a tenth of the variance of an estimate.

        Args:
            level: The level.
            design: The weights.
        """
        for index, part in enumerate(self.parts):
            g = self.direction(index)
            own = g @ weighted(self.covariance_of_mean(level), design.weights[level], part) @ g
            if own > 0.1 * (g @ self.covariance(design, part) @ g):
                return True
        return False

    @_once
    def rates(self, metric: int) -> dict[str, Rate]:
        """Rates of a metric: of the means of Δ (alpha), of its variance (beta), and of that without halves.

        Args:
            metric: Number of the metric.

        Returns:
            By name: "alpha", "beta", "beta_plain".
        """
        means, variances, plain = self.differences(metric)
        counts = np.array([state.count for state in self.states[1:]], dtype=np.float64)
        noise = np.sqrt(variances / np.maximum(counts, 1.0))
        kurtosis = self.kurtosis(metric)
        tiny = 1e-9 * float(np.nanmax(plain, initial=0.0))  # rounding, or an input in which nothing happens
        with np.errstate(divide="ignore", invalid="ignore"):
            clear = np.abs(means) > _SIGNIFICANT * noise
            clear &= np.cumsum(clear[::-1])[::-1] <= _LAST  # the first levels are not representative
            alpha = fitted_rate(np.abs(means), noise / np.abs(means), clear)
            spread = np.sqrt(np.maximum(kurtosis - 1.0, 0.5) / counts)
            beta = fitted_rate(variances, spread, (variances > tiny) & (counts > 8))
            beta_plain = fitted_rate(plain, spread, (plain > tiny) & (counts > 8))
        return {"alpha": alpha, "beta": beta, "beta_plain": beta_plain}

    def bias(self, design: Design, metric: int) -> float:
        """Size of the bias that is left, from the last two differences and their rate.

        If the means of Δ fall like T^(−α), all later ones sum to Δ_L/(2^α − 1), of which w Δ_L is added already.

        Args:
            design: The weights.
            metric: Number of the metric.

        Returns:
            The size; 0 if there is no difference to tell it from.
        """
        size: float = self.bias_at(design.top, metric, float(design.extrapolated[self.parts[metric]].max()))
        return size

    @_once
    def bias_at(self, top: int, metric: int, w: float) -> float:
        """The same with a given finest level.

        Args:
            top: The finest level.
            metric: Number of the metric.
            w: How often the last difference is added once more.

        Returns:
            The size; infinite if there is no difference to tell it from.
        """
        if top == 0:
            return float("inf")
        means, variances, _ = self.differences(metric)
        alpha, doubt = self._believed_rate(metric)
        slow = max(alpha - doubt, 0.5)
        last = abs(means[top - 1])
        if self._clear(metric, top):
            last = max(last, abs(means[top - 2]) * 2.0**-slow) if top >= 2 and self._clear(metric, top - 1) else last
        else:
            last += float(np.sqrt(variances[top - 1] / max(self.states[top].count, 1)))
        return float(last * remaining(alpha, doubt, w))

    @_once
    def _believed_rate(self, metric: int) -> tuple[float, float]:
        """The rate α of the means of Δ and its standard error: what was measured, and what is usual."""
        fitted = self.rates(metric)["alpha"]
        found = [rate for rate in (*self._paired_rates(metric), (fitted.value, fitted.stderr)) if np.isfinite(rate[1])]
        return believed_rate(*min(found, key=lambda rate: rate[1], default=(math.nan, math.nan)))

    def _paired_rates(self, metric: int) -> list[tuple[float, float]]:
        """The same from differences of halves and of the whole at the same inputs, per level with enough of them."""
        if self.metrics[metric].reduce is not None:
            return []
        component = self.parts[metric].start
        found = []
        for state in self.states[2:]:
            if state.count >= _ENOUGH:
                means, covariance = state.pair(component)
                found.append(paired_rate(means, covariance / state.count))
        return found

    def extrapolation(self, metric: int) -> float:
        """How often the last difference is added once more.

        If means of Δ fall like T^(−α), all later ones sum to Δ_L/(2^α − 1); ``rates`` says how much of that is taken.

        Args:
            metric: Number of the metric.

        Returns:
            The weight w.
        """
        return extrapolation_for(self._believed_rate(metric)[0])

    def _clear(self, metric: int, level: int) -> bool:
        means, variances, _ = self.differences(metric)
        noise = np.sqrt(variances[level - 1] / max(self.states[level].count, 1))
        return bool(abs(means[level - 1]) > _SIGNIFICANT * noise)

    def cost(self) -> float:
        """Passes spent, per input."""
        return sum(state.count * passes_of(level) for level, state in enumerate(self.states)) / self.rows
