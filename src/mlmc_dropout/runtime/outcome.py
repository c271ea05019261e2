"""How a batch of inputs ended, or stands, and in what words that is said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mlmc_dropout.methods.base import Array, Estimates, Rows
from mlmc_dropout.result import Status
from mlmc_dropout.runtime.rounding import limits
from mlmc_dropout.stopping.goal import Goal

__all__ = ["Outcome", "how_many", "needed_passes", "outcome_of_all", "passes_of_rows", "unsettled"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known about a batch: estimates, how the run stands, a remark, and the passes of every row."""

    estimates: Estimates
    status: Status
    note: str = ""
    passes: Array | None = None  # the same for all rows: the cost of the estimates


def outcome_of_all(
    goal: Goal, found: Estimates, shown: Estimates, samples: float, dtype: torch.dtype | None
) -> Outcome:
    """How a run ended whose inputs have all had the same passes.

    Args:
        goal: When to stop.
        found: The estimates, without allowance for rounding.
        shown: The same as they are shown.
        samples: Samples behind their standard errors.
        dtype: The type of the model's parameters.

    Returns:
        The outcome.
    """
    if not goal.has_tolerance:
        return Outcome(shown, Status.COMPLETED)
    if goal.met(shown, samples):
        return Outcome(shown, Status.TOLERANCE_MET)
    if goal.met(found, samples) or limits(found, goal, dtype):
        return Outcome(shown, Status.PRECISION_REACHED)
    return Outcome(shown, Status.BUDGET_EXHAUSTED, _how_far(found, goal.shortfall(found)))


def _how_far(found: Estimates, short: float) -> str:
    """What a run lacks that its budget has ended.

    Args:
        found: The estimates.
        short: How many times as many passes the tolerance needs.

    Returns:
        A sentence.
    """
    if short <= 1:
        return "The standard errors are within the tolerance, but rest on too few samples to be believed."
    return (
        f"The largest standard error is {short**0.5:.3g} times the tolerance; "
        f"meeting it would take about {needed_passes(found, short):.3g} passes per input."
    )


def needed_passes(found: Estimates, times: float) -> float:
    """Passes in all if there are to be so many times the samples.

    Args:
        found: The estimates.
        times: How many times.

    Returns:
        Passes per input.
    """
    return found.overhead + (found.cost - found.overhead) * times


def how_many(short: Array, unmet: np.ndarray[Any, np.dtype[np.bool_]], largest: float, needed: float) -> str:
    """How many inputs lack what, that the budget has ended.

    Args:
        short: How many times as many passes each needs; with few samples, by upper limits for its standard errors.
        unmet: Inputs that have not met the tolerance.
        largest: The largest (standard error / tolerance)² of these, as it is reported.
        needed: Passes per input that would meet it.

    Returns:
        Two sentences.
    """
    by_limits = float(short[unmet].max())
    few = ""
    if by_limits > 1.01 * largest:
        few = f", and {by_limits**0.5:.3g} times by the upper limit that counts with so few samples"
    return (
        f"{int(unmet.sum())} of {len(unmet)} inputs have not met the tolerance: the largest standard error is "
        f"{largest**0.5:.3g} times the tolerance{few}. Meeting it would take about {math.ceil(needed)} passes per "
        "input."
    )


def passes_of_rows(parts: Sequence[tuple[Rows, Estimates]]) -> Array:
    """The passes of every row.

    Args:
        parts: Places of some rows, and their estimates; every row is in one part.

    Returns:
        Passes (rows,).
    """
    passes = np.zeros(sum(len(rows) for rows, _ in parts))
    for rows, found in parts:
        passes[rows] = found.cost
    return passes


def unsettled(needs: Array, passes: Array) -> str:
    """How many inputs have open decisions, and what the easiest of them would take.

    Args:
        needs: How many times as many passes each needs.
        passes: What each has had.

    Returns:
        A sentence.
    """
    opened = needs > 1
    easiest = float((needs * passes)[opened].min())
    return (
        f"{int(opened.sum())} of {len(needs)} inputs are not settled: values are too close to call with these passes; "
        f"the easiest of them would take about {easiest:.3g} passes."
    )
