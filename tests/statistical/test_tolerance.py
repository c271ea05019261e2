"""Stopping at a tolerance does not spoil the intervals, and costs little more than knowing the variance in advance.

How it is tested: many independent runs, each with its own stopping time, of a network small enough that the exact
moments follow from all its masks. The nominal 95 % intervals (± 1.96 standard errors) of a run are compared with the
truth; a run's components share its stopping time, so that the run is the unit of the statistics. What is claimed, and
tested at three tolerances with an error rate of 0.1 % each: the intervals of the moment that the tolerance is for cover
the truth in at least 93 % of cases.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from mlmc_dropout.methods import pooled
from mlmc_dropout.methods.registry import make_method
from mlmc_dropout.runtime.run import Outcome, Run
from mlmc_dropout.stopping import goal as rule
from mlmc_dropout.stopping.goal import Goal
from testing.oracles import exact_moments, source_of

CLAIMED = 0.93
Z = 3.09  # one-sided 0.1 %
ROWS = 4


def _network() -> tuple[nn.Module, torch.Tensor]:
    """Six units that drop out: 64 masks. Its outputs are skewed, which is where stopping early hurts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        first, last = nn.Linear(2, 6), nn.Linear(6, 2)
        model = nn.Sequential(first, nn.Tanh(), nn.Dropout(0.2), last, nn.Softplus())
        with torch.no_grad():
            last.weight.mul_(3.0)
        return model, torch.randn(ROWS, 2)


@pytest.fixture(scope="module")
def problem():
    model, x = _network()
    exact = [exact_moments(model, x[i : i + 1]) for i in range(ROWS)]
    return source_of(model, x), *(np.stack(parts) for parts in zip(*exact, strict=True))


def _runs(source, settings: dict, goal: Goal, count: int, first: int = 0) -> list[Outcome]:
    """Independent runs: the same inputs, other seeds."""
    method = make_method(**settings).choose(source, goal)
    outcomes = []
    for seed in range(first, first + count):
        run = Run(0, replace(source, seed=seed), method, goal)
        while not run.finished:
            start, tasks = run.take(1)
            run.accept(start, [run.bound.run(run.source, task) for task in tasks])
        outcomes.append(run.outcome)
    return outcomes


def _coverage(outcomes: list[Outcome], truth: np.ndarray, name: str) -> tuple[float, float]:
    """Mean coverage of the runs, and its standard error."""
    shares = []
    for outcome in outcomes:
        found = outcome.estimates
        errors = np.abs(getattr(found, name) - truth)
        shares.append(np.mean(errors <= 1.96 * getattr(found, f"{name}_stderr")))
    return float(np.mean(shares)), float(np.std(shares, ddof=1) / math.sqrt(len(shares)))


def _least(mu2: np.ndarray, tolerance: float) -> float:
    """Passes that plain averaging needs if the variances are known."""
    return float(mu2.max() / tolerance**2)


@pytest.mark.parametrize(
    ("least", "runs"),
    [(200, 80), (500, 60), *(pytest.param(n, 400, marks=pytest.mark.slow) for n in (200, 500, 1200))],
)
def test_plain_averaging_covers_and_spends_little_more_than_an_oracle(problem, least, runs):
    source, mu, mu2, _ = problem
    goal = Goal(tolerance=math.sqrt(mu2.max() / least))
    outcomes = _runs(source, {"name": "pooled"}, goal, runs)
    assert all(outcome.estimates.mean_stderr.max() <= goal.tolerance for outcome in outcomes)
    coverage, error = _coverage(outcomes, mu, "mean")
    print(f"least {least}: coverage {coverage:.3f} ± {error:.3f}")
    assert coverage >= CLAIMED - Z * error
    spent = np.mean([outcome.estimates.cost for outcome in outcomes]) / _least(mu2, goal.tolerance)
    print(f"least {least}: spent {spent:.2f} times that")
    assert spent <= 1.3


@pytest.mark.slow
def test_a_tolerance_for_the_variance_covers_too(problem):
    source, _, mu2, mu4 = problem
    spread = (mu4 - mu2**2).max()
    goal = Goal(tolerance_variance=math.sqrt(spread / 600))
    outcomes = _runs(source, {"name": "pooled"}, goal, 100)
    coverage, error = _coverage(outcomes, mu2, "variance")
    print(f"coverage {coverage:.3f} ± {error:.3f}")
    assert coverage >= CLAIMED - Z * error
    assert np.mean([outcome.estimates.cost for outcome in outcomes]) <= 1.3 * 600


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"name": "mlmc", "ladder": (4, 8)}, {"name": "stratified"}, {"name": "control-variate"}], ids=str
)
def test_methods_with_replicates_cover_too(problem, settings):
    """The least possible is predicted from long runs of the same method, whose standard errors fall like 1/√cost."""
    source, mu, _, _ = problem
    long = _runs(source, settings, Goal(budget=6000), 2, first=10_000)
    unit = max(np.max(outcome.estimates.mean_stderr**2) * outcome.estimates.cost for outcome in long)
    goal = Goal(tolerance=math.sqrt(unit / 900))
    outcomes = _runs(source, settings, goal, 200)
    coverage, error = _coverage(outcomes, mu, "mean")
    print(f"{settings}: coverage {coverage:.3f} ± {error:.3f}")
    assert coverage >= CLAIMED - Z * error
    costs = np.array([outcome.estimates.cost for outcome in outcomes]) / 900
    spent, error = costs.mean(), costs.std(ddof=1) / math.sqrt(len(costs))
    print(f"{settings}: spent {spent:.3f} ± {error:.3f} times the least")
    assert spent <= 1.3 + Z * error


def test_a_rule_that_looks_too_early_fails_this_test(problem, monkeypatch):
    """Negative control: a pilot of four passes, believed at once, stops on lucky samples."""
    source, mu, mu2, _ = problem
    monkeypatch.setattr(rule, "PILOT", 4)
    monkeypatch.setattr(rule, "TRUSTED", 2)
    monkeypatch.setattr(pooled, "student_factor", lambda samples: 1.0)
    goal = Goal(tolerance=math.sqrt(mu2.max() / 8))
    coverage, error = _coverage(_runs(source, {"name": "pooled"}, goal, 150), mu, "mean")
    print(f"coverage {coverage:.3f} ± {error:.3f}")
    assert coverage < CLAIMED - Z * error
