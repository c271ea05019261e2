"""A method that is not part of the library: one file, to show what adding one takes.

Passes are taken two by two: nothing clever, and all that the protocol asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlmc_dropout.methods.base import Estimates, NoRefinement, OneStage, Task, blocks
from mlmc_dropout.methods.states import from_blocks, states_beside
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal

__all__ = ["BoundTwos", "Twos", "TwosState"]


@dataclass(frozen=True, slots=True)
class TwosState:
    """Means of two passes, and their sample variances."""

    means: MomentBlock
    variances: MomentBlock


@dataclass(frozen=True, slots=True)
class Twos(OneStage):
    """Passes two by two: μ from their means, μ2 from their sample variances."""

    name: str = "twos"

    def min_cost(self) -> int:
        return 8

    def choose(self, source: Source, goal: Goal) -> Twos:
        return self

    def describe(self) -> dict[str, Any]:
        return {}

    def bind(self, source: Source) -> BoundTwos:
        return BoundTwos(self)


@dataclass(frozen=True, slots=True)
class BoundTwos(NoRefinement):
    """Ready to run."""

    method: Twos

    def min_cost(self) -> int:
        return self.method.min_cost()

    def extend(self, done: Mapping[str, int], budget: float) -> tuple[list[Task], dict[str, int]]:
        spent = done.get("passes", 0)
        count = int(budget // 2)
        return [Task(0, a, n) for a, n in blocks(spent // 2, count, 32)], {"passes": spent + 2 * count}

    def run(self, source: Source, task: Task) -> TwosState:
        replicates = range(task.first, task.first + task.count)
        parts = (part.passes(task.stream, replicates, range(2)) for _, part in source.parts())
        states = (TwosState(MomentBlock.of(D.mean(axis=0)), MomentBlock.of(D.var(axis=0, ddof=1))) for D in parts)
        return states_beside(states, source.batch.rows)

    def has_estimates(self, state: TwosState | None) -> bool:
        return state is not None

    def samples(self, state: TwosState) -> float:
        return state.means.count

    def read_state(self, blocks: Mapping[str, MomentBlock]) -> TwosState:
        return from_blocks(TwosState, blocks)

    def summarise(self, state: TwosState, done: Mapping[str, int]) -> Estimates:
        errors = (np.sqrt(block.variance_of_mean) for block in (state.means, state.variances))
        return Estimates(state.means.mean, state.variances.mean, *errors, done["passes"])
