"""The paper's multilevel estimators (Algorithm 1), with nested or independent levels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout import theory
from mlmc_dropout.methods.base import Estimates, LevelEstimate, Task, blocks
from mlmc_dropout.methods.mlmc.adaptive import Growth, next_fidelity
from mlmc_dropout.methods.mlmc.allocation import allocate
from mlmc_dropout.methods.mlmc.coupling import prefix_estimates
from mlmc_dropout.methods.mlmc.ladder import Ladder
from mlmc_dropout.methods.states import from_blocks, states_beside
from mlmc_dropout.methods.tails import Trust, trust
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.sampling.source import BLOCK, Source
from mlmc_dropout.stopping.goal import PILOT, Goal

__all__ = ["MLMC", "BoundMLMC", "LevelState", "MLMCState"]

Array = NDArray[np.float64]
Levels = Literal["nested", "independent"]

PILOT_REPLICATES = 16  # per level, for the pilot that a new level of a growing ladder gets

_NOTES = {
    "nested": "S2_mean and S2_variance are the paper's S², which treats levels as independent; here levels share "
    "passes, and mean_stderr and variance_stderr account for it exactly.",
    "independent": "Levels are independent, so the squares of mean_stderr and variance_stderr are the paper's S².",
}


@dataclass(frozen=True, slots=True)
class LevelState:
    """The replicates of one level.

    Attributes:
        dY: Increments of Y; Y itself at level 0.
        dV: Increments of V; V itself at level 0.
        Y: Fine means.
        V: Fine sample variances.
    """

    dY: MomentBlock
    dV: MomentBlock
    Y: MomentBlock
    V: MomentBlock


@dataclass(frozen=True, slots=True)
class MLMCState:
    """The replicates of all levels.

    Attributes:
        levels: One state per level, ``None`` where there is no replicate yet.
    """

    levels: tuple[LevelState | None, ...]

    @property
    def present(self) -> list[LevelState]:
        """The levels that have replicates."""
        return [level for level in self.levels if level is not None]


@dataclass(frozen=True, slots=True)
class MLMC:
    """𝒴 = mean Y_0 + Σ mean ΔY_ℓ and 𝒱 = mean V_0 + Σ mean ΔV_ℓ on a ladder, M_ℓ replicates at level ℓ.

    Nested: replicate m of level ℓ extends replicate m of level ℓ−1. Independent: every level draws
    its own. Inside a replicate the coarse passes are the first of the fine in both cases.

    Attributes:
        ladder: The fidelities T_0 < … < T_L.
        levels: "nested" (Algorithm 1) or "independent".
        counts: Replicates per level; ``None``: from the budget.
        target: The moment the allocation is optimal for.
        growth: When to add a level; ``None``: never.
    """

    ladder: Ladder
    levels: Levels = "nested"
    counts: tuple[int, ...] | None = None
    target: Literal["mean", "variance"] = "mean"
    growth: Growth | None = None

    @property
    def name(self) -> str:
        """The name users choose it by."""
        return "mlmc"

    @property
    def fixed_counts(self) -> bool:
        """Whether the user gave the counts."""
        return self.counts is not None

    @property
    def grows(self) -> bool:
        """Whether levels are added."""
        return self.growth is not None

    @property
    def cost_model(self) -> Literal["coupled", "uncoupled"]:
        """What a replicate of a level costs, in the paper's words."""
        return "coupled" if self.levels == "nested" else "uncoupled"

    def min_cost(self) -> int:
        """Two replicates a level."""
        counts = (2,) * len(self.ladder) if self.counts is None else self.counts
        return theory.cost_spent(self.ladder.fidelities, counts, self.levels)

    def choose(self, source: Source, goal: Goal) -> MLMC:
        """Nothing to choose.

        Args:
            source: The passes of the inputs.
            goal: When to stop.

        Returns:
            Itself.
        """
        return self

    def describe(self) -> dict[str, Any]:
        """Ladder, coupling and counts."""
        return {
            "ladder": list(self.ladder.fidelities),
            "levels": self.levels,
            "counts": None if self.counts is None else list(self.counts),
            "target": self.target,
        }

    def at_stage(self, stage: Any) -> MLMC:
        """The method on the ladder that a saved run had reached.

        Args:
            stage: Its fidelities; ``None``: the ladder does not grow.

        Returns:
            The method.
        """
        return self if stage is None else replace(self, ladder=Ladder(stage))

    def bind(self, source: Source) -> BoundMLMC:
        """Nothing to prepare.

        Args:
            source: The passes of the inputs.

        Returns:
            The method, ready to run.
        """
        return BoundMLMC(self)


@dataclass(frozen=True, slots=True)
class BoundMLMC:
    """Coupled replicates on a ladder.

    Attributes:
        method: The method it was made from.
    """

    method: MLMC

    @property
    def stage(self) -> tuple[int, ...] | None:
        """The fidelities of a ladder that grows."""
        return self.method.ladder.fidelities if self.method.grows else None

    def min_cost(self) -> int:
        """That of the method."""
        return self.method.min_cost()

    def weight(self, task: Task) -> float:
        """Its passes.

        Args:
            task: Some replicates.
        """
        return float(task.count * self.method.ladder.fidelities[task.depth])

    # ------------------------------------------------------------------------------- tasks

    def extend(self, done: Mapping[str, int], budget: float) -> tuple[list[Task], dict[str, int]]:
        """Plan fresh replicates at every level, shared out by the paper's allocation.

        Args:
            done: Replicates and passes so far.
            budget: Passes that may be spent.

        Returns:
            Tasks, and the counts after them.
        """
        method = self.method
        if budget < method.min_cost():
            return [], dict(done)
        counts = method.counts or self._allocated(budget)
        nested = method.levels == "nested"
        tasks = list(self._nested(done, counts) if nested else self._independent(done, counts))
        after = {f"M{level}": done.get(f"M{level}", 0) + m for level, m in enumerate(counts)}
        after["replicates"] = done.get("replicates", 0) + max(counts)
        after["passes"] = done.get("passes", 0) + theory.cost_spent(method.ladder.fidelities, counts, method.levels)
        return tasks, after

    def _allocated(self, budget: float) -> tuple[int, ...]:
        method = self.method
        counts = allocate(method.ladder, budget, method.target, method.cost_model).counts
        if method.levels == "nested":
            # A replicate runs to its deepest level: more of them at a fine level than at a coarse one, as
            # rounding can give on uneven ladders, would cost passes that the coupled cost does not count.
            counts = tuple(np.minimum.accumulate(counts).tolist())
        return counts

    def _nested(self, done: Mapping[str, int], counts: tuple[int, ...]) -> Iterator[Task]:
        """Replicates that count at the same levels go together, the deepest first."""
        start, offset = 0, done.get("replicates", 0)
        for end in sorted(set(counts)):
            levels = tuple(level for level, m in enumerate(counts) if m >= end)
            yield from self._tasks(0, offset + start, end - start, levels)
            start = end

    def _independent(self, done: Mapping[str, int], counts: tuple[int, ...]) -> list[Task]:
        """All levels side by side: a run that is stopped in the middle has replicates of each."""
        places = []
        for level, m in enumerate(counts):
            tasks = list(self._tasks(level, done.get(f"M{level}", 0), m, (level,)))
            places += [(i / len(tasks), level, task) for i, task in enumerate(tasks)]
        return [task for _, _, task in sorted(places, key=lambda place: place[:2])]

    def _tasks(self, stream: int, first: int, count: int, levels: tuple[int, ...]) -> Iterator[Task]:
        size = max(1, BLOCK // self.method.ladder.fidelities[levels[-1]])
        for a, n in blocks(first, count, size):
            yield Task(stream, a, n, levels[-1], levels)

    def run(self, source: Source, task: Task) -> MLMCState:
        """Increments of Y and V, and the fine values themselves, at the task's levels.

        Args:
            source: The passes of the inputs.
            task: Some replicates.

        Returns:
            Their moments.
        """
        return states_beside(self._run_rows(part, task) for _, part in source.parts())

    def _run_rows(self, source: Source, task: Task) -> MLMCState:
        fidelities = self.method.ladder.fidelities[: task.depth + 1]
        replicates = range(task.first, task.first + task.count)
        chunks = (
            source.passes(task.stream, replicates, range(a, a + n))
            for low, high in zip((0, *fidelities), fidelities, strict=False)
            for a, n in blocks(low, high - low, BLOCK)
        )
        prefixes = prefix_estimates(chunks, fidelities)
        states: list[LevelState | None] = [None] * (task.depth + 1)
        for level in task.levels:
            fine = prefixes[level]
            dY, dV = fine.Y, fine.V
            if level:
                dY, dV = dY - prefixes[level - 1].Y, dV - prefixes[level - 1].V
            states[level] = LevelState(*map(MomentBlock.of, (dY, dV, fine.Y, fine.V)))
        return MLMCState(tuple(states))

    # ------------------------------------------------------------------------------ states

    def has_estimates(self, state: MLMCState | None) -> bool:
        """Whether every level has replicates.

        Args:
            state: A merged state, or ``None``.
        """
        return state is not None and len(state.present) == len(self.method.ladder)

    def samples(self, state: MLMCState) -> float:
        """Replicates of the level that has fewest.

        Args:
            state: A merged state.
        """
        return min(level.dY.count for level in state.present)

    def read_state(self, blocks: Mapping[str, MomentBlock]) -> MLMCState:
        """A state from its saved blocks.

        Args:
            blocks: Blocks by path.

        Returns:
            The state.
        """
        return from_blocks(MLMCState, blocks)

    def summarise(self, state: MLMCState, done: Mapping[str, int]) -> Estimates:
        """The telescoping sums, the paper's S², and the standard errors of the variant that was run.

        Args:
            state: Replicates of all levels.
            done: Passes so far.

        Returns:
            The estimates.
        """
        levels = state.present
        dY, dV = [level.dY for level in levels], [level.dV for level in levels]
        S2 = [sum(block.variance_of_mean for block in parts) for parts in (dY, dV)]
        truth = S2
        if self.method.levels == "nested":
            truth = [_nested_variance(levels[-1].Y, dY), _nested_variance(levels[-1].V, dV)]
        return Estimates(
            np.asarray(sum(block.mean for block in dY)),
            np.asarray(sum(block.mean for block in dV)),
            np.sqrt(truth[0]),
            np.sqrt(truth[1]),
            done["passes"],
            np.asarray(S2[0]),
            np.asarray(S2[1]),
            tuple(self._level(levels, number) for number in range(len(levels))),
            tuple(self._notes(dY)),
            # The mean of V is what estimates the variance.
            trust=Trust(trust(dY[0]).mean, trust(dV[0], are_outputs=False).mean),
        )

    def refined(self, estimates: Estimates) -> tuple[MLMC, float] | None:
        """One level more, while the finest is not negligible.

        Args:
            estimates: What is known so far.

        Returns:
            The method on the longer ladder and the passes of its pilot; ``None`` if the ladder is long enough.
        """
        growth = self.method.growth
        if growth is None or len(estimates.levels) != len(self.method.ladder):
            return None
        mean = [float(level.variance.mean()) for level in estimates.levels]
        variance = [float(level.variance_V.mean()) for level in estimates.levels]
        if growth.settled(mean, variance):
            return None
        longer = replace(self.method, ladder=next_fidelity(self.method.ladder, growth.ratio))
        return longer, max(PILOT, PILOT_REPLICATES / 2 * longer.min_cost())

    def _level(self, levels: list[LevelState], number: int) -> LevelEstimate:
        level, fidelities = levels[number], self.method.ladder.fidelities
        telescoping = None
        if number:
            below = levels[number - 1]
            checks = (level.dY, level.Y, below.Y), (level.dV, level.V, below.V)
            telescoping = max(_telescoping(*check) for check in checks)
        steps = theory.cost_per_replicate(fidelities, self.method.cost_model)
        return LevelEstimate(
            f"level {number}",
            fidelities[number],
            level.dY.count,
            float(steps[number] * level.dY.count),
            level.dY.mean,
            level.dY.variance,
            level.dY.kurtosis,
            level.dV.mean,
            level.dV.variance,
            level.dV.kurtosis,
            telescoping,
        )

    def _notes(self, dY: list[MomentBlock]) -> Iterator[str]:
        yield _NOTES[self.method.levels]
        if dY[-1].count < 10:
            yield (
                f"The finest level has only {dY[-1].count} replicates; standard errors rest on them and are rough. "
                "Raise the budget or shorten the ladder."
            )


def _nested_variance(finest: MomentBlock, increments: list[MomentBlock]) -> Array:
    """Variance of the nested estimator, from the sample variances of its parts.

    Level 0 is the finest value minus the increments, which are uncorrelated with it and with each
    other (Y and V are U-statistics). Hence Var = Var Y(T_L)/M_0 + Σ v_ℓ |1/M_ℓ − 1/M_0|; the same
    as ``theory.variance_nested``, in a form that cannot become negative.
    """
    first, *rest = increments
    total = finest.variance / first.count
    for block in rest:
        total = total + block.variance * abs(1.0 / block.count - 1.0 / first.count)
    return np.asarray(total)


def _telescoping(increment: MomentBlock, fine: MomentBlock, coarse: MomentBlock) -> float:
    """Giles' consistency check |a − b + c| / (3(√Va + √Vb + √Vc)), the mean over components; below 1 is sound.

    a is the mean increment, b the mean fine value of this level, c that of the level below.
    """
    a, b, c = increment, fine, coarse
    allowed = 3 * (np.sqrt(a.variance_of_mean) + np.sqrt(b.variance_of_mean) + np.sqrt(c.variance_of_mean))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.abs(a.mean - b.mean + c.mean) / allowed
    return float(np.nanmean(ratio)) if np.isfinite(ratio).any() else 0.0
