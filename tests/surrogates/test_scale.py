"""Squares of very small and very large outputs: nothing is lost, whatever the scale and wherever it comes from."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.surrogates.linear import linearise
from mlmc_dropout.surrogates.linear_head import heads_of, reduced_passes
from mlmc_dropout.surrogates.scale import binary_scale, sum_of_squares
from testing.oracles import exact_moments, run_method, source_of, z_limit

SCALES = [1e-25, 1e-19, 1.0, 1e15, 1e25]
POWERS = [2.0**-100, 2.0**-83, 2.0**-73, 2.0**-63, 2.0**50, 2.0**83]
METHODS = {
    "stratified": Stratified(),
    "first order": ControlVariate(gradient_masks=0),
    "second order": ControlVariate(gradient_masks=16),
}
X = torch.tensor([[0.5, -1.0], [1.5, 0.3], [-0.7, 0.8]])


def network(scale, where="weights"):
    """Ten mask bits; with a positively homogeneous body, the scale may come from the inputs as well."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = [nn.Linear(2, 5, bias=False), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(5, 5, bias=False)]
        model = nn.Sequential(*body, nn.LeakyReLU(0.5), nn.Dropout(0.25), nn.Linear(5, 2, bias=False))
    with torch.no_grad():
        model[-1 if where == "weights" else 0].weight *= scale
    return model.eval()


@cache
def exact(scale):
    """Of every row, from all masks, in double precision."""
    model = network(scale).double()
    moments = [exact_moments(model, row[None].double())[:2] for row in X]
    return np.stack([mean for mean, _ in moments]), np.stack([variance for _, variance in moments])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", METHODS)
def test_both_moments_are_those_of_all_masks(name, scale):
    found = run_method(METHODS[name], source_of(network(scale), X), 3000)
    limit = z_limit(6)
    for value, error, true in zip(
        (found.mean, found.variance), (found.mean_stderr, found.variance_stderr), exact(scale), strict=True
    ):
        assert (np.abs(value - true) <= limit * error).all()
    assert (found.variance_stderr < 0.05 * exact(scale)[1]).all()  # so that what is missing would be seen


@pytest.mark.parametrize("where", ["weights", "activations"])
@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("name", METHODS)
def test_powers_of_two_change_no_bit(name, power, where):
    one, other = (run_method(METHODS[name], source_of(network(s, where), X), 200) for s in (1.0, power))
    assert np.array_equal(one.mean * power, other.mean)
    assert np.array_equal(one.variance * power**2, other.variance)
    np.testing.assert_allclose(one.variance_stderr * power**2, other.variance_stderr, rtol=1e-9)


def test_squares_in_single_precision_would_be_lost():
    """Negative control: what heads add, squared as it is."""
    source = source_of(network(1e-25), X)
    slopes = linearise(source.sampler, source.program, source.batch)
    heads = heads_of(source.sampler, source.program, source.batch, slopes, seed=0)
    masks = source.sampler.draw_all(source.program, torch.arange(8), 3, 0)
    _, s2 = reduced_passes(source.sampler, source.program, source.batch, masks, heads)
    assert s2.dtype == torch.float64 and (s2 > 0).all()
    assert not heads[0].jacobian.square().any()


class Ends(nn.Module):
    """Outputs of different scales."""

    def __init__(self, scales):
        super().__init__()
        self.body, self.scales = network(1.0), torch.tensor(scales)

    def forward(self, x):
        return self.body(x) * self.scales


@pytest.mark.parametrize("name", METHODS)
def test_rows_and_outputs_have_scales_of_their_own(name):
    """One row and one output of usual size hide nothing of the others."""
    scales = [2.0**-40, 1.0]
    x = X * torch.tensor([[1.0], [2.0**-60], [2.0**10]])
    expected = run_method(METHODS[name], source_of(Ends([1.0, 1.0]).eval(), X), 200)
    found = run_method(METHODS[name], source_of(Ends(scales).eval(), x), 200)
    unit = np.outer([1.0, 2.0**-60, 2.0**10], scales)
    # Coefficients are fitted to all components together, so that they differ a little.
    assert (np.abs(found.variance / unit**2 / expected.variance - 1) < 0.2).all()
    assert (np.abs(found.mean / unit - expected.mean) < 3 * expected.mean_stderr).all()


@pytest.mark.parametrize("power", [2.0**-83, 2.0**83])
def test_a_run_chooses_and_finds_the_same(power):
    one, other = (md.estimate(network(s), X, budget=2000) for s in (1.0, power))
    assert one.method == other.method and one.notes == other.notes
    np.testing.assert_allclose(one.variance * power**2, other.variance, rtol=1e-12)


def test_sums_of_squares():
    values = torch.tensor([[3e-30, 4e-30], [0.0, 0.0], [3e30, 4e30], [3.0, 4.0]])
    np.testing.assert_allclose(sum_of_squares(values), [25e-60, 0, 25e60, 25], rtol=1e-6)
    assert binary_scale(torch.tensor([0.0, float("inf"), 3.4e38, 1e-44])).isfinite().all()
