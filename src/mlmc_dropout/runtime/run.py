"""One batch of inputs on its way to the goal: rounds of tasks, a look after each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mlmc_dropout.errors import AllocationError, CheckpointError, InputError, MLMCDropoutError
from mlmc_dropout.methods.base import Array, BoundMethod, Estimates, Method, Rows, State, Task
from mlmc_dropout.methods.states import merge_next
from mlmc_dropout.result import Status
from mlmc_dropout.runtime.cohorts import Cohort, Progress, SavedCohort, SavedProgress, at_stage
from mlmc_dropout.runtime.outcome import Outcome, needed_passes, outcome_of_all
from mlmc_dropout.runtime.rounding import at_precision, limits
from mlmc_dropout.runtime.row_by_row import RowByRow
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.decisions import LEAST
from mlmc_dropout.stopping.goal import MAX_BUDGET, TRUSTED, Goal

__all__ = ["Outcome", "Run"]


@dataclass(frozen=True, slots=True, eq=False)
class _Ready:
    """The method made ready for the rows of a cohort."""

    rows: Rows
    source: Source
    bound: BoundMethod


class Run:
    """Hands out the tasks of a batch, merges what comes back in the order of the tasks, decides what next.

    ``method`` is what workers are sent, ``bound`` the same made ready for the inputs. Tasks are named by
    their place in the round; results may come in any order.

    All rows begin as one cohort. If they may stop one by one, those that do leave it between rounds as a cohort of
    their own, and the others go on. Rows that left are worked on again if a goal asks for more.
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
        self.outcome: Outcome | None = None
        self.tasks: list[Task] = []
        self._base = method
        self._whole: tuple[Method, BoundMethod] | None = None
        self._last: tuple[State, Mapping[str, int], Estimates] | None = None  # what was summarised last
        self._rows = RowByRow(
            index, source, goal, lambda cohort: self._ready_for(cohort).bound, self._summary, self._shown
        )
        self._sent = 0
        self._early: dict[int, list[State]] = {}
        self._expected = 0.0 if goal.has_tolerance else goal.budget or 0.0  # passes the goal takes, by the latest look
        everything = np.arange(source.batch.rows)
        self._use(method if saved is None else at_stage(method, saved.cohort.stage), everything)
        if saved is None:
            self.progress = Progress(Cohort(everything, stage=self.bound.stage), self._first())
            self._enter_round()
        else:
            self._resume(saved)

    def _first(self) -> float:
        """Passes before the first look."""
        goal, least = self.goal, self.bound.min_cost()
        if goal.decision is not None:
            return max(least, min(LEAST, goal.budget or LEAST))
        first = goal.pilot(least) if self.method.grows else goal.first(least)
        whole = self.bound.whole({}, first)
        return whole if goal.adaptive and goal.has_tolerance and whole <= (goal.budget or math.inf) else first

    def _resume(self, saved: SavedProgress) -> None:
        """Go on from saved progress; a file may hold anything, and what does not fit is refused."""
        try:
            cohorts = (saved.cohort, *saved.others)
            found = np.sort(np.concatenate([cohort.rows for cohort in cohorts]))
            if not np.array_equal(found, np.arange(self.source.batch.rows)):
                raise ValueError("rows that are not those of the batch")
            others = tuple(map(self._read, saved.others))
            if any(not self._ready_for(cohort).bound.has_estimates(cohort.state) for cohort in others):
                raise ValueError("rows without estimates")
            self.progress = Progress(self._read(saved.cohort), saved.spend, saved.merged, others)
            if not saved.spend and not self.bound.has_estimates(self.progress.state):
                raise ValueError("a finished round without estimates")
            self._enter_round()
            if not self.finished and self.progress.merged >= len(self.tasks):
                raise ValueError(f"{self.progress.merged} of {len(self.tasks)} tasks")
            counts = (
                self._after if saved.spend else saved.cohort.done
            )  # of passes, and of what is cheaper than they are
            if any(block.count > max(counts.values()) for block in saved.blocks.values()):
                raise ValueError(f"more samples than {counts['passes']} passes give")
        except MLMCDropoutError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"the checkpoint does not hold the state of method={self.method.name!r} ({type(error).__name__}: "
                f"{error}); delete it to start again"
            ) from None

    def _read(self, saved: SavedCohort) -> Cohort:
        """A cohort from its saved blocks."""
        seen = self.source.observation
        shapes = {(len(saved.rows), width) for width in (seen.main.width, seen.width, seen.squared().width)}
        if any(block.mean.shape not in shapes for block in saved.blocks.values()):
            raise ValueError(f"outputs of another shape than {(len(saved.rows), seen.main.width)}")
        cohort = Cohort(saved.rows, None, saved.done, saved.stage)
        self._use(at_stage(self._base, saved.stage), cohort.rows)
        return replace(cohort, state=self.bound.read_state(saved.blocks) if saved.blocks else None)

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

    def accept(self, start: int, states: list[State]) -> None:
        """States of the tasks ``start ..``; they wait until it is their turn to be merged.

        Args:
            start: Place of the first task in the round.
            states: One state per task; the list is emptied when they are merged.
        """
        self._early[start] = states
        while self.progress.merged in self._early:
            ready = self._early.pop(self.progress.merged)
            state, count = self.progress.state, len(ready)
            while ready:
                state = merge_next(state, ready)
            progress = self.progress.with_cohort(state=state)
            self.progress = replace(progress, merged=progress.merged + count)
        if self.progress.merged == len(self.tasks):
            self.progress = replace(self.progress.with_cohort(done=self._after), spend=0.0, merged=0)
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
            self._finish(self.bound.summarise(self.progress.state, self.progress.cohort.done))

    def _plan_round(self, spend: float) -> tuple[list[Task], Mapping[str, int]]:
        """Tasks for ``spend`` passes; for more, if the method cannot do anything with so few."""
        left, done = self._left(), self.progress.cohort.done
        tasks, after = self.bound.extend(done, spend)
        while not tasks and spend < left:
            spend = min(2 * spend, left)
            tasks, after = self.bound.extend(done, spend)
        return tasks, after

    def _left(self, cohort: Cohort | None = None, rows: int | None = None) -> float:
        """Passes that the budget leaves to each of so many rows of a cohort; of all rows of the one worked on."""
        cohort = cohort or self.progress.cohort
        if self.goal.budget is None:
            return math.inf
        if not self.goal.adaptive or self.goal.decision is not None:
            return self.goal.budget - cohort.passes
        total = self.goal.budget * self.source.batch.rows - self.progress.spent
        return total / (len(cohort.rows) if rows is None else rows)

    def _look(self) -> None:
        """Grow the ladder, stop, or set the passes of the next round."""
        found = self._summary(self.progress.cohort)
        spend = self._refine(found) or (self._go_on() if self.goal.adaptive else self._further(found))
        if not spend:
            self._finish(found)
        self.progress = replace(self.progress.with_cohort(stage=self.bound.stage), spend=spend)

    def _summary(self, cohort: Cohort) -> Estimates:
        """Estimates of a cohort; those made last are kept, for the next look at them."""
        if self._last is None or self._last[0] is not cohort.state or self._last[1] is not cohort.done:
            found = self._ready_for(cohort).bound.summarise(cohort.state, cohort.done)
            self._last = cohort.state, cohort.done, found
        return self._last[2]

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
        self._expected = min(needed_passes(found, max(short, 1.0)), found.cost + left)
        if self._expected > MAX_BUDGET and samples >= TRUSTED:
            raise InputError(
                f"the tolerance would take about {self._expected:.0e} passes per input: the largest standard error is "
                f"{short**0.5:.1e} times the tolerance after {found.cost:g} passes; raise it, or give a budget as well"
            )
        return min(goal.more(found, samples), left)

    def _finish(self, found: Estimates) -> None:
        """Say how the run ended."""
        if self.goal.adaptive:
            self.outcome = self._rows.outcome(self.progress)
            return
        self.outcome = outcome_of_all(self.goal, found, self._shown(found), self.samples(), self.source.sampler.dtype)

    def _shown(self, found: Estimates) -> Estimates:
        """Estimates as they are shown: not below rounding, and with everything that was asked."""
        shown = at_precision(found, self.source.sampler.dtype)
        if shown.groups is None:
            return shown
        trusted = np.ones(found.mean.shape, dtype=bool) if found.trust is None else found.trust.mean
        answers = self.source.observation.answers(shown.groups, found.mean, trusted)
        return replace(shown, groups=None, quantities=answers)

    def samples(self) -> float:
        """Samples behind the standard errors of the rows that are worked on."""
        return self.bound.samples(self.progress.state)

    def _refine(self, found: Estimates) -> float:
        """Passes for the pilot of a refined method, if one is needed and the budget can bear it."""
        refined = None if self.goal.met(found, self.samples()) else self.bound.refined(found)
        if refined is None:
            return 0.0
        method, pilot = refined
        if 2 * pilot > self._left():
            return 0.0  # what is left belongs to the method as it is
        self._use(method, self.progress.cohort.rows)
        return pilot

    # ---------------------------------------------------------------------------- row by row

    def _go_on(self) -> float:
        """Work on rows that have to go on; the passes of their next round, 0 if there are none or the budget ends."""
        for choice in self._rows.choices(self.progress):
            self._expected = self._rows.expected
            cohort, going = choice.standing.cohort, choice.going
            ready, left = self._ready_for(cohort), self._left(cohort, int(going.sum()))
            if left < max(ready.bound.min_cost() - choice.standing.estimates.overhead, 1.0):
                continue
            chosen, rest = cohort.split(going) if not going.all() else (cohort, None)
            done, spend = ready.bound.steer(chosen.state, cohort.done, choice.wanted, choice.needs)
            spend = min(spend, left)
            chosen = replace(chosen, done=done)
            everybody = (self.progress.cohort, *self.progress.others)
            others = tuple(each for each in everybody if each is not cohort)
            self._use(ready.bound.method, chosen.rows)
            self.progress = replace(
                self.progress, cohort=chosen, others=others if rest is None else (*others, rest), spend=spend, merged=0
            )
            return spend
        return 0.0

    # ------------------------------------------------------------------------ made ready

    def _use(self, method: Method, rows: Rows) -> None:
        """Make a method ready for some rows, from what is ready for all of them."""
        self.method = method
        self._ready = self._made_ready(method, rows)

    def _made_ready(self, method: Method, rows: Rows) -> _Ready:
        if self._whole is None or self._whole[0] != method:
            self._whole = method, method.bind(self.source)
        bound = self._whole[1]
        if len(rows) == self.source.batch.rows:
            return _Ready(rows, self.source, bound)
        return _Ready(rows, self.source.select(rows), bound.select(rows))

    def _ready_for(self, cohort: Cohort) -> _Ready:
        if self._ready.rows is cohort.rows:
            return self._ready
        return self._made_ready(at_stage(self._base, cohort.stage), cohort.rows)

    @property
    def bound(self) -> BoundMethod:
        """The method made ready for the rows that are worked on."""
        return self._ready.bound

    @property
    def open(self) -> Source:
        """The passes of the rows that are worked on."""
        return self._ready.source

    @property
    def selection(self) -> bytes | None:
        """The rows that are worked on, one bit per row of the batch; ``None``: all of them."""
        rows = self.source.batch.rows
        if len(self._ready.rows) == rows:
            return None
        chosen = np.zeros(rows, dtype=bool)
        chosen[self._ready.rows] = True
        return np.packbits(chosen).tobytes()

    @property
    def settled(self) -> int:
        """Rows that are not worked on any more."""
        if self.finished:
            return self.source.batch.rows
        return sum(len(cohort.rows) for cohort in self.progress.others)

    # ------------------------------------------------------------------------- in between

    def interim(self) -> Estimates | None:
        """Estimates of what has been merged so far, if they have standard errors."""
        return (self._so_far() or (None,))[0]

    def _so_far(self) -> tuple[Estimates, Array | None] | None:
        """Estimates of what has been merged, and the passes of every row."""
        if self.outcome is not None:
            return self.outcome.estimates, self.outcome.passes
        progress = self.progress
        cohort, bound = progress.cohort, self._ready_for(progress.cohort).bound
        done = cohort.done
        if progress.merged:
            done = {**self._after, "passes": round(cohort.passes + self._share() * self._round_passes())}
        if not bound.has_estimates(cohort.state):
            return None
        found = bound.summarise(cohort.state, done)
        if not (np.isfinite(found.mean_stderr).all() and np.isfinite(found.variance_stderr).all()):
            return None
        if not self.goal.adaptive:
            return self._shown(found), None
        return self._rows.so_far(progress, found, bound.samples(cohort.state))

    def passes(self) -> float:
        """Passes merged so far, per input on average."""
        before = self.progress.spent / self.source.batch.rows
        if not self.progress.merged:
            return before
        share = len(self.progress.cohort.rows) / self.source.batch.rows
        return before + share * self._share() * self._round_passes()

    def _round_passes(self) -> float:
        """Passes of the round under way, for each of its rows."""
        return float(self._after["passes"] - self.progress.cohort.passes)

    def _share(self) -> float:
        """The share of the round under way that has been merged."""
        return float(self._weights[self.progress.merged - 1] / self._weights[-1])

    def planned(self) -> float:
        """Passes the goal will take, as far as can be told, per input."""
        if self.finished:
            return self.passes()
        share = len(self.progress.cohort.rows) / self.source.batch.rows
        return max(self._expected, self.progress.spent / self.source.batch.rows + share * self._round_passes())

    def standing(self, status: Status) -> Outcome | None:
        """The outcome, or what there is so far under the given status.

        Args:
            status: What is said of a run that is not finished.

        Returns:
            The outcome, or ``None`` if nothing is known yet.
        """
        if self.outcome is not None:
            return self.outcome
        found = self._so_far()
        return None if found is None else Outcome(found[0], status, passes=found[1])
