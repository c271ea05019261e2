"""What single inputs need: degrees of freedom, levels that tell of rare masks, limits from a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from mlmc_dropout.methods.base import Estimates, LevelEstimate
from mlmc_dropout.methods.tails import Trust
from mlmc_dropout.stopping import rows
from mlmc_dropout.stopping.goal import Goal
from mlmc_dropout.stopping.rows import Part, needs_of_rows, next_round, reach_of, with_unseen

SHAPE = (4, 2)


def level(label, count, kurtosis):
    one = np.ones(SHAPE)
    return LevelEstimate(label, 0, count, count, one, 0.01 * one, kurtosis * one, one, one, kurtosis * one)


def estimates(levels, freedom=None, trusted=False):
    one = np.ones(SHAPE)
    flags = np.full(SHAPE, trusted)
    return Estimates(
        0.5 * one,
        0.01 * one,
        0.001 * one,
        0.001 * one,
        500.0,
        levels=levels,
        trust=Trust(flags, flags),
        freedom=freedom,
        variance_freedom=None if freedom is None else 31.0,
    )


def test_rare_masks_are_judged_by_passes_not_by_coarse_samples():
    """A coarse level that does not show its tails hides nothing, however often it is sampled."""
    both = estimates((level("coarse", 100_000, np.nan), level("correction", 200, 9.0)))
    alone = estimates((level("correction", 200, 9.0),))
    np.testing.assert_array_equal(reach_of([both]).mean, reach_of([alone]).mean)
    allowed = with_unseen(both, reach_of([both])).mean_stderr
    np.testing.assert_allclose(allowed, np.hypot(0.001, rows.UNSEEN * 0.3 / 200))


def test_standard_errors_of_few_degrees_of_freedom_need_more():
    goal = Goal(tolerance=0.001, adaptive=True)
    levels = (level("correction", 10**6, 3.0),)
    few, many = (
        next(needs_of_rows(goal, [Part(estimates(levels, np.full(SHAPE, freedom), trusted=True), 10**6)])).precision
        for freedom in (10.0, 1e5)
    )
    assert (few > 2 * many).all() and (many < 1.05).all()


@pytest.mark.parametrize("alpha", [0.05, 0.1 / 42])
def test_limits_from_a_table_are_those_of_the_quantiles(alpha):
    freedom = np.random.default_rng(0).uniform(1.0, 3000.0, size=2 * rows._GRID.size)
    np.testing.assert_allclose(rows._limits(freedom, alpha), freedom / chi2.ppf(alpha, freedom), rtol=5e-4)
    np.testing.assert_allclose(rows._limits(freedom[:3], alpha), freedom[:3] / chi2.ppf(alpha, freedom[:3]), rtol=1e-9)


def test_rare_passes_beside_a_companion_add_what_they_left_of_it():
    """Passes that jump by R, where all but a hundredth of their variance is known: R² + 2Rσ, and not κσ²."""
    ones = np.ones((1, 1))

    def estimates(sample):
        level = LevelEstimate("passes", 1, 400, 400, 0 * ones, sample, 9 * ones, ones, ones, 3 * ones)
        error = 0.1 * ones
        return Estimates(0 * ones, ones, error, error, 400, levels=(level,), trust=Trust(ones < 0, ones < 0))

    plain, beside = reach_of([estimates(ones)]), reach_of([estimates(0.01 * ones)])
    assert plain.variance == pytest.approx(9.0)
    assert beside.variance == pytest.approx(0.09 + 2 * 0.3)
    assert beside.rare_variance == pytest.approx(beside.variance)


@pytest.mark.parametrize("trusted", [True, False])
def test_errors_that_were_widened_for_tails_need_no_upper_limit_for_them(trusted):
    """One pass in 400 carries everything: widened five times, the upper limit holds for the plain error."""
    goal = Goal(tolerance=0.001, adaptive=True)
    found = estimates((level("passes", 400, 350.0),), trusted=trusted)
    widened = replace(found, widening=(np.full(SHAPE, 5.0), np.ones(SHAPE)))
    plain, once = (next(needs_of_rows(goal, [Part(each, 400)])).precision for each in (found, widened))
    assert (once < plain / 10).all()  # squared, and at most 16 times
    assert (once >= 1.0).all()  # never below what is reported


def test_the_fewer_inputs_go_on_the_more_of_them_a_round_settles():
    goal, found = Goal(tolerance=0.001, adaptive=True), Part(estimates((level("passes", 1000, 3.0),)), 1000)
    needs = np.linspace(1.1, 2.0, 10)
    rounds = [next_round(goal, needs, found, spent) for spent in (0.0, 1e5, 1e6)]
    assert rounds[0] < rounds[1] < rounds[2] == pytest.approx(found.passes, abs=rows.BLOCK)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("needs", [[1.5, np.inf, 2.0, np.inf], [np.inf, np.inf]])
def test_inputs_of_which_nothing_is_known_yet_do_not_stop_a_round(needs):
    found = Part(estimates((level("passes", 1000, 3.0),)), 1000)
    passes = next_round(Goal(tolerance=0.001, adaptive=True), np.array(needs), found, 1e4)
    assert 0 < passes <= rows.MAX_ROUND
