"""Ladders for a budget: what was spent stays in use, however random the inputs were, and what is left is spent."""

from __future__ import annotations

import numpy as np
import pytest

import mlmc_dropout as md
from mlmc_dropout.evaluation.choice import Choice, for_budget, for_tolerance
from mlmc_dropout.evaluation.estimates import Reading
from mlmc_dropout.evaluation.forecast import Forecast
from mlmc_dropout.evaluation.goal import EvaluationGoal
from tests.evaluation.conftest import Enumerated, make_enumerated

LEVELS = 6
READINGS = [Reading(1.0, 0.01, 0.0)]
DONE = {0: 30.0, 1: 30.0, 2: 100.0, 3: 2000.0}


def forecast() -> Forecast:
    """Variances that hardly fall from level to level, biases that halve."""
    ones, falling = np.ones((LEVELS, 1)), 0.5 ** np.arange(LEVELS)[:, None]
    return Forecast(ones, falling, falling, falling, ones, falling, 0.02 * falling, np.ones(1), 10**5)


def choices(left: float) -> list[Choice]:
    ladders = [(base, top) for top in range(2, LEVELS) for base in range(top + 1)]
    return [for_budget(forecast(), READINGS, base, top, left, DONE) for base, top in ladders]


@pytest.mark.parametrize("left", [0.0, -0.5, -300.0])
def test_an_overspent_run_keeps_its_best_ladder(left: float) -> None:
    best = min(choices(left), key=lambda choice: choice.loss)
    assert best.counts[3] == DONE[3] and best.base == 3
    assert best.loss[1] == min(one.loss[1] for one in choices(left) if max(one.counts) <= 3)
    beyond = [one for one in choices(left) if one.top > 3]
    assert beyond and all(one.loss > best.loss for one in beyond)


def test_of_ladders_with_too_much_bias_the_least_biased_comes_first() -> None:
    goal = EvaluationGoal(1e-5, relative=True, budget=None)
    losses = [for_tolerance(goal, forecast(), READINGS, top, top, DONE).loss for top in range(2, LEVELS)]
    assert losses == sorted(losses, reverse=True) and losses[-1][0] > 0


@pytest.fixture(scope="module")
def many() -> Enumerated:
    return make_enumerated(5000)


@pytest.mark.parametrize(("budget", "seed"), [(6.0, 0), (6.0, 1), (6.0, 2), (1.0, 0), (1.0, 7)])
def test_a_budget_is_spent_on_levels_that_are_used(many: Enumerated, budget: float, seed: int) -> None:
    found = md.evaluate(many.model, many.x, metrics=("entropy",), budget=budget, seed=seed)
    used = sum(level.cost for level in found.levels if level.used != "pilot")
    assert 0.85 * budget < found.cost < 1.1 * budget
    assert used > 0.7 * found.cost * found.rows


@pytest.mark.parametrize("method", ["plug-in", "jackknife"])
def test_a_budget_of_one_level_goes_to_that_level(many: Enumerated, method: str) -> None:
    found = md.evaluate(many.model, many.x[:500], metrics=("entropy",), method=method, budget=20.0)
    assert [(level.fidelity, level.count) for level in found.levels] == [(16, 500)]
