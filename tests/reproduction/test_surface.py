"""S² over all allocations, against direct computation."""

from __future__ import annotations

import numpy as np
import pytest

import mlmc_dropout as md
from mlmc_dropout.reproduction import surface
from testing.small_surrogates import forward

LADDER = (4, 8, 16)


def test_feasible_counts_are_all_there_are() -> None:
    counts = surface.feasible(LADDER, 120)
    by_hand = [
        (M0, M1, M2)
        for M0 in range(2, 31)
        for M1 in range(2, 31)
        for M2 in range(2, 16)
        if 4 * M0 + 4 * M1 + 8 * M2 == 120
    ]
    assert sorted(map(tuple, counts.tolist())) == sorted(by_hand)


def test_surface_is_the_papers_S2() -> None:
    """For one allocation: norms over prefixes equal S² formed from the same passes directly."""
    surrogate, most = forward(), [20, 14, 9]
    norms = surface.level_norms(surrogate, LADDER, most, seed=3, stream=1)["u"]
    passes = md.DropoutSampler(surrogate.model).sample(surrogate.x, 20 * 16, seed=3, stream=1)
    D = passes.double().numpy().reshape(16, 20, 200)
    counts = (17, 11, 6)
    for key, statistic in (("Y", lambda d: d.mean(axis=0)), ("V", lambda d: d.var(axis=0, ddof=1))):
        values = [statistic(D[:T]) for T in LADDER]
        deltas = [values[0], values[1] - values[0], values[2] - values[1]]
        S2 = sum(d[:M].var(axis=0, ddof=1) / M for d, M in zip(deltas, counts, strict=True))
        got = surface.surface(norms[key], np.array([counts]))[0]
        assert got == pytest.approx(np.abs(S2).sum() / 199, rel=1e-6)


def test_expected_surface_has_its_optimum_where_theory_says() -> None:
    counts = surface.feasible(LADDER, 1000)
    v = md.theory.level_variances_mean(LADDER)
    optimum = surface.best(md.theory.expected_S2(v, counts.astype(float)), counts)
    assert optimum.single == (104, 72, 37) or optimum.single == (103, 73, 37)
    assert optimum.centre == pytest.approx(md.allocate(md.Ladder(LADDER), 1000).continuous, abs=0.5)


def test_real_variance_is_least_at_equal_counts() -> None:
    counts = surface.feasible(LADDER, 1000)
    v = md.theory.level_variances_mean(LADDER).tolist()
    optimum = surface.best(surface.nested_surface(v, LADDER, 1000), counts)
    assert max(optimum.single) - min(optimum.single) <= 1


def test_locate_covers_the_optimum_and_excludes_the_printed_one() -> None:
    """Gaussian increments with the level variances of theory: the simultaneous interval must hold the optimum."""
    counts = surface.feasible(LADDER, 1000)
    most = counts.max(axis=0)
    v = md.theory.level_variances_mean(LADDER)
    generator = np.random.default_rng(0)
    repetitions = [
        [
            surface.prefix_variances(generator.normal(size=(m, 200)) * np.sqrt(s)).tolist()
            for m, s in zip(most, v, strict=True)
        ]
        for _ in range(8)
    ]
    located = surface.locate(repetitions, counts, comparisons=4)
    truth = surface.best(md.theory.expected_S2(v, counts.astype(float)), counts).centre
    for level in (1, 2):
        assert located["low"][level] <= truth[level] <= located["high"][level]
    assert located["low"][1] > 1000 / 24 and located["low"][2] > 1000 / 48
