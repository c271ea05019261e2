"""Tolerances across the model zoo, against references of a million passes. Prints the table; minutes to an hour."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from zoo import ZOO

import mlmc_dropout as md

REFERENCE = 1_000_000
SEEDS = 8
LEASTS = (400, 1000, 2500)  # passes an oracle would spend: three tolerances for every model


def _flat(value) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in md.result.leaves(value)])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if entry.mode != "loop"])
def test_tolerances_are_met_in_truth_and_cost_little_more_than_an_oracle_would_spend(name):
    model, x = ZOO[name].make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", md.FallbackWarning)
        reference = md.estimate(model, x, method="pooled", budget=REFERENCE, seed=1)
        mu, mu2, error = _flat(reference.mean), _flat(reference.variance), _flat(reference.mean_stderr)
        for least in LEASTS:
            tolerance = math.sqrt(mu2.max() / least)
            runs = [md.estimate(model, x, method="pooled", tolerance=tolerance, seed=100 + s) for s in range(SEEDS)]
            assert all(_flat(run.mean_stderr).max() <= tolerance for run in runs)
            within = [
                np.mean(np.abs(_flat(run.mean) - mu) <= 1.96 * np.hypot(_flat(run.mean_stderr), error)) for run in runs
            ]
            spent = np.mean([run.cost for run in runs]) / least
            print(f"{name}: least {least}, spent {spent:.2f} times that, coverage {np.mean(within):.3f}")
            spread = max(np.std(within, ddof=1), math.sqrt(0.05 * 0.95 / mu.size)) / math.sqrt(SEEDS)
            assert np.mean(within) >= 0.93 - 4 * spread  # one of ~100 comparisons
            assert spent <= 1.3
