"""The second-order expansion: its moments are exact, and it finds curvature where there is any."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.surrogates.linear import linearise, supported
from mlmc_dropout.surrogates.linear_head import heads_of, outputs_by_head
from mlmc_dropout.surrogates.quadratic import fit_quadratic
from testing.oracles import source_of, z_limit
from testing.zoo import ZOO

pytestmark = pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning")


def small(p, q, activation=nn.Tanh):
    torch.manual_seed(3)
    layers = (nn.Linear(2, 4), activation(), nn.Dropout(p), nn.Linear(4, 3), activation(), nn.Dropout(q))
    return nn.Sequential(*layers, nn.Linear(3, 2), nn.Tanh()).double().eval(), torch.rand(2, 2).double()


def second_order(source, samples=12, averaged_out=None):
    form, cost = fit_quadratic(source.sampler, source.program, source.batch, samples, averaged_out or {}, source.seed)
    assert cost > samples
    return form


def every_mask(program, rows):
    """All masks of one row, the same for every row, and their probabilities."""
    active = program.active
    bits = torch.tensor(list(itertools.product((0, 1), repeat=sum(s.units for s in active))), dtype=torch.uint8)
    weights, masks, start = torch.ones(len(bits), dtype=torch.float64), [], 0
    for site in active:
        keep = bits[:, start : start + site.units]
        start += site.units
        weights *= (keep.double() * (1 - site.p) + (1 - keep.double()) * site.p).prod(dim=1)
        masks.append(keep[:, None].expand(-1, rows, -1))
    return masks, weights


def has_the_moments_of_all_masks(form, program):
    """Whether an expansion at two rows has mean 0 and the variance that it states, over all masks."""
    masks, weights = every_mask(program, 2)
    values = form.values(masks, 2)
    mean = torch.einsum("t,tnk->nk", weights, values)
    variance = torch.einsum("t,tnk->nk", weights, (values - mean).square())
    return mean.abs().max() < 1e-12 and torch.allclose(variance, form.variance, rtol=1e-10, atol=1e-14)


def agrees_with_passes(form, source, passes=2000):
    """Whether values for random masks have mean 0 and the stated variance, in z-scores with slack for heavy tails."""
    keys = pass_keys(9, 0, 0, range(passes))
    masks = [source.sampler.draw(site, keys, source.batch.rows, 0) for site in source.program.sites]
    values = form.values(masks, source.batch.rows).double().numpy()
    known = form.variance.double().numpy()
    alive = known > 1e-12 * known.max()
    z = values.mean(axis=0)[alive] / np.sqrt(known[alive] / passes)
    squares = values[:, alive] ** 2
    z_V = (squares.mean(axis=0) - known[alive]) / (squares.std(axis=0) / np.sqrt(passes))
    limit = z_limit(z.size * len(ZOO))
    return np.abs(z).max(initial=0.0) < limit + 0.2 and np.abs(z_V).max(initial=0.0) < limit + 1.0


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize(("p", "q"), [(0.1, 0.1), (0.5, 0.2), (0.7, 0.05)])
def test_mean_and_variance_are_those_of_all_masks(p, q, activation):
    source = source_of(*small(p, q, activation))
    assert has_the_moments_of_all_masks(second_order(source), source.program)


def test_the_skewness_of_the_masks_matters():
    """Negative control: the same with the variance of a Gaussian form is seen to be wrong."""
    source = source_of(*small(0.1, 0.05))
    form = second_order(source)
    gaussian = form.slope.square().sum(dim=-1) + form.curvature.square().sum(dim=-1) / 2
    assert ((gaussian - form.variance).abs() / form.variance).max() > 1e-3


@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if "float16" not in name])
def test_mean_and_variance_across_the_zoo(name):
    model, x = ZOO[name].make()
    source = source_of(model, x)
    if not supported(source.program):
        pytest.skip("masks belong to no single row")
    assert agrees_with_passes(second_order(source), source)


class Bent(nn.Module):
    """A square of a sum over all units: curvature in one direction, and none elsewhere."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.out = nn.Linear(3, 40), nn.Dropout(0.3), nn.Linear(40, 1)

    def forward(self, x):
        return self.out(self.drop(self.first(x))).square()


def test_curvature_is_found_where_there_is_some():
    torch.manual_seed(0)
    source = source_of(Bent().double().eval(), torch.randn(6, 3).double())
    form = second_order(source, samples=20)
    keys = pass_keys(5, 0, 0, range(3000))
    masks = [source.sampler.draw(site, keys, 6, 0) for site in source.program.sites]
    passes = source.sampler.run_masks(source.program, source.batch, masks)
    left = (passes - form.values(masks, 6)).var(dim=0) / passes.var(dim=0)
    straight = replace(form, curvature=torch.zeros_like(form.curvature))
    first = (passes - straight.values(masks, 6)).var(dim=0) / passes.var(dim=0)
    assert (left < 0.02).all()
    assert (left < 0.1 * first).all()


def test_masks_that_are_averaged_out_play_no_part():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 1)
    )
    source = source_of(model.double().eval(), torch.rand(3, 2).double())
    slopes = linearise(source.sampler, source.program, source.batch)
    heads = heads_of(source.sampler, source.program, source.batch, slopes, seed=0)
    form = second_order(source, averaged_out=outputs_by_head(heads))
    last = source.program.active[-1]
    assert [head.site for head in heads] == [last]
    assert form.directions[last.index] is None
    assert form.directions[0][:, 0].any()


@pytest.mark.parametrize("masks", ["independent", "shared"])
def test_rows_do_not_depend_on_their_neighbours(masks):
    model, x = ZOO["float64"].make()
    source = source_of(model, x, masks=masks)
    whole = second_order(source)
    rows = source.batch.rows
    tail, _ = fit_quadratic(source.sampler, source.program, source.batch[1:], 12, {}, source.seed, first_row=1)
    torch.testing.assert_close(whole.variance[1:rows], tail.variance, rtol=1e-6, atol=0)


def test_rows_are_cut_so_that_the_gradients_of_many_masks_fit_the_memory_limit():
    model, x = ZOO["float64"].make()
    source = source_of(model, x.repeat(500, 1), memory_limit=1 << 22)
    method = ControlVariate(gradient_masks=20, heads=False)
    bound = method.bind(source)
    units, width = sum(s.units for s in source.program.active), source.program.structure.width
    for part in bound.parts:
        rows = part.rows.stop - part.rows.start
        assert 8 * rows * units * 2 * 20 * (width + 1) <= 1 << 22  # masks and gradients, scaled and not
    assert len(bound.parts) > 1
