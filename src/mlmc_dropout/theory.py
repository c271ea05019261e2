"""Closed forms: variances and costs of the estimators, known before any pass is run.

Symbols: a pass has mean μ, variance μ2 and fourth central moment μ4; ``T`` is a fidelity (passes
per replicate), ``M`` a count of replicates, a ladder is ``T_0 < … < T_L``. Names in brackets are
labels of the paper (Pim & Pryer, *Multi-level Monte Carlo Dropout for Efficient Uncertainty
Quantification*). Moments may be numbers or arrays; level variances then have the level as their
first axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
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
    "covariance_of_squared_mean_and_variance",
    "expected_S2",
    "fourth_moment",
    "fourth_moment_of_mean",
    "level_variances_mean",
    "level_variances_uncoupled",
    "level_variances_variance",
    "optimal_counts",
    "squared_mean_times_squares",
    "squared_mean_times_variance",
    "updated_variance",
    "variance_independent",
    "variance_nested",
    "variance_of_sample_mean",
    "variance_of_sample_variance",
]

Array = NDArray[np.float64]


def closure(mu2: ArrayLike) -> Any:
    """Fourth moment of the Gaussian closure, μ4 = 3 μ2²: zero excess kurtosis (remark after thm:mlmc:variance_moments).

    Args:
        mu2: Variance μ2 of a pass, a number or an array.

    Returns:
        μ4, of the shape of ``mu2``.

    Examples:
        >>> float(closure(2.0))
        12.0
    """
    return 3.0 * np.square(np.asarray(mu2, dtype=float))


def variance_of_sample_mean(T: ArrayLike, mu2: ArrayLike) -> Any:
    """Variance of the mean of T passes, Var Y(T) = μ2 / T (lem:mlmc:single_fidelity_moments).

    With T = c, the whole budget, this is the variance of plain Monte Carlo.

    Args:
        T: Number of passes, at least 1.
        mu2: Variance μ2 of a pass.

    Returns:
        The variance, of the broadcast shape of the arguments.

    Examples:
        >>> float(variance_of_sample_mean(4, mu2=1.0))
        0.25
    """
    return np.asarray(mu2, dtype=float) / np.asarray(T, dtype=float)


def variance_of_sample_variance(T: ArrayLike, mu2: ArrayLike, mu4: ArrayLike | None = None) -> Any:
    """Variance of the sample variance of T passes (lem:mlmc:single_fidelity_moments).

        Var V(T) = (μ4 − (T−3)/(T−1)·μ2²) / T

    Args:
        T: Number of passes, at least 2.
        mu2: Variance μ2 of a pass.
        mu4: Fourth central moment μ4 of a pass; that of :func:`closure` by default.

    Returns:
        The variance, of the broadcast shape of the arguments.

    Examples:
        >>> float(variance_of_sample_variance(5, mu2=1.0))  # Gaussian: 2 / (T − 1)
        0.5
    """
    T, mu2 = np.asarray(T, dtype=float), np.asarray(mu2, dtype=float)
    mu4 = closure(mu2) if mu4 is None else np.asarray(mu4, dtype=float)
    return (mu4 - (T - 3.0) / (T - 1.0) * mu2**2) / T


def fourth_moment(T: ArrayLike, mu2: ArrayLike, variance_of_V: ArrayLike) -> Any:
    """Fourth central moment of a pass from the variance of V(T): :func:`variance_of_sample_variance` solved for μ4.

    Args:
        T: Number of passes behind V, at least 2.
        mu2: Variance μ2 of a pass.
        variance_of_V: Var V(T).

    Returns:
        μ4, of the broadcast shape of the arguments.

    Examples:
        >>> float(fourth_moment(5, mu2=1.0, variance_of_V=0.5))  # Gaussian
        3.0
    """
    T, mu2 = np.asarray(T, dtype=float), np.asarray(mu2, dtype=float)
    return T * np.asarray(variance_of_V, dtype=float) + (T - 3.0) / (T - 1.0) * mu2**2


def updated_variance(T: int, Y: ArrayLike, V: ArrayLike, new: int, mean: ArrayLike, variance: ArrayLike) -> Any:
    """Sample variance of T + n passes from those of the first T and of n new ones (eq:mlmc:variance_update).

        (T+n−1) V = (T−1) V_T + (n−1) V_new + T n/(T+n) (Y_T − Y_new)²

    Args:
        T: Number T of the first passes.
        Y: Their mean.
        V: Their sample variance.
        new: Number n of new passes.
        mean: Their mean.
        variance: Their sample variance; it does not matter for a single one.

    Returns:
        The sample variance of all.

    Examples:
        >>> float(updated_variance(2, 1.5, 0.5, 2, 6.5, 12.5)), float(np.var([1, 2, 4, 9], ddof=1))
        (12.666666666666666, 12.666666666666666)
    """
    gap = np.asarray(Y, dtype=float) - np.asarray(mean, dtype=float)
    squares = (T - 1) * np.asarray(V, dtype=float) + gap**2 * (T * new / (T + new))
    if new > 1:
        squares = squares + (new - 1) * np.asarray(variance, dtype=float)
    return squares / (T + new - 1)


def squared_mean_times_squares(T: ArrayLike, mu2: ArrayLike, mu4: ArrayLike | None = None) -> Any:
    """E[(Y(T) − μ)² Σ ξ_i²] = μ4/T + (T−1)/T·μ2², with ξ_i = D_i − μ (eq:cov_overlap:moment_id_1).

    Args:
        T: Number of passes.
        mu2: Variance μ2 of a pass.
        mu4: Fourth central moment μ4 of a pass; that of :func:`closure` by default.

    Returns:
        The expectation.
    """
    T, mu2, mu4 = _moments(T, mu2, mu4)
    return mu4 / T + (T - 1.0) / T * mu2**2


def fourth_moment_of_mean(T: ArrayLike, mu2: ArrayLike, mu4: ArrayLike | None = None) -> Any:
    """E[(Y(T) − μ)⁴] = μ4/T³ + 3(T−1)/T³·μ2² (eq:cov_overlap:moment_id_2).

    Args:
        T: Number of passes.
        mu2: Variance μ2 of a pass.
        mu4: Fourth central moment μ4 of a pass; that of :func:`closure` by default.

    Returns:
        The expectation.

    Examples:
        >>> float(fourth_moment_of_mean(2, mu2=1.0))  # Gaussian of variance 1/2
        0.75
    """
    T, mu2, mu4 = _moments(T, mu2, mu4)
    return (mu4 + 3.0 * (T - 1.0) * mu2**2) / T**3


def squared_mean_times_variance(T: ArrayLike, mu2: ArrayLike, mu4: ArrayLike | None = None) -> Any:
    """E[(Y(T) − μ)² V(T)] = μ4/T² + (T−3)/T²·μ2² (eq:cov_overlap:EY2v_simplified).

    Args:
        T: Number of passes, at least 2.
        mu2: Variance μ2 of a pass.
        mu4: Fourth central moment μ4 of a pass; that of :func:`closure` by default.

    Returns:
        The expectation.
    """
    T, mu2, mu4 = _moments(T, mu2, mu4)
    return (mu4 + (T - 3.0) * mu2**2) / T**2


def covariance_of_squared_mean_and_variance(T: ArrayLike, mu2: ArrayLike, mu4: ArrayLike | None = None) -> Any:
    """Cov[(Y(T) − μ)², V(T)] = (μ4 − 3μ2²)/T², zero for Gaussian passes (eq:cov_overlap:key_cov_term).

    Args:
        T: Number of passes, at least 2.
        mu2: Variance μ2 of a pass.
        mu4: Fourth central moment μ4 of a pass; that of :func:`closure` by default.

    Returns:
        The covariance.
    """
    T, mu2, mu4 = _moments(T, mu2, mu4)
    return (mu4 - 3.0 * mu2**2) / T**2


def _moments(T: ArrayLike, mu2: ArrayLike, mu4: ArrayLike | None) -> tuple[Array, Array, Array]:
    variance = np.asarray(mu2, dtype=float)
    fourth = closure(variance) if mu4 is None else np.asarray(mu4, dtype=float)
    return np.asarray(T, dtype=float), variance, fourth


def covariance_of_nested_variances(fine: int, coarse: int, mu2: ArrayLike, mu4: ArrayLike | None = None) -> Any:
    """Cov[V(fine), V(coarse)] when the coarse passes are the first of the fine ones (lem:cov_overlap_var).

    Written as in the paper; it equals Var V(fine), because V is a U-statistic.

    Args:
        fine: Number of passes T_ℓ of the fine estimate.
        coarse: Number of passes T_{ℓ−1} of the coarse estimate, at least 2 and at most ``fine``.
        mu2: Variance μ2 of a pass.
        mu4: Fourth central moment μ4 of a pass; that of :func:`closure` by default.

    Returns:
        The covariance, of the broadcast shape of ``mu2`` and ``mu4``.
    """
    mu2 = np.asarray(mu2, dtype=float)
    mu4 = closure(mu2) if mu4 is None else np.asarray(mu4, dtype=float)
    coarse_term = (coarse - 1) / (fine - 1) * variance_of_sample_variance(coarse, mu2, mu4)
    return coarse_term + (fine - coarse) / (coarse * fine * (fine - 1)) * (mu4 - 3 * mu2**2)


def level_variances_mean(fidelities: Sequence[int], mu2: ArrayLike = 1.0) -> Array:
    """Level variances of the mean: v_0 = μ2/T_0, v_ℓ = μ2 (1/T_{ℓ−1} − 1/T_ℓ) (eq:mlmc:allocation_mean_level_vars).

    Args:
        fidelities: T_0 < … < T_L.
        mu2: Variance μ2 of a pass; 1 by default.

    Returns:
        v, of shape (L + 1, *shape of ``mu2``).

    Examples:
        >>> level_variances_mean((4, 8, 16)).tolist()
        [0.25, 0.125, 0.0625]
    """
    inverse = 1.0 / np.asarray(fidelities, dtype=float)
    steps = np.concatenate([inverse[:1], inverse[:-1] - inverse[1:]])
    return np.asarray(np.multiply.outer(steps, np.asarray(mu2, dtype=float)))


def level_variances_variance(fidelities: Sequence[int], mu2: ArrayLike = 1.0, mu4: ArrayLike | None = None) -> Array:
    """Level variances of the sample variance (thm:mlmc:variance_moments).

        w_0 = Var V(T_0)
        w_ℓ = (1/T_{ℓ−1} − 1/T_ℓ)(μ4 − 3μ2²) + 2(1/(T_{ℓ−1}−1) − 1/(T_ℓ−1)) μ2²

    Args:
        fidelities: T_0 < … < T_L, with T_0 at least 2.
        mu2: Variance μ2 of a pass; 1 by default.
        mu4: Fourth central moment μ4 of a pass; that of :func:`closure` by default.

    Returns:
        w, of shape (L + 1, *broadcast shape of the moments).
    """
    mu2 = np.asarray(mu2, dtype=float)
    mu4 = closure(mu2) if mu4 is None else np.asarray(mu4, dtype=float)
    T = np.asarray(fidelities, dtype=float)
    first = np.asarray(variance_of_sample_variance(T[0], mu2, mu4))[None]
    excess = np.multiply.outer(1 / T[:-1] - 1 / T[1:], mu4 - 3 * mu2**2)
    gaussian = np.multiply.outer(2 / (T[:-1] - 1) - 2 / (T[1:] - 1), mu2**2)
    return np.concatenate([first, excess + gaussian])


def level_variances_uncoupled(
    fidelities: Sequence[int], target: str, mu2: ArrayLike = 1.0, mu4: ArrayLike | None = None
) -> Array:
    """Level variances when the coarse and the fine estimate of an increment share no pass: their variances add up.

    Args:
        fidelities: T_0 < … < T_L.
        target: Which estimates: "mean" for Y, "variance" for V.
        mu2: Variance μ2 of a pass; 1 by default.
        mu4: Fourth central moment μ4 of a pass; that of :func:`closure` by default.

    Returns:
        Level variances, of shape (L + 1, *broadcast shape of the moments).

    Examples:
        >>> level_variances_uncoupled((4, 8, 16), "mean").tolist()
        [0.25, 0.375, 0.1875]
    """
    single = [
        variance_of_sample_mean(T, mu2) if target == "mean" else variance_of_sample_variance(T, mu2, mu4)
        for T in fidelities
    ]
    return np.stack([single[0], *(coarse + fine for coarse, fine in pairwise(single))])


def expected_S2(level_variances: ArrayLike, counts: Sequence[int] | Array) -> Any:
    """Expectation of the paper's S²: E S² = Σ v_ℓ / M_ℓ (lem:mlmc:mean_moments, thm:mlmc:variance_moments).

    Args:
        level_variances: v_ℓ, with the level as first axis.
        counts: Numbers of replicates M_ℓ.

    Returns:
        E S², of the shape of one level variance.
    """
    v = np.asarray(level_variances, dtype=float)
    return np.tensordot(1.0 / np.asarray(counts, dtype=float), v, axes=1)


variance_independent = expected_S2
"""Variance of the multilevel estimator when levels are drawn independently: exactly E S²."""


def variance_nested(level_variances: ArrayLike, counts: Sequence[int] | Array) -> Any:
    """Variance of Algorithm 1, where level ℓ extends the replicates of level ℓ−1.

    Increments of nested samples are uncorrelated with each other, and the covariance of level 0
    with Δ_ℓ is −v_ℓ, hence  Var = v_0/M_0 + Σ v_ℓ/M_ℓ − 2 Σ_{ℓ≥1} v_ℓ / max(M_0, M_ℓ).
    Among plans that spend the same passes it is least at equal counts M. The estimator of the mean is then the plain
    average of all M·T_L passes; that of the variance is the average of M sample variances V(T_L), whose variance is a
    little above that of the sample variance of all passes together.

    Args:
        level_variances: v_ℓ, with the level as first axis.
        counts: Numbers of replicates M_ℓ.

    Returns:
        The variance, of the shape of one level variance.

    Examples:
        >>> v = level_variances_mean((4, 8, 16))
        >>> round(float(variance_nested(v, (10, 10, 10))), 10), 1 / 160
        (0.00625, 0.00625)
    """
    v, M = np.asarray(level_variances, dtype=float), np.asarray(counts, dtype=float)
    return expected_S2(v, M) - 2.0 * np.tensordot(1.0 / np.maximum(M[0], M[1:]), v[1:], axes=1)


def cost_per_replicate(fidelities: Sequence[int], cost: str) -> NDArray[np.int64]:
    """Passes a_ℓ that a replicate of level ℓ is charged.

    Args:
        fidelities: T_0 < … < T_L.
        cost: Cost model: "coupled", a_ℓ = T_ℓ − T_{ℓ−1}; "uncoupled", a_ℓ = T_ℓ; "separate", a_ℓ = T_ℓ + T_{ℓ−1}, what
            increments from separate coarse and fine passes really cost.

    Returns:
        a, of shape (L + 1,).

    Examples:
        >>> [cost_per_replicate((4, 8, 16), cost).tolist() for cost in ("coupled", "uncoupled", "separate")]
        [[4, 4, 8], [4, 8, 16], [4, 12, 24]]
    """
    T = np.asarray(fidelities, dtype=np.int64)
    steps = np.diff(T, prepend=0)
    charges: dict[str, NDArray[np.int64]] = {"coupled": steps, "uncoupled": T, "separate": 2 * T - steps}
    return charges[cost]


def cost_coupled(fidelities: Sequence[int], counts: Sequence[int]) -> int:
    """Cost under the coupled model: c_cpl = T_0 M_0 + Σ (T_ℓ − T_{ℓ−1}) M_ℓ (eq:mlmc:cost_coupled_additive).

    Args:
        fidelities: T_0 < … < T_L.
        counts: Numbers of replicates M_ℓ.

    Returns:
        The cost in passes.

    Examples:
        >>> cost_coupled((4, 8, 16), (103, 73, 37))
        1000
    """
    return int(cost_per_replicate(fidelities, "coupled") @ np.asarray(counts))


def cost_uncoupled(fidelities: Sequence[int], counts: Sequence[int]) -> int:
    """Cost under the uncoupled model: c_unc = Σ T_ℓ M_ℓ (eq:mlmc:cost_uncoupled_additive).

    This is what independent levels really cost.

    Args:
        fidelities: T_0 < … < T_L.
        counts: Numbers of replicates M_ℓ.

    Returns:
        The cost in passes.
    """
    return int(cost_per_replicate(fidelities, "uncoupled") @ np.asarray(counts))


def cost_spent(fidelities: Sequence[int], counts: Sequence[int], levels: str) -> int:
    """Passes that are really run.

    A nested replicate runs to its deepest level; independent replicates run T_ℓ passes each, or T_ℓ + T_{ℓ−1} where
    coarse and fine passes are separate. For nested levels with M_0 ≥ … ≥ M_L this equals :func:`cost_coupled`, and
    otherwise exceeds it.

    Args:
        fidelities: T_0 < … < T_L.
        counts: Numbers of replicates M_ℓ.
        levels: How levels are sampled: "nested", "independent" or "uncoupled".

    Returns:
        The number of passes.

    Examples:
        >>> cost_spent((4, 8), (10, 20), "nested"), cost_coupled((4, 8), (10, 20))
        (160, 120)
    """
    if levels == "independent":
        return cost_uncoupled(fidelities, counts)
    if levels == "uncoupled":
        return int(cost_per_replicate(fidelities, "separate") @ np.asarray(counts))
    replicates_reaching = np.maximum.accumulate(np.asarray(counts)[::-1])[::-1]
    return cost_coupled(fidelities, replicates_reaching.tolist())


def optimal_counts(level_variances: ArrayLike, costs: ArrayLike, budget: float) -> Array:
    """Counts of least variance for a budget (lem:mlmc:allocation_mean, …_variance_general).

        M_ℓ = c·√(v_ℓ/a_ℓ) / Σ_k √(v_k a_k)

    Args:
        level_variances: v_ℓ, one number per level.
        costs: Passes a_ℓ per replicate of each level.
        budget: Passes c to spend.

    Returns:
        M, real numbers, of shape (L + 1,).

    Examples:
        >>> optimal_counts(level_variances_mean((4, 8, 16)), [4, 4, 8], 1000).round(2).tolist()
        [103.55, 73.22, 36.61]
    """
    v, a = np.asarray(level_variances, dtype=float), np.asarray(costs, dtype=float)
    result: Array = budget * np.sqrt(v / a) / np.sqrt(v * a).sum()
    return result
