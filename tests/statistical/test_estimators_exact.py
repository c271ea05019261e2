"""Unbiasedness, variances, S² and covariances of the estimators against an enumerated network.

Thousands of runs in one call: with masks="independent" every input row has mask bits of its own, so R
copies of one row are R independent runs of the whole estimator on that input (that the copies are
independent is itself tested, in test_rows_are_independent_runs). Each test makes |z| comparisons with an
error rate of 1 in 1000, corrected for their number; negative controls are rejected by the same functions.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
import pytest
import torch

import mlmc_dropout as md
from mlmc_dropout import theory
from mlmc_dropout.methods.mlmc.coupling import prefix_estimates
from mlmc_dropout.quantities.student import student_factor
from testing.core_oracle import INPUT, limit, tiny_network, truth, z_covariance, z_mean, z_variance

RUNS = 4000
LADDER = (3, 6, 14)
COUNTS = {"decreasing": (14, 8, 4), "mixed": (5, 9, 3)}  # mixed: some replicates skip level 0, as Algorithm 1 allows
MODEL = tiny_network()
EXACT = truth(MODEL)
V = theory.level_variances_mean(LADDER, EXACT.mu2)
W = theory.level_variances_variance(LADDER, EXACT.mu2, EXACT.mu4)


@cache
def runs(levels, counts, seed=1):
    x = torch.full((RUNS, 1), INPUT, dtype=torch.float64)
    return md.estimate(MODEL, x, method="mlmc", ladder=LADDER, counts=COUNTS[counts], levels=levels, seed=seed)


@cache
def passes(count, seed=2):
    """Plain passes (count, RUNS, 2)."""
    x = torch.full((RUNS, 1), INPUT, dtype=torch.float64)
    return md.DropoutSampler(MODEL).sample(x, passes=count, seed=seed).numpy()


def accepted(*z):
    """Whether all z-scores are within the corrected quantile."""
    scores = np.concatenate([np.ravel(part) for part in z])
    return bool(np.abs(scores).max() < limit(len(scores)))


def unbiased(mean, variance):
    return accepted(z_mean(mean, EXACT.mu), z_mean(variance, EXACT.mu2))


def increments_vary_as(dY, dV, level):
    return accepted(z_variance(dY, V[level]), z_variance(dV, W[level]))


cases = pytest.mark.parametrize(("levels", "counts"), [(a, b) for a in ("nested", "independent") for b in COUNTS])


# ------------------------------------------------------------------------------- the trick itself


def test_rows_are_independent_runs():
    """Neighbouring and distant copies of a row are uncorrelated, and so are their squares."""
    z = []
    for lag in (1, 2, 7, 8, 64):
        for power in (1, 2):
            D = (passes(14)[0] - EXACT.mu) ** power
            z.append(z_covariance(D[:-lag], D[lag:], 0.0))
    assert accepted(*z)
    assert not accepted(z_covariance(D, D, 0.0))


def test_passes_have_the_enumerated_moments():
    D = passes(14).reshape(-1, 2)
    assert accepted(z_mean(D, EXACT.mu), z_mean((D - EXACT.mu) ** 2, EXACT.mu2), z_mean((D - EXACT.mu) ** 4, EXACT.mu4))


# --------------------------------------------------------------------------------- single fidelity


@pytest.mark.parametrize("T", [2, 3, 14])
def test_single_fidelity_moments(T):
    D = passes(14)[:T]
    Y, S = D.mean(axis=0), D.var(axis=0, ddof=1)
    assert unbiased(Y, S)
    assert accepted(
        z_variance(Y, theory.variance_of_sample_mean(T, EXACT.mu2)),
        z_variance(S, theory.variance_of_sample_variance(T, EXACT.mu2, EXACT.mu4)),
    )
    assert not unbiased(Y, D.var(axis=0, ddof=0)), "a biased sample variance must be noticed"
    assert not accepted(z_variance(S, theory.variance_of_sample_variance(T, EXACT.mu2))), "so must the closure"


@pytest.mark.parametrize(("coarse", "fine"), [(2, 4), (3, 14), (12, 14)])
def test_covariance_of_nested_sample_variances(coarse, fine):
    D = passes(14)
    a, b = prefix_estimates([D[:coarse], D[coarse:fine]], (coarse, fine))
    expected = theory.covariance_of_nested_variances(fine, coarse, EXACT.mu2, EXACT.mu4)
    np.testing.assert_allclose(expected, theory.variance_of_sample_variance(fine, EXACT.mu2, EXACT.mu4))
    assert accepted(z_covariance(a.V, b.V, expected), z_covariance(a.Y, b.Y, EXACT.mu2 / fine))
    assert not accepted(z_covariance(passes(14, seed=3)[:coarse].var(axis=0, ddof=1), b.V, expected))


def test_pooled_is_the_sample_mean_and_variance():
    x = torch.full((RUNS, 1), INPUT, dtype=torch.float64)
    found = md.estimate(MODEL, x, method="pooled", budget=150, seed=4)
    assert unbiased(found.mean, found.variance)
    w = theory.variance_of_sample_variance(150, EXACT.mu2, EXACT.mu4)
    assert accepted(z_variance(found.mean, EXACT.mu2 / 150), z_variance(found.variance, w))
    assert accepted(z_mean((found.mean_stderr / student_factor(150)) ** 2, EXACT.mu2 / 150))
    D = md.DropoutSampler(MODEL).sample(x[:50], passes=150, seed=4).numpy()
    np.testing.assert_allclose(found.mean[:50], D.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.variance[:50], D.var(axis=0, ddof=1), rtol=1e-10)


# -------------------------------------------------------------------------------------- multilevel


@cases
def test_multilevel_estimators_are_unbiased(levels, counts):
    found = runs(levels, counts)
    assert unbiased(found.mean, found.variance)
    assert not unbiased(found.mean, found.variance * (1 - 1 / LADDER[-1]))  # what ddof 0 at every level expects


@cases
def test_S2_has_the_expectation_of_the_paper(levels, counts):
    found, M = runs(levels, counts), COUNTS[counts]
    assert accepted(
        z_mean(found.S2_mean, theory.expected_S2(V, M)), z_mean(found.S2_variance, theory.expected_S2(W, M))
    )


def true_variance(levels):
    return theory.variance_nested if levels == "nested" else theory.variance_independent


def varies_as(found, formula, M):
    return accepted(z_variance(found.mean, formula(V, M)), z_variance(found.variance, formula(W, M)))


def claims(found, formula, M):
    """Whether the squared standard errors are right on average."""
    return accepted(
        z_mean(found.mean_stderr**2, formula(V, M)),
        z_mean(found.variance_stderr**2, formula(W, M)),
    )


@cases
def test_variance_of_the_multilevel_estimators(levels, counts):
    found, M = runs(levels, counts), COUNTS[counts]
    assert varies_as(found, true_variance(levels), M)
    assert claims(found, true_variance(levels), M)


@pytest.mark.parametrize("counts", COUNTS)
def test_independence_assumed_for_nested_levels_is_rejected(counts):
    found, M = runs("nested", counts), COUNTS[counts]
    assert not varies_as(found, theory.variance_independent, M)
    assert not claims(found, theory.variance_independent, M)
    assert not varies_as(runs("independent", counts), theory.variance_nested, M)


@cases
def test_every_covariance_of_the_level_means(levels, counts):
    """Nested: Cov[level 0, Δ_ℓ] = −v_ℓ/max(M_0, M_ℓ), the rest 0. Independent: all 0."""
    found, M = runs(levels, counts), COUNTS[counts]
    z = []
    for (k, a), (j, b) in combinations(enumerate(found.levels), 2):
        shared = float(levels == "nested" and k == 0) / max(M[0], M[j])
        z.append(z_covariance(a.mean, b.mean, -V[j] * shared))
        z.append(z_covariance(a.mean_V, b.mean_V, -W[j] * shared))
    assert accepted(*z)


@cases
def test_level_statistics(levels, counts):
    """Means 0 above level 0, unbiased sample variances v_ℓ and w_ℓ, and the telescoping sum."""
    found, M = runs(levels, counts), COUNTS[counts]
    for index, level in enumerate(found.levels):
        first = float(index == 0)
        assert level.count == M[index] and level.fidelity == LADDER[index]
        assert accepted(z_mean(level.mean, first * EXACT.mu), z_mean(level.mean_V, first * EXACT.mu2))
        assert accepted(z_mean(level.variance, V[index]), z_mean(level.variance_V, W[index]))
        assert (level.telescoping is None) == (index == 0)
    np.testing.assert_allclose(sum(level.mean for level in found.levels), found.mean, rtol=1e-12)
    np.testing.assert_allclose(sum(level.mean_V for level in found.levels), found.variance, rtol=1e-10)


# ------------------------------------------------------------------------- increments and coupling


@pytest.mark.parametrize("level", [1, 2])
def test_coupled_increments_and_uncoupled_ones(level):
    """One replicate's increment has variance v_ℓ; with a coarse estimate from other passes it does not."""
    coarse, fine = LADDER[level - 1], LADDER[level]
    a, b = prefix_estimates([passes(14)[:coarse], passes(14)[coarse:fine]], (coarse, fine))
    assert increments_vary_as(b.Y - a.Y, b.V - a.V, level)
    (other,) = prefix_estimates([passes(14, seed=3)[:coarse]], (coarse,))
    assert not increments_vary_as(b.Y - other.Y, b.V - other.V, level)


def test_the_gaussian_closure_is_exact_for_gaussian_passes():
    D = np.random.default_rng(5).normal(size=(16, 20_000, 1))
    a, b = prefix_estimates([D[:4], D[4:]], (4, 16))
    w = theory.level_variances_variance((4, 16))
    assert accepted(z_variance(a.V, w[0]), z_variance(b.V - a.V, w[1]))


def test_telescoping_check_sees_a_broken_level():
    """Giles' check is below 1 for a sound run and above it when increments do not belong to their values."""
    from mlmc_dropout.methods.mlmc.summary import _telescoping
    from mlmc_dropout.moments import MomentBlock

    D = passes(14)[:, :200]
    a, b = prefix_estimates([D[:6], D[6:]], (6, 14))
    fine, coarse = MomentBlock.of(b.Y), MomentBlock.of(a.Y)
    assert _telescoping(MomentBlock.of(b.Y - a.Y), fine, coarse) < 1
    assert _telescoping(MomentBlock.of(b.Y - a.Y + 1.0), fine, coarse) > 1
    broken = [level for level in runs("nested", "decreasing").levels[1:] if level.telescoping > 1]
    assert not broken
