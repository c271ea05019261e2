"""The worth of a run in passes of plain averaging is what is seen in many runs, for classifiers and regressors.

Plain averaging's variance follows from the moments of many passes; that of a method is its scatter over the runs.
"""

from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import mlmc_dropout as md
from mlmc_dropout import theory
from mlmc_dropout.result.arrays import as_matrix
from testing.zoo import ZOO

FACTOR = 1.5
RUNS = 100
BUDGET = 300


@cache
def digits():
    """A classifier, most of whose probabilities are close to 0 or 1, and digits it has not seen."""
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels / 16).float(), torch.from_numpy(labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parts = [nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.3)]
        model = nn.Sequential(*parts, nn.Linear(128, 10))
        optimiser = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(600):
            some = torch.randint(0, 1000, (128,))
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[some]), y[some]).backward()
            optimiser.step()
    return nn.Sequential(model, nn.Softmax(dim=-1)).eval(), x[1000:1024]


@cache
def network(name):
    return digits() if name == "digits" else ZOO[name].make()


@cache
def truth(name):
    """μ2 and μ4 of a pass."""
    long = md.estimate(*network(name), method="pooled", budget=30_000, seed=10**6)
    mu2 = as_matrix(long.variance)
    return mu2, np.nan_to_num(as_matrix(long.levels[0].kurtosis)) * mu2**2


@cache
def runs(name, method):
    return [md.estimate(*network(name), method=method, budget=BUDGET, seed=seed) for seed in range(RUNS)]


def seen(name, found):
    """Variances of plain averaging at the cost of the runs, and those of the runs, (rows, width), by moment."""
    mu2, mu4 = truth(name)
    cost = np.mean([result.cost for result in found])
    plain = theory.variance_of_sample_mean(cost, mu2), theory.variance_of_sample_variance(cost, mu2, mu4)
    ours = (np.var([as_matrix(getattr(r, moment)) for r in found], axis=0, ddof=1) for moment in ("mean", "variance"))
    return list(zip(plain, ours, strict=True))


def agree(stated, true):
    return 1 / FACTOR <= stated / true <= FACTOR


CASES = [
    (name, method) for name in ("digits", "mlp", "alpha") for method in ("pooled", "control-variate", "auto", "mlmc")
]


@pytest.mark.parametrize(("name", "method"), CASES)
def test_the_stated_worth_is_what_is_seen(name, method):
    found = runs(name, method)
    stated = np.array([np.divide(result.plain_passes, result.cost) for result in found])
    for number, (plain, ours) in enumerate(seen(name, found)):
        known = stated[:, number][~np.isnan(stated[:, number])]
        assert len(known) > 0.9 * RUNS
        true = plain.sum() / ours.sum()
        assert agree(np.median(known), true), (method, number, np.median(known), true)
        assert np.mean([agree(each, true) for each in known]) > 0.75


@pytest.mark.parametrize("name", ["digits", "mlp"])
def test_gains_of_single_outputs_are_what_is_seen(name):
    """The median over the components of what levels state over what is seen."""
    found = runs(name, "control-variate")
    moving = truth(name)[0] > 1e-12
    for field, (plain, ours) in zip(("gain", "gain_V"), seen(name, found), strict=True):
        stated = np.median([as_matrix(getattr(result.levels[-1], field)) for result in found], axis=0)
        assert agree(np.median((stated * ours / plain)[moving]), 1.0)


def test_stated_errors_beside_gaussian_passes_would_not_agree():
    """Negative control: allowances for rare masks on one side only, and tails on none."""
    found = runs("digits", "control-variate")
    gaussian = [2 * np.square(r.variance).sum() / np.square(r.variance_stderr).sum() + 1 for r in found]
    plain, ours = seen("digits", found)[1]
    assert not agree(np.median(gaussian) / found[0].cost, plain.sum() / ours.sum())
    assert np.median(gaussian) / found[0].cost < 0.1


def test_few_passes_tell_nothing():
    result = md.estimate(*network("mlp"), method="control-variate", budget=10)
    assert np.isnan(result.plain_passes).all()
    assert "cannot be told" in str(result)
