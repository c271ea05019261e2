"""Plain MC dropout: the mean and variance of all passes, with standard errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlmc_dropout import theory
from mlmc_dropout.estimators.base import BLOCK, Estimates, LevelEstimate, Source, State, Task, Unchanging, blocks
from mlmc_dropout.moments import MomentBlock

__all__ = ["Pooled"]


@dataclass(frozen=True, slots=True)
class Pooled(Unchanging):
    """Y(c) and V(c) of c passes; Var Y = μ2/c and Var V = (μ4 − (c−3)/(c−1)·μ2²)/c with estimated moments."""

    name: str = "pooled"

    def least(self) -> int:
        """Below four passes the fourth moment says nothing."""
        return 4

    def extend(self, done: Mapping[str, int], budget: float) -> tuple[list[Task], dict[str, int]]:
        """The next ``budget`` passes, in blocks."""
        first = done.get("passes", 0)
        count = max(0, int(budget))
        return [Task(0, a, n) for a, n in blocks(first, count, BLOCK)], {"passes": first + count}

    def run(self, source: Source, task: Task) -> State:
        """The moments of a block of passes."""
        passes = source.passes(task.stream, range(1), range(task.first, task.first + task.count))
        return {"pass": MomentBlock.of(passes[:, 0])}

    def summarise(self, state: State, done: Mapping[str, int]) -> Estimates:
        """Sample mean and variance; the standard error of the variance uses the sample's fourth moment."""
        block = state["pass"]
        c = block.count
        spread = theory.variance_of_sample_variance(c, block.variance, block.fourth)
        level = LevelEstimate(
            "passes", 1, c, c, block.mean, block.variance, block.kurtosis, block.variance, spread, block.kurtosis
        )
        return Estimates(
            block.mean,
            block.variance,
            np.sqrt(block.variance / c),
            np.sqrt(np.maximum(spread, 0.0)),
            c,
            levels=(level,),
        )

    def describe(self) -> dict[str, Any]:
        """Nothing to set."""
        return {}
