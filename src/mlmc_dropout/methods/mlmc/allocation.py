"""4 · Level variances and a budget -> counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout import theory
from mlmc_dropout.errors import AllocationError, InputError
from mlmc_dropout.methods.mlmc.ladder import Ladder
from mlmc_dropout.moments import Moments

__all__ = ["Plan", "allocate", "averaged", "check_counts", "integer_counts", "least_counts", "moments_of"]

Target = Literal["mean", "variance"]
CostModel = Literal["coupled", "uncoupled", "separate"]
Counts = NDArray[np.int64]
MIN_COUNT = 2  # every level's sample variance is formed


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts for a ladder: the continuous optimum, integers nearby, and what they cost and give.

    ``objective`` is E S² of the integer counts, per unit of the moments given (μ2 = 1 otherwise).
    """

    ladder: Ladder
    target: Target
    cost_model: CostModel
    budget: float
    continuous: tuple[float, ...]
    counts: tuple[int, ...]
    cost: int
    objective: float


def allocate(
    ladder: Ladder,
    budget: float,
    target: Target = "mean",
    cost: CostModel = "coupled",
    moments: Moments | None = None,
    mean_only: bool = False,
) -> Plan:
    """The counts that minimise E S² of the mean or variance estimator for a budget of passes.

    Args:
        ladder: The fidelities T_0 < … < T_L.
        budget: Passes per input.
        target: The moment whose E S² is minimised.
        cost: What a replicate of level ℓ costs: "coupled", T_ℓ − T_(ℓ−1) further passes; "uncoupled", T_ℓ; "separate",
            T_ℓ + T_(ℓ−1), where coarse and fine passes are not shared and increments vary more.
        moments: μ2 and μ4 of a pass, averaged over their components, for example those of :func:`moments_of`; without
            μ4, or ``None``: the zero-excess-kurtosis closure μ4 = 3 μ2².
        mean_only: Whether nothing but the mean is wanted: a single replicate will then do at every level but the first.

    Returns:
        The continuous optimum, integer counts, and what they cost and give.

    Raises:
        AllocationError: If the budget does not hold two replicates a level.
        InputError: If a name or a moment cannot be.

    Example:
        >>> plan = allocate(Ladder((4, 8, 16)), budget=1000)
        >>> [round(m, 2) for m in plan.continuous], plan.counts, plan.cost
        ([103.55, 73.22, 36.61], (103, 73, 37), 1000)
    """
    if target not in ("mean", "variance"):
        raise InputError(f"unknown target {target!r}; use 'mean' or 'variance'")
    if cost not in ("coupled", "uncoupled", "separate"):
        raise InputError(f"unknown cost model {cost!r}; use 'coupled', 'uncoupled' or 'separate'")
    variances = _level_variances(ladder, target, moments, cost)
    costs = theory.cost_per_replicate(ladder.fidelities, cost)
    least = np.asarray(least_counts(ladder, mean_only))
    if not (np.isfinite(budget) and budget >= costs @ least):
        raise AllocationError(
            f"a budget of {budget} passes is too small for the ladder {ladder.fidelities}: the cheapest feasible plan "
            f"({', '.join(map(str, least))} replicates) costs {costs @ least}; raise the budget or shorten the ladder"
        )
    counts = integer_counts(variances, costs, budget, least)
    return Plan(
        ladder,
        target,
        cost,
        budget,
        tuple(theory.optimal_counts(variances, costs, budget).tolist()),
        counts,
        int(costs @ np.asarray(counts)),
        float(theory.expected_S2(variances, counts)),
    )


def least_counts(ladder: Ladder, mean_only: bool = False) -> tuple[int, ...]:
    """The fewest replicates of each level.

    Args:
        ladder: The fidelities.
        mean_only: Whether nothing but the mean is wanted.

    Returns:
        Two per level, of which sample variances are formed; for the mean alone those of the first level are enough.
    """
    return (MIN_COUNT, *((1 if mean_only else MIN_COUNT,) * (len(ladder) - 1)))


def moments_of(result: Any) -> Moments:
    """μ2 and μ4 of a pass from a result, for the allocation of the next run.

    A plain run has both directly. A multilevel run has μ2 in its variance, and μ4 in the variance of V over the
    replicates of its first level, from which it is solved (lem:mlmc:single_fidelity_moments).

    Args:
        result: A result of method "pooled" or "mlmc".

    Returns:
        The moments, in the structure of the result's variance; of several outputs, all in one array.

    Raises:
        InputError: If the result's method does not show μ4.
    """
    if result.method not in ("pooled", "mlmc") or not result.levels:
        raise InputError(
            f"moments come from a result of method 'pooled' or 'mlmc' with its levels: got method={result.method!r}"
        )
    level = result.levels[0]
    mu2 = _joined(result.variance)
    if result.method == "pooled":
        return Moments(mu2, np.nan_to_num(_joined(level.kurtosis)) * mu2**2)
    fourth = theory.fourth_moment(level.fidelity, mu2, _joined(level.variance_V))
    return Moments(mu2, np.maximum(fourth, mu2**2))  # no law has a smaller one


def _joined(values: Any) -> NDArray[np.float64]:
    if isinstance(values, (dict, tuple, list)):
        parts = values.values() if isinstance(values, dict) else values
        return np.concatenate([np.asarray(part, dtype=float).reshape(-1) for part in parts])
    return np.asarray(values, dtype=float)


def averaged(moments: Moments) -> Moments:
    """Two numbers that give the same counts as moments of many components.

    Level variances are linear in μ4 and μ2², which are therefore averaged.

    Args:
        moments: Arrays or numbers.

    Returns:
        Numbers: the root mean square of μ2 and the mean of μ4.
    """
    mu2 = float(np.sqrt(np.mean(np.square(moments.mu2))))
    return Moments(mu2, None if moments.mu4 is None else float(np.mean(moments.mu4)))


def _level_variances(ladder: Ladder, target: Target, moments: Moments | None, cost: CostModel) -> NDArray[np.float64]:
    mu2, mu4 = (1.0, None) if moments is None else (moments.mu2, moments.mu4)
    if not np.all(np.isfinite(mu2)) or np.any(np.asarray(mu2) < 0) or not np.any(np.asarray(mu2) > 0):
        raise InputError(f"mu2 is a variance and must be finite and positive somewhere: got {mu2}")
    if target == "variance":
        ladder.require_variances()
    if cost == "separate":
        values = theory.level_variances_uncoupled(ladder.fidelities, target, mu2, mu4)
    elif target == "mean":
        values = theory.level_variances_mean(ladder.fidelities, mu2)
    else:
        values = theory.level_variances_variance(ladder.fidelities, mu2, mu4)
    averaged: NDArray[np.float64] = values.reshape(len(ladder), -1).mean(axis=1)
    if not np.all(np.isfinite(averaged) & (averaged > 0)):
        raise InputError(f"mu4={mu4} gives level variances {averaged}; mu4 must be finite and at least mu2**2")
    return averaged


def integer_counts(
    variances: NDArray[np.float64], costs: Counts, budget: float, least: Counts | None = None
) -> tuple[int, ...]:
    """Integer counts within the budget, no neighbour of which (each count ±1 or 0) is better.

    Args:
        variances: Of a replicate at each level.
        costs: Of a replicate at each level.
        budget: Passes.
        least: The fewest replicates of each level; 2 by default.

    Returns:
        One count per level.
    """
    least = np.full(len(costs), MIN_COUNT, dtype=np.int64) if least is None else least.astype(np.int64)
    counts = least.copy()
    free = np.ones(len(costs), dtype=bool)
    while free.any():  # levels whose share falls below the minimum are fixed there, the rest share what is left
        left = float(budget - costs[~free] @ least[~free])
        share = theory.optimal_counts(variances[free], costs[free], left)
        if np.all(share >= least[free]):
            counts[free] = np.floor(share).astype(np.int64)
            break
        free[np.flatnonzero(free)[share < least[free]]] = False
    counts = _spend_rest(counts, variances, costs, budget)
    while (better := _better_neighbour(counts, least, variances, costs, budget)) is not None:
        counts = _spend_rest(better, variances, costs, budget)
    return tuple(counts.tolist())


def _spend_rest(
    counts: NDArray[np.int64], variances: NDArray[np.float64], costs: NDArray[np.int64], budget: float
) -> NDArray[np.int64]:
    """Add replicates where a pass helps most, while the budget lasts."""
    counts = counts.copy()
    while (affordable := costs @ counts + costs <= budget).any():
        gain = variances / (counts * (counts + 1.0)) / costs
        counts[int(np.argmax(np.where(affordable, gain, -1.0)))] += 1
    return counts


def _better_neighbour(
    counts: Counts, least: Counts, variances: NDArray[np.float64], costs: Counts, budget: float
) -> Counts | None:
    """The best feasible neighbour, if it beats ``counts``: exact, whatever the number of levels.

    Levels are decided one by one, dearest first. Of the partial choices only those are kept that can
    still become affordable and better, and that no other choice beats in cost and objective at once.
    """
    here = float((variances / counts).sum())
    target, slack = here * (1 - 1e-12), float(budget - costs @ counts)
    cheapest = np.where(counts > least, -costs, 0)  # what a level can give back at most
    best = variances / (counts + 1)
    spent, value, moves = np.zeros(1), np.zeros(1), np.zeros((1, len(counts)), dtype=np.int64)
    order = np.argsort(-costs, kind="stable")
    for place, level in enumerate(order):
        steps = np.array([-1, 0, 1] if counts[level] > least[level] else [0, 1])
        spent = (spent[:, None] + steps * costs[level]).ravel()
        value = (value[:, None] + variances[level] / (counts[level] + steps)).ravel()
        moves = np.repeat(moves, len(steps), axis=0)
        moves[:, level] = np.tile(steps, len(moves) // len(steps))
        rest = order[place + 1 :]
        alive = (spent + cheapest[rest].sum() <= slack) & (value + best[rest].sum() < target)
        keep = np.flatnonzero(alive)[_undominated(spent[alive], value[alive])]
        spent, value, moves = spent[keep], value[keep], moves[keep]
    return counts + moves[int(np.argmin(value))] if len(value) else None


def _undominated(spent: NDArray[np.float64], value: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices of the choices to which no other is at least as good in both respects."""
    order = np.lexsort((value, spent))
    least = np.minimum.accumulate(value[order])
    first = np.concatenate([[True], value[order][1:] < least[:-1]]) if len(order) else np.zeros(0, dtype=bool)
    kept: NDArray[np.int64] = order[first]
    return kept


def check_counts(ladder: Ladder, counts: Iterable[int], mean_only: bool = False) -> tuple[int, ...]:
    """Explicit counts, validated.

    Args:
        ladder: The fidelities.
        counts: Replicates per level.
        mean_only: Whether nothing but the mean is wanted.

    Returns:
        The counts as integers.

    Raises:
        AllocationError: If there are too few, too many, or they are no whole numbers of at least 2 (1 above the first
            level, if only the mean is wanted).
    """
    if not isinstance(counts, Iterable) or isinstance(counts, (str, bytes)):
        raise AllocationError(f"counts are one number of replicates per level: got {counts!r}; give for example (8, 4)")
    values = tuple(counts)
    if len(values) != len(ladder):
        raise AllocationError(
            f"one count per level is needed: got {len(values)} counts {values} for {len(ladder)} fidelities "
            f"{ladder.fidelities}"
        )
    if any(isinstance(m, bool) or not isinstance(m, (int, np.integer)) for m in values):
        raise AllocationError(f"counts are whole numbers of replicates: got {values}")
    least = least_counts(ladder, mean_only)
    if any(m < needed for m, needed in zip(values, least, strict=True)):
        raise AllocationError(
            f"a level that forms a sample variance needs at least {MIN_COUNT} replicates, here {least}: got {values}; "
            "raise the counts, ask for the mean only, or use method='pooled' for a single replicate"
        )
    return tuple(int(m) for m in values)
