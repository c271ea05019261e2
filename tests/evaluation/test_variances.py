"""Variances of few samples: Student's factor against its exact value, and what a level is told by the one below."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from mlmc_dropout.evaluation.levels import LevelState
from mlmc_dropout.evaluation.metrics import select_metrics
from mlmc_dropout.evaluation.statistics import Statistics
from mlmc_dropout.evaluation.variances import pooled, raised, student_doubt

COUNTS = (40, 20, 90, 30, 20)  # samples per level


@pytest.mark.parametrize(("kurtosis", "count"), [(3.0, 60), (12.0, 300), (30.0, 200)])
def test_the_widening_is_student_s_factor(kurtosis: float, count: int) -> None:
    freedom = 2 * count / (kurtosis - 1)
    exact = (stats.t.ppf(0.975, freedom) / stats.norm.ppf(0.975)) ** 2 - 1
    assert_allclose(student_doubt(np.array([kurtosis]), count), exact, rtol=0.2)


def test_unknown_kurtosis_counts_as_that_of_a_normal_law() -> None:
    assert_allclose(student_doubt(np.array([np.nan, 1.0]), 50), student_doubt(np.array([3.0, 3.0]), 50))


def test_intervals_of_skewed_samples_need_the_widening() -> None:
    """Means of 30 log-normal numbers: Student's factor brings coverage nearer to 95 %, and none does not."""
    draws = np.random.default_rng(0).lognormal(0, 1, size=(4000, 30))
    error = np.abs(draws.mean(axis=1) - np.exp(0.5))
    stderr = draws.std(axis=1, ddof=1) / np.sqrt(30)
    wider = stderr * np.sqrt([1 + student_doubt(np.array([k]), 30)[0] for k in stats.kurtosis(draws, 1, fisher=False)])
    plain, widened = np.mean(error < 1.96 * stderr), np.mean(error < 1.96 * wider)
    assert plain < 0.88 < widened < 0.95


def test_few_samples_are_drawn_to_the_prediction_and_many_are_not() -> None:
    C = np.array([[4.0, 0.0, 0.6, 0.1], [0.0, 4.0, 0.1, 0.6], [0.6, 0.1, 1.0, 0.2], [0.1, 0.6, 0.2, 1.0]])
    predicted = np.array([3.0, 0.2])
    few, many = pooled(C, predicted, 50, 50), pooled(C, predicted, 50_000, 50)
    assert_allclose(np.diagonal(few), [4.0, 4.0, 2.0, 0.6])
    assert_allclose(many, C, rtol=0.01)
    for matrix in (few, many):
        assert np.linalg.eigvalsh(matrix).min() > 0
    nothing = np.zeros((2, 2))
    assert_allclose(np.diagonal(pooled(C, predicted, 50, 10)), [4.0, 4.0, 4 / 3, 5.2 / 6])
    assert_allclose(pooled(nothing, np.array([1.0]), 50, 1000), [[0, 0], [0, 0.5]])


def test_raised_variances_are_not_lowered() -> None:
    C = np.diag([1.0, 2.0, 3.0, 4.0])
    assert_allclose(np.diagonal(raised(C, np.array([1.5, 0.5]))), [1.5, 2.0, 3.0, 4.0])
    assert_allclose(np.diagonal(raised(C, np.array([0.0, 0.0, 3.5, 3.5]))), [1.0, 2.0, 3.5, 4.0])
    assert raised(C, np.zeros(2)) is C


def jumping(rng: np.random.Generator) -> Statistics:
    """Levels of a metric that jumps: Δ is ± ½ with a probability that falls like T^(−1/2), and 0 otherwise."""
    states = []
    for level, count in enumerate(COUNTS):
        f = (rng.random((count, 1)) < 0.9).astype(float)
        delta = 0.5 * rng.choice([-1, 1], (count, 1)) * (rng.random((count, 1)) < chance(level))
        states.append(LevelState.of(f, delta, delta, delta, np.zeros((count, 2))))
    return Statistics(states, select_metrics(("accuracy",), "logits", True), rows=10**9)


def chance(level: int) -> float:
    return 0.0 if level == 0 else 0.3 * 2.0 ** (-level / 2)


def test_variances_of_jumps_are_lowered_to_plan_by_and_not_in_standard_errors() -> None:
    rng = np.random.default_rng(0)
    stated, planned, lowered = np.zeros(3), np.zeros(3), 0
    for _ in range(400):
        found = jumping(rng)
        forecast = found.forecast(np.zeros(1), len(COUNTS))
        for place, level in enumerate((2, 3, 4)):
            own = found.states[level].covariance[1, 1]
            reported = found.covariance_of_mean(level)[1, 1] * COUNTS[level]
            assert reported > own * (1 - 1e-6)
            lowered += forecast.delta[level, 0] < own
            stated[place] += reported / 400
            planned[place] += forecast.delta[level, 0] / 400
    true = np.array([0.25 * chance(level) for level in (2, 3, 4)])
    assert lowered > 100
    assert (stated > 0.97 * true).all() and (stated < 2.0 * true).all()
    assert (planned > 0.7 * true).all() and (planned < 2.5 * true).all()  # Student's factor included
