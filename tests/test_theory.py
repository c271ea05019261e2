"""Closed forms against each other, against special cases, and the simulated table of what estimators are worth.

Against simulation they are tested in tests/statistical/test_estimators_exact.py.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmc_dropout import theory

ladders = st.lists(st.integers(2, 20), min_size=1, max_size=6).map(lambda steps: tuple(np.cumsum(steps).tolist()))
moments = st.floats(0.01, 10).flatmap(lambda m: st.tuples(st.just(m), st.floats(1.0, 20).map(lambda k: k * m * m)))


@st.composite
def plans(draw):
    ladder = draw(ladders)
    return ladder, tuple(draw(st.lists(st.integers(2, 50), min_size=len(ladder), max_size=len(ladder))))


def by_definition(ladder, counts, covariance):
    """Var of 𝒴 under Algorithm 1 from the covariances of all (replicate, fidelity) pairs, without any theorem.

    ``covariance(a, b)`` is that of a replicate's estimates with a and b passes; replicates are independent.
    """
    total = 0.0
    for m in range(max(counts)):
        weight = dict.fromkeys(ladder, 0.0)
        for level, M in enumerate(counts):
            if m < M:
                weight[ladder[level]] += 1 / M
                if level:
                    weight[ladder[level - 1]] -= 1 / M
        total += sum(weight[a] * weight[b] * covariance(a, b) for a in ladder for b in ladder)
    return total


@given(plans(), moments)
def test_nested_variance_by_definition(plan, moment):
    """The estimator is linear in the replicates' estimates; its variance follows from their covariances alone."""
    (ladder, counts), (mu2, mu4) = plan, moment
    v = theory.level_variances_mean(ladder, mu2)
    expected = by_definition(ladder, counts, lambda a, b: mu2 / max(a, b))
    assert theory.variance_nested(v, counts) == pytest.approx(expected, rel=1e-9)
    w = theory.level_variances_variance(ladder, mu2, mu4)
    expected = by_definition(
        ladder, counts, lambda a, b: float(theory.covariance_of_nested_variances(max(a, b), min(a, b), mu2, mu4))
    )
    assert theory.variance_nested(w, counts) == pytest.approx(expected, rel=1e-7, abs=1e-12 * mu2**2)


@given(plans(), moments)
def test_the_form_used_for_standard_errors_is_the_same(plan, moment):
    """Var Y(T_L)/M_0 + Σ v_ℓ |1/M_ℓ − 1/M_0| is variance_nested, term by term non-negative."""
    (ladder, counts), (mu2, mu4) = plan, moment
    for v, last in (
        (theory.level_variances_mean(ladder, mu2), mu2 / ladder[-1]),
        (
            theory.level_variances_variance(ladder, mu2, mu4),
            theory.variance_of_sample_variance(ladder[-1], mu2, mu4),
        ),
    ):
        other = last / counts[0] + sum(x * abs(1 / M - 1 / counts[0]) for x, M in zip(v[1:], counts[1:], strict=True))
        assert theory.variance_nested(v, counts) == pytest.approx(float(other), rel=1e-8, abs=1e-12 * mu2**2)


@given(ladders, moments, st.integers(2, 100))
def test_equal_counts_are_plain_monte_carlo_over_replicates(ladder, moment, M):
    mu2, mu4 = moment
    counts = (M,) * len(ladder)
    v, w = theory.level_variances_mean(ladder, mu2), theory.level_variances_variance(ladder, mu2, mu4)
    assert theory.variance_nested(v, counts) == pytest.approx(mu2 / (M * ladder[-1]), rel=1e-9)
    expected = theory.variance_of_sample_variance(ladder[-1], mu2, mu4) / M
    assert theory.variance_nested(w, counts) == pytest.approx(float(expected), rel=1e-7, abs=1e-12 * mu2**2)


@given(plans(), moments)
def test_plain_monte_carlo_is_never_beaten(plan, moment):
    """Finding A: at equal passes nobody's variance is below the pooled one."""
    (ladder, counts), (mu2, mu4) = plan, moment
    v, w = theory.level_variances_mean(ladder, mu2), theory.level_variances_variance(ladder, mu2, mu4)
    for levels, variance in (("nested", theory.variance_nested), ("independent", theory.variance_independent)):
        c = theory.cost_spent(ladder, counts, levels)
        assert variance(v, counts) >= theory.variance_of_sample_mean(c, mu2) * (1 - 1e-9)
        floor = theory.variance_of_sample_variance(c, mu2, mu4)
        assert variance(w, counts) >= floor - 1e-9 * (abs(floor) + mu2**2)


@given(ladders, moments)
def test_level_variances_telescope(ladder, moment):
    """Var Δ_ℓ = Var_{ℓ−1} − Var_ℓ, so that level 0 and the corrections differ by the finest variance."""
    mu2, mu4 = moment
    v, w = theory.level_variances_mean(ladder, mu2), theory.level_variances_variance(ladder, mu2, mu4)
    assert v[0] - v[1:].sum() == pytest.approx(mu2 / ladder[-1], rel=1e-9)
    finest = theory.variance_of_sample_variance(ladder[-1], mu2, mu4)
    assert w[0] - w[1:].sum() == pytest.approx(float(finest), rel=1e-7, abs=1e-12 * mu2**2)


@given(st.integers(2, 50), st.integers(0, 50), moments)
def test_covariance_lemma_is_the_finer_variance(coarse, extra, moment):
    mu2, mu4 = moment
    fine = coarse + extra
    lemma = theory.covariance_of_nested_variances(fine, coarse, mu2, mu4)
    assert lemma == pytest.approx(float(theory.variance_of_sample_variance(fine, mu2, mu4)), rel=1e-9, abs=1e-12)


def test_sample_variance_of_a_fair_coin():
    """Two values ±1: V(2) is 0 or 2 with equal probability, so its variance is 1; the closure says 2."""
    assert theory.variance_of_sample_variance(2, 1.0, 1.0) == 1.0
    assert theory.variance_of_sample_variance(2, 1.0) == 2.0


def test_the_table_of_finding_A():
    """Ladder (4, 8, 16), M = (103, 73, 37), Gaussian passes: variance × 1000, simulated before the code was written."""
    ladder, M = (4, 8, 16), (103, 73, 37)
    v, w = theory.level_variances_mean(ladder), theory.level_variances_variance(ladder)
    assert theory.cost_coupled(ladder, M) == 1000
    assert 1000 * theory.variance_nested(v, M) == pytest.approx(2.17, abs=0.02)
    assert 1000 * theory.variance_nested(w, M) == pytest.approx(5.44, abs=0.06)
    assert 1000 * theory.expected_S2(v, M) == pytest.approx(5.83, abs=0.01)
    assert 1000 * theory.expected_S2(w, M) == pytest.approx(15.85, abs=0.05)
    assert theory.variance_independent is theory.expected_S2


def test_costs():
    ladder = (4, 8, 16)
    assert theory.cost_coupled(ladder, (10, 5, 2)) == 4 * 10 + 4 * 5 + 8 * 2
    assert theory.cost_uncoupled(ladder, (10, 5, 2)) == 4 * 10 + 8 * 5 + 16 * 2
    assert theory.cost_spent(ladder, (10, 5, 2), "nested") == theory.cost_coupled(ladder, (10, 5, 2))
    assert theory.cost_spent(ladder, (2, 5, 10), "nested") == 160
    assert theory.cost_spent(ladder, (10, 5, 2), "independent") == theory.cost_uncoupled(ladder, (10, 5, 2))


@given(plans())
def test_cost_spent_counts_every_pass_of_the_deepest_level(plan):
    ladder, counts = plan
    deepest = [max(T for T, M in zip(ladder, counts, strict=True) if m < M) for m in range(max(counts))]
    assert theory.cost_spent(ladder, counts, "nested") == sum(deepest)


@given(ladders, st.floats(10, 1e6))
def test_optimal_counts_are_stationary(ladder, budget):
    """They use up the budget, and moving passes between levels never helps."""
    v, a = theory.level_variances_mean(ladder), theory.cost_per_replicate(ladder, "coupled")
    M = theory.optimal_counts(v, a, budget)
    assert a @ M == pytest.approx(budget)
    marginal = v / M**2 / a  # decrease of the objective per pass: the same at all levels
    np.testing.assert_allclose(marginal, marginal[0], rtol=1e-9)


def test_moments_may_be_arrays():
    mu2, mu4 = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), np.full((3, 2), 200.0)
    w = theory.level_variances_variance((4, 8, 16), mu2, mu4)
    assert w.shape == (3, 3, 2)
    for i, j in np.ndindex(3, 2):
        np.testing.assert_allclose(w[:, i, j], theory.level_variances_variance((4, 8, 16), mu2[i, j], mu4[i, j]))
        one = theory.variance_nested(w[:, i, j], (9, 5, 3))
        assert theory.variance_nested(w, (9, 5, 3))[i, j] == pytest.approx(float(one))
    np.testing.assert_allclose(theory.closure(mu2), 3 * mu2**2)


# ---------------------------------------------------------------- the appendix, by enumeration

VALUES, CHANCES = np.array([0.0, 1.0, 5.0]), np.array([0.2, 0.5, 0.3])  # skew, so that nothing vanishes by symmetry
MU = float(VALUES @ CHANCES)
MU2, MU4 = (float((VALUES - MU) ** k @ CHANCES) for k in (2, 4))


def expectation(T, statistic):
    """E of a function of T independent draws, over all 3^T outcomes."""
    total = 0.0
    for outcome in product(range(3), repeat=T):
        total += float(np.prod(CHANCES[list(outcome)])) * float(statistic(VALUES[list(outcome)]))
    return total


@pytest.mark.parametrize("T", [2, 3, 5])
def test_appendix_identities(T):
    square = lambda d: (d.mean() - MU) ** 2  # noqa: E731
    V = lambda d: d.var(ddof=1)  # noqa: E731
    by_enumeration = {
        theory.squared_mean_times_squares: expectation(T, lambda d: square(d) * ((d - MU) ** 2).sum()),
        theory.fourth_moment_of_mean: expectation(T, lambda d: square(d) ** 2),
        theory.squared_mean_times_variance: expectation(T, lambda d: square(d) * V(d)),
        theory.covariance_of_squared_mean_and_variance: expectation(T, lambda d: square(d) * (V(d) - MU2)),
        theory.variance_of_sample_variance: expectation(T, lambda d: (V(d) - MU2) ** 2),
    }
    for form, exact in by_enumeration.items():
        assert float(form(T, MU2, MU4)) == pytest.approx(exact, rel=1e-12), form.__name__
        assert float(form(T, MU2)) != pytest.approx(exact, rel=1e-3), "the closure is no identity"


@given(st.integers(2, 500), moments)
def test_the_fourth_moment_is_found_again(T, moment):
    mu2, mu4 = moment
    assert float(theory.fourth_moment(T, mu2, theory.variance_of_sample_variance(T, mu2, mu4))) == pytest.approx(
        mu4, rel=1e-6
    )


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=12), st.data())
def test_updated_variance_is_that_of_all_passes(values, data):
    passes = np.asarray(values)
    T = data.draw(st.integers(2, len(passes) - 1))
    first, new = passes[:T], passes[T:]
    variance = new.var(ddof=1) if len(new) > 1 else np.nan
    got = theory.updated_variance(T, first.mean(), first.var(ddof=1), len(new), new.mean(), variance)
    assert float(got) == pytest.approx(passes.var(ddof=1), rel=1e-9, abs=1e-12)


def test_equal_counts_are_plain_for_the_mean_but_not_for_the_variance():
    ladder, counts = (4, 8, 16), (62, 62, 62)
    assert float(theory.variance_nested(theory.level_variances_mean(ladder), counts)) == pytest.approx(1 / 992)
    nested = theory.variance_nested(theory.level_variances_variance(ladder), counts)
    assert float(nested / theory.variance_of_sample_variance(992, 1.0)) == pytest.approx(1.066, abs=5e-4)


@given(plans(), moments)
def test_no_counts_beat_equal_ones_at_the_same_passes(plan, moment):
    """Variance × passes of Algorithm 1 is least at equal counts, where it is T_L times that of T_L passes."""
    (ladder, counts), (mu2, mu4) = plan, moment
    passes, top = theory.cost_spent(ladder, counts, "nested"), ladder[-1]
    for levels, equal in (
        (theory.level_variances_mean(ladder, mu2), theory.variance_of_sample_mean(top, mu2)),
        (theory.level_variances_variance(ladder, mu2, mu4), theory.variance_of_sample_variance(top, mu2, mu4)),
    ):
        assert passes * theory.variance_nested(levels, counts) >= top * equal * (1 - 1e-9) - 1e-12


@given(plans(), moments)
def test_coupling_reduces_every_level_variance(plan, moment):
    """Increments from separate passes have larger variances, and cost more."""
    (ladder, counts), (mu2, mu4) = plan, moment
    for target, coupled in (
        ("mean", theory.level_variances_mean(ladder, mu2)),
        ("variance", theory.level_variances_variance(ladder, mu2, mu4)),
    ):
        apart = theory.level_variances_uncoupled(ladder, target, mu2, mu4)
        assert apart[0] == pytest.approx(coupled[0])
        assert np.all(apart[1:] >= coupled[1:] * (1 - 1e-9))
    costs = [theory.cost_spent(ladder, counts, levels) for levels in ("independent", "uncoupled")]
    assert costs[1] - costs[0] == sum(T * M for T, M in zip(ladder, counts[1:], strict=False))
