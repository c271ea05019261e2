"""The four allocations, and integer counts that are feasible, affordable and locally best."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlmc_dropout as md
from mlmc_dropout import theory
from mlmc_dropout.errors import AllocationError, InputError, LadderError
from mlmc_dropout.methods.mlmc.allocation import check_counts

TARGETS, COSTS = ("mean", "variance"), ("coupled", "uncoupled")
LADDER = md.Ladder((4, 8, 16))


@pytest.mark.parametrize(
    ("target", "cost", "expected"),
    [
        ("mean", "coupled", (103.55, 73.22, 36.61)),
        ("variance", "coupled", (102.79, 77.71, 34.75)),
        ("mean", "uncoupled", (83.33, 41.67, 20.83)),
        ("variance", "uncoupled", (82.64, 44.17, 19.76)),
    ],
)
def test_the_four_allocations(target, cost, expected):
    """As printed; the paper has the fourth, for a cost that it calls coupled."""
    plan = md.allocate(LADDER, budget=1000, target=target, cost=cost)
    np.testing.assert_allclose(plan.continuous, expected, atol=0.006)  # 77.7048 and 19.7544 are printed rounded up
    assert plan.cost <= 1000
    np.testing.assert_allclose(plan.counts, expected, atol=1.5)


def test_the_variance_allocation_in_surds():
    """By hand: w = (2/3, 8/21, 16/105) and M_ℓ ∝ √(w_ℓ/a_ℓ)."""
    for cost, a in (("coupled", (4, 4, 8)), ("uncoupled", (4, 8, 16))):
        root = np.sqrt(np.array([2 / 3, 8 / 21, 16 / 105]))
        exact = 1000 * root / np.sqrt(a) / (root * np.sqrt(a)).sum()
        np.testing.assert_allclose(md.allocate(LADDER, 1000, "variance", cost).continuous, exact, rtol=1e-12)


# --------------------------------------------------------------------------------- integer counts


def objective(ladder, target, moments=None):
    mu2, mu4 = (1.0, None) if moments is None else (moments.mu2, moments.mu4)
    if target == "mean":
        return theory.level_variances_mean(ladder, mu2)
    return theory.level_variances_variance(ladder, mu2, mu4)


def better_neighbour(plan, moments=None):
    """A feasible point with every count changed by at most one that beats the plan, by brute force."""
    v = objective(plan.ladder.fidelities, plan.target, moments)
    a = theory.cost_per_replicate(plan.ladder.fidelities, plan.cost_model)
    moves = np.array(list(product((-1, 0, 1), repeat=len(plan.counts))))
    points = np.array(plan.counts) + moves
    points = points[(points >= 2).all(axis=1) & (points @ a <= plan.budget)]
    values = (v / points).sum(axis=1)
    here = (v / np.array(plan.counts)).sum()
    return points[values.argmin()] if values.min() < here * (1 - 1e-9) else None


def check(plan, moments=None):
    a = theory.cost_per_replicate(plan.ladder.fidelities, plan.cost_model)
    assert all(type(m) is int and m >= 2 for m in plan.counts)
    assert plan.cost == a @ np.array(plan.counts) <= plan.budget
    assert better_neighbour(plan, moments) is None
    v = objective(plan.ladder.fidelities, plan.target, moments)
    assert plan.objective == pytest.approx(float((v / np.array(plan.counts)).sum()))


ladders = st.lists(st.integers(2, 40), min_size=1, max_size=6).map(lambda s: md.Ladder(np.cumsum(s).tolist()))


@settings(max_examples=150, deadline=None)
@given(ladders, st.integers(0, 3000), st.sampled_from(TARGETS), st.sampled_from(COSTS))
def test_no_neighbour_is_better(ladder, extra, target, cost):
    least = 2 * int(theory.cost_per_replicate(ladder.fidelities, cost).sum())
    check(md.allocate(ladder, least + extra, target, cost))


@settings(max_examples=40, deadline=None)
@given(ladders, st.integers(0, 3000), st.floats(0.1, 10), st.floats(1.01, 30), st.sampled_from(COSTS))
def test_no_neighbour_is_better_with_given_moments(ladder, extra, mu2, kurtosis, cost):
    moments = md.Moments(mu2, kurtosis * mu2**2)
    least = 2 * int(theory.cost_per_replicate(ladder.fidelities, cost).sum())
    check(md.allocate(ladder, least + extra, "variance", cost, moments), moments)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("steps", [(7, 9, 11, 2, 3, 10, 11, 4, 5, 10), (2,) * 10, (2, 30, 2, 30, 2, 30, 2, 30, 2)])
def test_no_neighbour_is_better_on_long_ladders(steps, cost):
    """Beyond eight levels too, where improvements may need four or more counts to change together."""
    ladder = md.Ladder(np.cumsum(steps).tolist())
    least = 2 * int(theory.cost_per_replicate(ladder.fidelities, cost).sum())
    for extra in (0, 1, 338, 901):
        check(md.allocate(ladder, least + extra, "mean", cost))


def test_the_neighbour_check_can_fail():
    """Negative control: one replicate moved away from the optimum is caught."""
    from dataclasses import replace

    plan = md.allocate(LADDER, 1000)
    counts = (plan.counts[0] - 4, plan.counts[1], plan.counts[2] + 2)
    assert better_neighbour(replace(plan, counts=counts)) is not None


@pytest.mark.parametrize("cost", COSTS)
def test_small_plans_are_globally_best(cost):
    """All feasible integer plans of a small problem, enumerated."""
    ladder, budget = md.Ladder((2, 4, 8)), 60
    a = theory.cost_per_replicate(ladder.fidelities, cost)
    v = theory.level_variances_mean(ladder.fidelities)
    grid = np.array(list(product(range(2, 31), repeat=3)))
    grid = grid[grid @ a <= budget]
    best = (v / grid).sum(axis=1).min()
    assert md.allocate(ladder, budget, cost=cost).objective <= best * 1.001


def test_long_and_steep_ladders_are_quick():
    plan = md.allocate(md.Ladder.dyadic(18), budget=10**8)
    assert len(plan.counts) == 18 and plan.cost <= 10**8
    assert md.allocate(md.Ladder(range(2, 82, 2)), budget=10**5, cost="uncoupled").cost <= 10**5


def test_the_smallest_budget_gives_two_replicates_a_level():
    assert md.allocate(LADDER, budget=32).counts == (2, 2, 2)
    assert md.allocate(LADDER, budget=56, cost="uncoupled").counts == (2, 2, 2)


def test_moments_scale_and_average():
    """Scaling μ2 changes nothing; arrays of moments are averaged over their components."""
    plain = md.allocate(LADDER, 1000, "variance")
    assert md.allocate(LADDER, 1000, "variance", moments=md.Moments(7.0)).counts == plain.counts
    arrays = md.Moments(np.array([1.0, 2.0]), np.array([3.0, 12.0]))
    assert md.allocate(LADDER, 1000, "variance", moments=arrays).counts == plain.counts
    heavy = md.allocate(LADDER, 1000, "variance", moments=md.Moments(1.0, 30.0))
    assert heavy.counts != plain.counts


# -------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("budget", [31, 0, -5, float("nan"), float("inf")])
def test_a_budget_too_small_says_what_is_the_cheapest(budget):
    with pytest.raises(AllocationError, match="32") as error:
        md.allocate(LADDER, budget)
    assert str(budget) in str(error.value) and "raise the budget" in str(error.value)


@pytest.mark.parametrize(("option", "value"), [("target", "median"), ("cost", "free")])
def test_unknown_names(option, value):
    with pytest.raises(InputError, match=value) as error:
        md.allocate(LADDER, 1000, **{option: value})
    assert "use '" in str(error.value)


@pytest.mark.parametrize(
    "moments",
    [
        md.Moments(-1.0),
        md.Moments(0.0),
        md.Moments(float("nan")),
        md.Moments(float("inf")),
        md.Moments(1.0, float("nan")),
        md.Moments(1.0, float("inf")),
        md.Moments(1.0, 0.2),
    ],
)
def test_impossible_moments(moments):
    with pytest.raises(InputError, match="must be"):
        md.allocate(LADDER, 1000, "variance", moments=moments)


def test_variances_need_gaps():
    with pytest.raises(LadderError, match=r"\(4, 5\)"):
        md.allocate(md.Ladder((4, 5)), 1000, "variance")
    assert md.allocate(md.Ladder((1, 2)), 1000, "mean").counts


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ((4, 4), "2 counts"),
        ((4, 4, 4, 4), "4 counts"),
        ((), "0 counts"),
        ((4, 0, 4), "(4, 0, 4)"),
        ((4, -1, 4), "-1"),
        ((4, 4, 1), "(4, 4, 1)"),
        ((4, 4, 2.5), "2.5"),
        ((4, 4, True), "True"),
        ((4, 4, "4"), "'4'"),
        (7, "7"),
        ("444", "'444'"),
    ],
)
def test_bad_counts(counts, shown):
    with pytest.raises(AllocationError) as error:
        check_counts(LADDER, counts)
    assert shown in str(error.value)


def test_good_counts_become_plain_integers():
    assert check_counts(LADDER, np.array([5, 3, 2])) == (5, 3, 2)
    assert all(type(m) is int for m in check_counts(LADDER, np.array([5, 3, 2])))
