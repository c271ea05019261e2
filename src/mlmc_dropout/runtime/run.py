"""One batch of inputs on its way to the goal: rounds of tasks, a look after each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlmc_dropout.methods.base import Estimates, Method, State, Task, merge_states
from mlmc_dropout.methods.mlmc.adaptive import Growth, next_fidelity
from mlmc_dropout.methods.mlmc.estimator import MLMC
from mlmc_dropout.methods.mlmc.ladder import Ladder
from mlmc_dropout.result import Status
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import PILOT, Goal

__all__ = ["Outcome", "Progress", "Run"]

PILOT_REPLICATES = 16  # per level, for the pilot that a new level of a growing ladder gets


@dataclass(frozen=True, slots=True)
class Progress:
    """All that a run has to remember, as one value.

    It is replaced as a whole, never changed, so that an interrupt at any moment finds it consistent.
    ``state`` holds the tasks merged from left to right: all of the earlier rounds, and the first
    ``merged`` of the round under way. ``done`` is the method's own count after the earlier rounds,
    ``spend`` what the round under way may cost (0: none is), ``ladder`` the fidelities of a ladder
    that grows.
    """

    state: State
    done: Mapping[str, int]
    spend: float
    merged: int = 0
    ladder: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known about a batch: estimates, how the run stands, and a remark."""

    estimates: Estimates
    status: Status
    note: str = ""


class Run:
    """Hands out the tasks of a batch, merges what comes back in the order of the tasks, decides what next.

    ``method`` is what workers are sent, ``plan`` the same bound to the inputs. Tasks are named by
    their place in the round; results may come in any order.
    """

    def __init__(
        self,
        index: int,
        source: Source,
        method: Method,
        goal: Goal,
        growth: Growth | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.index, self.source, self.goal, self.growth = index, source, goal, growth
        self.method = method
        ladder = progress.ladder if progress else None
        self._use(method if ladder is None else _with_ladder(method, ladder))
        self.outcome: Outcome | None = None
        self.tasks: list[Task] = []
        self._sent = 0
        self._early: dict[int, Sequence[State]] = {}
        self._expected = 0.0  # passes the goal will take, by the latest look
        start = goal.pilot if growth else goal.first
        self.progress = progress or Progress({}, {}, start(self.plan.min_cost()), 0, self._fidelities())
        self._enter_round()

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
        """The next tasks to be run, and the place of the first of them in the round."""
        start = self._sent
        self._sent = min(start + count, len(self.tasks))
        return start, tuple(self.tasks[start : self._sent])

    def accept(self, start: int, states: Sequence[State]) -> None:
        """States of the tasks ``start ..``; they wait until it is their turn to be merged."""
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
        """Passes a task takes, up to a factor common to all tasks of the run."""
        ladder = getattr(self.plan, "ladder", None)
        return task.count * (ladder.fidelities[task.depth] if isinstance(ladder, Ladder) else 1)

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
        if not self.tasks:  # the method can do nothing with what it may spend
            self._finish(self.plan.summarise(self.progress.state, self.progress.done))

    def _plan_round(self, spend: float) -> tuple[list[Task], Mapping[str, int]]:
        """Tasks for ``spend`` passes; for more, if the method cannot do anything with so few."""
        left = math.inf if self.goal.budget is None else self.goal.budget - self.progress.done.get("passes", 0)
        tasks, after = self.plan.extend(self.progress.done, spend)
        while not tasks and spend < left:
            spend = min(2 * spend, left)
            tasks, after = self.plan.extend(self.progress.done, spend)
        return tasks, after

    def _look(self) -> None:
        """Grow the ladder, stop, or set the passes of the next round."""
        found = self.plan.summarise(self.progress.state, self.progress.done)
        spend = self._growing(found) or self._further(found)
        if not spend:
            self._finish(found)
        self.progress = replace(self.progress, spend=spend, ladder=self._fidelities())

    def _further(self, found: Estimates) -> float:
        """Passes to spend next; 0 when the goal is reached or out of reach."""
        goal, samples = self.goal, self.samples()
        left = math.inf if goal.budget is None else goal.budget - found.cost
        least = self.plan.min_cost() - found.overhead
        if goal.met(found, samples) or self._fixed or left < least:
            return 0.0
        short = goal.shortfall(found) if goal.has_tolerance else math.inf
        self._expected = min(_needed(found, max(short, 1.0)), found.cost + left)
        return min(goal.more(found, samples), left)

    def _finish(self, found: Estimates) -> None:
        """Say how the run ended."""
        goal = self.goal
        if not goal.has_tolerance:
            self.outcome = Outcome(found, Status.COMPLETED)
        elif goal.met(found, self.samples()):
            self.outcome = Outcome(found, Status.TOLERANCE_MET)
        else:
            self.outcome = Outcome(found, Status.BUDGET_EXHAUSTED, _how_far(found, goal.shortfall(found)))

    def samples(self) -> float:
        """Samples behind the standard errors: those of the block that has fewest; halves ``x.a``, ``x.b`` are one.

        A half with one sample has no standard error yet: then that is the answer.
        """
        counts: Counter[str] = Counter()
        for name, block in self.progress.state.items():
            counts[name.removesuffix(".a").removesuffix(".b")] += block.count
        fewest = min(block.count for block in self.progress.state.values())
        return min(counts.values()) if fewest > 1 else fewest

    def _growing(self, found: Estimates) -> float:
        """Passes for the pilot of one level more, if one is needed and the budget can bear it."""
        if self.growth is None or len(found.levels) != len(self._fidelities() or ()):
            return 0.0
        mean = [float(level.variance.mean()) for level in found.levels]
        variance = [float(level.variance_V.mean()) for level in found.levels]
        if self.growth.settled(mean, variance) or self.goal.met(found, self.samples()):
            return 0.0
        assert isinstance(self.plan, MLMC)
        longer = _with_ladder(self.method, next_fidelity(self.plan.ladder, self.growth.ratio).fidelities)
        pilot = max(PILOT, PILOT_REPLICATES / 2 * longer.min_cost())
        if self.goal.budget is not None and found.cost + 2 * pilot > self.goal.budget:
            return 0.0  # what is left belongs to the levels there are
        self._use(longer)
        return pilot

    def _use(self, method: Method) -> None:
        self.method = method
        self.plan = method.bind(self.source)
        self._fixed = method.describe().get("counts") is not None

    def _fidelities(self) -> tuple[int, ...] | None:
        return self.plan.ladder.fidelities if self.growth and isinstance(self.plan, MLMC) else None

    # ------------------------------------------------------------------------- in between

    def interim(self) -> Estimates | None:
        """Estimates of what has been merged so far, if they have standard errors."""
        if self.outcome is not None:
            return self.outcome.estimates
        done = self.progress.done
        if self.progress.merged:
            done = {**self._after, "passes": round(self.passes())}
        try:
            found = self.plan.summarise(self.progress.state, done)
        except KeyError:  # some level has no replicate yet
            return None
        known = np.isfinite(found.mean_stderr).all() and np.isfinite(found.variance_stderr).all()
        return found if known else None

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
        """The outcome, or what there is so far under the given status."""
        if self.outcome is not None:
            return self.outcome
        found = self.interim()
        return None if found is None else Outcome(found, status)


def _with_ladder(method: Method, fidelities: Sequence[int]) -> Method:
    assert isinstance(method, MLMC)
    return replace(method, ladder=Ladder(fidelities))


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
