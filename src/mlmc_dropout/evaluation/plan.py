"""What to run next: how many inputs on which level, when to add a level, when to stop.

For a given variance the passes are fewest with n_ℓ ∝ √(V_ℓ/T_ℓ) (Giles 2008). Inputs come without replacement; once a
level has used all of them, only its variance W_ℓ within inputs counts, and it goes on in whole sweeps. All decisions
follow from the level states, so that a run that was interrupted decides the same again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.errors import AllocationError, InputError
from mlmc_dropout.evaluation.choice import Choice, finest_levels, for_budget, for_tolerance, passes_for
from mlmc_dropout.evaluation.counts import (
    ENOUGH,
    GROWTH,
    PILOT_LEAST,
    believable,
    missing_counts,
    pilot_of,
    slices_for,
)
from mlmc_dropout.evaluation.data import Slice
from mlmc_dropout.evaluation.estimates import Design, Reading, ladder
from mlmc_dropout.evaluation.goal import TOP, EvaluationGoal, Shares, Step
from mlmc_dropout.evaluation.levels import LevelState, passes_of
from mlmc_dropout.evaluation.metrics import Metric
from mlmc_dropout.evaluation.single_terms import DECAY, level_probabilities, mean_cost, single_term_readings
from mlmc_dropout.evaluation.statistics import Statistics
from mlmc_dropout.evaluation.strata import Part
from mlmc_dropout.evaluation.sweeps import Sweeps, next_sweeps
from mlmc_dropout.result import Status

__all__ = ["METHODS", "Planner"]

Array = NDArray[np.float64]

METHODS = ("mlmc", "jackknife", "plug-in", "unbiased")
FIRST_TOP = 2  # levels of the pilot
PILOT = (32, 32, 96)  # inputs of the pilot, per level: most where they are most likely to be of use
DESIGN_PILOT = (16, 16, 48)  # the same in stratified designs, which cost more
PILOT_TERMS = 128  # first draws of single terms, and inputs of a given T
SINGLE = 0.25  # share of the inputs that, if the coarsest level needs more, makes one level better than several
DEARER = 3.0  # times the passes of several levels, that one level may need instead: pilots know both only roughly
SCORES = {50: 4, 400: 16}  # passes per input from which on they are sorted into strata, by so many of them
LADDER = 12  # passes, as a multiple of the pilot's, from which on there is time to learn a variance per level
STRATA_ROWS = 200  # inputs below which there are no strata
DESIGNS = {6: 2, 25: 4, 50: 8, 400: 16}  # passes per input from which on they come in stratified designs of so many
KNOWN = 0.4  # passes per input that tell enough of that: all of them are thrown away
MORE_NOISE, MOST_MORE = 1.1, 2.0  # by which samples grow at least and at most where an error is larger than foreseen
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

    def _choose(self, statistics: Statistics) -> Choice:
        """Of all ladders, those with levels not yet run included, the one that needs the fewest further passes."""
        forecast = statistics.forecast(self._extrapolated(statistics), TOP + 1)
        readings = statistics.readings(self._most_accurate(statistics))
        left = math.inf if self.goal.budget is None else (self.goal.budget - statistics.cost()) * statistics.rows
        done = {level: float(state.count) for level, state in enumerate(statistics.states)}
        tops = finest_levels(self.goal, forecast, readings, len(done) - 1)
        ladders = [(base, top) for top in tops for base in ([top] if self._single else range(top + 1))]
        if self.goal.tolerance is None:
            choices = [for_budget(forecast, readings, base, top, left, done) for base, top in ladders]
        else:
            choices = [for_tolerance(self.goal, forecast, readings, base, top, done) for base, top in ladders]
        best = min(choices, key=lambda choice: choice.loss)
        alone = min((choice for choice in choices if choice.base == choice.top), key=lambda choice: choice.loss)
        few = best.counts[best.base] > SINGLE * statistics.rows or best.passes < LADDER * _cost(self._pilot)
        if few and self._hardly_worse(alone, best):
            best = alone
        if self.goal.tolerance is None or best.top >= len(done):
            return best
        w = self._extrapolated(statistics)
        own = ladder(best.base, best.top, w)  # whose values relative tolerances refer to
        stated = statistics.forecast(w, len(done), stated=True)
        return for_tolerance(self.goal, stated, statistics.readings(own), best.base, best.top, done)

    def _hardly_worse(self, alone: Choice, best: Choice) -> bool:
        """Whether one level takes not much more than several: passes to a tolerance, squared error for a budget."""
        if self.goal.tolerance is None:
            return alone.loss <= (best.loss[0], DEARER * best.loss[1])
        return alone.passes <= DEARER * best.passes

    def dearest(self, statistics: Statistics) -> tuple[int, float]:
        """The metric that needs the most passes for the tolerance, and what all others need without it.

        Args:
            statistics: What is known.

        Returns:
            Number of the metric, and passes per input, a pilot included.
        """
        forecast = statistics.forecast(self._extrapolated(statistics), TOP + 1)
        readings = statistics.readings(self.ladder_now(statistics))

        def needed(metrics: Sequence[int]) -> float:
            return passes_for(self.goal, forecast.of(metrics), [readings[m] for m in metrics], self._single)

        everyone = range(len(self.metrics))
        most = max(everyone, key=lambda metric: needed([metric]))
        return most, _cost(PILOT) / statistics.rows + self.design * needed(
            [metric for metric in everyone if metric != most]
        )

    # ---------------------------------------------------------------------------- steps

    @property
    def _pilot(self) -> tuple[int, ...]:
        """Inputs of the pilot, per level."""
        return PILOT if self.design == 1 else DESIGN_PILOT

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
            return self._single_terms((), rows, min(PILOT_TERMS, total / mean_cost()))
        part = min(1.0, total / (2.5 * _cost(self._pilot)))  # a small budget is not to be spent on a pilot
        counts = {level: max(2, int(part * n)) for level, n in enumerate(self._pilot)}
        cost = sum(n * passes_of(level) for level, n in counts.items())
        if cost > total:
            raise AllocationError(
                f"a budget of {self.goal.budget:g} passes for each of {rows} inputs is too small: the pilot alone "
                f"takes {cost} passes; give at least {cost / rows:.2g}"
            )
        return slices_for((), {level: float(n) for level, n in counts.items()}, rows)

    def _first_of_single(self, rows: int, total: float) -> tuple[Slice, ...]:
        """A given T: all inputs, or as many as the budget allows; half of a pilot if there is a tolerance."""
        passes = self.passes or 1 << int(math.log2(max(self.goal.budget or 1.0, 1.0)))
        level = passes.bit_length() - 1
        if self.method == "jackknife" and not level:
            raise AllocationError(f"the jackknife needs 2 passes per input: got a budget of {self.goal.budget:g}")
        wanted = float(rows) if self.goal.tolerance is None else float(min(rows, PILOT_TERMS))
        if self.goal.tolerance is None and self.goal.budget is not None:
            wanted = max(wanted, total // passes // rows * rows)
        return slices_for((), {level: min(wanted, total / passes)}, rows)

    def statistics(self, states: Sequence[LevelState], rows: int) -> Statistics:
        """The levels that can be used: up to one that got fewer than two inputs by bad luck.

        Args:
            states: One per level.
            rows: Number of inputs.

        Returns:
            Their statistics.
        """
        if self._fixed:
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
            return slices_for((), {passes.bit_length() - 1: min(budget / passes, 1.0)}, 1)
        steps = range(ONE_READING)
        cost = sum(2.0 ** ((1.0 - DECAY) * step) for step in steps)
        base = max(0, int(math.log2(max(budget / cost, 1.0))))
        share = min(budget / cost / passes_of(base), 1.0)
        return slices_for((), {base + step: share * 2.0 ** (-DECAY * step) for step in steps}, 1)

    def after(self, parts: Sequence[Part], rows: int, sweeping: bool = False) -> Step:
        """The next step.

        Args:
            parts: The strata; one, if there are none.
            rows: Number of inputs.
            sweeping: Whether all inputs are used in whole sweeps.

        Returns:
            What to run, or how the run ended.
        """
        if sweeping:
            return self._after_sweeps(parts)
        states, shares = parts[0].states, parts[0].shares
        if self.method == "unbiased":
            return self._after_terms(states, shares, rows)
        statistics = self.statistics(states, rows)
        if len(statistics.states) < min(len(states), FIRST_TOP + 1) and self.passes is None:  # few, and bad luck
            return Step(slices_for(shares, {len(statistics.states): float(PILOT_LEAST)}, rows))
        if self._fixed:
            return self._after_single(statistics, shares)
        choice = self._choose(statistics)
        design = self._worth_designs(choice, statistics)
        if design > 1:
            planned = choice.passes / rows
            if not self._sweeps:
                return Step(design=design)
            scoring = max(
                (size for least, size in SCORES.items() if planned >= least and rows >= STRATA_ROWS), default=0
            )
            return Step(design=design, scoring=scoring, sweeps=True)
        if choice.top > len(statistics.states) - 1:
            pilot = pilot_of(statistics, choice.counts, choice.top)
            return self._within(Step(slices_for(shares, pilot, rows)), statistics, shares)
        limited = self.goal.tolerance is not None
        needed = believable(statistics, choice.counts) if limited else choice.counts
        missing = missing_counts(shares, needed, rows, limited)
        missing = missing or self._noisier_than_foreseen(choice, statistics, shares)
        if missing:
            return self._within(Step(slices_for(shares, missing, rows)), statistics, shares)
        return Step((), *self._verdict(statistics.readings(self.ladder_now(statistics))))

    def _noisier_than_foreseen(self, choice: Choice, statistics: Statistics, shares: Shares) -> dict[int, float]:
        """Samples that bring an error down that is read as larger than it was planned to be.

        Where a function reduces averages, noise shifts its value, too, and that counts as bias of the reading.
        """
        if self.goal.tolerance is None:
            return {}
        readings = statistics.readings(self.ladder_now(statistics))
        foreseen = statistics.forecast(self._extrapolated(statistics), len(statistics.states)).bias[choice.top]
        targets = self.goal.targets(readings)
        noise = max(
            math.hypot(r.stderr, max(r.bias - float(bias), 0.0)) / target
            for r, bias, target in zip(readings, foreseen, targets, strict=True)
        )
        if self._verdict(readings)[0] is Status.TOLERANCE_MET or noise**2 < 0.5:
            return {}
        growth = min(max(noise**2, MORE_NOISE), MOST_MORE)
        wanted = {level: growth * max(n, shares[level][0] * statistics.rows) for level, n in choice.counts.items()}
        return missing_counts(shares, wanted, statistics.rows, limited=True)

    def _worth_designs(self, choice: Choice, statistics: Statistics) -> int:
        """Passes per stratified design, if every input will get several passes; 1 if not."""
        if self.method != "mlmc" or self.design > 1 or choice.counts[choice.base] < statistics.rows:
            return 1
        passes = choice.passes / statistics.rows
        if not min(0.15 * passes, KNOWN) < statistics.cost() < 0.5 * passes:
            return 1
        return max((size for least, size in DESIGNS.items() if passes >= least), default=1)

    @property
    def _sweeps(self) -> bool:
        """Whether all inputs may be used in whole sweeps, to a tolerance, for metrics that are plain averages."""
        plain = all(metric.reduce is None and not metric.kinks for metric in self.metrics)
        return plain and self.goal.tolerance is not None and self.goal.budget is None

    def _after_sweeps(self, parts: Sequence[Part]) -> Step:
        now = Sweeps.of(parts, self.metrics)
        slices = next_sweeps(now, self.goal)
        return Step(slices) if slices else Step((), *self._verdict(now.readings()))

    def _within(self, step: Step, statistics: Statistics, shares: Shares) -> Step:
        """The step, cut down to what is left of the budget."""
        if self.goal.budget is None or not step.slices:
            return step
        left = max(self.goal.budget - statistics.cost(), 0.0) * statistics.rows
        if _passes_in(step.slices, statistics.rows) <= left * 1.02:
            return step
        design = self.ladder_now(statistics)
        forecast = statistics.forecast(self._extrapolated(statistics), len(statistics.states))
        done = {level: float(state.count) for level, state in enumerate(statistics.states)}
        readings = statistics.readings(design)
        choice = for_budget(forecast, readings, design.base, design.top, left, done)
        missing = missing_counts(shares, choice.counts, statistics.rows, limited=False)
        cost = sum(n * passes_of(level) for level, n in missing.items())
        part = min(left / max(cost, 1.0), 1.0)  # more may be missing of the shares than of the random counts
        slices = slices_for(shares, {level: part * n for level, n in missing.items()}, statistics.rows)
        if not 0.05 * statistics.cost() * statistics.rows <= _passes_in(slices, statistics.rows) <= left * 1.02:
            return Step((), *self._verdict(readings))
        return Step(slices)

    def _after_single(self, statistics: Statistics, shares: Shares) -> Step:
        readings = statistics.readings(self.ladder_now(statistics))
        if self.goal.tolerance is None:
            return Step((), *self._verdict(readings))
        top = len(statistics.states) - 1
        forecast = statistics.forecast(self._extrapolated(statistics), top + 1, stated=True)
        done = {top: float(statistics.states[top].count)}
        choice = for_tolerance(self.goal, forecast, readings, top, top, done)
        missing = missing_counts(shares, choice.counts, statistics.rows, limited=True)
        if not missing:
            return Step((), *self._verdict(readings))
        return self._within(Step(slices_for(shares, missing, statistics.rows)), statistics, shares)

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
        ended = Status.OUT_OF_REACH if self.goal.budget is None else Status.BUDGET_EXHAUSTED
        return ended, f"The error of {worst} is {short:.3g} times the tolerance."

    # ---------------------------------------------------------------------- single terms

    def _single_terms(self, shares: Shares, rows: int, count: float) -> tuple[Slice, ...]:
        """``count`` further inputs, each on a random level."""
        p = level_probabilities()
        counts = {level: count * float(p[level]) for level in range(len(p))}
        return slices_for(shares, counts, rows, whole=False)

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


def _cost(pilot: Sequence[int]) -> int:
    """Passes (or designs) of a pilot."""
    return sum(n * passes_of(level) for level, n in enumerate(pilot))


def _passes_in(slices: Sequence[Slice], rows: int) -> float:
    return sum((part.high - part.low) * passes_of(part.level) for part in slices) * rows


def _worst(readings: Sequence[Reading]) -> float:
    return max(math.hypot(r.stderr, r.bias) / max(abs(r.value), 1e-12) for r in readings)
