"""One batch of inputs on its way to the goal: rounds of tasks, a look after each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlmc_dropout.errors import AllocationError, CheckpointError, InputError, MLMCDropoutError
from mlmc_dropout.methods.base import BoundMethod, Estimates, Method, State, Task
from mlmc_dropout.methods.states import Block, merge_states, to_blocks
from mlmc_dropout.result import Status
from mlmc_dropout.runtime.rounding import at_precision, limits
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import MAX_BUDGET, TRUSTED, Goal

__all__ = ["Outcome", "Progress", "Run", "SavedProgress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """All that a run has to remember, as one value.

    It is replaced as a whole, never changed, so that an interrupt at any moment finds it consistent.

    Attributes:
        state: The tasks merged from left to right: all of the earlier rounds, and the first ``merged`` of the round
            under way; ``None`` before the first.
        done: The method's own count after the earlier rounds.
        spend: What the round under way may cost, in passes per input; 0: none is.
        merged: Tasks of the round under way that are in ``state``.
        stage: How far the method has been refined (``BoundMethod.stage``).
    """

    state: State
    done: Mapping[str, int]
    spend: float
    merged: int = 0
    stage: Any = None

    def saved(self) -> SavedProgress:
        """The same as plain data and blocks."""
        return SavedProgress(to_blocks(self.state), self.done, self.spend, self.merged, self.stage)


@dataclass(frozen=True, slots=True)
class SavedProgress:
    """Progress as a file holds it: without the type of the method's state.

    Attributes:
        blocks: The blocks of the state, by path; empty before the first task.
        done: As in :class:`Progress`.
        spend: As in :class:`Progress`.
        merged: As in :class:`Progress`.
        stage: As in :class:`Progress`.
    """

    blocks: Mapping[str, Block]
    done: Mapping[str, int]
    spend: float
    merged: int = 0
    stage: Any = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known about a batch: estimates, how the run stands, and a remark."""

    estimates: Estimates
    status: Status
    note: str = ""


class Run:
    """Hands out the tasks of a batch, merges what comes back in the order of the tasks, decides what next.

    ``method`` is what workers are sent, ``bound`` the same made ready for the inputs. Tasks are named by
    their place in the round; results may come in any order.
    """

    def __init__(
        self,
        index: int,
        source: Source,
        method: Method,
        goal: Goal,
        saved: SavedProgress | None = None,
    ) -> None:
        self.index, self.source, self.goal = index, source, goal
        self._use(method if saved is None else _at_stage(method, saved.stage))
        self.outcome: Outcome | None = None
        self.tasks: list[Task] = []
        self._sent = 0
        self._early: dict[int, Sequence[State]] = {}
        self._expected = 0.0 if goal.has_tolerance else goal.budget or 0.0  # passes the goal takes, by the latest look
        if saved is None:
            self.progress = self._start()
            self._enter_round()
        else:
            self._resume(saved)

    def _start(self) -> Progress:
        first = self.goal.pilot if self.method.grows else self.goal.first
        return Progress(None, {}, first(self.bound.min_cost()), 0, self.bound.stage)

    def _resume(self, saved: SavedProgress) -> None:
        """Go on from saved progress; a file may hold anything, and what does not fit is refused."""
        rows, seen = self.source.batch.rows, self.source.observation
        shapes = {(rows, width) for width in (seen.main.width, seen.width, seen.squared().width)}
        try:
            if any(block.mean.shape not in shapes for block in saved.blocks.values()):
                raise ValueError(f"outputs of another shape than {(rows, seen.main.width)}")
            state = self.bound.read_state(saved.blocks) if saved.blocks else None
            self.progress = Progress(state, saved.done, saved.spend, saved.merged, saved.stage)
            if not saved.spend and not self.bound.has_estimates(state):
                raise ValueError("a finished round without estimates")
            self._enter_round()
            if not self.finished and self.progress.merged >= len(self.tasks):
                raise ValueError(f"{self.progress.merged} of {len(self.tasks)} tasks")
            counts = saved.done if not saved.spend else self._after  # of passes, and of what is cheaper than they are
            if any(block.count > max(counts.values()) for block in saved.blocks.values()):
                raise ValueError(f"more samples than {counts['passes']} passes give")
        except MLMCDropoutError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"the checkpoint does not hold the state of method={self.method.name!r} ({type(error).__name__}: "
                f"{error}); delete it to start again"
            ) from None

    # ------------------------------------------------------------------------------- tasks

    @property
    def finished(self) -> bool:
        """Whether the goal is reached, or cannot be."""
        return self.outcome is not None

    @property
    def unsent(self) -> int:
        """Tasks of this round not handed out yet."""
        return len(self.tasks) - self._sent

    def take(self, count: int) -> tuple[int, tuple[Task, ...]]:
        """The next tasks to be run, and the place of the first of them in the round.

        Args:
            count: How many, at most.

        Returns:
            The place of the first, and the tasks.
        """
        start = self._sent
        self._sent = min(start + count, len(self.tasks))
        return start, tuple(self.tasks[start : self._sent])

    def accept(self, start: int, states: Sequence[State]) -> None:
        """States of the tasks ``start ..``; they wait until it is their turn to be merged.

        Args:
            start: Place of the first task in the round.
            states: One state per task.
        """
        self._early[start] = states
        while self.progress.merged in self._early:
            ready = self._early.pop(self.progress.merged)
            state = self.progress.state
            for each in ready:
                state = merge_states(state, each)
            self.progress = replace(self.progress, state=state, merged=self.progress.merged + len(ready))
        if self.progress.merged == len(self.tasks):
            self.progress = replace(self.progress, done=self._after, spend=0.0, merged=0)
            self._enter_round()

    def weight(self, task: Task) -> float:
        """Passes a task takes, up to a factor common to all tasks of the run.

        Args:
            task: A task of this run.
        """
        return self.bound.weight(task)

    # ------------------------------------------------------------------------------ rounds

    def _enter_round(self) -> None:
        """Start or continue the round that ``progress`` describes; between rounds, look first."""
        if not self.progress.spend:
            self._look()
        if self.finished:
            self.tasks, self._sent = [], 0
            return
        self.tasks, self._after = self._plan_round(self.progress.spend)
        self._sent = self.progress.merged
        self._weights = np.cumsum([self.weight(task) for task in self.tasks])
        if not self.tasks and self.progress.state is None:
            raise AllocationError(
                f"a budget of {self.goal.budget:g} passes is too small for method={self.method.name!r} here, with "
                f"{self.bound.min_cost()} passes of its smallest run; give more, or use method='pooled'"
            )
        if not self.tasks:  # the method can do nothing with what it may spend
            self._finish(self.bound.summarise(self.progress.state, self.progress.done))

    def _plan_round(self, spend: float) -> tuple[list[Task], Mapping[str, int]]:
        """Tasks for ``spend`` passes; for more, if the method cannot do anything with so few."""
        left = math.inf if self.goal.budget is None else self.goal.budget - self.progress.done.get("passes", 0)
        tasks, after = self.bound.extend(self.progress.done, spend)
        while not tasks and spend < left:
            spend = min(2 * spend, left)
            tasks, after = self.bound.extend(self.progress.done, spend)
        return tasks, after

    def _look(self) -> None:
        """Grow the ladder, stop, or set the passes of the next round."""
        found = self.bound.summarise(self.progress.state, self.progress.done)
        spend = self._refine(found) or self._further(found)
        if not spend:
            self._finish(found)
        self.progress = replace(self.progress, spend=spend, stage=self.bound.stage)

    def _further(self, found: Estimates) -> float:
        """Passes to spend next; 0 when the goal is reached or out of reach."""
        goal, samples = self.goal, self.samples()
        left = math.inf if goal.budget is None else goal.budget - found.cost
        min_cost = self.bound.min_cost() - found.overhead
        if goal.met(found, samples) or self.method.fixed_counts or left < min_cost:
            return 0.0
        if samples >= TRUSTED and limits(found, goal, self.source.sampler.dtype):
            return 0.0
        short = goal.shortfall(found) if goal.has_tolerance else math.inf
        self._expected = min(_needed(found, max(short, 1.0)), found.cost + left)
        if self._expected > MAX_BUDGET and samples >= TRUSTED:
            raise InputError(
                f"the tolerance would take about {self._expected:.0e} passes per input: the largest standard error is "
                f"{short**0.5:.1e} times the tolerance after {found.cost:g} passes; raise it, or give a budget as well"
            )
        return min(goal.more(found, samples), left)

    def _finish(self, found: Estimates) -> None:
        """Say how the run ended."""
        goal, shown, dtype = self.goal, self._at_precision(found), self.source.sampler.dtype
        if not goal.has_tolerance:
            self.outcome = Outcome(shown, Status.COMPLETED)
        elif goal.met(shown, self.samples()):
            self.outcome = Outcome(shown, Status.TOLERANCE_MET)
        elif goal.met(found, self.samples()) or limits(found, goal, dtype):
            self.outcome = Outcome(shown, Status.PRECISION_REACHED)
        else:
            self.outcome = Outcome(shown, Status.BUDGET_EXHAUSTED, _how_far(found, goal.shortfall(found)))

    def _at_precision(self, found: Estimates) -> Estimates:
        return at_precision(found, self.source.sampler.dtype)

    def samples(self) -> float:
        """Samples behind the standard errors."""
        return self.bound.samples(self.progress.state)

    def _refine(self, found: Estimates) -> float:
        """Passes for the pilot of a refined method, if one is needed and the budget can bear it."""
        refined = None if self.goal.met(found, self.samples()) else self.bound.refined(found)
        if refined is None:
            return 0.0
        method, pilot = refined
        if self.goal.budget is not None and found.cost + 2 * pilot > self.goal.budget:
            return 0.0  # what is left belongs to the method as it is
        self._use(method)
        return pilot

    def _use(self, method: Method) -> None:
        self.method = method
        self.bound: BoundMethod = method.bind(self.source)

    # ------------------------------------------------------------------------- in between

    def interim(self) -> Estimates | None:
        """Estimates of what has been merged so far, if they have standard errors."""
        if self.outcome is not None:
            return self.outcome.estimates
        done = self.progress.done
        if self.progress.merged:
            done = {**self._after, "passes": round(self.passes())}
        if not self.bound.has_estimates(self.progress.state):
            return None
        found = self.bound.summarise(self.progress.state, done)
        known = np.isfinite(found.mean_stderr).all() and np.isfinite(found.variance_stderr).all()
        return self._at_precision(found) if known else None

    def passes(self) -> float:
        """Passes merged so far, per input."""
        before = self.progress.done.get("passes", 0)
        if not self.progress.merged:
            return before
        share = float(self._weights[self.progress.merged - 1] / self._weights[-1])
        return before + (self._after["passes"] - before) * share

    def planned(self) -> float:
        """Passes the goal will take, as far as can be told, per input."""
        if self.finished:
            return self.passes()
        return max(self._expected, self._after["passes"])

    def standing(self, status: Status) -> Outcome | None:
        """The outcome, or what there is so far under the given status.

        Args:
            status: What is said of a run that is not finished.

        Returns:
            The outcome, or ``None`` if nothing is known yet.
        """
        if self.outcome is not None:
            return self.outcome
        found = self.interim()
        return None if found is None else Outcome(found, status)


def _at_stage(method: Method, stage: Any) -> Method:
    try:
        return method.at_stage(stage)
    except Exception as error:
        raise CheckpointError(
            f"the checkpoint is at a stage {stage!r} that method={method.name!r} does not have ({error}); delete it to "
            "start again"
        ) from None


def _how_far(found: Estimates, short: float) -> str:
    if short <= 1:
        return "The standard errors are within the tolerance, but rest on too few samples to be believed."
    return (
        f"The largest standard error is {short**0.5:.3g} times the tolerance; "
        f"meeting it would take about {_needed(found, short):.3g} passes per input."
    )


def _needed(found: Estimates, times: float) -> float:
    """Passes in all if there are to be so many times the samples."""
    return found.overhead + (found.cost - found.overhead) * times
