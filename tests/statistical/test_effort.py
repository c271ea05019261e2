"""Inputs that stop one by one: intervals of every input cover under the stop rule, also where rare masks matter.

Whole runs with seeds of their own, of networks small enough that the exact means follow from all their masks. Each
input is covered in at least 93 % of the runs, but for chance; a rule that stops an input at the first look below the
tolerance is the negative control. ``benchmarks/effort.py`` has the same with 2000 runs, and trained networks.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import mlmc_dropout as md
from testing.oracles import exact_moments
from testing.treacherous import TREACHEROUS, inputs, naive_rule, plain_errors

CLAIMED, SHARE, TOLERANCE = 0.93, 0.97, 0.02
QUICK, MANY = 150, 2000
METHODS = ("pooled", "auto", "control-variate")


def _covered(name: str, method: str, runs: int) -> tuple[np.ndarray, np.ndarray]:
    """How often the intervals of each input hold the truth, and errors in standard errors, (runs, inputs)."""
    model, x = TREACHEROUS[name]().eval(), inputs()
    truth = np.stack([exact_moments(model, x[row : row + 1])[0] for row in range(len(x))])
    scores = []
    for seed in range(runs):
        found = md.estimate(model, x, method=method, tolerance=TOLERANCE, seed=seed)
        scores.append(((found.mean - truth) / found.mean_stderr)[:, 0])
    return np.mean(np.abs(scores) <= 1.959964, axis=0), np.array(scores)


CASES = [
    pytest.param(name, method, *runs, id=f"{name}-{method}-{runs[0]}", marks=marks)
    for name in TREACHEROUS
    for method in METHODS
    for runs, marks in (
        ((QUICK if method == "pooled" else QUICK // 3,), () if method != "control-variate" else pytest.mark.slow),
        ((MANY if method == "pooled" else MANY // 4,), pytest.mark.slow),
    )
]


@pytest.mark.parametrize(("name", "method", "runs"), CASES)
def test_every_input_is_covered_where_rare_masks_matter(name, method, runs):
    covered, _ = _covered(name, method, runs)
    low = stats.binom.ppf(1e-3, runs, CLAIMED) / runs
    print(name, np.sort(covered)[:4], covered.mean())
    assert np.mean(covered >= low) >= SHARE
    assert covered.mean() >= CLAIMED


@pytest.mark.parametrize("name", ["both", "flip"])
def test_stopping_at_the_first_look_below_the_tolerance_does_not_cover(name):
    with plain_errors(), naive_rule():
        covered, _ = _covered(name, "pooled", QUICK)
    assert np.mean(covered >= CLAIMED) < SHARE - 0.2


@pytest.mark.parametrize("name", TREACHEROUS)
def test_reported_as_ever_it_does_not_meet_the_tolerance(name):
    model, x = TREACHEROUS[name]().eval(), inputs()
    with naive_rule():
        naive = [md.estimate(model, x, method="pooled", tolerance=TOLERANCE, seed=seed) for seed in range(30)]
    ours = [md.estimate(model, x, method="pooled", tolerance=TOLERANCE, seed=seed) for seed in range(30)]
    assert np.mean([found.status is md.Status.TOLERANCE_MET for found in naive]) < 0.3
    assert all(found.status is md.Status.TOLERANCE_MET for found in ours)
