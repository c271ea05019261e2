"""The masks every site of the zoo sees: rate, and independence across units, rows, passes and sites.

Each comparison gives a chi-square; the whole file makes a false alarm once in a thousand seeds
(Bonferroni over the number of comparisons). The seed is fixed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy import stats

from mlmc_dropout import DropoutSampler
from mlmc_dropout.sampling.masks import bernoulli, derive, latin_hypercube, pass_keys
from testing.zoo import NAMES, ZOO

ERROR_RATE = 1e-3
COMPARISONS = 2000  # an upper bound on all the comparisons below
LEVEL = ERROR_RATE / COMPARISONS
PASSES = 800

pytestmark = pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning")


def p_values(keep: torch.Tensor, p: float) -> Iterator[tuple[str, float]]:
    """Tests of keep bits (passes, rows, units) against independent Bernoulli(1 − p)."""
    k = keep.double().numpy()
    z = (k - (1 - p)) / np.sqrt(p * (1 - p))
    yield "rate", stats.chi2.sf(z.sum() ** 2 / z.size, 1)
    yield "rate of each unit", stats.chi2.sf((z.sum(axis=0) ** 2 / len(z)).sum(), z[0].size)
    for lag in (1, 8):  # eight units share a random word
        if z.shape[2] > lag:
            yield f"units {lag} apart", pair(z[:, :, lag:], z[:, :, :-lag])
    if z.shape[1] > 1:
        yield "neighbouring rows", pair(z[:, 1:], z[:, :-1])
    yield "neighbouring passes", pair(z[1:], z[:-1])
    drops = (1 - k).sum(axis=(1, 2))
    units = z[0].size
    yield "spread of the drops per pass", two_sided(((drops - units * p) ** 2).sum() / (units * p * (1 - p)), len(z))


def pair(a: np.ndarray, b: np.ndarray) -> float:
    """No correlation: Σ ab has variance n."""
    return float(stats.chi2.sf((a * b).sum() ** 2 / a.size, 1))


def two_sided(chi2: float, df: int) -> float:
    return 2 * min(stats.chi2.sf(chi2, df), stats.chi2.cdf(chi2, df))


def masks_of(name: str, seed: int = 0) -> list[tuple[str, float, torch.Tensor]]:
    """(site, p, keep (passes, rows, units)) of every active site, from the sampler itself."""
    model, x = ZOO[name].make()
    sampler = DropoutSampler(model)
    batch = next(sampler.batches(x))
    keys = pass_keys(seed, 0, 0, range(PASSES))
    out = []
    for site in sampler.prepare(batch).active:
        keep = sampler.draw(site, keys, batch.rows, 0)
        assert keep is not None
        if site.row_axis is None:
            out.append((site.name, site.p, keep.reshape(PASSES, 1, -1)))
        else:
            rows = keep.unflatten(site.row_axis + 1, (batch.rows, -1)).movedim(site.row_axis + 1, 1)
            out.append((site.name, site.p, rows.flatten(2)))
    return out


@pytest.mark.parametrize("name", NAMES)
def test_every_site_of_the_zoo(name: str) -> None:
    sites = masks_of(name)
    for label, p, keep in sites:
        for what, value in p_values(keep, p):
            assert value > LEVEL, (label, what, value)
    for (one, p, a), (two, q, b) in itertools.combinations(sites, 2):
        n = min(a[0].numel(), b[0].numel())
        za = (a.reshape(PASSES, -1)[:, :n].double() - (1 - p)) / (p * (1 - p)) ** 0.5
        zb = (b.reshape(PASSES, -1)[:, :n].double() - (1 - q)) / (q * (1 - q)) ** 0.5
        assert pair(za.numpy(), zb.numpy()) > LEVEL, (one, two)


@pytest.mark.parametrize("p", [0.1, 0.003, 0.5, 1 / 3, 0.999, 0.25])
def test_rates_on_and_off_the_grid_of_bytes(p: float) -> None:
    keep = bernoulli(pass_keys(5, 0, 0, range(2000)), units=37, p=p, rows=30)
    for what, value in p_values(keep, p):
        assert value > LEVEL, (what, value)


def test_rate_is_not_rounded_to_a_grid() -> None:
    """A rate of 0.1 is 25.6/256; on a grid of bytes it would be off by 0.0016 or 0.0023. Ten million units see that."""
    units, p = 10_000_000, 0.1
    drops = units - int(bernoulli(pass_keys(1, 0, 0, range(1000)), units // 1000, p).sum())
    z = (drops - units * p) / (units * p * (1 - p)) ** 0.5
    assert abs(z) < stats.norm.isf(LEVEL / 2)
    for rounded in (25 / 256, 26 / 256):  # the negative control
        assert abs(drops - units * rounded) / (units * p * (1 - p)) ** 0.5 > 15


def test_all_patterns_of_eight_units_are_equally_likely() -> None:
    """Independence of all orders within a random word, p = 1/2: 256 patterns."""
    keep = bernoulli(pass_keys(2, 0, 0, range(200)), units=8, p=0.5, rows=1000).reshape(-1, 8).numpy()
    counts = np.bincount(np.packbits(keep, axis=1).ravel(), minlength=256)
    assert stats.chisquare(counts).pvalue > LEVEL


def test_undecided_units_are_independent_of_their_word() -> None:
    """With p = 1/512 every drop is decided by the second word; pairs in one word must still be independent."""
    keep = bernoulli(pass_keys(3, 0, 0, range(4000)), units=64, p=1 / 512, rows=16)
    for what, value in p_values(keep, 1 / 512):
        assert value > LEVEL, (what, value)


# ----------------------------------------------------------------------------- negative controls


def rejected(keep: torch.Tensor, p: float) -> set[str]:
    return {what for what, value in p_values(keep, p) if value <= LEVEL}


def test_controls_are_rejected() -> None:
    keys = pass_keys(0, 0, 0, range(PASSES))
    good = bernoulli(keys, 24, 0.2, rows=8)
    assert not rejected(good, 0.2)
    assert "rate" in rejected(bernoulli(keys, 24, 0.21, rows=8), 0.2)
    assert "neighbouring rows" in rejected(bernoulli(keys, 24, 0.2).expand(-1, 8, -1), 0.2)
    assert "neighbouring passes" in rejected(bernoulli(keys[::2].repeat_interleave(2), 24, 0.2, 8), 0.2)
    assert "units 1 apart" in rejected(good[..., ::2].repeat_interleave(2, dim=2), 0.2)
    whole = latin_hypercube(pass_keys(0, 0, 0, range(PASSES // 20)), 20, 24, 0.2, rows=8).flatten(0, 1)
    assert rejected(whole, 0.2)  # stratified passes are not independent


def test_masks_reused_across_sites_are_rejected() -> None:
    keys = pass_keys(0, 0, 0, range(PASSES))
    a, b = bernoulli(derive(keys, 0), 24, 0.2), bernoulli(derive(keys, 0), 24, 0.2)
    assert pair(((a - 0.8) / 0.4).numpy(), ((b - 0.8) / 0.4).numpy()) < LEVEL


# ------------------------------------------------------------------------------------- designs


@pytest.mark.parametrize(("T", "p"), [(20, 0.1), (10, 0.25), (7, 0.5), (5, 0.9), (16, 0.33)])
def test_designs_have_the_law_of_latin_hypercube_sampling(T: int, p: float) -> None:
    designs = 400
    keep = latin_hypercube(pass_keys(4, 0, 0, range(designs)), T, 40, p, rows=3)
    drops = (T - keep.sum(dim=1, dtype=torch.int64)).flatten().numpy()
    low = int(np.floor(p * T + 1e-12))
    assert set(drops) <= {low, low + 1}
    chance = p * T - low
    if 1e-9 < chance < 1 - 1e-9:
        assert stats.binomtest(int((drops > low).sum()), drops.size, chance).pvalue > LEVEL
    for t in range(T):  # each single pass has the law of independent units
        z = (keep[:, t].double() - (1 - p)) / (p * (1 - p)) ** 0.5
        assert stats.chi2.sf(z.sum() ** 2 / z.numel(), 1) > LEVEL
    if abs(p * T - round(p * T)) < 1e-9 and 1 < round(p * T) < T:  # all subsets of that size equally likely: pairs
        pairs = np.einsum("dtu,dsu->ts", 1.0 - keep.flatten(2).numpy(), 1.0 - keep.flatten(2).numpy())
        k, n = round(p * T), drops.size
        q = k * (k - 1) / (T * (T - 1))
        off = pairs[np.triu_indices(T, 1)]
        assert np.abs((off - n * q) / np.sqrt(n * q * (1 - q))).max() < stats.norm.isf(LEVEL / 2)
