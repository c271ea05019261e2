"""Plain MC dropout: the mean and variance of all passes, with standard errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlmc_dropout import theory
from mlmc_dropout.methods.base import Estimates, LevelEstimate, State, StatelessMethod, Task, blocks
from mlmc_dropout.methods.tails import trust, widened_for_tails
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.sampling.source import BLOCK, Source

__all__ = ["Pooled"]


@dataclass(frozen=True, slots=True)
class Pooled(StatelessMethod):
    """Y(c) and V(c) of c passes; Var Y = μ2/c and Var V = (μ4 − (c−3)/(c−1)·μ2²)/c with estimated moments."""

    overhead: int = 0  # passes a pilot spent before
    reason: str = ""  # why it was chosen, if it was

    @property
    def name(self) -> str:
        """The name users choose it by."""
        return "pooled"

    def min_cost(self) -> int:
        """Below four passes the fourth moment says nothing."""
        return 4 + self.overhead

    def extend(self, done: Mapping[str, int], budget: float) -> tuple[list[Task], dict[str, int]]:
        """The next ``budget`` passes, in blocks."""
        spent = done.get("passes", self.overhead)
        first = spent - self.overhead
        count = max(0, int(budget) - (0 if done else self.overhead))
        return [Task(0, a, n) for a, n in blocks(first, count, BLOCK)], {"passes": spent + count}

    def run_rows(self, source: Source, task: Task) -> State:
        """The moments of a block of passes."""
        passes = source.passes(task.stream, range(1), range(task.first, task.first + task.count))
        return {"pass": MomentBlock.of(passes[:, 0])}

    def summarise(self, state: State, done: Mapping[str, int]) -> Estimates:
        """Sample mean and variance; the standard error of the variance uses the sample's fourth moment."""
        block = state["pass"]
        c = block.count
        spread = theory.variance_of_sample_variance(c, block.variance, block.fourth)
        spread = np.maximum(spread, 2 * np.square(block.variance / c))  # two equally likely values have none else
        level = LevelEstimate(
            "passes", 1, c, c, block.mean, block.variance, block.kurtosis, block.variance, spread, block.kurtosis
        )
        return Estimates(
            block.mean,
            block.variance,
            np.sqrt(block.variance / c),
            widened_for_tails(block) * np.sqrt(spread),
            c + self.overhead,
            levels=(level,),
            notes=(self.reason,) if self.reason else (),
            overhead=self.overhead,
            trust=trust(block),
        )

    def describe(self) -> dict[str, Any]:
        """Nothing to set."""
        return {}
