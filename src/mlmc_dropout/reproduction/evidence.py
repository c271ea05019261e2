"""Where the paper and its numbers do not hold together: exact formulas, and simulations that bear them out.

Three findings, each a function that returns plain data:

``equal_passes``    plain averaging against the paper's estimators with the same number of passes
``printed_optima``  which cost model the printed optimal counts belong to
``printed_slopes``  which sample variance the printed slopes belong to, and how good the intervals are
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.reproduction import rates, storage, surface
from mlmc_dropout.reproduction.statistics import CONFIDENCE, fit_line
from mlmc_dropout.reproduction.work import ProgressCallback

__all__ = ["collect", "equal_passes", "gaussian_passes", "printed_optima", "printed_slopes"]

Array = NDArray[np.float64]

LADDER, BUDGET, COUNTS = (4, 8, 16), 1000, (103, 73, 37)
UNITS = 128
DESIGN = (10, 200)  # the paper's replicates and grid points
REPETITIONS = {"paper": 20_000, "quick": 1000}
SIMULATIONS = {"paper": 2000, "quick": 100}


def collect(profile: str, show: ProgressCallback | None = None) -> dict[str, Any]:
    """All three findings, with the versions that computed them.

    Args:
        profile: ``"quick"`` or ``"paper"``: how many repetitions.
        show: Told how far it is.

    Returns:
        Plain data, by the names above.
    """
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "equal_passes": lambda: equal_passes(REPETITIONS[profile]),
        "printed_optima": printed_optima,
        "printed_slopes": lambda: printed_slopes(SIMULATIONS[profile]),
    }
    findings: dict[str, Any] = {}
    for done, (name, part) in enumerate(parts.items()):
        if show is not None:
            show("evidence", done, len(parts))
        findings[name] = part()
    if show is not None:
        show("evidence", len(parts), len(parts))
    return {**storage.versions(), **findings}


# ------------------------------------------------------------------------------ equal passes


def gaussian_passes(units: int = UNITS) -> nn.Module:
    """A network whose passes have mean 0, variance 1 and kurtosis 3 − 2/units: a sum of ±1/√units.

    Args:
        units: Number of terms of the sum.

    Returns:
        The network, in float64; it ignores its input.
    """
    first, last = nn.Linear(1, units), nn.Linear(units, 1)
    values = ((first.weight, 0.0), (first.bias, 1.0), (last.weight, units**-0.5), (last.bias, -(units**0.5)))
    for parameter, value in values:
        nn.init.constant_(parameter, value)
    return nn.Sequential(first, nn.Dropout(0.5), last).double()


def equal_passes(repetitions: int) -> dict[str, Any]:
    """Variance times passes of three estimators that spend about the same, and what S² reports.

    A repetition is a row of the input: masks differ from row to row, so rows are independent.

    Args:
        repetitions: Number of rows.

    Returns:
        Plain data; ``rows`` has measured and exact values by estimator.
    """
    settings: dict[str, dict[str, Any]] = {
        "pooled": {"method": "pooled", "budget": BUDGET},
        "nested": {"method": "mlmc", "levels": "nested", "ladder": LADDER, "counts": COUNTS},
        "independent": {"method": "mlmc", "levels": "independent", "ladder": LADDER, "counts": COUNTS},
    }
    network, x = gaussian_passes(), np.zeros((repetitions, 1))
    rows = {}
    for index, (name, method) in enumerate(settings.items()):
        result = md.estimate(network, x, seed=9000 + index, **method)
        charged = BUDGET if name == "pooled" else md.theory.cost_coupled(LADDER, COUNTS)
        rows[name] = {
            "passes_charged": charged,
            "passes_spent": result.cost,
            "mean": _measured(result.mean, result.S2_mean, result.mean_stderr, charged),
            "variance": _measured(result.variance, result.S2_variance, result.variance_stderr, charged),
            "exact": _exact(name, charged),
        }
    return {"ladder": LADDER, "counts": COUNTS, "repetitions": repetitions, "kurtosis": 3 - 2 / UNITS, "rows": rows}


def _measured(estimates: Any, S2: Any, stderr: Any, charged: int) -> dict[str, Any]:
    n = len(estimates)
    value = float(np.var(estimates, ddof=1)) * charged
    tail = (1 - CONFIDENCE) / 2
    return {
        "true": value,
        "low": value * (n - 1) / float(stats.chi2.ppf(1 - tail, n - 1)),
        "high": value * (n - 1) / float(stats.chi2.ppf(tail, n - 1)),
        "S2_reports": None if S2 is None else float(np.mean(S2)) * charged,
        "our_stderr_reports": float(np.mean(np.square(stderr))) * charged,
    }


def _exact(name: str, charged: int) -> dict[str, float]:
    """The closed forms, times the passes charged."""
    mu4 = 3 - 2 / UNITS
    if name == "pooled":
        variances = (
            md.theory.variance_of_sample_mean(BUDGET, 1.0),
            md.theory.variance_of_sample_variance(BUDGET, 1.0, mu4),
        )
    else:
        law = md.theory.variance_nested if name == "nested" else md.theory.variance_independent
        levels = md.theory.level_variances_mean(LADDER), md.theory.level_variances_variance(LADDER, 1.0, mu4)
        variances = law(levels[0], COUNTS), law(levels[1], COUNTS)
    return {"mean": float(variances[0]) * charged, "variance": float(variances[1]) * charged}


# ---------------------------------------------------------------------------- printed optima


def printed_optima() -> dict[str, Any]:
    """Optimal counts under both cost models, by formula and by enumeration, and what the plans are worth."""
    ladder = md.Ladder(LADDER)
    optima: dict[str, Any] = {"ladder": LADDER, "budget": BUDGET}
    for target in ("mean", "variance"):
        for cost in ("coupled", "uncoupled"):
            plan = md.allocate(ladder, BUDGET, target, cost)
            coupled = float(md.theory.cost_per_replicate(LADDER, "coupled") @ np.asarray(plan.continuous))
            optima[f"{target}, {cost}"] = {
                "continuous": list(plan.continuous),
                "integer": list(plan.counts),
                "coupled_cost": coupled,
                "E_S2_times_budget": BUDGET * _expected(target, plan.continuous),
            }
    counts = surface.feasible(LADDER, BUDGET)
    for target in ("mean", "variance"):
        best = surface.best(_expected(target, counts.astype(float)), counts)
        optima[f"{target}, enumerated"] = {"single": list(best.single), "allocations": len(counts)}
    optima["correction_rates"] = _correction_rates()
    return optima


def _expected(target: str, counts: Any) -> Any:
    levels = md.theory.level_variances_mean(LADDER) if target == "mean" else md.theory.level_variances_variance(LADDER)
    return md.theory.expected_S2(levels, counts)


def _correction_rates() -> dict[str, Any]:
    """log₂ of the ratio of neighbouring correction variances on the ladder 2, 4, …, 4096: rate 1, not 2."""
    T = md.Ladder.dyadic(12).fidelities
    levels = {"mean": md.theory.level_variances_mean(T), "variance": md.theory.level_variances_variance(T)}
    return {name: np.log2(values[1:-1] / values[2:]).tolist() for name, values in levels.items()}


# ---------------------------------------------------------------------------- printed slopes


def printed_slopes(simulations: int) -> dict[str, Any]:
    """Slopes of the exact formulas on the paper's T, and slopes of simulated experiments with their intervals.

    A simulated experiment has the paper's design: 20 fidelities, 10 replicates, 200 independent points; passes are
    Gaussian, for which Y(T) is normal and (T−1)·V(T) has a χ² law.

    Args:
        simulations: Number of simulated experiments.

    Returns:
        Plain data; ``simulated`` has mean slope and coverage by estimator.
    """
    T = rates.fidelities(rates.PROFILES["paper"])
    exact = {
        "Y": rates.theory_slope(T, "Y"),
        "V": rates.theory_slope(T, "V"),
        "V with ddof 0": rates.theory_slope(T, "V", biased=True),
    }
    generator = np.random.default_rng(9100)
    slope_fits: dict[str, list[Any]] = {name: [] for name in exact}
    for _ in range(simulations):
        norms = _simulated_norms(T, generator)
        for name in exact:
            fit = fit_line(np.log(T), np.log(norms[name]))
            slope_fits[name].append((fit.slope, fit.contains(exact[name]), (fit.high - fit.low) / 2))
    simulated = {}
    for name, rows in slope_fits.items():
        slopes, covered, half = (np.array(column) for column in zip(*rows, strict=True))
        simulated[name] = {
            "mean_slope": float(slopes.mean()),
            "stderr": float(slopes.std(ddof=1) / np.sqrt(simulations)),
            "coverage": float(covered.mean()),
            "mean_half_width": float(half.mean()),
        }
    return {
        "T": T,
        "replicates": DESIGN[0],
        "points": DESIGN[1],
        "exact": exact,
        "simulations": simulations,
        "simulated": simulated,
    }


def _simulated_norms(T: list[int], generator: np.random.Generator) -> dict[str, Array]:
    Y = [generator.standard_normal(DESIGN).var(axis=0, ddof=1).mean() / t for t in T]
    V = [(generator.chisquare(t - 1, DESIGN) / (t - 1)).var(axis=0, ddof=1).mean() for t in T]
    biased = [v * ((t - 1) / t) ** 2 for v, t in zip(V, T, strict=True)]
    return {"Y": np.array(Y), "V": np.array(V), "V with ddof 0": np.array(biased)}
