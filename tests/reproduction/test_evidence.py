"""The simulations behind the documentation agree with the closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import mlmc_dropout as md
from mlmc_dropout.reproduction import evidence


def test_passes_have_the_stated_moments() -> None:
    """|z| < 4.5 for mean, variance and fourth moment of 40 000 passes."""
    D = md.DropoutSampler(evidence.gaussian_passes()).sample(np.zeros((200, 1)), 200, seed=1).numpy().ravel()
    n, mu4 = D.size, 3 - 2 / evidence.UNITS
    assert abs(D.mean()) * np.sqrt(n) < 4.5
    assert abs(D.var() - 1) / np.sqrt((mu4 - 1) / n) < 4.5
    assert abs((D**4).mean() - mu4) / np.sqrt((D**4).var() / n) < 4.5


@pytest.fixture(scope="module")
def simulation() -> dict:
    return evidence.equal_passes(1000)


@pytest.mark.parametrize("name", ["pooled", "nested", "independent"])
@pytest.mark.parametrize("moment", ["mean", "variance"])
def test_measured_variances_agree_with_the_closed_forms(simulation: dict, name: str, moment: str) -> None:
    """χ² of 999 degrees of freedom, six comparisons, 1e-4 in all."""
    row = simulation["rows"][name]
    ratio = row[moment]["true"] / row["exact"][moment] * 999
    tail = 1e-4 / 12
    assert stats.chi2.ppf(tail, 999) < ratio < stats.chi2.ppf(1 - tail, 999)


def test_S2_overstates_nested_levels_and_our_standard_errors_do_not(simulation: dict) -> None:
    row = simulation["rows"]["nested"]
    for moment in ("mean", "variance"):
        assert row[moment]["S2_reports"] > 2 * row[moment]["high"]
        assert row[moment]["our_stderr_reports"] == pytest.approx(row["exact"][moment], rel=0.05)
    independent = simulation["rows"]["independent"]
    assert independent["mean"]["S2_reports"] == pytest.approx(independent["exact"]["mean"], rel=0.03)


def test_printed_optima_are_the_uncoupled_ones() -> None:
    optima = evidence.printed_optima()
    assert optima["mean, uncoupled"]["continuous"] == pytest.approx([1000 / 12, 1000 / 24, 1000 / 48])
    assert optima["variance, uncoupled"]["continuous"] == pytest.approx([82.64, 44.17, 19.76], abs=0.006)
    assert optima["mean, uncoupled"]["coupled_cost"] == pytest.approx(666.67, abs=0.01)
    assert optima["mean, coupled"]["continuous"] == pytest.approx([103.55, 73.22, 36.61], abs=0.005)
    assert optima["mean, uncoupled"]["E_S2_times_budget"] == pytest.approx(9.0)
    assert optima["correction_rates"]["mean"] == pytest.approx([1.0] * 10)
    assert optima["correction_rates"]["variance"][-1] == pytest.approx(1.0, abs=2e-3)
