"""Plain runs at a few fidelities, M = 1: what F1, I1 and I2 look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mlmc_dropout as md
from mlmc_dropout.reproduction.surrogates import Surrogate, by_output
from mlmc_dropout.reproduction.verdict import Table
from mlmc_dropout.reproduction.work import Work

__all__ = ["compute", "csv_rows", "pick", "rms"]

Array = NDArray[np.float64]
Data = Mapping[str, Any]


def compute(surrogate: Surrogate, settings: Data, work: Work) -> dict[str, Any]:
    """Y(x, T), V(x, T) and the standard error of V at several fidelities.

    Args:
        surrogate: The network.
        settings: ``fidelities`` T, and the ``seed`` of the first; each has passes that no other shares.
        work: Remembers what is done.

    Returns:
        Plain data: T, x, runs by fidelity and output, exact means and deviations.
    """

    def one(T: int) -> dict[str, Any]:
        result = md.estimate(
            surrogate.model, surrogate.x, method="pooled", budget=T, seed=settings["seed"] + settings["order"].index(T)
        )
        parts = {"Y": result.mean, "V": result.variance, "V_stderr": result.variance_stderr}
        named = {key: by_output(values) for key, values in parts.items()}
        return {out: {key: named[key][out].tolist() for key in named} for out in named["Y"]}

    settings = {**settings, "order": list(settings["fidelities"])}
    runs = work.each("fidelities", settings["fidelities"], one)
    return {
        "T": list(settings["fidelities"]),
        "x": surrogate.x[:, 0].tolist(),
        "runs": runs,
        "exact_mean": {out: v.tolist() for out, v in surrogate.exact_mean().items()},
        "exact_std": {out: v.tolist() for out, v in surrogate.exact_std().items()},
    }


def pick(data: Data, index: int, out: str) -> tuple[Array, Array, Array]:
    """The curves of one run.

    Args:
        data: What :func:`compute` returns.
        index: Index of the fidelity.
        out: Name of the output.

    Returns:
        Y, V and the standard error of V, (points,) each.
    """
    run = data["runs"][index][out]
    return np.asarray(run["Y"]), np.asarray(run["V"]), np.asarray(run["V_stderr"])


def rms(values: Any) -> float:
    """Root mean square over the grid.

    Args:
        values: Any shape.

    Returns:
        √(mean of squares).
    """
    return float(np.sqrt(np.mean(np.square(values))))


def csv_rows(data: Data) -> Table:
    """One row per fidelity, output and grid point.

    Args:
        data: What :func:`compute` returns.

    Returns:
        The rows of ``numbers.csv``.
    """
    rows = [
        (T, out, x, Y, V, mean, std)
        for T, run in zip(data["T"], data["runs"], strict=True)
        for out, e in run.items()
        for x, Y, V, mean, std in zip(
            data["x"], e["Y"], e["V"], data["exact_mean"][out], data["exact_std"][out], strict=True
        )
    ]
    return Table("Estimates on the grid.", ("T", "output", "x", "Y", "V", "exact_mean", "exact_std"), tuple(rows))
