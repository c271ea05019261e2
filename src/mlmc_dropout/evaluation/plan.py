"""What to run next: how many inputs on which level, when to add a level, when to stop.

For a given variance the passes are fewest with n_ℓ ∝ √(V_ℓ/T_ℓ) (Giles 2008). Inputs come without replacement; once a
level has used all of them, only its variance W_ℓ within inputs counts, and it goes on in whole sweeps. All decisions
follow from the level states, so that a run that was interrupted decides the same again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.errors import AllocationError, InputError
from mlmc_dropout.evaluation.data import Slice
from mlmc_dropout.evaluation.estimates import Design, Reading, ladder
from mlmc_dropout.evaluation.forecast import Forecast, cheapest, smallest, total_variance
from mlmc_dropout.evaluation.goal import TOP, EvaluationGoal, Shares, Step
from mlmc_dropout.evaluation.levels import LevelState, passes_of
from mlmc_dropout.evaluation.metrics import Metric
from mlmc_dropout.evaluation.single_terms import DECAY, level_probabilities, mean_cost, single_term_readings
from mlmc_dropout.evaluation.statistics import Statistics
from mlmc_dropout.result import Status

__all__ = ["METHODS", "Planner"]

Array = NDArray[np.float64]

METHODS = ("mlmc", "jackknife", "plug-in", "unbiased")
FIRST_TOP = 2  # levels of the pilot
PILOT, PILOT_LEAST, PILOT_FINE = 128, 32, 8  # inputs of the pilot: on level 0, on the others, on costly ones
GROWTH = 4.0  # by how much a level may grow in a round: variances of few samples are not to be trusted
TRUST = 0.3  # share of all passes that a level may take so that its variance can be believed
ENOUGH = 0.97  # a level that has this share of what it needs is left alone
DESIGN = 16  # passes of a stratified design, used where every input gets as many
ONE_READING = 7  # levels where the data can be read once


@dataclass(frozen=True, slots=True)
class Planner:
    """The decisions of a method.

    Attributes:
        method: "mlmc", "jackknife", "plug-in" or "unbiased".
        passes: T of "jackknife" and "plug-in"; ``None``: chosen.
        goal: When to stop.
        metrics: The metrics.
        design: Passes per stratified design; all counts and the budget are in designs then.

    Raises:
        InputError: If method, passes and goal do not fit together.
    """

    method: str
    passes: int | None
    goal: EvaluationGoal
    metrics: tuple[Metric, ...]
    design: int = 1

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"unknown method {self.method!r}; use one of {', '.join(METHODS)}")
        if self.passes is not None:
            self._check_passes(self.passes)
        elif self.goal.tolerance is None and self.goal.budget is None:
            raise InputError("say when to stop: tolerance=, or budget= in passes per input")

    def _check_passes(self, passes: Any) -> None:
        least = 2 if self.method == "jackknife" else 1
        if self.method not in ("jackknife", "plug-in"):
            raise InputError(f"passes= is the T of method='jackknife' and 'plug-in'; {self.method!r} chooses its own")
        whole = isinstance(passes, (int, np.integer)) and not isinstance(passes, bool)
        if not whole or not least <= passes <= passes_of(TOP) or passes & (passes - 1):
            raise InputError(
                f"passes= is a power of 2 between {least} and {passes_of(TOP)}, so that halves can be compared: "
                f"got {passes!r}"
            )

    def in_designs(self, design: int, pilot: int, rows: int) -> Planner:
        """The same decisions with stratified designs in place of passes.

        Args:
            design: Passes per design.
            pilot: Passes that were spent before.
            rows: Number of inputs.

        Returns:
            A planner that counts in designs.
        """
        if design == 1:
            return self
        budget = self.goal.budget
        left = None if budget is None else (budget - pilot / rows) / design
        return replace(self, goal=replace(self.goal, budget=left), design=design)

    # -------------------------------------------------------------------------- ladders

    def ladder_now(self, statistics: Statistics) -> Design:
        """The weights of the levels, as things stand.

        Args:
            statistics: What is known.

        Returns:
            The ladder that is being run; while its levels are not there yet, the most accurate one.
        """
        if self._fixed:
            return ladder(len(statistics.states) - 1, len(statistics.states) - 1, self._extrapolated(statistics))
        choice = self._choose(statistics)
        if choice.top < len(statistics.states):
            return ladder(choice.base, choice.top, self._extrapolated(statistics))
        return self._most_accurate(statistics)

    def _most_accurate(self, statistics: Statistics) -> Design:
        w, top = self._extrapolated(statistics), len(statistics.states) - 1
        designs = [ladder(base, top, w) for base in ([top] if self._single else range(top + 1))]
        return min(designs, key=lambda design: _worst(statistics.readings(design)))

    @property
    def _fixed(self) -> bool:
        """Whether there is a single level that will not change."""
        return self.passes is not None or (self._single and self.goal.tolerance is None)

    @property
    def _single(self) -> bool:
        return self.method in ("jackknife", "plug-in")

    def ladder_at_end(self, statistics: Statistics, once: bool) -> Design:
        """The weights for the result.

        Args:
            statistics: What is known.
            once: Whether the data set was read once, with levels that were fixed before.

        Returns:
            The weights.
        """
        if not once or self.method != "mlmc":
            return self.ladder_now(statistics)
        used = [level for level, state in enumerate(statistics.states) if state.count > 1]
        return ladder(used[0], used[-1], self._extrapolated(statistics))

    def _extrapolated(self, statistics: Statistics) -> Array:
        """How often the last difference is added once more: never for what jumps, once by the jackknife."""
        weights = []
        for index, metric in enumerate(self.metrics):
            w = 0.0 if metric.kinks or self.method == "plug-in" else 1.0
            if w and self.method == "mlmc":
                w = statistics.extrapolation(index)
            weights.append(np.full(metric.components, w))
        return np.concatenate(weights)

    def _choose(self, statistics: Statistics) -> _Choice:
        """Of all ladders, those with levels not yet run included, the one that needs the fewest further passes."""
        forecast = statistics.forecast(self._extrapolated(statistics), TOP + 1)
        readings = statistics.readings(self._most_accurate(statistics))
        left = math.inf if self.goal.budget is None else (self.goal.budget - statistics.cost()) * statistics.rows
        done = {level: float(state.count) for level, state in enumerate(statistics.states)}
        choose = self._for_budget if self.goal.tolerance is None else self._for_tolerance
        choices = [
            choose(forecast, readings, base, top, left, done)
            for top in self._tops(forecast, readings, len(done) - 1)
            for base in ([top] if self._single else range(top + 1))
        ]
        best = min(choices, key=lambda choice: choice.loss)
        if self.goal.tolerance is None or best.top >= len(done):
            return best
        own = ladder(best.base, best.top, self._extrapolated(statistics))  # whose values relative tolerances refer to
        return self._for_tolerance(forecast, statistics.readings(own), best.base, best.top, left, done)

    def _tops(self, forecast: Forecast, readings: Sequence[Reading], top: int) -> range:
        """Finest levels worth looking at: from the first with little enough bias on, or the next few."""
        if self.goal.tolerance is None:
            return range(1, min(max(top, 1) + 4, TOP) + 1)
        first = max(top, 1)
        targets = self.goal.targets(readings)
        enough = [(forecast.bias[level] <= math.sqrt(0.5) * targets).all() for level in range(first, TOP + 1)]
        first = first + enough.index(True) if any(enough) else TOP
        return range(first, min(first + 1, TOP) + 1)

    def _for_tolerance(
        self,
        forecast: Forecast,
        readings: Sequence[Reading],
        base: int,
        top: int,
        left: float,
        done: Mapping[int, float],
    ) -> _Choice:
        """Further passes to the tolerance; far too many where bias takes more than half of the error's square."""
        targets = self.goal.targets(readings) ** 2
        bias = forecast.bias[top] ** 2
        variances = forecast.variances(base, top)
        counts = cheapest(variances, np.maximum(targets - bias, 0.5 * targets), forecast.rows)
        cost = sum(_further(n, level, done) * passes_of(level) for level, n in counts.items())
        excess = float(np.max(bias / targets)) - 0.5
        return _Choice(base, top, counts, cost + (1e15 * (1.0 + excess) if excess > 0 else 0.0))

    def _for_budget(
        self,
        forecast: Forecast,
        readings: Sequence[Reading],
        base: int,
        top: int,
        left: float,
        done: Mapping[int, float],
    ) -> _Choice:
        """The error that the rest of the budget gets us to, relative to the values."""
        scale = np.array([max(abs(r.value), 1e-12) for r in readings]) ** 2
        variances = forecast.variances(base, top)
        hardest = int(np.argmax(sum(variances.total.values()) / scale))
        counts = smallest(variances, hardest, left, forecast.rows, done)
        cost = sum(_further(n, level, done) * passes_of(level) for level, n in counts.items())
        error = (total_variance(counts, variances, forecast.rows) + forecast.bias[top] ** 2) / scale
        return _Choice(base, top, counts, float(np.max(error)) + (1e15 if cost > left + 1 else 0.0))

    # ---------------------------------------------------------------------------- steps

    def first(self, rows: int) -> tuple[Slice, ...]:
        """The pilot.

        Args:
            rows: Number of inputs.

        Returns:
            What to run first.

        Raises:
            AllocationError: If the budget is too small for anything.
        """
        total = math.inf if self.goal.budget is None else self.goal.budget * rows
        if self._fixed:
            return self._first_of_single(rows, total)
        if self.method == "unbiased":
            return self._single_terms((), rows, min(PILOT, total / mean_cost()))
        levels = range(FIRST_TOP + 1)
        least = max(2, int(min(1.0, total / (16 * PILOT)) * PILOT_LEAST))
        counts = {level: max(least, int(min(1.0, total / (8 * PILOT)) * PILOT) >> level) for level in levels}
        cost = sum(n * passes_of(level) for level, n in counts.items())
        if cost > total:
            raise AllocationError(
                f"a budget of {self.goal.budget:g} passes for each of {rows} inputs is too small: the pilot alone "
                f"takes {cost} passes; give at least {cost / rows:.2g}"
            )
        return self._slices((), {level: float(n) for level, n in counts.items()}, rows)

    def _first_of_single(self, rows: int, total: float) -> tuple[Slice, ...]:
        """A given T: all inputs, or as many as the budget allows; half of a pilot if there is a tolerance."""
        passes = self.passes or 1 << int(math.log2(max(self.goal.budget or 1.0, 1.0)))
        level = passes.bit_length() - 1
        if self.method == "jackknife" and not level:
            raise AllocationError(f"the jackknife needs 2 passes per input: got a budget of {self.goal.budget:g}")
        wanted = float(rows) if self.goal.tolerance is None else float(min(rows, PILOT))
        if self.goal.tolerance is None and self.goal.budget is not None:
            wanted = max(wanted, total // passes // rows * rows)
        return self._slices((), {level: min(wanted, total / passes)}, rows)

    def statistics(self, states: Sequence[LevelState], rows: int) -> Statistics:
        """The levels that can be used: up to one that got fewer than two inputs by bad luck.

        Args:
            states: One per level.
            rows: Number of inputs.

        Returns:
            Their statistics.
        """
        if self.method != "mlmc" and self.passes is not None:
            return Statistics(states, self.metrics, rows)
        usable = next((level for level, state in enumerate(states) if state.count < 2), len(states))
        return Statistics(states[:usable], self.metrics, rows)

    def for_one_reading(self) -> tuple[Slice, ...]:
        """Levels and shares for data that can be read once: those of variances that fall like T^(−2).

        Returns:
            What to run in that reading.
        """
        budget = float(self.goal.budget or 1.0)
        if self.method == "unbiased":
            return self._single_terms((), 1, budget / mean_cost())
        if self.method != "mlmc":
            passes = self.passes or 1 << int(math.log2(max(budget, 1.0)))
            return self._slices((), {passes.bit_length() - 1: min(budget / passes, 1.0)}, 1)
        steps = range(ONE_READING)
        cost = sum(2.0 ** ((1.0 - DECAY) * step) for step in steps)
        base = max(0, int(math.log2(max(budget / cost, 1.0))))
        share = min(budget / cost / passes_of(base), 1.0)
        return self._slices((), {base + step: share * 2.0 ** (-DECAY * step) for step in steps}, 1)

    def after(self, states: Sequence[LevelState], shares: Shares, rows: int) -> Step:
        """The next step.

        Args:
            states: One per level.
            shares: What the levels have used.
            rows: Number of inputs.

        Returns:
            What to run, or how the run ended.
        """
        if self.method == "unbiased":
            return self._after_terms(states, shares, rows)
        statistics = self.statistics(states, rows)
        if len(statistics.states) < min(len(states), FIRST_TOP + 1) and self.passes is None:  # few, and bad luck
            return Step(self._slices(shares, {len(statistics.states): float(PILOT_LEAST)}, rows))
        if self._fixed:
            return self._after_single(statistics, shares)
        choice = self._choose(statistics)
        if self._worth_designs(choice, statistics):
            return Step(design=DESIGN)
        if choice.top > len(statistics.states) - 1:
            return self._within(self._more_levels(statistics, choice, shares), statistics, shares)
        limited = self.goal.tolerance is not None
        needed = self._believable(statistics, choice.counts) if limited else choice.counts
        missing = self._missing(statistics, shares, needed, limited)
        if missing:
            return self._within(Step(self._slices(shares, missing, rows)), statistics, shares)
        return Step((), *self._verdict(statistics.readings(self.ladder_now(statistics))))

    def _worth_designs(self, choice: _Choice, statistics: Statistics) -> bool:
        """Whether every input will get so many passes that they had better be stratified."""
        if self.method != "mlmc" or self.design > 1:
            return False
        passes = choice.counts[choice.base] / statistics.rows * passes_of(choice.base)
        return passes >= DESIGN and statistics.cost() < 0.5 * passes

    def _more_levels(self, statistics: Statistics, choice: _Choice, shares: Shares) -> Step:
        """Pilots of the next two levels of the ladder that was chosen."""
        first = len(statistics.states)
        counts = {}
        for level in range(first, min(choice.top, first + 1) + 1):
            counts[level] = min(max(choice.counts.get(level, 0.0), PILOT_FINE), PILOT_LEAST)
        return Step(self._slices(shares, counts, statistics.rows))

    def _believable(self, statistics: Statistics, counts: Mapping[int, float]) -> dict[int, float]:
        """Twice the samples where few of them carry most of the variance, if that does not cost much."""
        planned = sum(n * passes_of(level) for level, n in counts.items())
        enough = dict(counts)
        for level, n in counts.items():
            count = statistics.states[level].count
            more = min(2.0 * count, statistics.rows)
            if statistics.heavy(level) and count < statistics.rows and more * passes_of(level) < TRUST * planned:
                enough[level] = max(n, more)
        return enough

    def _missing(
        self, statistics: Statistics, shares: Shares, needed: Mapping[int, float], limited: bool
    ) -> dict[int, float]:
        """Samples to add per level; ``limited``: not too many at once."""
        missing = {}
        for level, n in needed.items():
            used = shares[level][0] * statistics.rows
            if used < (ENOUGH * n if n < statistics.rows else n - 0.5):
                most = GROWTH * max(used, PILOT_LEAST) if limited else math.inf
                missing[level] = max(min(n, most) - used, 1.0)
        return missing

    def _within(self, step: Step, statistics: Statistics, shares: Shares) -> Step:
        """The step, cut down to what is left of the budget."""
        if self.goal.budget is None or not step.slices:
            return step
        left = (self.goal.budget - statistics.cost()) * statistics.rows
        cost = sum((part.high - part.low) * passes_of(part.level) for part in step.slices) * statistics.rows
        if cost <= left * 1.02:
            return step
        design = self.ladder_now(statistics)
        forecast = statistics.forecast(self._extrapolated(statistics), len(statistics.states))
        done = {level: float(state.count) for level, state in enumerate(statistics.states)}
        readings = statistics.readings(design)
        choice = self._for_budget(forecast, readings, design.base, design.top, left, done)
        missing = self._missing(statistics, shares, choice.counts, limited=False)
        cost = sum(n * passes_of(level) for level, n in missing.items())
        if cost > left * 1.02 or cost < 0.05 * statistics.cost() * statistics.rows:
            return Step((), *self._verdict(readings))
        return Step(self._slices(shares, missing, statistics.rows))

    def _after_single(self, statistics: Statistics, shares: Shares) -> Step:
        readings = statistics.readings(self.ladder_now(statistics))
        if self.goal.tolerance is None:
            return Step((), *self._verdict(readings))
        top = len(statistics.states) - 1
        forecast = statistics.forecast(self._extrapolated(statistics), top + 1)
        done = {top: float(statistics.states[top].count)}
        choice = self._for_tolerance(forecast, readings, top, top, math.inf, done)
        missing = self._missing(statistics, shares, choice.counts, limited=True)
        if not missing:
            return Step((), *self._verdict(readings))
        return self._within(Step(self._slices(shares, missing, statistics.rows)), statistics, shares)

    def _verdict(self, readings: Sequence[Reading]) -> tuple[Status, str]:
        if self.goal.tolerance is None:
            return Status.COMPLETED, ""
        targets = self.goal.targets(readings)
        worst, short = "", 1.02
        for metric, reading, target in zip(self.metrics, readings, targets, strict=True):
            error = math.hypot(reading.stderr, reading.bias) / target
            if error > short:
                worst, short = metric.name, error
        if not worst:
            return Status.TOLERANCE_MET, ""
        return Status.BUDGET_EXHAUSTED, f"The error of {worst} is {short:.3g} times the tolerance."

    # ---------------------------------------------------------------------- single terms

    def _single_terms(self, shares: Shares, rows: int, count: float) -> tuple[Slice, ...]:
        """``count`` further inputs, each on a random level."""
        p = level_probabilities()
        return self._slices(shares, {level: count * float(p[level]) for level in range(len(p))}, rows)

    def _after_terms(self, states: Sequence[LevelState], shares: Shares, rows: int) -> Step:
        readings = single_term_readings(states, self.metrics, shares, rows)
        count = shares[0][0] / float(level_probabilities()[0]) * rows
        if self.goal.tolerance is None:
            wanted = float(self.goal.budget or 0.0) * rows / mean_cost()
        else:
            targets = self.goal.targets(readings)
            wanted = count * max((r.stderr / t) ** 2 for r, t in zip(readings, targets, strict=True))
            wanted = min(wanted, GROWTH * count)
            if self.goal.budget is not None:
                wanted = min(wanted, self.goal.budget * rows / mean_cost())
        if wanted * ENOUGH <= count:
            return Step((), *self._verdict(readings))
        return Step(self._single_terms(shares, rows, wanted - count))

    # -------------------------------------------------------------------------- slices

    def _slices(self, shares: Shares, counts: Mapping[int, float], rows: int) -> tuple[Slice, ...]:
        """So many further inputs per level; a sweep that is begun beyond the first is completed."""
        slices: list[Slice] = []
        for level, count in sorted(counts.items()):
            low, replicate = shares[level] if level < len(shares) else (0.0, 0)
            high = low + count / rows
            if high > 1.0 and self.method != "unbiased":
                high = float(math.ceil(high - 1e-9))
            while low < high - 1e-12:
                end = min(high, math.floor(low) + 1.0)
                slices.append(Slice(level, low, end, replicate))
                low, replicate = end, replicate + 1
        return tuple(slices)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A ladder with its counts, and what speaks against it: further passes, or the error in the end."""

    base: int
    top: int
    counts: Mapping[int, float]
    loss: float


def _further(count: float, level: int, done: Mapping[int, float]) -> float:
    """Samples to add; a level that has not been run gets a pilot at least."""
    least = 0.0 if level in done else PILOT_FINE
    return max(count - done.get(level, 0.0), least)


def _worst(readings: Sequence[Reading]) -> float:
    return max(math.hypot(r.stderr, r.bias) / max(abs(r.value), 1e-12) for r in readings)
