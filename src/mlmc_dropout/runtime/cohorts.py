"""What a run has to remember: cohorts of rows that have had the same passes, and the round under way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mlmc_dropout.errors import CheckpointError
from mlmc_dropout.methods.base import Method, Rows, State
from mlmc_dropout.methods.states import Block, select_rows, to_blocks

__all__ = ["Cohort", "Progress", "SavedCohort", "SavedProgress", "at_stage"]


@dataclass(frozen=True, slots=True, eq=False)
class Cohort:
    """Rows of a batch that have had the same passes.

    Attributes:
        rows: Their places in the batch, in ascending order.
        state: The tasks merged so far; ``None`` before the first.
        done: The method's own count after the earlier rounds.
        stage: How far the method has been refined (``BoundMethod.stage``).
    """

    rows: Rows
    state: State = None
    done: Mapping[str, int] = field(default_factory=dict)
    stage: Any = None

    @property
    def passes(self) -> int:
        """Passes of the earlier rounds, per row."""
        return self.done.get("passes", 0)

    def split(self, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[Cohort, Cohort]:
        """Two cohorts of the same passes.

        Args:
            chosen: Flags (rows,).

        Returns:
            The rows chosen, and the others.
        """
        places = np.flatnonzero(chosen), np.flatnonzero(~chosen)
        first, second = (replace(self, rows=self.rows[p], state=select_rows(self.state, p)) for p in places)
        return first, second

    def saved(self) -> SavedCohort:
        """The same as plain data and blocks."""
        return SavedCohort(self.rows, to_blocks(self.state), self.done, self.stage)


@dataclass(frozen=True, slots=True)
class Progress:
    """All that a run has to remember, as one value.

    It is replaced as a whole, never changed, so that an interrupt at any moment finds it consistent.

    Attributes:
        cohort: The rows that are worked on. Its state are the tasks merged from left to right: all of the earlier
            rounds, and the first ``merged`` of the round under way.
        spend: What the round under way may cost, in passes per input; 0: none is.
        merged: Tasks of the round under way that are in the state.
        others: Rows that have left, with fewer passes or more.
    """

    cohort: Cohort
    spend: float
    merged: int = 0
    others: tuple[Cohort, ...] = ()

    @property
    def state(self) -> State:
        """The state of the rows that are worked on."""
        return self.cohort.state

    @property
    def spent(self) -> float:
        """Passes of the earlier rounds, of all rows together."""
        return float(sum(len(cohort.rows) * cohort.passes for cohort in (self.cohort, *self.others)))

    def with_cohort(self, **changes: Any) -> Progress:
        """The progress with a changed cohort.

        Args:
            **changes: Fields of the cohort.

        Returns:
            The new progress.
        """
        return replace(self, cohort=replace(self.cohort, **changes))

    def saved(self) -> SavedProgress:
        """The same as plain data and blocks."""
        others = tuple(cohort.saved() for cohort in self.others)
        return SavedProgress(self.cohort.saved(), self.spend, self.merged, others)


@dataclass(frozen=True, slots=True, eq=False)
class SavedCohort:
    """A cohort as a file holds it: without the type of the method's state.

    Attributes:
        rows: As in :class:`Cohort`.
        blocks: The blocks of the state, by path; empty before the first task.
        done: As in :class:`Cohort`.
        stage: As in :class:`Cohort`.
    """

    rows: Rows
    blocks: Mapping[str, Block]
    done: Mapping[str, int]
    stage: Any = None


@dataclass(frozen=True, slots=True)
class SavedProgress:
    """Progress as a file holds it.

    Attributes:
        cohort: As in :class:`Progress`.
        spend: As in :class:`Progress`.
        merged: As in :class:`Progress`.
        others: As in :class:`Progress`.
    """

    cohort: SavedCohort
    spend: float
    merged: int = 0
    others: tuple[SavedCohort, ...] = ()

    @property
    def blocks(self) -> Mapping[str, Block]:
        """The blocks of the rows that are worked on."""
        return self.cohort.blocks

    @property
    def planned(self) -> float:
        """Passes at the end of the round under way, of all rows together."""
        cohorts = (self.cohort, *self.others)
        passes = sum(len(cohort.rows) * cohort.done.get("passes", 0) for cohort in cohorts)
        return float(passes + len(self.cohort.rows) * self.spend)


def at_stage(method: Method, stage: Any) -> Method:
    """The method as it was when a run was saved.

    Args:
        method: The method as it begins.
        stage: What was saved.

    Returns:
        The method at that stage.

    Raises:
        CheckpointError: If it has no such stage.
    """
    try:
        return method.at_stage(stage)
    except Exception as error:
        raise CheckpointError(
            f"the checkpoint is at a stage {stage!r} that method={method.name!r} does not have ({error}); delete it to "
            "start again"
        ) from None
