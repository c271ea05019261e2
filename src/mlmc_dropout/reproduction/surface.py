"""S² over all feasible counts of a three-level ladder at a fixed coupled cost.

The norm of S² is a sum of one term per level,

    ‖S²‖ = ‖s²_0(M_0)‖/M_0 + ‖s²_1(M_1)‖/M_1 + ‖s²_2(M_2)‖/M_2,

where s²_ℓ(M) is the sample variance of the first M increments of level ℓ. A repetition therefore draws
as many replicates as the largest count of any allocation needs, and every allocation uses the first of
them, as Algorithm 1 would: within an allocation nothing differs from a run of its own. Neighbouring
allocations share replicates, so that noise shifts them together; it is judged by independent
repetitions and not by the scatter inside one surface.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mlmc_dropout as md
from mlmc_dropout.methods.mlmc.coupling import prefix_estimates
from mlmc_dropout.reproduction.statistics import jackknife
from mlmc_dropout.reproduction.surrogates import Surrogate

__all__ = ["SHARE", "Best", "best", "feasible", "level_norms", "locate", "nested_surface", "surface"]

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

SHARE = 0.005  # the authors' code (7c1a764) averages the counts of this share of the allocations, the best ones


def feasible(fidelities: Sequence[int], budget: int) -> Counts:
    """All integer counts ≥ 2 of three levels whose coupled cost is exactly the budget.

    Args:
        fidelities: The ladder (T_0, T_1, T_2).
        budget: The coupled cost.

    Returns:
        Counts (n, 3).

    Examples:
        >>> counts = feasible((4, 8, 16), 1000)
        >>> len(counts), counts.max(axis=0).tolist()
        (14884, [244, 244, 123])
    """
    a0, a1, a2 = (int(a) for a in md.theory.cost_per_replicate(tuple(fidelities), "coupled"))
    M1, M2 = np.meshgrid(np.arange(2, budget // a1), np.arange(2, budget // a2), indexing="ij")
    rest = budget - a1 * M1 - a2 * M2
    keep = (rest >= 2 * a0) & (rest % a0 == 0)
    return np.stack([rest[keep] // a0, M1[keep], M2[keep]], axis=1).astype(np.int64)


def level_norms(surrogate: Surrogate, fidelities: Sequence[int], most: Sequence[int], seed: int, stream: int) -> Any:
    """One repetition: the norm ‖s²_ℓ(M)‖ of every level for every count.

    Args:
        surrogate: The network.
        fidelities: The ladder.
        most: Largest count of each level.
        seed: Every mask follows from it.
        stream: Repetitions of different streams are independent.

    Returns:
        Output -> "Y" or "V" -> per level the norms for M = 2 … most[ℓ].
    """
    replicates, T = max(most), fidelities[-1]
    sampler = md.DropoutSampler(surrogate.model, masks="independent")
    passes = sampler.sample(surrogate.x, passes=replicates * T, seed=seed, stream=stream)
    named = passes if isinstance(passes, dict) else {"u": passes}
    norms = {}
    for out, values in named.items():
        # (passes, points, 1) -> (T, replicates, points)
        D = values.double().numpy().reshape(T, replicates, -1)
        cuts = [D[a:b] for a, b in zip((0, *fidelities), fidelities, strict=False)]
        prefixes = prefix_estimates(cuts, fidelities)
        norms[out] = {
            key: [prefix_variances(d)[: m - 1].tolist() for d, m in zip(increments(prefixes, key), most, strict=True)]
            for key in "YV"
        }
    return norms


def increments(prefixes: Sequence[Any], key: str) -> list[Array]:
    """The first estimates and their corrections.

    Args:
        prefixes: Estimates of Y and V per fidelity.
        key: ``"Y"`` or ``"V"``.

    Returns:
        (replicates, points) per level.
    """
    values = [getattr(prefix, key) for prefix in prefixes]
    return [values[0], *(fine - coarse for coarse, fine in pairwise(values))]


def prefix_variances(values: Array) -> Array:
    """L¹ norms over the points of the sample variances of the first M rows.

    Args:
        values: (rows, points).

    Returns:
        The norms for M = 2, 3, …, (rows − 1,).

    Examples:
        >>> x = np.array([[1.0, 0.0], [2.0, 0.0], [4.0, 3.0]])
        >>> prefix_variances(x).round(4).tolist()
        [0.5, 5.3333]
    """
    d = values - values.mean(axis=0)  # centred first: differences of large sums lose nothing then
    M = np.arange(1, len(d) + 1)[:, None]
    squares = np.cumsum(d * d, axis=0) - np.cumsum(d, axis=0) ** 2 / M
    variances = np.maximum(squares[1:], 0.0) / (M[1:] - 1)
    return np.asarray(variances.sum(axis=1) / (values.shape[1] - 1))


def surface(norms: Sequence[Sequence[float]], counts: Counts) -> Array:
    """‖S²‖ of every allocation.

    Args:
        norms: Per level the norms for M = 2, 3, ….
        counts: Allocations (n, levels).

    Returns:
        The norms of S², (n,).
    """
    return np.asarray(sum(np.asarray(norms[level])[M - 2] / M for level, M in enumerate(counts.T)))


def nested_surface(level_variances: Sequence[float], fidelities: Sequence[int], budget: int) -> Array:
    """The variance that Algorithm 1 really has, for every feasible allocation.

    Args:
        level_variances: Norms of v_ℓ or w_ℓ.
        fidelities: The ladder.
        budget: The coupled cost.

    Returns:
        One norm per row of :func:`feasible`.
    """
    return _nested_surface(tuple(level_variances), tuple(fidelities), budget)


@lru_cache(maxsize=16)
def _nested_surface(levels: tuple[float, ...], fidelities: tuple[int, ...], budget: int) -> Array:
    return np.array([float(md.theory.variance_nested(levels, M)) for M in feasible(fidelities, budget)])


@dataclass(frozen=True, slots=True)
class Best:
    """Where a surface is least.

    Attributes:
        single: The single best counts.
        centre: The mean counts of the best 0.5 %.
        value: The least value.
    """

    single: tuple[int, ...]
    centre: tuple[float, ...]
    value: float


def best(values: Array, counts: Counts) -> Best:
    """The least value, and the mean counts of the best share of allocations.

    Args:
        values: The surface, (n,).
        counts: Its allocations, (n, levels).

    Returns:
        The optimum.
    """
    number = int(np.ceil(SHARE * len(values)))
    order = np.argsort(values, kind="stable")
    centre = counts[order[:number]].mean(axis=0)
    return Best(tuple(counts[order[0]].tolist()), tuple(centre.tolist()), float(values[order[0]]))


def locate(repetitions: Sequence[Any], counts: Counts, comparisons: int) -> Mapping[str, Any]:
    """The optimum of the mean surface with a jackknife interval, and the scatter of single repetitions.

    Args:
        repetitions: Per repetition the norms per level.
        counts: Allocations (n, levels).
        comparisons: Number of intervals that shall hold together.

    Returns:
        Plain data: the optimum, its interval, and standard deviations of single repetitions.
    """
    stacked = [np.array([rep[level] for rep in repetitions]) for level in range(counts.shape[1])]
    K = len(repetitions)
    means = [level.mean(axis=0) for level in stacked]
    optimum = best(surface(means, counts), counts)
    without = [
        best(surface([(m * K - level[k]) / (K - 1) for m, level in zip(means, stacked, strict=True)], counts), counts)
        for k in range(K)
    ]
    low, high = jackknife(optimum.centre, [b.centre for b in without], comparisons)
    alone = [best(surface([level[k] for level in stacked], counts), counts) for k in range(K)]
    return {
        "norms": [m.tolist() for m in means],
        "levels": [float(m[-1]) for m in means],
        "single": list(optimum.single),
        "least": optimum.value,
        "centre": list(optimum.centre),
        "low": low.tolist(),
        "high": high.tolist(),
        "one_repetition": {
            "centre_sd": np.std([b.centre for b in alone], axis=0, ddof=1).tolist(),
            "single_sd": np.std([b.single for b in alone], axis=0, ddof=1).tolist(),
            "least_relative_sd": float(np.std([b.value for b in alone], ddof=1) / np.mean([b.value for b in alone])),
        },
    }
