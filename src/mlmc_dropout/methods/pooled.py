"""Plain MC dropout: the mean and variance of all passes, with standard errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout import theory
from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.methods.base import Estimates, LevelEstimate, NoRefinement, OneStage, Task, blocks
from mlmc_dropout.methods.running import running
from mlmc_dropout.methods.states import Block, from_blocks, states_beside
from mlmc_dropout.methods.tails import (
    errors_of_still,
    kurtosis_of_few,
    student_factor,
    trust,
    widened_for_scale,
    widened_for_skewness,
)
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.sampling.source import BLOCK, Source
from mlmc_dropout.stopping.goal import Goal

__all__ = ["BoundPooled", "Pooled", "PooledState"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PooledState:
    """Moments of passes.

    Attributes:
        passes: All passes.
        features: Features of them in groups, if any are asked.
    """

    passes: MomentBlock
    features: GroupBlock | None = None


@dataclass(frozen=True, slots=True)
class Pooled(OneStage):
    """Y(c) and V(c) of c passes; Var Y = μ2/c and Var V = (μ4 − (c−3)/(c−1)·μ2²)/c with estimated moments.

    Attributes:
        overhead: Passes that a pilot spent before.
        reason: Why it was chosen, if it was.
    """

    overhead: int = 0
    reason: str = ""

    @property
    def name(self) -> str:
        """The name users choose it by."""
        return "pooled"

    def min_cost(self) -> int:
        """Below four passes the fourth moment says nothing."""
        return 4 + self.overhead

    def choose(self, source: Source, goal: Goal) -> Pooled:
        """Nothing to choose.

        Args:
            source: The passes of the inputs.
            goal: When to stop.

        Returns:
            Itself.
        """
        return self

    def describe(self) -> dict[str, Any]:
        """Nothing to set."""
        return {}

    def bind(self, source: Source) -> BoundPooled:
        """Nothing to prepare; dropout rates tell how rare a mask can be.

        Args:
            source: The passes of the inputs.

        Returns:
            The method, ready to run.
        """
        rates = (site.p for site in source.program.active if site.expandable)
        return BoundPooled(self, min((min(p, 1.0 - p) for p in rates), default=0.5))


@dataclass(frozen=True, slots=True)
class BoundPooled(NoRefinement):
    """Plain passes, block after block.

    Attributes:
        method: The method it was made from.
        rarest: Probability of the rarest draw of any site, dropping a unit or keeping it.
    """

    method: Pooled
    rarest: float

    def min_cost(self) -> int:
        """That of the method."""
        return self.method.min_cost()

    def extend(self, done: Mapping[str, int], budget: float) -> tuple[list[Task], dict[str, int]]:
        """Plan the next passes, in blocks.

        Args:
            done: Passes so far.
            budget: Passes that may be spent.

        Returns:
            Tasks, and the passes after them.
        """
        overhead = self.method.overhead
        spent = done.get("passes", overhead)
        count = max(0, int(budget) - (0 if done else overhead))
        return [Task(0, a, n) for a, n in blocks(spent - overhead, count, BLOCK)], {"passes": spent + count}

    def run(self, source: Source, task: Task) -> PooledState:
        """Take the moments of a block of passes, part of the rows by part.

        Args:
            source: The passes of the inputs.
            task: The passes.

        Returns:
            Their moments.
        """
        numbers = range(task.first, task.first + task.count)
        parts = source.parts(masks_held=False)
        return states_beside((_state(part, task.stream, numbers) for _, part in parts), source.batch.rows)

    def has_estimates(self, state: PooledState | None) -> bool:
        """Whether there are any passes.

        Args:
            state: A merged state, or ``None``.
        """
        return state is not None

    def samples(self, state: PooledState) -> float:
        """The number of passes.

        Args:
            state: A merged state.
        """
        return state.passes.count

    def read_state(self, blocks: Mapping[str, Block]) -> PooledState:
        """A state from its saved blocks.

        Args:
            blocks: Blocks by path.

        Returns:
            The state.
        """
        return from_blocks(PooledState, blocks)

    def summarise(self, state: PooledState, done: Mapping[str, int]) -> Estimates:
        """Sample mean and variance; the standard error of the variance uses the fourth moment that passes suggest.

        Args:
            state: Moments of all passes.
            done: Passes so far.

        Returns:
            The estimates.
        """
        block = state.passes
        c = block.count
        mean_stderr, variance_stderr, widening = _standard_errors(block)
        still_mean, still_variance = errors_of_still(block, self.rarest)
        level = LevelEstimate(
            "passes",
            1,
            c,
            c,
            block.mean,
            block.variance,
            block.kurtosis,
            block.variance,
            _variance_of_variance(block, block.fourth),
            block.kurtosis,
        )
        return Estimates(
            block.mean,
            block.variance,
            np.maximum(mean_stderr, still_mean),
            np.maximum(variance_stderr, still_variance),
            c + self.method.overhead,
            levels=(level,),
            notes=(self.method.reason,) if self.method.reason else (),
            overhead=self.method.overhead,
            trust=trust(block),
            groups=state.features,
            widening=widening,
        )


def _standard_errors(block: MomentBlock) -> tuple[Array, Array, tuple[Array, Array]]:
    """Of the mean and of the variance, so that 1.96 of them are a 95 % interval however few passes there are.

    Also the factors in them for tails that few passes show.
    """
    error2 = _variance_of_variance(block, kurtosis_of_few(block) * np.square(block.variance))
    student = student_factor(block.count)
    widening = widened_for_skewness(block, block.count), widened_for_scale(error2, block.variance)
    return student * widening[0] * np.sqrt(block.variance_of_mean), student * widening[1] * np.sqrt(error2), widening


def _variance_of_variance(block: MomentBlock, fourth: Array) -> Array:
    """The squared standard error of the sample variance; two equally likely values have hardly any."""
    spread = theory.variance_of_sample_variance(block.count, block.variance, fourth)
    return np.asarray(np.maximum(spread, 2 * np.square(block.variance / block.count)))


def _state(source: Source, stream: int, numbers: range) -> PooledState:
    if source.wide:
        return PooledState(*running(source, source.chunks(stream, numbers), numbers.start, source.groups))
    main, features = source.observe(source.passes(stream, range(1), numbers)[:, 0])
    groups = None if features is None else GroupBlock.of(features, numbers.start, source.groups)
    return PooledState(MomentBlock.of(main), groups)
