"""Stratified designs and the control variate: unbiased, honest standard errors, and controls that fail.

Copies of one input row with independent masks are independent runs of an estimator, so that thousands
of runs are one call. Error rate of each z-test: 1 in 1000 over all of its comparisons.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.sampling.masks import pass_keys
from testing.oracles import exact_moments, one_row_many_times, run_method, source_of, z_limit
from testing.zoo import ZOO

pytestmark = pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning")

METHODS = {
    "stratified": Stratified(),
    "plain designs": Stratified(heads=False),
    "control variate": ControlVariate(),
    "without heads": ControlVariate(heads=False),
    "second order": ControlVariate(gradient_masks=8),
    "second derivatives": ControlVariate(second_derivatives=True),
}


def deep(p=0.3, nonlinear=nn.Tanh, dtype=torch.float64):
    """Seven mask bits in two layers, strongly nonlinear: enumerable, and far from its expansion."""
    generator = torch.Generator().manual_seed(4)
    model = nn.Sequential(
        nn.Linear(2, 4), nonlinear(), nn.Dropout(p), nn.Linear(4, 3), nonlinear(), nn.Dropout(p), nn.Linear(3, 1)
    )
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 1.3
    return model.to(dtype).eval(), torch.tensor([[0.7, -0.4]], dtype=dtype)


def z_scores(found, truth, error):
    return (found.mean() - truth) / (found.std(ddof=1) / np.sqrt(len(found)) + error)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("p", [0.07, 0.5])
def test_unbiased_on_an_enumerated_network(method, p):
    model, x = deep(p)
    mu, mu2, _ = (float(m[0]) for m in exact_moments(model, x))
    found = run_method(METHODS[method], source_of(model, one_row_many_times(x, 1500)), 240)
    limit = z_limit(2 * 2 * len(METHODS))
    assert abs(z_scores(found.mean[:, 0], mu, 1e-15)) < limit
    assert abs(z_scores(found.variance[:, 0], mu2, 1e-15)) < limit


def test_the_variance_inside_designs_alone_is_rejected():
    """Negative control: without Var[Y] the estimate of μ2 is biased, and the same z-test sees it."""
    model, x = deep(0.5)
    _, mu2, _ = (float(m[0]) for m in exact_moments(model, x))
    source = source_of(model, one_row_many_times(x, 1500))
    T, designs = 4, 40
    out = source.sampler.run(source.program, source.batch, pass_keys(0, 0, 0, range(designs)), design_passes=T)
    passes = out.double().numpy()[..., 0].reshape(designs, T, -1)
    naive = passes.var(axis=1, ddof=1).mean(axis=0)
    assert abs(z_scores(naive, mu2, 0.0)) > 2 * z_limit(30)


def test_a_wrong_analytic_variance_is_rejected():
    """Negative control: an expansion whose variance is off by 3 % biases the result, and the z-test sees it."""
    import dataclasses

    model, x = deep(0.2)
    _, mu2, _ = (float(m[0]) for m in exact_moments(model, x))
    source = source_of(model, one_row_many_times(x, 1500))
    plan = ControlVariate(heads=False, passes=20).bind(source)
    part = plan.parts[0]
    wrong = dataclasses.replace(part.surrogate, variance=part.surrogate.variance * 1.03)
    spoilt = dataclasses.replace(plan, parts=(dataclasses.replace(part, surrogate=wrong),))
    tasks, done = spoilt.extend({}, 400)
    from mlmc_dropout.methods.states import merge_states

    state = None
    for task in tasks:
        state = merge_states(state, spoilt.run(source, task))
    found = spoilt.summarise(state, done)
    assert abs(z_scores(found.variance[:, 0], mu2, 0.0)) > 2 * z_limit(30)


@pytest.mark.parametrize("method", ["stratified", "control variate", "second derivatives"])
@pytest.mark.parametrize("p", [0.1, 0.3])
def test_intervals_cover(method, p):
    """95 % intervals hold the truth in 93 to 97 % of 2000 runs, for both moments."""
    model, x = deep(p)
    mu, mu2, _ = (float(m[0]) for m in exact_moments(model, x))
    found = run_method(METHODS[method], source_of(model, one_row_many_times(x, 2000), seed=1), 2000)
    covered = np.abs(found.mean - mu) < 1.96 * found.mean_stderr
    covered_V = np.abs(found.variance - mu2) < 1.96 * found.variance_stderr
    assert 0.93 <= covered.mean() <= 0.97
    assert 0.93 <= covered_V.mean() <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mlp", "feature2d", "alpha", "feature_alpha", "inplace_alias", "encoder", "weight_dropout"]
)
@pytest.mark.parametrize("method", ["stratified", "control variate"])
def test_agrees_with_pooled_across_the_zoo(name, method):
    """Different passes, same moments: z-scores against a long plain run, over all rows and outputs."""
    model, x = ZOO[name].make()
    source = source_of(model, x)
    if isinstance(METHODS[method], ControlVariate) and name == "weight_dropout":
        pytest.skip("masks of weights belong to no row")
    long = run_method(Pooled(), source_of(model, x, seed=5), 12_000)
    found = run_method(METHODS[method], source, 3_000)
    for got, error, truth, more in (
        (found.mean, found.mean_stderr, long.mean, long.mean_stderr),
        (found.variance, found.variance_stderr, long.variance, long.variance_stderr),
    ):
        z = (got - truth) / np.sqrt(error**2 + more**2 + 1e-20)
        # 100 pairs give nearly, not exactly, normal z-scores: half a unit of slack
        assert np.abs(z).max() < z_limit(2 * z.size * 13) + 0.5


def test_masks_shared_by_all_rows_have_the_same_moments():
    model, x = deep(0.3)
    mu, mu2, _ = (float(m[0]) for m in exact_moments(model, x))
    zs = []
    for seed in range(30):
        found = run_method(METHODS["control variate"], source_of(model, x, seed=seed, masks="shared"), 800)
        zs.append(
            [
                (found.mean[0, 0] - mu) / found.mean_stderr[0, 0],
                (found.variance[0, 0] - mu2) / found.variance_stderr[0, 0],
            ]
        )
    total = np.sum(zs, axis=0) / np.sqrt(30)
    assert np.abs(total).max() < z_limit(2) + 0.3
