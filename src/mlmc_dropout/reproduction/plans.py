"""Real variances of a few allocations, measured by repetition, beside what S² and our standard errors say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import mlmc_dropout as md
from mlmc_dropout.reproduction.statistics import l1_norm, variance_interval
from mlmc_dropout.reproduction.surrogates import POINTS, Surrogate, by_output
from mlmc_dropout.reproduction.verdict import Table

__all__ = ["candidates", "measure", "plain_variance", "table"]

Plan = dict[str, Any]
Data = Mapping[str, Any]


def candidates(fidelities: Sequence[int], budget: int) -> list[Plan]:
    """The allocations worth comparing: theory under both costs, equal counts, and plain Monte Carlo.

    Args:
        fidelities: The ladder T_0 < … < T_L.
        budget: Passes per input.

    Returns:
        Plain data: name, method, levels and counts of each.
    """
    ladder = md.Ladder(tuple(fidelities))

    def plan(name: str, counts: Sequence[int], levels: str = "nested") -> Plan:
        return {"name": name, "method": "mlmc", "levels": levels, "counts": list(counts)}

    uncoupled = md.allocate(ladder, budget, "mean", "uncoupled").counts
    whole = "uncoupled optimum for the mean, in whole numbers"
    return [
        plan("coupled optimum for the mean", md.allocate(ladder, budget, "mean").counts),
        plan("coupled optimum for the variance", md.allocate(ladder, budget, "variance").counts),
        plan(f"{whole}, levels nested", uncoupled),
        plan(f"{whole}, levels independent", uncoupled, "independent"),
        plan("equal counts", (budget // fidelities[-1],) * len(ladder)),
        {"name": "plain Monte Carlo", "method": "pooled", "levels": "", "counts": [budget]},
    ]


def measure(surrogate: Surrogate, plan: Plan, fidelities: Sequence[int], repetitions: int, seed: int) -> Plan:
    """Variance of the estimates over independent repetitions, run as further rows: masks differ from row to row.

    Args:
        surrogate: The network.
        plan: One of :func:`candidates`.
        fidelities: The ladder.
        repetitions: Number R of repetitions.
        seed: Every mask follows from it.

    Returns:
        The plan with its cost and, by output and estimator, variance, its interval, stderr² and S².
    """
    rows = np.tile(surrogate.x, (repetitions, 1))
    if plan["method"] == "pooled":
        result = md.estimate(surrogate.model, rows, method="pooled", budget=plan["counts"][0], seed=seed)
    else:
        result = md.estimate(
            surrogate.model,
            rows,
            method="mlmc",
            ladder=tuple(fidelities),
            counts=tuple(plan["counts"]),
            levels=plan["levels"],
            seed=seed,
        )
    sides = {
        "Y": (result.mean, result.mean_stderr, result.S2_mean),
        "V": (result.variance, result.variance_stderr, result.S2_variance),
    }
    outputs: dict[str, dict[str, Any]] = {}
    for key, (estimate, stderr, S2) in sides.items():
        for out, values in by_output(estimate).items():
            spread = values.reshape(repetitions, POINTS).var(axis=0, ddof=1)
            low, high = variance_interval(spread, repetitions)
            reported = by_output(stderr)[out].reshape(repetitions, POINTS) ** 2
            entry = {"variance": l1_norm(spread), "low": low, "high": high, "stderr2": l1_norm(reported.mean(axis=0))}
            if S2 is not None:
                entry["S2"] = l1_norm(by_output(S2)[out].reshape(repetitions, POINTS).mean(axis=0))
            outputs.setdefault(out, {})[key] = entry
    return {**plan, "cost": result.cost, "outputs": outputs}


def plain_variance(moments: Data, key: str, passes: float) -> float:
    """‖variance‖ of plain Monte Carlo with as many passes, from measured moments.

    Args:
        moments: ``mu2`` and ``mu4`` along the grid.
        key: ``"Y"`` for the mean, ``"V"`` for the variance.
        passes: Passes per input.

    Returns:
        The L¹ norm.
    """
    mu2, mu4 = np.asarray(moments["mu2"]), np.asarray(moments["mu4"])
    if key == "Y":
        return l1_norm(md.theory.variance_of_sample_mean(passes, mu2))
    return l1_norm(md.theory.variance_of_sample_variance(passes, mu2, mu4))


def table(data: Data, out: str) -> Table:
    """Variances in units of plain Monte Carlo's at the same passes; 1 is the best possible.

    Args:
        data: What :func:`fixed_cost.compute` returns.
        out: Name of the output.

    Returns:
        One row per plan.
    """
    rows = []
    for plan, named in zip(data["plans"], candidates(data["ladder"], data["budget"]), strict=True):
        cells: list[Any] = [named["name"], ", ".join(map(str, plan["counts"])), plan["cost"]]
        for key in "YV":
            entry = plan["outputs"][out][key]
            unit = plain_variance(data["moments"][out], key, plan["cost"])
            interval = f"{entry['variance'] / unit:.2f} ({entry['low'] / unit:.2f}, {entry['high'] / unit:.2f})"
            cells += [interval, round(entry["stderr2"] / unit, 3), _ratio(entry.get("S2"), unit)]
        rows.append(tuple(cells))
    head = ("plan", "counts", "passes")
    columns = (*head, *(f"{key}: {what}" for key in "YV" for what in ("variance", "our stderr²", "S²")))
    caption = (
        f"Output {out}: measured variance (99 % interval), the square of the reported standard error, and S², all "
        "divided by the variance of plain Monte Carlo with the same passes."
    )
    return Table(caption, columns, tuple(rows))


def _ratio(value: float | None, unit: float) -> float | str:
    return "" if value is None else round(value / unit, 3)
