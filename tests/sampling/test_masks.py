"""Masks follow from the names of passes, and from nothing else."""

from __future__ import annotations

import pytest
import torch

from mlmc_dropout.sampling import masks
from mlmc_dropout.sampling.masks import (
    bernoulli,
    bernoulli_of_sites,
    derive,
    designs_of_sites,
    latin_hypercube,
    pass_keys,
    words,
)


def test_words_are_splitmix64() -> None:
    """The first outputs of the published generator with seed 1234567."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    drawn = words(torch.tensor([1234567]), 4, first=1)[0].tolist()
    assert [w % (1 << 64) for w in drawn] == expected


def test_keys_differ_in_every_part_of_the_name() -> None:
    names = [(s, t, r, i) for s in (0, 1, 1 << 70) for t in (0, 1) for r in (0, 1, 2) for i in (0, 1, 2)]
    keys = {int(pass_keys(*name)) for name in names}
    assert len(keys) == len(names)
    grid = pass_keys(0, 0, torch.arange(3)[:, None].numpy(), torch.arange(4).numpy())
    assert int(grid[2, 3]) == int(pass_keys(0, 0, 2, 3))


def test_derive_takes_numbers_and_tensors_alike() -> None:
    keys = pass_keys(3, 0, 0, range(5))
    for tag in (0, 7, -1, 1 << 40):
        assert torch.equal(derive(keys, tag), derive(keys, torch.tensor(tag)))
    assert not torch.equal(derive(keys, 0), keys)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.003])
@pytest.mark.parametrize("units", [1, 7, 8, 20])
def test_passes_and_rows_may_be_drawn_in_any_pieces(p: float, units: int) -> None:
    keys = pass_keys(0, 0, 0, range(30))
    whole = bernoulli(keys, units, p, rows=40)
    assert whole.shape == (30, 40, units) and whole.max() == 1
    by_pass = torch.cat([bernoulli(part, units, p, rows=40) for part in keys.split(7)])
    by_row = torch.cat([bernoulli(keys, units, p, rows=n, first_row=a) for a, n in ((0, 1), (1, 30), (31, 9))], dim=1)
    assert torch.equal(whole, by_pass) and torch.equal(whole, by_row)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.77])
def test_designs_may_be_drawn_in_any_pieces(p: float) -> None:
    keys = pass_keys(0, 0, 0, range(6))
    whole = latin_hypercube(keys, 10, 5, p, rows=8)
    assert torch.equal(whole, torch.cat([latin_hypercube(k, 10, 5, p, rows=8) for k in keys.split(1)]))
    parts = [latin_hypercube(keys, 10, 5, p, rows=n, first_row=a) for a, n in ((0, 3), (3, 5))]
    assert torch.equal(whole, torch.cat(parts, dim=2))


def test_extreme_rates() -> None:
    keys = pass_keys(0, 0, 0, range(100))
    assert bernoulli(keys, 50, 0.0).min() == 1
    assert bernoulli(keys, 50, 1.0).max() == 0
    assert bernoulli(keys, 50, 1e-12).min() == 1


def test_global_generators_are_not_touched() -> None:
    before = torch.random.get_rng_state()
    bernoulli(pass_keys(0, 0, 0, range(10)), 100, 0.1)
    latin_hypercube(pass_keys(0, 0, 0, range(10)), 10, 100, 0.1)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_contract_is_frozen() -> None:
    """A pass's masks are part of a result's name: this changes only with the major version."""
    keep = bernoulli(derive(pass_keys(42, 1, 2, [3]), 0), 24, 0.3, rows=2)
    assert "".join(map(str, keep.flatten().tolist())) == FROZEN
    design = latin_hypercube(pass_keys(42, 1, 2, [3]), 5, 6, 0.4)
    assert "".join(map(str, design.flatten().tolist())) == FROZEN_DESIGN


@pytest.mark.parametrize(("passes", "p"), [(10, 0.1), (2, 0.1), (3, 0.3), (2, 0.7), (64, 1 / 64), (1, 0.4)])
@pytest.mark.parametrize("first_row", [2, torch.tensor([1, 4, 5])])
def test_designs_with_at_most_one_drop_have_the_bits_of_the_general_rule(passes, p, first_row, monkeypatch):
    keys = pass_keys(6, 1, 0, range(40))
    compared = latin_hypercube(keys, passes, 13, p, 3, first_row)
    monkeypatch.setattr(masks, "_COMPARED", 0)
    assert torch.equal(compared, latin_hypercube(keys, passes, 13, p, 3, first_row))


FROZEN = "011111111101001110010111111011101111101111111111"
FROZEN_DESIGN = "111111011100100000101011010111"


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.999])
def test_sites_drawn_together_have_the_bits_of_sites_drawn_alone(p):
    keys, rows = pass_keys(5, 1, 0, range(6)), torch.tensor([3, 7, 8])
    sites = [(0, 13, 4, 2), (2, 64, 1, 0), (7, 1, 3, rows)]
    for (tag, units, count, first), together in zip(sites, bernoulli_of_sites(keys, p, sites), strict=True):
        assert torch.equal(together, bernoulli(derive(keys, tag), units, p, count, first))


@pytest.mark.parametrize("T", [1, 4, 20])
def test_designs_of_sites_drawn_together_have_the_bits_of_sites_drawn_alone(T):
    keys = pass_keys(3, 0, 0, range(5))
    sites = [(tag, 7, 3, 2) for tag in (0, 4)]
    for (tag, units, rows, first), together in zip(sites, designs_of_sites(keys, T, 0.3, sites), strict=True):
        alone = latin_hypercube(derive(keys, tag), T, units, 0.3, rows, first)
        assert torch.equal(together, alone.flatten(0, 1))


def test_few_words_are_mixed_as_many_are(monkeypatch):
    keys = pass_keys(7, 1, range(4), 9)
    few = words(keys, 100), derive(keys[0], 5), pass_keys(7, 1, range(4), 9)
    monkeypatch.setattr(masks, "_FEW", -1)
    many = words(keys, 100), derive(keys[0], 5), pass_keys(7, 1, range(4), 9)
    for one, other in zip(few, many, strict=True):
        assert torch.equal(one, other)
