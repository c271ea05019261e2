"""The default: a small pilot, then the cheapest way to the accuracy asked for."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlmc_dropout.methods.base import Method
from mlmc_dropout.methods.coarse_pilot import (
    affordable_coarse_look,
    asked_moments,
    coarse_look,
    fits_memory,
    outputs_that_matter,
)
from mlmc_dropout.methods.coarse_rows import coarse_cost
from mlmc_dropout.methods.coarse_time import time_of_sample
from mlmc_dropout.methods.control_variate import GRADIENT_MASKS, ControlVariate, affordable
from mlmc_dropout.methods.design_length import SHORT, UNKNOWN_BUDGET, preparation_cost
from mlmc_dropout.methods.pilot import PILOT_SHARE, Candidate, Look, Pilot, affordable_look
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal
from mlmc_dropout.surrogates.derivatives import DerivativeError
from mlmc_dropout.surrogates.linear import has_derivatives, linearise, supported
from mlmc_dropout.surrogates.taylor import taylor_bytes, taylor_cost, value_cost

__all__ = ["Auto"]

UNSEEN = 0.05  # of the passes to come: more is not spent on derivatives that no pilot has shown to be useful
UNSEEN_OF_FEW, FEW_OUTPUTS = 0.2, 2  # the same for few outputs: of regressors an expansion nearly always explains much
MOST_FOR_READING = 0.25  # of the passes to come, for derivatives of outputs that are read in some way
MOST_OF_A_PASS = 0.15  # that a sample of the expansion may cost: beyond, there is nothing to gain for the variance
MOST_TIME_OF_A_PASS = 0.3  # that it may take, by a fixed model of a processor
WORTH_READING = 1.25  # gain in passes that a pilot has to show, of the moments asked for together
LEAST_OF_BOTH = 1.1  # and of each of them
NO_LOSS_OF_TIME = 1.0  # gain in time, of the moments asked for together
MOST_FOR_SECOND = 0.5  # of the passes to come, for all second derivatives
ROWS_PER_LOOK = 8  # rows for each of which a pilot takes second derivatives of one, or of more if these cost little
MEMORY_SHARE = 0.25  # of the memory limit, for second derivatives of all rows
FEW_PASSES = 160  # below which a pilot takes as long as the passes, or costs as much as the derivatives of few outputs
FEWEST_FOR_DESIGNS = 64  # passes below which designs without a companion are too few


@dataclass(frozen=True, slots=True)
class Auto:
    """Chooses among pooled, stratified and control-variate, with the last dropout averaged out or not."""

    @property
    def name(self) -> str:
        """The name users choose it by."""
        return "auto"

    def min_cost(self) -> int:
        """That of the simplest choice."""
        return Pooled().min_cost()

    @property
    def fixed_counts(self) -> bool:
        """Never."""
        return False

    def describe(self) -> dict[str, Any]:
        """Nothing to set."""
        return {}

    def choose(self, source: Source, goal: Goal) -> Method:
        """Look at a few rows, predict what each way would cost, take the cheapest.

        Args:
            source: The passes of the inputs.
            goal: When to stop.

        Returns:
            The method that is predicted to be cheapest.
        """
        if goal.decision is not None:
            return Pooled(reason="auto chose pooled: most decisions need fewer passes than derivatives would cost.")
        budget = goal.budget or UNKNOWN_BUDGET
        if source.observation.outputs != "values":
            return _through_reading(source, goal, budget)
        if not supported(source.program):
            return _without_derivatives(source, goal, "some mask units belong to no single input")
        samples = GRADIENT_MASKS if affordable(source, goal, GRADIENT_MASKS) else 0
        try:
            if _cheap(source, budget):
                return _unseen(source, budget).choose(source, goal)
            look = affordable_look(source, budget, samples) if budget >= FEW_PASSES else None
            if look is not None:
                return _decide(source, goal, look).choose(source, goal)
            if preparation_cost(source) <= UNSEEN * budget:
                return _unseen(source, budget).choose(source, goal)
        except DerivativeError as error:
            return _without_derivatives(source, goal, f"there are no derivatives ({error.cause})")
        return _without_derivatives(source, goal, "one backward pass per output would be too expensive here")


def _through_reading(source: Source, goal: Goal, budget: float) -> Method:
    """For outputs that are read in some way: the expansion, read in the same way, or plain passes."""
    unused = "some mask units belong to no single input"
    if supported(source.program):
        try:
            outputs = outputs_that_matter(source, budget)
            if outputs is None and preparation_cost(source) > MOST_FOR_READING * budget:
                unused = "one backward pass per output would be too expensive here"
            elif not fits_memory(source, outputs):
                unused = "derivatives of all inputs would not fit the memory limit"
            elif coarse_cost(source, outputs) > MOST_OF_A_PASS or time_of_sample(source, outputs) > MOST_TIME_OF_A_PASS:
                unused = "passes cost hardly more than samples of their expansion"
            elif (size := affordable_coarse_look(source, goal, outputs)) is None:
                unused = "a pilot would cost too many of the passes"
            else:
                asked = asked_moments(goal)
                look = coarse_look(source, size, outputs, by_time=True, moments=asked)
                gains, in_time = (
                    [found[moment] for moment in asked] for found in (look.at(budget), look.in_time(budget))
                )
                worth = math.prod(gains) >= WORTH_READING ** len(asked) and min(gains) >= LEAST_OF_BOTH
                if worth and math.prod(in_time) >= NO_LOSS_OF_TIME ** len(asked):
                    return look.method(
                        reason="auto chose the expansion in the masks, put through the same softmax, after a pilot."
                    )
                return Pooled(
                    math.ceil(look.cost),
                    reason="auto chose pooled: a pilot showed that nothing else is worth its cost.",
                )
        except DerivativeError as error:
            unused = f"there are no derivatives ({error.cause})"
    return Pooled(reason=f"auto chose pooled: {unused}.")


def _without_derivatives(source: Source, goal: Goal, cause: str) -> Method:
    """Designs, or plain passes where there would be too few of them."""
    if (goal.budget or UNKNOWN_BUDGET) < FEWEST_FOR_DESIGNS:
        return Pooled(reason=f"auto chose pooled: {cause}, and {goal.budget:g} passes are too few for designs.")
    return Stratified(heads=False, reason=f"auto chose stratified masks: {cause}.").choose(source, goal)


def _cheap(source: Source, budget: float) -> bool:
    """Whether derivatives cost hardly more than a pilot would, where there is nothing else to choose."""
    few_outputs = source.program.structure.width <= FEW_OUTPUTS
    return few_outputs and budget < FEW_PASSES and preparation_cost(source) <= UNSEEN_OF_FEW * budget


def _unseen(source: Source, budget: float) -> ControlVariate:
    """The expansion where a pilot would cost more than it can lose: its coefficients see for themselves.

    The second order costs so little only where there are many passes.
    """
    if not has_derivatives(source.program):
        linearise(source.sampler, source.program, source.batch[: min(2, source.batch.rows)])  # it may be refused
    samples = GRADIENT_MASKS if preparation_cost(source, GRADIENT_MASKS) <= UNSEEN * budget else 0
    reason = "auto chose the expansion in the masks as a control variate, which costs less here than a pilot."
    return ControlVariate(gradient_masks=samples, reason=reason)


def _decide(source: Source, goal: Goal, look: Look) -> Pooled | Stratified | ControlVariate:
    pilot, budget = Pilot.run(source, look), goal.budget or UNKNOWN_BUDGET
    needs = pilot.needs(goal)
    candidates = [c for c in pilot.candidates() if budget >= FEWEST_FOR_DESIGNS or not isinstance(c.method, Stratified)]
    best = min(candidates, key=lambda candidate: candidate.price(goal, needs))
    best, more = _or_with_second_derivatives(source, goal, pilot, best, needs)
    reason = f"auto chose {best.words}: the cheapest way by a pilot."
    method = replace(best.method, reason=reason, overhead=look.cost + more)
    if isinstance(method, ControlVariate) and goal.has_tolerance:
        # The expansion makes up for short designs, and more of them give better standard errors.
        passes = (best.price(goal, needs) - best.overhead) / 2
        return replace(method, passes=int(np.clip(passes // 20, min(method.passes, SHORT), method.passes)))
    return method


def _or_with_second_derivatives(
    source: Source, goal: Goal, pilot: Pilot, best: Candidate, needs: tuple[float, float]
) -> tuple[Candidate, int]:
    """The better of a way and the expansion with all second derivatives; and the passes spent on looking at that."""
    price, rows = best.price(goal, needs), source.batch.rows
    to_come = min(price if goal.has_tolerance else math.inf, goal.budget or math.inf)
    if rows * taylor_bytes(source.program, pilot.averaged_out) > MEMORY_SHARE * source.sampler.memory_limit:
        return best, 0
    with suppress(DerivativeError):  # some outputs can be differentiated once only
        cost = taylor_cost(source.sampler, source.program, source.batch, pilot.averaged_out)
        affordable = max(rows / ROWS_PER_LOOK, PILOT_SHARE * to_come / cost * rows)
        looked_at = int(np.clip(affordable, 1, pilot.source.batch.rows))
        look = math.ceil(cost * looked_at / rows)
        if cost + look <= MOST_FOR_SECOND * to_come and not _too_few(source, goal, pilot, price - cost):
            smooth = pilot.with_second_derivatives(looked_at)
            return min(best, smooth, key=lambda candidate: candidate.price(goal, needs)), look
    return best, 0


def _too_few(source: Source, goal: Goal, pilot: Pilot, left: float) -> bool:
    """Whether a tolerance is met before the tails of what second derivatives leave are seen."""
    parts = source.sampler, source.program, source.batch
    return goal.has_tolerance and pilot.least_beside_second * (1.0 + value_cost(*parts, pilot.averaged_out)) >= left
