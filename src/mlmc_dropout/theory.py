"""Closed forms: what an estimator is worth before a single pass is spent.

Symbols: a pass has mean μ, variance μ2 and fourth central moment μ4; ``T`` is a fidelity (passes
per replicate), ``M`` a count of replicates, a ladder is ``T_0 < … < T_L``. Names in brackets are
those of the paper (Pim & Pryer, *Multi-level Monte Carlo Dropout for Efficient Uncertainty
Quantification*). Moments may be numbers or arrays; level variances then have the level as their
first axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "closure",
    "cost_coupled",
    "cost_per_replicate",
    "cost_spent",
    "cost_uncoupled",
    "covariance_of_nested_variances",
    "expected_S2",
    "level_variances_mean",
    "level_variances_variance",
    "optimal_counts",
    "variance_independent",
    "variance_nested",
    "variance_of_sample_mean",
    "variance_of_sample_variance",
]

Array = NDArray[np.float64]


def closure(mu2: ArrayLike) -> Any:
    """μ4 = 3 μ2²: zero excess kurtosis (remark after thm:mlmc:variance_moments).

    >>> float(closure(2.0))
    12.0
    """
    return 3.0 * np.square(np.asarray(mu2, dtype=float))


def variance_of_sample_mean(T: ArrayLike, mu2: ArrayLike) -> Any:
    """Var Y(T) = μ2 / T (lem:mlmc:single_fidelity_moments); with T = c, plain Monte Carlo's."""
    return np.asarray(mu2, dtype=float) / np.asarray(T, dtype=float)


def variance_of_sample_variance(T: ArrayLike, mu2: ArrayLike, mu4: ArrayLike | None = None) -> Any:
    """Var V(T) = (μ4 − (T−3)/(T−1)·μ2²) / T, T ≥ 2 (lem:mlmc:single_fidelity_moments).

    >>> float(variance_of_sample_variance(5, mu2=1.0))  # Gaussian: 2 / (T − 1)
    0.5
    """
    T, mu2 = np.asarray(T, dtype=float), np.asarray(mu2, dtype=float)
    mu4 = closure(mu2) if mu4 is None else np.asarray(mu4, dtype=float)
    return (mu4 - (T - 3.0) / (T - 1.0) * mu2**2) / T


def covariance_of_nested_variances(fine: int, coarse: int, mu2: ArrayLike, mu4: ArrayLike | None = None) -> Any:
    """Cov[V(fine), V(coarse)] when the coarse passes are the first of the fine (lem:cov_overlap_var).

    Written as the paper has it; it equals Var V(fine), because V is a U-statistic.
    """
    mu2 = np.asarray(mu2, dtype=float)
    mu4 = closure(mu2) if mu4 is None else np.asarray(mu4, dtype=float)
    own = (coarse - 1) / (fine - 1) * variance_of_sample_variance(coarse, mu2, mu4)
    return own + (fine - coarse) / (coarse * fine * (fine - 1)) * (mu4 - 3 * mu2**2)


def level_variances_mean(fidelities: Sequence[int], mu2: ArrayLike = 1.0) -> Array:
    """v_0 = μ2/T_0, v_ℓ = μ2 (1/T_{ℓ−1} − 1/T_ℓ) (eq:mlmc:allocation_mean_level_vars).

    >>> level_variances_mean((4, 8, 16)).tolist()
    [0.25, 0.125, 0.0625]
    """
    inverse = 1.0 / np.asarray(fidelities, dtype=float)
    steps = np.concatenate([inverse[:1], inverse[:-1] - inverse[1:]])
    return np.asarray(np.multiply.outer(steps, np.asarray(mu2, dtype=float)))


def level_variances_variance(fidelities: Sequence[int], mu2: ArrayLike = 1.0, mu4: ArrayLike | None = None) -> Array:
    """w_0 = Var V(T_0), w_ℓ = (1/T_{ℓ−1} − 1/T_ℓ)(μ4 − 3μ2²) + 2(1/(T_{ℓ−1}−1) − 1/(T_ℓ−1)) μ2².

    Theorem thm:mlmc:variance_moments; without ``mu4`` the closure is used.
    """
    mu2 = np.asarray(mu2, dtype=float)
    mu4 = closure(mu2) if mu4 is None else np.asarray(mu4, dtype=float)
    T = np.asarray(fidelities, dtype=float)
    first = np.asarray(variance_of_sample_variance(T[0], mu2, mu4))[None]
    excess = np.multiply.outer(1 / T[:-1] - 1 / T[1:], mu4 - 3 * mu2**2)
    gaussian = np.multiply.outer(2 / (T[:-1] - 1) - 2 / (T[1:] - 1), mu2**2)
    return np.concatenate([first, excess + gaussian])


def expected_S2(level_variances: ArrayLike, counts: Sequence[int] | Array) -> Any:
    """E S² = Σ v_ℓ / M_ℓ (lem:mlmc:mean_moments, thm:mlmc:variance_moments)."""
    v = np.asarray(level_variances, dtype=float)
    return np.tensordot(1.0 / np.asarray(counts, dtype=float), v, axes=1)


variance_independent = expected_S2
"""Var of the multilevel estimator when levels are drawn independently: exactly E S²."""


def variance_nested(level_variances: ArrayLike, counts: Sequence[int] | Array) -> Any:
    """Var of Algorithm 1, where level ℓ extends the replicates of level ℓ−1.

    Increments of nested samples are uncorrelated among each other, and the covariance of level 0
    with Δ_ℓ is −v_ℓ, hence  Var = v_0/M_0 + Σ v_ℓ/M_ℓ − 2 Σ_{ℓ≥1} v_ℓ / max(M_0, M_ℓ).
    With equal counts this is plain Monte Carlo's variance, the least possible.

    >>> v = level_variances_mean((4, 8, 16))
    >>> round(float(variance_nested(v, (10, 10, 10))), 10), 1 / 160
    (0.00625, 0.00625)
    """
    v, M = np.asarray(level_variances, dtype=float), np.asarray(counts, dtype=float)
    return expected_S2(v, M) - 2.0 * np.tensordot(1.0 / np.maximum(M[0], M[1:]), v[1:], axes=1)


def cost_per_replicate(fidelities: Sequence[int], cost: str) -> NDArray[np.int64]:
    """a_ℓ: passes a level-ℓ replicate is charged under the "coupled" or "uncoupled" cost model."""
    T = np.asarray(fidelities, dtype=np.int64)
    return np.diff(T, prepend=0) if cost == "coupled" else T


def cost_coupled(fidelities: Sequence[int], counts: Sequence[int]) -> int:
    """c_cpl = T_0 M_0 + Σ (T_ℓ − T_{ℓ−1}) M_ℓ (eq:mlmc:cost_coupled_additive).

    >>> cost_coupled((4, 8, 16), (103, 73, 37))
    1000
    """
    return int(cost_per_replicate(fidelities, "coupled") @ np.asarray(counts))


def cost_uncoupled(fidelities: Sequence[int], counts: Sequence[int]) -> int:
    """c_unc = Σ T_ℓ M_ℓ (eq:mlmc:cost_uncoupled_additive); what independent levels really cost."""
    return int(cost_per_replicate(fidelities, "uncoupled") @ np.asarray(counts))


def cost_spent(fidelities: Sequence[int], counts: Sequence[int], levels: str) -> int:
    """Passes really run: a nested replicate runs to its deepest level, independent ones each run T_ℓ.

    Equals ``cost_coupled`` for nested levels with M_0 ≥ … ≥ M_L, and exceeds it otherwise.

    >>> cost_spent((4, 8), (10, 20), "nested"), cost_coupled((4, 8), (10, 20))
    (160, 120)
    """
    if levels == "independent":
        return cost_uncoupled(fidelities, counts)
    reaching = np.maximum.accumulate(np.asarray(counts)[::-1])[::-1]
    return cost_coupled(fidelities, reaching.tolist())


def optimal_counts(level_variances: ArrayLike, costs: ArrayLike, budget: float) -> Array:
    """M_ℓ = c·√(v_ℓ/a_ℓ) / Σ_k √(v_k a_k) (lem:mlmc:allocation_mean, …_variance_general).

    >>> optimal_counts(level_variances_mean((4, 8, 16)), [4, 4, 8], 1000).round(2).tolist()
    [103.55, 73.22, 36.61]
    """
    v, a = np.asarray(level_variances, dtype=float), np.asarray(costs, dtype=float)
    result: Array = budget * np.sqrt(v / a) / np.sqrt(v * a).sum()
    return result
