"""Norms, fits and intervals: against other implementations, and their coverage by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mlmc_dropout.reproduction import evidence, rates
from mlmc_dropout.reproduction.statistics import fit_line, jackknife, l1_norm, line_slope, variance_interval


def test_norm_is_the_papers_sum() -> None:
    g = np.linspace(-1.0, 2.0, 200)
    assert l1_norm(g) == pytest.approx(np.abs(g).sum() / 199)


def test_line_agrees_with_the_normal_equations() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.random(20), generator.random(20)
    design = np.stack([np.ones_like(x), x], axis=1)
    inverse = np.linalg.inv(design.T @ design)
    intercept, slope = inverse @ design.T @ y
    sd = np.sqrt(np.square(y - intercept - slope * x).sum() / 18)
    half = stats.t.ppf(0.995, 18) * sd * np.sqrt(inverse[1, 1])
    fit = fit_line(x, y)
    assert (fit.slope, fit.intercept, fit.residual_sd) == pytest.approx((slope, intercept, sd))
    assert (fit.low, fit.high) == pytest.approx((slope - half, slope + half))
    assert line_slope(x, y) == pytest.approx(slope)


def test_band_is_narrowest_at_the_centre_and_has_the_slope_as_its_asymptote() -> None:
    fit = fit_line([0.0, 1.0, 2.0, 3.0], [0.0, 1.1, 1.9, 3.0])
    widths = fit.half_width([0.0, 1.5, 3.0])
    assert widths[1] < widths[0] == pytest.approx(widths[2])
    far = 1e6
    assert fit.half_width([far])[0] / far == pytest.approx((fit.high - fit.low) / 2, rel=1e-3)


@pytest.fixture(scope="module")
def simulated() -> dict[str, object]:
    return evidence.printed_slopes(600)


@pytest.mark.parametrize("name", ["Y", "V", "V with ddof 0"])
def test_slope_intervals_cover_at_their_level(simulated: dict, name: str) -> None:
    """The paper's design, 600 times: P(fewer than 582 of 600 covered at 99 %) < 1e-4."""
    assert simulated["simulated"][name]["coverage"] >= 0.97


def test_simulated_slopes_average_to_the_exact_ones(simulated: dict) -> None:
    """|z| < 4 for three means; the small bias of E log over log E at T = 10 is far below that."""
    for name, exact in simulated["exact"].items():
        measured = simulated["simulated"][name]
        assert abs(measured["mean_slope"] - exact) < 4 * measured["stderr"] + 2e-4


def test_simulated_slopes_tell_the_two_sample_variances_apart(simulated: dict) -> None:
    """Negative control: the mean slope of V is many standard errors from the one for ddof 0."""
    measured, wrong = simulated["simulated"]["V"], simulated["exact"]["V with ddof 0"]
    assert abs(measured["mean_slope"] - wrong) > 20 * measured["stderr"]


def test_exact_slopes() -> None:
    T = rates.fidelities(rates.PROFILES["paper"])
    assert len(T) == 20 and T[0] == 10 and T[-1] == 10_000
    slopes = [rates.theory_slope(T, "Y"), rates.theory_slope(T, "V"), rates.theory_slope(T, "V", biased=True)]
    assert slopes == pytest.approx([-1.0, -1.0103, -0.9897], abs=5e-5)
    heavy = {"mu2": [1.0, 2.0], "mu4": [30.0, 80.0]}  # kurtosis 30 and 20: the fourth moment rules, rate 1
    assert rates.theory_slope(T, "V", heavy) == pytest.approx(-1.0, abs=2e-3)


def test_jackknife_of_a_mean_is_students_interval() -> None:
    x = np.random.default_rng(1).normal(size=(12, 2))
    without = [(x.sum(axis=0) - row) / 11 for row in x]
    low, high = jackknife(x.mean(axis=0), without)
    half = stats.t.ppf(0.995, 11) * x.std(axis=0, ddof=1) / np.sqrt(12)
    np.testing.assert_allclose(high - low, 2 * half)
    wider = jackknife(x.mean(axis=0), without, comparisons=4)
    assert np.all(wider[1] - wider[0] > high - low)


def test_variance_interval_covers() -> None:
    """300 experiments of 10 repetitions at 50 points of unequal variance; P(coverage < 96 %) < 1e-4."""
    generator = np.random.default_rng(2)
    truth = np.linspace(0.1, 2.0, 50)
    hits = 0
    for _ in range(300):
        sample = generator.normal(size=(10, 50)) * np.sqrt(truth)
        low, high = variance_interval(sample.var(axis=0, ddof=1), 10)
        hits += low <= l1_norm(truth) <= high
    assert hits >= 0.96 * 300
