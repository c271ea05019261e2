"""Choosing the largest of a pool that comes in batches: every input is looked at once, few are kept.

Each batch gets a few passes. An input stays a candidate while fewer than k of all inputs seen so far are larger for
certain; the inputs of all others are let go, so that memory holds the candidates and not the pool. What is left when
the pool ends is decided among themselves, from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mlmc_dropout.quantities.base import QuantityEstimate
from mlmc_dropout.result import Result, Status
from mlmc_dropout.result.arrays import map_leaves
from mlmc_dropout.result.text import rare_passes
from mlmc_dropout.runtime.run import Run
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.stopping.decisions import error_rate, half_widths, raw_ranges
from mlmc_dropout.stopping.goal import Decision
from mlmc_dropout.stopping.rows import Part

__all__ = ["SCREENING", "Screen", "both", "with_candidates"]

Array = NDArray[np.float64]

SCREENING = 96  # passes that every input of a pool gets


@dataclass(frozen=True, slots=True)
class _Kept:
    """Candidates of one batch."""

    batch: Batch
    numbers: NDArray[np.int64]  # among all inputs
    value: Array
    error: Array
    passes: float
    alpha: float

    def some(self, places: NDArray[np.int64]) -> _Kept:
        rows = self.batch.take(torch.from_numpy(places))
        return _Kept(rows, self.numbers[places], self.value[places], self.error[places], self.passes, self.alpha)


class Screen:
    """Sees finished runs and keeps the candidates for the k largest.

    Args:
        decision: What is to be decided.

    Attributes:
        seen: Inputs so far.
    """

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self._kept: list[_Kept] = []
        self._largest = 0.0
        self.seen = 0

    def watch(self, run: Run) -> None:
        """Take the candidates of a run, if it is finished.

        Args:
            run: A run of a batch.
        """
        if not run.finished:
            return
        cohort = run.progress.cohort
        part = Part(run.bound.summarise(cohort.state, cohort.done), run.samples())
        alpha = self._error_rate(run.index, len(part))
        ((value, error),) = raw_ranges(self._decision, [part], run.source.observation, alpha)
        numbers = run.source.first_row + np.arange(len(value))
        self._kept.append(_Kept(run.source.batch, numbers, value, error, part.passes, alpha))
        self._largest = max(self._largest, float(np.abs(value).max()))
        self.seen += len(value)
        self._drop()

    def _error_rate(self, index: int, rows: int) -> float:
        """Half of the error rate is left to what is decided among the candidates; batches may be of any number."""
        return error_rate(self._decision, rows, 1.0 / ((index + 1) * (index + 2))) / 2

    def _drop(self) -> None:
        """Let go of inputs that k others exceed for certain."""
        by, largest = self._decision.by, self._largest
        widths = [half_widths(kept.error, kept.passes, kept.alpha, largest, by) for kept in self._kept]
        lows = np.concatenate([kept.value - below for kept, (below, _) in zip(self._kept, widths, strict=True)])
        if len(lows) <= self._decision.k:
            return
        edge = np.partition(lows, -self._decision.k)[-self._decision.k]
        highs = (kept.value + above for kept, (_, above) in zip(self._kept, widths, strict=True))
        places = [np.flatnonzero(high >= edge) for high in highs]
        self._kept = [kept.some(place) for kept, place in zip(self._kept, places, strict=True) if len(place)]

    def candidates(self) -> tuple[Batch, NDArray[np.int64]]:
        """What is left.

        Returns:
            The inputs as one batch, and their numbers among all inputs.
        """
        kept = sorted(self._kept, key=lambda each: int(each.numbers[0]))
        return Batch.joined([each.batch for each in kept]), np.concatenate([each.numbers for each in kept])


def with_candidates(
    screened: Result, decided: Result | None, rows: NDArray[np.int64], status: Status = Status.DECIDED
) -> Result:
    """The result of a pool: what screening found, and what was decided among the candidates.

    Args:
        screened: Of all inputs.
        decided: Of the candidates; ``None`` if there are no more than are to be chosen.
        rows: Numbers of the candidates.
        status: How screening ended, if nothing came after it.

    Returns:
        The result of all inputs.
    """
    total = len(screened.passes)
    chosen = np.zeros(total, dtype=bool)
    chosen[rows] = decided is None
    outside = QuantityEstimate(chosen, settled=np.full(total, status is not Status.STOPPED))
    note = f"{total} inputs were screened with {screened.cost:g} passes each; {len(rows)} of them went on."
    if decided is None:
        known = {**screened.quantities, "decision": outside}
        return _with_notes(replace(screened, quantities=known, status=status), note, screened)
    before = replace(screened, quantities={**screened.quantities, "decision": outside}, levels=())
    names = ("mean", "variance", "mean_stderr", "variance_stderr", "mean_reliable", "variance_reliable")
    arrays = {name: _overwritten(getattr(before, name), getattr(decided, name), rows) for name in names}
    quantities = {
        name: QuantityEstimate(
            *(_overwritten(getattr(one, f.name), getattr(decided.quantities[name], f.name), rows) for f in fields(one))
        )
        for name, one in before.quantities.items()
    }
    passes = screened.passes.copy()
    passes[rows] += decided.passes
    joined = replace(
        before,
        **arrays,
        quantities=quantities,
        passes=passes,
        cost=float(passes.mean()),
        status=decided.status,
    )
    return _with_notes(joined, note, decided)


def _with_notes(result: Result, note: str, last: Result) -> Result:
    """The notes of what came last; those about rare passes are counted anew, over all inputs."""
    others = [text for text in last.notes if text != rare_passes(last)]
    said = (note, *others, rare_passes(result))
    return replace(result, notes=tuple(dict.fromkeys(text for text in said if text)))


def _overwritten(all_rows: Any, some_rows: Any, rows: NDArray[np.int64]) -> Any:
    """Arrays in which the given rows are replaced."""
    if all_rows is None or some_rows is None:
        return all_rows
    parts: list[Any] = []
    map_leaves(parts.append, some_rows)
    remaining = iter(parts)

    def write(values: NDArray[Any]) -> NDArray[Any]:
        changed = np.array(values)
        changed[rows] = next(remaining)
        return changed

    return map_leaves(write, all_rows)


Watch = Callable[[Run], None]


def both(*watchers: Watch) -> Watch:
    """Tell several.

    Args:
        *watchers: Who is told of runs.

    Returns:
        One that tells all of them.
    """

    def tell(run: Run) -> None:
        for watcher in watchers:
            watcher(run)

    return tell
