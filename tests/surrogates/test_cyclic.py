"""The law of cyclic designs, by counting: every single sample has independent units of the right rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from mlmc_dropout.methods.coarse_rows import CoarseRows
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.surrogates.cyclic import SAMPLES, _of_rate, _patterns, cyclic_values
from mlmc_dropout.surrogates.expansion import contract
from mlmc_dropout.surrogates.linear import linearise
from testing.exact_quantities import INPUT, small_net
from testing.oracles import source_of, z_limit

pytestmark = pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning")

RATES = (0.5, 0.3, 0.1, 1 / 32, 0.004, 0.75, 0.93, 0.999)
DESIGNS = 1500


def designs(p, units=4, rows=2, masks="independent", first_row=0, count=DESIGNS, seed=1):
    """Keep bits (designs, samples, rows, units), read off one unit at a time: g is 1 at that unit and 0 elsewhere."""
    x = torch.zeros(rows, 3)
    model = nn.Sequential(nn.Linear(3, units), nn.Dropout(0.5), nn.Linear(units, 1)).eval()
    source = replace(source_of(model, x, masks=masks), first_row=first_row)
    site = replace(source.program.active[0], p=p)
    g = torch.eye(units, dtype=torch.float64).expand(rows, units, units)
    keys = pass_keys(seed, 0, np.arange(count), 0)
    drops = p - _of_rate(source, [(site, g.contiguous())], keys)  # of p Σ g − drops
    return 1 - drops.round().numpy()


def z_of_shares(bits, p):
    """z-scores of shares over designs, the same place in each of them: those are independent."""
    return (bits.mean(axis=0) - p) / np.sqrt(p * (1 - p) / len(bits))


@pytest.mark.parametrize("p", RATES)
def test_every_unit_is_dropped_at_its_rate_in_every_sample(p):
    keep = designs(p)
    assert set(np.unique(keep)) <= {0.0, 1.0}
    z = z_of_shares(1 - keep, p)
    assert np.abs(z).max() < (z_limit(z.size) if p > 0.01 else 6.0)  # rare drops are Poisson


@pytest.mark.parametrize("p", [0.5, 0.3, 0.1, 0.75])
def test_units_and_rows_of_a_sample_are_independent(p):
    """Products over pairs and triples of units, and over rows, have the products of their rates as means."""
    drop = 1 - designs(p)
    z = []
    for a, b in ((0, 1), (0, 3), (2, 3)):
        z.append(z_of_shares(drop[..., a] * drop[..., b], p**2))
        z.append(z_of_shares(drop[..., 0, a] * drop[..., 1, b], p**2))
    z.append(z_of_shares(drop[..., 0] * drop[..., 1] * drop[..., 2], p**3))
    z.append(z_of_shares(drop[..., 0, 0] * drop[..., 1, 0], p**2))
    scores = np.concatenate([np.ravel(part) for part in z])
    assert np.abs(scores).max() < z_limit(scores.size)


def test_samples_of_a_design_are_not_independent():
    """Negative control, and the point of it all: over a design a unit is dropped floor(pT) times, or once more."""
    for p in (0.5, 0.3, 0.1, 0.93):
        drops = (1 - designs(p, count=200)).sum(axis=1)
        assert set(np.unique(drops)) <= {np.floor(p * SAMPLES), np.ceil(p * SAMPLES)}


def test_the_extra_drop_comes_as_often_as_the_rate_needs():
    drops = (1 - designs(0.3)).sum(axis=1)  # 9.6
    share = np.mean(drops == 10)
    assert abs(share - 0.6) < 4 * (0.24 / drops.size) ** 0.5


def test_shared_masks_are_the_same_in_all_rows():
    keep = designs(0.3, rows=3, masks="shared", count=300)
    assert np.array_equal(keep[:, :, 0], keep[:, :, 1]) and np.array_equal(keep[:, :, 0], keep[:, :, 2])
    assert np.abs(z_of_shares(1 - keep[:, :, 0], 0.3)).max() < z_limit(SAMPLES * 4)
    own = designs(0.3, rows=3, count=300)
    assert not np.array_equal(own[:, :, 0], own[:, :, 1])


def test_a_row_is_the_same_alone_or_with_others():
    together = designs(0.3, rows=5, count=20)
    alone = designs(0.3, rows=1, first_row=3, count=20)
    assert np.array_equal(together[:, :, 3:4], alone)


def test_patterns_mark_as_many_places_as_they_should():
    marked, extra = _patterns(pass_keys(0, 0, np.arange(50), 0), 9)
    assert marked.shape == (50, SAMPLES, SAMPLES)
    assert (marked.sum(dim=1) == 9).all() and (marked.sum(dim=2) == 9).all()
    assert (extra.sort(dim=1).values == torch.arange(SAMPLES)).all()  # every unit has its further drop once
    assert not marked.gather(2, extra[..., None]).any()  # in a sample that does not drop it anyway


def test_sites_of_one_rate_follow_one_pattern_and_are_independent():
    """Two layers of the same rate: joint shares of drops of a unit of either are products."""
    model = small_net(1, units=(2, 2), rates=(0.3, 0.3))
    source = source_of(model, INPUT)
    sites = source.program.active
    eye = torch.eye(4, dtype=torch.float64)
    coefficients = [(site, eye[None, :, 2 * i : 2 * i + 2].contiguous()) for i, site in enumerate(sites)]
    drop = (0.3 - _of_rate(source, coefficients, pass_keys(2, 0, np.arange(DESIGNS), 0))).round().numpy()
    z = [z_of_shares(drop[..., a] * drop[..., b], 0.09) for a in (0, 1) for b in (2, 3)]
    assert np.abs(z).max() < z_limit(np.size(z))
    assert np.abs(z_of_shares(drop, 0.3)).max() < z_limit(drop[0].size)


def coarse(source, count, seed=3):
    slopes = linearise(source.sampler, source.program, source.batch)
    rows = CoarseRows.of(slice(0, source.batch.rows), source, slopes)
    keys = pass_keys(seed, 0, np.arange(count), 0)
    return torch.cat(list(cyclic_values(source, rows.expansion, keys))).double().numpy(), rows


class Pixels(nn.Module):
    """Dropout2d, dropout with several units per row along the row axis, and a rate above 0.5."""

    def __init__(self):
        super().__init__()
        self.conv, self.whole, self.out = nn.Conv2d(1, 3, 2), nn.Dropout2d(0.3), nn.Linear(9, 2)
        self.tokens, self.drop = nn.Linear(2, 2), nn.Dropout(0.6)

    def forward(self, x):
        h = self.whole(torch.tanh(self.conv(x.unflatten(1, (1, 2, 4)))))  # (rows, 3, 1, 3)
        h = self.tokens(torch.tanh(self.out(h.flatten(1)))[:, None].expand(-1, 2, -1).reshape(-1, 2))
        return self.drop(h).reshape(len(x), -1)  # rows along the first axis are two per input


@pytest.mark.parametrize("masks", ["independent", "shared"])
def test_the_expansion_on_designs_has_the_moments_of_the_expansion(masks):
    """Mean 0, the known variance and the fourth moment, of a network with whole channels and several rows per input."""
    torch.manual_seed(0)
    source = source_of(Pixels().double().eval(), torch.randn(2, 8, dtype=torch.float64), masks=masks)
    assert [site.row_axis for site in source.program.active] == [0, 0]
    assert source.program.active[1].shape[0] == 2
    values, rows = coarse(source, 3000)
    of_designs = values.reshape(3000, SAMPLES, *values.shape[1:])
    known = rows.expansion.variance.numpy()
    for power, exact in ((1, 0.0), (2, known), (4, _fourth(rows.expansion))):
        means = (of_designs**power).mean(axis=1)
        z = (means.mean(axis=0) - exact) / (means.std(axis=0, ddof=1) / 3000**0.5)
        assert np.abs(z).max() < z_limit(3 * z.size), power
    assert (of_designs.mean(axis=1).var(axis=0) < 0.2 * known / SAMPLES).all()  # main effects cancel


def _fourth(expansion):
    """E G⁴ of a sum of independent terms g ξ: Σ κ4 + 3 (Σ κ2)²."""
    fourth = torch.zeros_like(expansion.variance)
    for site, g in zip(expansion.sites, expansion.gradients, strict=True):
        if g is not None:
            pq = site.p * (1 - site.p)
            fourth = fourth + (g**4).sum(dim=-1) * (pq * (1 - 3 * pq) - 3 * pq**2)
    return (fourth + 3 * expansion.variance**2).numpy()


def test_cyclic_samples_have_the_law_of_the_expansion_at_drawn_masks():
    """All masks of a small network, each with its G: shares of samples of every value against probabilities."""
    model = small_net(1, units=(3, 2), rates=(0.3, 0.6))
    source = source_of(model, INPUT)
    values, rows = coarse(source, 2000)
    bits = torch.tensor([[i >> u & 1 for u in range(5)] for i in range(32)], dtype=torch.uint8)
    masks, start = [], 0
    for site in source.program.sites:
        masks.append(bits[:, start : start + site.units].reshape(32, *site.shape))
        start += site.units
    exact = contract(source.program.sites, masks, rows.expansion.gradients, 1)[:, 0, 0].double().numpy()
    rates = np.repeat([0.3, 0.6], [3, 2])
    weights = np.where(bits.numpy() == 1, 1 - rates, rates).prod(axis=1)
    nearest = np.abs(values.reshape(-1, 1) - exact).argmin(axis=1).reshape(2000, SAMPLES)
    for t in (0, 7, 31):
        shares = np.bincount(nearest[:, t], minlength=32) / 2000
        z = (shares - weights) / np.sqrt(weights * (1 - weights) / 2000)
        assert np.abs(z).max() < z_limit(3 * 32)
