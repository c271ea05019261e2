"""The sections about levels: what each contributed, and how many replicates theory would have given them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlmc_dropout import theory
from mlmc_dropout.report import charts
from mlmc_dropout.report.blocks import Section, TableBlock, Text
from mlmc_dropout.report.formats import passes, short
from mlmc_dropout.report.numbers import average, matrix
from mlmc_dropout.result import Result
from mlmc_dropout.result.text import variance_rates

__all__ = ["allocation", "levels"]

_COST_NOTES = {
    "coupled": "Optima for the coupled cost: nested levels share passes, and a level is charged only its new ones.",
    "uncoupled": "Optima for the uncoupled cost: independent levels share none, and a level is charged all its passes.",
}
_S2_NOTES = {
    "nested": "S² adds variances as if levels were independent. Nested levels share passes, so S² overstates.",
    "independent": "S² adds the levels' variances. Independent levels share no passes, so this is the squared error.",
}


def levels(result: Result) -> Section:
    """What each level contributed.

    Args:
        result: A result with levels.

    Returns:
        The section.
    """
    columns = (
        "Level",
        "T",
        "Count",
        "Passes",
        "Mean ΔY",
        "Var ΔY",
        "Kurtosis",
        "Mean ΔV",
        "Var ΔV",
        "Kurtosis",
        "Check",
    )
    rows = [
        (
            level.label,
            passes(level.fidelity),
            passes(level.count),
            passes(level.cost),
            *(short(average(getattr(level, n))) for n in ("mean", "variance", "kurtosis", "mean_V", "variance_V")),
            short(average(level.kurtosis_V)),
            "–" if level.telescoping is None else short(level.telescoping, 2),
        )
        for level in result.levels
    ]
    note = "Averages over inputs and outputs. Check: Giles' telescoping test, sound below 1."
    blocks: list[Any] = [TableBlock("What each level contributed", columns, rows, note)]
    if len(rows) > 2:
        rates = variance_rates(result.levels)
        blocks.append(
            Text(
                "Correction variances fall with the fidelity T to the power "
                f"{short(-rates[0])} (mean) and {short(-rates[1])} (variance); theory says −1 for both on long ladders."
            )
        )
    return Section("levels", "Levels", blocks)


def allocation(result: Result) -> Section:
    """Replicates of a multilevel run beside the optimum of theory.

    Args:
        result: A result of the method ``mlmc``.

    Returns:
        The section.
    """
    T, counts = [lv.fidelity for lv in result.levels], [lv.count for lv in result.levels]
    cost_model = "coupled" if _is_nested(result) else "uncoupled"
    cost = theory.cost_per_replicate(T, cost_model)
    budget = float(cost @ np.asarray(counts))
    v, w = theory.level_variances_mean(T), theory.level_variances_variance(T)
    best = [theory.optimal_counts(values, cost, budget) for values in (v, w)]
    rows = [
        (f"level {i}", passes(T[i]), passes(counts[i]), short(best[0][i], 4), short(best[1][i], 4))
        for i in range(len(T))
    ]
    table = TableBlock(
        "Replicates used, and the optimum of S² at the same charged cost",
        ("Level", "T", "Used", "Optimum for the mean", "Optimum for the variance"),
        rows,
        _COST_NOTES[cost_model],
    )
    blocks = [table, charts.level_variances(result), _reported_variances(result)]
    return Section("allocation", "Allocation against theory", blocks)


def _is_nested(result: Result) -> bool:
    """Whether levels share passes (Algorithm 1), rather than being drawn independently."""
    return result.metadata.get("levels") != "independent"


def _reported_variances(result: Result) -> TableBlock:
    """S² beside the squared standard errors."""
    squares = [average(np.square(matrix(stderr))) for stderr in (result.mean_stderr, result.variance_stderr)]
    return TableBlock(
        "What the multilevel formula reports, and what is true",
        ("Estimator", "S²", "Squared standard error", "Ratio"),
        [
            (name, short(average(S2)), short(square), short(average(S2) / square) if square else "–")
            for name, S2, square in (("mean", result.S2_mean, squares[0]), ("variance", result.S2_variance, squares[1]))
        ],
        _S2_NOTES["nested" if _is_nested(result) else "independent"],
    )
