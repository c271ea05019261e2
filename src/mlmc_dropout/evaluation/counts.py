"""From wanted counts to slices: what is missing, what can be believed, which rows come next."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mlmc_dropout.evaluation.data import Slice
from mlmc_dropout.evaluation.goal import Shares
from mlmc_dropout.evaluation.levels import passes_of
from mlmc_dropout.evaluation.statistics import Statistics

__all__ = ["PILOT_FINE", "PILOT_LEAST", "believable", "missing_counts", "pilot_of", "slices_for"]

PILOT_LEAST, PILOT_FINE = 32, 8  # inputs with which a further level starts, if it is cheap or costly
GROWTH = 4.0  # by how much a level may grow in a round: variances of few samples are not to be trusted
TRUST = 0.3  # share of all passes that a level may take so that its variance can be believed
ENOUGH = 0.97  # a level that has this share of what it needs is left alone


def pilot_of(statistics: Statistics, counts: Mapping[int, float], top: int) -> dict[int, float]:
    """Pilots of the next two levels of a ladder that was chosen.

    Args:
        statistics: What is known.
        counts: Samples per level that the ladder needs.
        top: Its finest level.

    Returns:
        Samples per new level.
    """
    first = len(statistics.states)
    levels = range(first, min(top, first + 1) + 1)
    return {level: min(max(counts.get(level, 0.0), PILOT_FINE), PILOT_LEAST) for level in levels}


def believable(statistics: Statistics, counts: Mapping[int, float]) -> dict[int, float]:
    """Twice the samples where few of them carry most of the variance, if that does not cost much.

    Args:
        statistics: What is known.
        counts: Samples per level that are wanted.

    Returns:
        Samples per level.
    """
    planned = sum(n * passes_of(level) for level, n in counts.items())
    enough = dict(counts)
    for level, n in counts.items():
        count = statistics.states[level].count
        more = min(2.0 * count, statistics.rows)
        if statistics.heavy(level) and count < statistics.rows and more * passes_of(level) < TRUST * planned:
            enough[level] = max(n, more)
    return enough


def missing_counts(shares: Shares, needed: Mapping[int, float], rows: int, limited: bool) -> dict[int, float]:
    """Samples to add per level.

    Args:
        shares: What the levels have used.
        needed: Samples per level that are wanted.
        rows: Number of inputs.
        limited: Whether not too many may be added at once.

    Returns:
        Samples per level, of those that lack any.
    """
    missing = {}
    for level, n in needed.items():
        used = shares[level][0] * rows
        if used < (ENOUGH * n if n < rows else n - 0.5):
            most = GROWTH * max(used, PILOT_LEAST) if limited else math.inf
            missing[level] = max(min(n, most) - used, 1.0)
    return missing


def slices_for(shares: Shares, counts: Mapping[int, float], rows: int, whole: bool = True) -> tuple[Slice, ...]:
    """So many further inputs per level.

    Args:
        shares: What the levels have used.
        counts: Samples to add, per level.
        rows: Number of inputs.
        whole: Whether a sweep that is begun beyond the first is completed.

    Returns:
        What to run.
    """
    slices: list[Slice] = []
    for level, count in sorted(counts.items()):
        low, replicate = shares[level] if level < len(shares) else (0.0, 0)
        high = low + count / rows
        if high > 1.0 and whole:
            high = float(math.ceil(high - 1e-9))
        while low < high - 1e-12:
            end = min(high, math.floor(low) + 1.0)
            slices.append(Slice(level, low, end, replicate))
            low, replicate = end, replicate + 1
    return tuple(slices)
