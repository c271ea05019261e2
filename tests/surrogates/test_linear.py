"""The expansion and its heads: derivatives, exactness, and what must not be taken for a head."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.surrogates.affine_check import only_linear
from mlmc_dropout.surrogates.linear import expansion_of, linearise, supported
from mlmc_dropout.surrogates.linear_head import heads_of, reduced_passes
from testing.oracles import exact_moments, run_method, source_of
from testing.zoo import ZOO

pytestmark = pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning")


def drawn(source, passes=6):
    keys = pass_keys(3, 0, 0, range(passes))
    return [source.sampler.draw(site, keys, source.batch.rows, 0) for site in source.program.sites]


def parts(source):
    slopes = linearise(source.sampler, source.program, source.batch)
    return slopes, heads_of(source.sampler, source.program, source.batch, slopes, seed=0)


class TwoHeads(nn.Module):
    """``u`` is affine in the trunk's last dropout, ``f`` in its own."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 5), nn.Tanh())
        self.drop = nn.Dropout(0.3)
        self.u = nn.Linear(5, 1)
        self.f = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Dropout(0.1), nn.Linear(4, 1))

    def forward(self, x):
        z = self.drop(self.trunk(x))
        return {"u": x[:, :1] * self.u(z), "f": self.f(z)}


@pytest.fixture
def two_heads():
    torch.manual_seed(0)
    return TwoHeads().double().eval(), torch.rand(5, 2, dtype=torch.float64)


@pytest.mark.parametrize("masks", ["independent", "shared"])
@pytest.mark.parametrize(
    "name", ["mlp", "feature1d", "feature2d", "alpha", "residual_conv", "encoder", "lstm", "float64"]
)
def test_the_gradient_is_a_difference_quotient_of_the_model(name, masks):
    model, x = ZOO[name].make()
    source = source_of(model.double(), x.double(), masks=masks)
    assert supported(source.program)
    slopes = linearise(source.sampler, source.program, source.batch)
    rows, step = source.batch.rows, 1e-5
    site = source.program.active[0]
    shape = list(site.shape)
    shape[site.row_axis] *= rows

    def shifted(amount):
        filled = []
        for s in source.program.sites:
            full = list(s.shape)
            full[s.row_axis] *= rows
            keep = torch.full((1, *full), 1 - s.p, dtype=torch.float64)
            filled.append(keep + amount * direction if s is site else keep)
        return source.sampler.run_masks(source.program, source.batch, filled)[0]

    direction = torch.rand(1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    by_row = direction[0].unflatten(site.row_axis, (rows, -1)).movedim(site.row_axis, 0).reshape(rows, -1)
    expected = (shifted(step) - shifted(-step)) / (2 * step)
    predicted = torch.einsum("nku,nu->nk", slopes.in_masks[site.index], by_row)
    torch.testing.assert_close(predicted, expected, rtol=1e-5, atol=1e-8)


def test_a_network_linear_in_its_masks_comes_out_exact():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Dropout(0.3), nn.Linear(7, 1)).double().eval()
    x = torch.rand(1, 2, dtype=torch.float64)
    mu, mu2, _ = exact_moments(model, x)
    for method in (Stratified(), ControlVariate()):
        estimates = run_method(method, source_of(model, x), 400)
        assert abs(estimates.mean[0] - mu) < 1e-12
        assert abs(estimates.variance[0] - mu2) < 1e-12
        assert estimates.mean_stderr.max() < 1e-12
        assert estimates.variance_stderr.max() < 1e-12


def test_linear_companion_equals_the_network_where_that_is_linear():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Dropout(0.3), nn.Linear(7, 2)).double().eval()
    source = source_of(model, torch.rand(4, 2, dtype=torch.float64))
    slopes = linearise(source.sampler, source.program, source.batch)
    masks = drawn(source)
    D = source.sampler.run_masks(source.program, source.batch, masks)
    G = expansion_of(source.program, slopes).values(masks, 4)
    torch.testing.assert_close(D - G, (D - G)[:1].expand_as(D), rtol=0, atol=1e-12)


def test_what_single_units_add_to_the_square_is_what_designs_remove():
    """With one unit it is all of G² − E G², with several it sums to nothing over a design, whose G² does not."""
    torch.manual_seed(1)
    p, passes = 0.3, 10
    for units in (1, 6):
        model = nn.Sequential(nn.Linear(2, units), nn.Tanh(), nn.Dropout(p), nn.Linear(units, 1)).double().eval()
        source = source_of(model, torch.rand(4, 2, dtype=torch.float64))
        expansion = expansion_of(source.program, linearise(source.sampler, source.program, source.batch))
        keys = pass_keys(0, 0, 0, range(3))
        masks = [source.sampler.draw(site, keys, 4, 0, passes) for site in source.program.sites]
        squares, G = expansion.squares(masks, 4), expansion.values(masks, 4)
        over_designs = squares.unflatten(0, (3, passes)).sum(dim=1)
        torch.testing.assert_close(over_designs, torch.zeros_like(over_designs), rtol=0, atol=1e-12)
        rest = G.square() - expansion.variance - squares
        assert (rest.abs().max() < 1e-12) == (units == 1)


def test_each_output_finds_its_own_last_site(two_heads):
    model, x = two_heads
    source = source_of(model, x)
    _, heads = parts(source)
    assert {head.site.name: head.outputs.tolist() for head in heads} == {"drop": [True, False], "f.2": [False, True]}


def test_heads_average_their_masks_out(two_heads):
    """Redrawing only a head's masks must not move h; redrawing others must."""
    model, x = two_heads
    source = source_of(model, x)
    _, heads = parts(source)
    masks = drawn(source)
    h, s2 = reduced_passes(source.sampler, source.program, source.batch, masks, heads)
    last = source.program.sites[-1]
    again = list(masks)
    again[-1] = source.sampler.draw(last, pass_keys(9, 0, 0, range(6)), 5, 0)
    h2, _ = reduced_passes(source.sampler, source.program, source.batch, again, heads)
    torch.testing.assert_close(h, h2, rtol=0, atol=1e-12)
    assert (s2 > 0).all()
    again = list(masks)
    again[0] = source.sampler.draw(source.program.sites[0], pass_keys(9, 0, 0, range(6)), 5, 0)
    h3, _ = reduced_passes(source.sampler, source.program, source.batch, again, heads)
    assert (h - h3).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("tail", "transform"),
    [
        (nn.Sequential(nn.Linear(8, 3), nn.Softplus()), None),
        (nn.Sequential(nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 2)), None),
        (nn.Linear(8, 3), lambda out: out.softmax(-1)),
        (nn.Linear(8, 3), torch.square),
    ],
)
def test_nothing_nonlinear_is_taken_for_a_head(tail, transform):
    """Negative control of the head search: every candidate must fail the check with random masks."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.4), tail).double().eval()
    source = source_of(model, torch.rand(6, 2, dtype=torch.float64), transform=transform)
    _, heads = parts(source)
    assert heads == ()


def test_a_linear_transform_keeps_the_head():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 3)).double().eval()
    source = source_of(model, torch.rand(6, 2, dtype=torch.float64), transform=lambda out: 3 * out - 1)
    assert len(parts(source)[1]) == 1


def test_gradients_cost_about_two_passes_per_output_and_one_forward():
    model, x = ZOO["mlp"].make()
    slopes = linearise(*[getattr(source_of(model, x), name) for name in ("sampler", "program", "batch")])
    assert 2.0 < slopes.cost < 5.5  # two outputs


@pytest.mark.parametrize("name", ["weight_dropout", "sequence_first", "packed_lstm"])
def test_masks_of_no_single_row_are_not_expanded(name):
    model, x = ZOO[name].make()
    assert not supported(source_of(model, x).program)


def test_a_kink_that_never_shows_is_still_no_head():
    """ReLU far from its kink is affine on every mask one may try; the graph tells, numbers cannot."""
    torch.manual_seed(2)
    tail = nn.Sequential(nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 2))
    tail[0].bias.data += 100.0
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.4), tail).double().eval()
    assert parts(source_of(model, torch.rand(6, 2, dtype=torch.float64)))[1] == ()


@pytest.mark.parametrize(
    ("function", "linear"),
    [
        (lambda z, w: z @ w + z.sum() * 2 - 1, True),
        (lambda z, w: torch.cat([z, 3 - z], 1)[:, 2:].mean(1) / 2, True),
        (lambda z, w: torch.addmm(z, z, w), True),
        (lambda z, w: (z * w[0]).transpose(0, 1).reshape(-1), True),
        (lambda z, w: w[0] / z, False),
        (lambda z, w: z * z, False),
        (lambda z, w: z @ z.T, False),
        (lambda z, w: (z + 10).relu(), False),
        (lambda z, w: z.softmax(1), False),
        (lambda z, w: (z @ w).amax(1), False),
    ],
)
def test_linearity_is_read_off_the_graph(function, linear):
    z = torch.rand(4, 4, dtype=torch.float64, requires_grad=True)
    w = torch.rand(4, 4, dtype=torch.float64, requires_grad=True)
    assert only_linear(function(z, w), z) is linear
