"""The expansion with all second derivatives: its derivatives, its moments, what it costs, and where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.surrogates.derivatives import DerivativeError
from mlmc_dropout.surrogates.linear import linearise, supported
from mlmc_dropout.surrogates.linear_head import heads_of, outputs_by_head
from mlmc_dropout.surrogates.taylor import Taylor, fit_taylor, taylor_cost, value_cost
from testing.oracles import source_of
from testing.zoo import ZOO
from tests.surrogates.test_quadratic import Bent, agrees_with_passes, has_the_moments_of_all_masks, small

pytestmark = pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning")


def taylor(source, averaged_out=None):
    form, cost = fit_taylor(source.sampler, source.program, source.batch, averaged_out or {})
    assert cost == taylor_cost(source.sampler, source.program, source.batch, averaged_out or {})
    return form


def masks_of(source, passes, seed=9):
    keys = pass_keys(seed, 0, 0, range(passes))
    return [source.sampler.draw(site, keys, source.batch.rows, 0) for site in source.program.sites]


@pytest.mark.parametrize(("p", "q"), [(0.1, 0.1), (0.5, 0.2), (0.7, 0.05)])
def test_mean_and_variance_are_those_of_all_masks(p, q):
    source = source_of(*small(p, q))
    assert has_the_moments_of_all_masks(taylor(source), source.program)


def test_the_skewness_of_the_masks_matters():
    """Negative control: the variance of a Gaussian form is seen to be wrong."""
    form = taylor(source_of(*small(0.1, 0.05)))
    spread = torch.cat([torch.full((site.units,), (site.p * (1 - site.p)) ** 0.5) for site in form.sites]).double()
    g, M = form.gradient * spread, form.matrix * spread * spread[:, None, None, None]
    gaussian = g.square().sum(dim=-1) + M.square().sum(dim=(0, -1)) / 2
    assert ((gaussian - form.variance).abs() / form.variance).max() > 1e-3


def test_derivatives_are_those_of_torch():
    model, x = small(0.3, 0.2)
    form = taylor(source_of(model, x))

    def outputs(keep, row):
        first = torch.tanh(model[0](row)) * keep[:4] / 0.7
        return torch.tanh(model[6](torch.tanh(model[3](first)) * keep[4:] / 0.8))

    at_mean = torch.tensor([0.7] * 4 + [0.8] * 3, dtype=torch.float64)
    for n, row in enumerate(x):
        gradient = torch.func.jacrev(outputs)(at_mean, row)
        hessian = torch.func.jacrev(torch.func.jacrev(outputs))(at_mean, row)
        torch.testing.assert_close(form.gradient[n], gradient)
        torch.testing.assert_close(form.matrix[:, n].transpose(0, 1), hessian)


@pytest.mark.parametrize("masks", ["independent", "shared"])
def test_a_quadratic_network_is_explained_entirely(masks):
    torch.manual_seed(0)
    source = source_of(Bent().double().eval(), torch.randn(6, 3).double(), masks=masks)
    form, drawn = taylor(source), masks_of(source, 50)
    passes = source.sampler.run_masks(source.program, source.batch, drawn)
    left = passes - form.values(drawn, 6)
    torch.testing.assert_close(left, left[:1].expand_as(left))


@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if "float16" not in name])
def test_mean_and_variance_across_the_zoo(name):
    source = source_of(*ZOO[name].make())
    if not supported(source.program):
        pytest.skip("masks belong to no single row")
    try:
        form = taylor(source)
    except DerivativeError:
        pytest.skip("cannot be differentiated twice")
    assert agrees_with_passes(form, source)


def test_masks_that_are_averaged_out_play_no_part():
    torch.manual_seed(0)
    layers = (nn.Linear(2, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.3))
    source = source_of(nn.Sequential(*layers, nn.Linear(5, 1)).double().eval(), torch.rand(3, 2).double())
    slopes = linearise(source.sampler, source.program, source.batch)
    heads = outputs_by_head(heads_of(source.sampler, source.program, source.batch, slopes, seed=0))
    form = taylor(source, heads)
    assert form.used == (True, False)
    assert form.gradient.shape == (3, 1, 6)
    parts = source.sampler, source.program, source.batch
    assert taylor_cost(*parts, heads) < taylor_cost(*parts, {})
    assert value_cost(*parts, heads) < value_cost(*parts, {})


def test_masks_that_are_averaged_out_for_one_output_are_left_out_of_that():
    source = source_of(*small(0.2, 0.3))
    last = source.program.active[-1]
    form, whole = taylor(source, {last.index: torch.tensor([True, False])}), taylor(source)
    assert not form.gradient[:, 0, 4:].any()
    assert not form.matrix[4:, :, 0].any() and not form.matrix[:, :, 0, 4:].any()
    torch.testing.assert_close(form.matrix[:, :, 1], whole.matrix[:, :, 1])
    torch.testing.assert_close(form.matrix[:4, :, 0, :4], whole.matrix[:4, :, 0, :4])


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_variances_of_outputs_of_any_size_are_known(size):
    model, x = small(0.2, 0.3)
    plain = taylor(source_of(model.float(), x.float(), transform=lambda out: out))
    scaled = taylor(source_of(model.float(), x.float(), transform=lambda out: out * size))
    torch.testing.assert_close(scaled.variance / size**2, plain.variance, rtol=1e-4, atol=0)


def test_rows_can_be_selected_and_put_together():
    source = source_of(*ZOO["float64"].make())
    form, drawn, rows = taylor(source), masks_of(source, 20), source.batch.rows
    parts = [form.select(torch.arange(0, 1)), form.select(torch.arange(1, rows))]
    torch.testing.assert_close(Taylor.beside(parts).values(drawn, rows), form.values(drawn, rows))
    torch.testing.assert_close(parts[0].variance, form.variance[:1])


def test_rows_are_cut_so_that_second_derivatives_fit_the_memory_limit():
    model, x = ZOO["float64"].make()
    limit = 1 << 22
    bound = ControlVariate(second_derivatives=True, heads=False).bind(
        source_of(model, x.repeat(500, 1), memory_limit=limit)
    )
    assert len(bound.parts) > 1
    assert all(part.surrogate.matrix.nbytes <= limit for part in bound.parts)


def test_the_products_beside_passes_are_counted():
    model, x = ZOO["float64"].make()
    source = source_of(model, x)
    bound = ControlVariate(second_derivatives=True, passes=10).bind(source)
    tasks, after = bound.extend({}, 2000)
    passes = sum(task.count for task in tasks) * bound.passes
    assert bound.pass_cost > 1.0
    assert bound.overhead + passes * bound.pass_cost <= after["passes"] <= 2000
    more, later = bound.extend(after, 300)
    assert later["passes"] - after["passes"] <= 300 and more


def test_what_cannot_be_differentiated_twice_is_refused():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        def backward(ctx, grad):
            if torch.is_grad_enabled():
                raise NotImplementedError("its derivative cannot be differentiated")
            return 2 * ctx.saved_tensors[0] * grad

    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Linear(4, 1)).eval()
    source = source_of(model, torch.rand(3, 2), transform=Once.apply)
    linearise(source.sampler, source.program, source.batch)  # once is possible
    with pytest.raises(DerivativeError, match="cannot be differentiated"):
        taylor(source)
