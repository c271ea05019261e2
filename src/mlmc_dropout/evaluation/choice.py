"""Ladders to choose from, and what speaks against each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlmc_dropout.evaluation.counts import PILOT_FINE
from mlmc_dropout.evaluation.estimates import Reading
from mlmc_dropout.evaluation.forecast import Forecast, cheapest, smallest, total_variance
from mlmc_dropout.evaluation.goal import TOP, EvaluationGoal
from mlmc_dropout.evaluation.levels import passes_of

__all__ = ["Choice", "finest_levels", "for_budget", "for_tolerance", "passes_for"]


@dataclass(frozen=True, slots=True)
class Choice:
    """A ladder with its counts, and what speaks against it.

    Attributes:
        base: The coarsest level.
        top: The finest level.
        counts: Samples per level.
        loss: What goes first, by how much the goal is out of reach; then further passes, or the error in the end.
    """

    base: int
    top: int
    counts: Mapping[int, float]
    loss: tuple[float, float]

    @property
    def passes(self) -> float:
        """Passes of all samples, those that there are included."""
        return sum(n * passes_of(level) for level, n in self.counts.items())


def finest_levels(goal: EvaluationGoal, forecast: Forecast, readings: Sequence[Reading], top: int) -> range:
    """Finest levels worth looking at: from the first with little enough bias on, or the next few.

    Args:
        goal: When to stop.
        forecast: Variances and biases of all levels.
        readings: What is known of the metrics.
        top: The finest level so far.

    Returns:
        The levels.
    """
    if goal.tolerance is None:
        return range(min(max(top, 1), 2), min(max(top, 1) + 4, TOP) + 1)
    first = max(top, 1)
    targets = goal.targets(readings)
    enough = [(forecast.bias[level] <= math.sqrt(0.5) * targets).all() for level in range(first, TOP + 1)]
    first = first + enough.index(True) if any(enough) else TOP
    return range(first, min(first + 1, TOP) + 1)


def for_tolerance(
    goal: EvaluationGoal,
    forecast: Forecast,
    readings: Sequence[Reading],
    base: int,
    top: int,
    done: Mapping[int, float],
) -> Choice:
    """A ladder for a tolerance: its loss is the number of further passes.

    Args:
        goal: When to stop.
        forecast: Variances and biases of all levels.
        readings: What is known of the metrics.
        base: The coarsest level.
        top: The finest level.
        done: Samples that there are.

    Returns:
        The choice; out of reach where bias takes more than half of the error's square.
    """
    targets = goal.targets(readings) ** 2
    bias = forecast.bias[top] ** 2
    variances = forecast.variances(base, top)
    counts = cheapest(variances, np.maximum(targets - bias, 0.5 * targets), forecast.rows)
    cost = sum(_further(n, level, done) * passes_of(level) for level, n in counts.items())
    excess = float(np.max(bias / targets)) - 0.5
    return Choice(base, top, counts, (max(excess, 0.0), cost))


def for_budget(
    forecast: Forecast, readings: Sequence[Reading], base: int, top: int, left: float, done: Mapping[int, float]
) -> Choice:
    """A ladder for a budget: its loss is the error that the rest of the budget gets us to, relative to the values.

    Args:
        forecast: Variances and biases of all levels.
        readings: What is known of the metrics.
        base: The coarsest level.
        top: The finest level.
        left: Passes that are left; negative where random inputs were more than planned.
        done: Samples that there are.

    Returns:
        The choice; out of reach where what is left does not pay for it.
    """
    left = max(left, 0.0)
    scale = np.array([max(abs(r.value), 1e-12) for r in readings]) ** 2
    variances = forecast.variances(base, top)
    hardest = int(np.argmax(sum(variances.total.values()) / scale))
    counts = smallest(variances, hardest, left, forecast.rows, done)
    cost = sum(_further(n, level, done) * passes_of(level) for level, n in counts.items())
    error = (total_variance(counts, variances, forecast.rows) + forecast.bias[top] ** 2) / scale
    return Choice(base, top, counts, (float(cost > left + 1), float(np.max(error))))


def passes_for(goal: EvaluationGoal, forecast: Forecast, readings: Sequence[Reading], single: bool) -> float:
    """Passes per input that the tolerance takes, about, if nothing has been run.

    Args:
        goal: When to stop.
        forecast: Variances and biases of all levels.
        readings: What is known of the metrics.
        single: Whether there is one level.

    Returns:
        The passes of the cheapest ladder.
    """
    tops = finest_levels(goal, forecast, readings, 0)
    ladders = [(base, top) for top in tops for base in ([top] if single else range(top + 1))]
    choices = [for_tolerance(goal, forecast, readings, base, top, {}) for base, top in ladders]
    best = min(choices, key=lambda choice: choice.loss)
    return sum(_further(n, level, {}) * passes_of(level) for level, n in best.counts.items()) / forecast.rows


def _further(count: float, level: int, done: Mapping[int, float]) -> float:
    """Samples to add; a level that has not been run gets a pilot at least."""
    least = 0.0 if level in done else PILOT_FINE
    return max(count - done.get(level, 0.0), least)
