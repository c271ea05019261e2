"""The fixed-cost surface as the authors compute it: a run of its own for every allocation, with falling counts.

Their code (commit 7c1a764) takes the allocations with M_0 ≥ M_1 ≥ M_2, runs Algorithm 1 once for each, and averages the
counts of the best 0.5 %. Every point of the surface then has noise of its own. Where time matters a coarser lattice is
used: M_1 and M_2 are multiples of ``step``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import mlmc_dropout as md
from mlmc_dropout.reproduction import surface
from mlmc_dropout.reproduction.statistics import l1_norm
from mlmc_dropout.reproduction.surrogates import Surrogate, by_output
from mlmc_dropout.reproduction.work import Work

__all__ = ["allocations", "compute", "least"]

Data = Mapping[str, Any]


def allocations(fidelities: Sequence[int], budget: int, step: int = 1) -> surface.Counts:
    """The feasible counts that do not increase with the level, on a lattice of M_1 and M_2.

    Args:
        fidelities: The ladder (T_0, T_1, T_2).
        budget: The coupled cost.
        step: M_1 and M_2 are multiples of it; with 1 there are as many allocations as in the authors' code.

    Returns:
        Counts (n, 3).

    Examples:
        >>> len(allocations((4, 8, 16), 1000)), allocations((4, 8, 16), 1000, step=40).tolist()
        (3782, [[130, 40, 40], [90, 80, 40]])
    """
    counts = surface.feasible(fidelities, budget)
    falling = (counts[:, 0] >= counts[:, 1]) & (counts[:, 1] >= counts[:, 2])
    return np.asarray(counts[falling & np.all(counts[:, 1:] % step == 0, axis=1)])


def compute(surrogate: Surrogate, settings: Data, work: Work) -> dict[str, Any]:
    """‖S²_Y‖ and ‖S²_V‖ of one run per allocation.

    Args:
        surrogate: The network.
        settings: ``ladder``, ``budget``, ``step`` and ``seed``.
        work: Remembers what is done.

    Returns:
        Plain data: the step, and per output and estimator the norms in the order of :func:`allocations`.
    """
    T = tuple(settings["ladder"])
    counts = allocations(T, settings["budget"], settings["step"])

    def one(index: int) -> dict[str, Any]:
        result = md.estimate(
            surrogate.model,
            surrogate.x,
            method="mlmc",
            ladder=T,
            counts=tuple(counts[index].tolist()),
            seed=settings["seed"] + 1000 + index,
        )
        parts = {"Y": by_output(result.S2_mean), "V": by_output(result.S2_variance)}
        return {out: {key: l1_norm(parts[key][out]) for key in "YV"} for out in parts["Y"]}

    norms = work.each("separate runs", range(len(counts)), one)
    return {
        "step": settings["step"],
        "norms": {out: {key: [entry[out][key] for entry in norms] for key in "YV"} for out in norms[0]},
    }


def least(data: Data, out: str, key: str) -> surface.Best:
    """Where the surface of separate runs is least.

    Args:
        data: Data of an allocation test.
        out: Name of the output.
        key: ``"Y"`` or ``"V"``.

    Returns:
        The optimum.
    """
    separate = data["separate"]
    counts = allocations(data["ladder"], data["budget"], separate["step"])
    return surface.best(np.asarray(separate["norms"][out][key]), counts)
