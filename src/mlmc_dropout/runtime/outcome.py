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
from mlmc_dropout.result.text import TO_TOLERANCE, passes_in_words
from mlmc_dropout.runtime.rounding import limits
from mlmc_dropout.stopping.goal import Goal

__all__ = ["Lacking", "Outcome", "how_many", "in_words", "needed_passes", "outcome_of_all", "passes_of_rows"]
__all__ += ["unsettled"]


@dataclass(frozen=True, slots=True)
class Lacking:
    """What a batch lacks that its budget has ended; that of all batches is said in one sentence.

    Attributes:
        rows: Inputs of the batch.
        unmet: Inputs that have not met the tolerance; 0 for decisions, ``None`` where inputs do not stop one by one.
        largest: The largest standard error of these, as it is reported, over the tolerance.
        limit: The same by the upper limits that count with few samples.
        needed: Passes per input that would meet the tolerance; for decisions, those of the easiest that is open.
    """

    rows: int
    unmet: int | None
    largest: float
    limit: float
    needed: float


def in_words(parts: Sequence[Lacking]) -> str:
    """What all batches lack.

    Args:
        parts: What each of them lacks that lacks anything, all of the same run.

    Returns:
        A sentence or two; empty if nothing is lacking.
    """
    if not parts:
        return ""
    if parts[0].unmet == 0:
        easiest = passes_in_words(min(part.needed for part in parts))
        return f"The easiest of the open decisions would take about {easiest} passes; the others take more."
    largest, limit = (max(getattr(part, name) for part in parts) for name in ("largest", "limit"))
    needed = sum(part.needed * part.rows for part in parts) / sum(part.rows for part in parts)
    if limit <= 1:
        return "The standard errors are within the tolerance, but rest on too few samples to be believed."
    few = ""
    if limit > 1.005 * largest:
        few = f", and {limit:.3g} times by the upper limit that counts with so few samples"
    factor = f"he largest standard error is {largest:.3g} times the tolerance{few}"
    who = f"T{factor}"
    if parts[0].unmet is not None:
        rows, unmet = (sum(getattr(part, name) for part in parts) for name in ("rows", "unmet"))
        who = f"{unmet} of {rows} inputs have not met the tolerance: t{factor}"
    return f"{who}. {TO_TOLERANCE} {passes_in_words(needed)} passes per input."


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known about a batch: estimates, how the run stands, what it lacks, and the passes of every row."""

    estimates: Estimates
    status: Status
    lacking: Lacking | None = None
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
    short, rows = goal.shortfall(found), len(found.mean)
    factor = math.sqrt(short)
    return Outcome(
        shown, Status.BUDGET_EXHAUSTED, Lacking(rows, None, factor, factor, needed_passes(found, max(short, 1.0)))
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


def how_many(short: Array, unmet: np.ndarray[Any, np.dtype[np.bool_]], largest: float, needed: float) -> Lacking:
    """How many inputs lack what, that the budget has ended.

    Args:
        short: How many times as many passes each needs; with few samples, by upper limits for its standard errors.
        unmet: Inputs that have not met the tolerance.
        largest: The largest (standard error / tolerance)² of these, as it is reported.
        needed: Passes per input that would meet it.

    Returns:
        What is lacking.
    """
    limit = math.sqrt(float(short[unmet].max()))
    return Lacking(len(unmet), int(unmet.sum()), math.sqrt(largest), limit, needed)


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


def unsettled(needs: Array, passes: Array) -> Lacking:
    """What the easiest of the open decisions would take.

    Args:
        needs: How many times as many passes each needs.
        passes: What each has had.

    Returns:
        What is lacking.
    """
    return Lacking(len(needs), 0, 0.0, 0.0, float((needs * passes)[needs > 1].min()))
