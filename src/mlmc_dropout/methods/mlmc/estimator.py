"""The paper's multilevel estimators (Algorithm 1), with nested or independent levels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout import theory
from mlmc_dropout.methods.base import Estimates, LevelEstimate, State, StatelessMethod, Task, blocks
from mlmc_dropout.methods.mlmc.allocation import allocate
from mlmc_dropout.methods.mlmc.coupling import prefix_estimates
from mlmc_dropout.methods.mlmc.ladder import Ladder
from mlmc_dropout.methods.tails import Trust, trust
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.sampling.source import BLOCK, Source

__all__ = ["MLMC"]

Array = NDArray[np.float64]
Levels = Literal["nested", "independent"]

_NOTES = {
    "nested": "S2_mean and S2_variance are the paper's S², which treats levels as independent; here levels share "
    "passes, and mean_stderr and variance_stderr account for it exactly.",
    "independent": "Levels are independent, so the squares of mean_stderr and variance_stderr are the paper's S².",
}


@dataclass(frozen=True, slots=True)
class MLMC(StatelessMethod):
    """𝒴 = mean Y_0 + Σ mean ΔY_ℓ and 𝒱 = mean V_0 + Σ mean ΔV_ℓ on a ladder, M_ℓ replicates at level ℓ.

    Nested: replicate m of level ℓ extends replicate m of level ℓ−1. Independent: every level draws
    its own. Inside a replicate the coarse passes are the first of the fine in both cases.
    """

    ladder: Ladder
    levels: Levels = "nested"
    counts: tuple[int, ...] | None = None  # None: from the budget
    target: Literal["mean", "variance"] = "mean"

    @property
    def name(self) -> str:
        """The name users choose it by."""
        return "mlmc"

    def min_cost(self) -> int:
        """Two replicates a level."""
        if self.counts is not None:
            return theory.cost_spent(self.ladder.fidelities, self.counts, self.levels)
        return theory.cost_spent(self.ladder.fidelities, (2,) * len(self.ladder), self.levels)

    def extend(self, done: Mapping[str, int], budget: float) -> tuple[list[Task], dict[str, int]]:
        """Fresh replicates at every level, shared out by the paper's allocation."""
        if budget < self.min_cost():
            return [], dict(done)
        counts = self.counts
        if counts is None:
            cost: Literal["coupled", "uncoupled"] = "coupled" if self.levels == "nested" else "uncoupled"
            counts = allocate(self.ladder, budget, self.target, cost).counts
            if self.levels == "nested":
                # A replicate runs to its deepest level: more of them at a fine level than at a coarse one, as
                # rounding can give on uneven ladders, would cost passes that the coupled cost does not count.
                counts = tuple(np.minimum.accumulate(counts).tolist())
        tasks = list(self._nested(done, counts) if self.levels == "nested" else self._independent(done, counts))
        after = {f"M{level}": done.get(f"M{level}", 0) + m for level, m in enumerate(counts)}
        after["replicates"] = done.get("replicates", 0) + max(counts)
        after["passes"] = done.get("passes", 0) + theory.cost_spent(self.ladder.fidelities, counts, self.levels)
        return tasks, after

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
            own = list(self._tasks(level, done.get(f"M{level}", 0), m, (level,)))
            places += [(i / len(own), level, task) for i, task in enumerate(own)]
        return [task for _, _, task in sorted(places, key=lambda place: place[:2])]

    def _tasks(self, stream: int, first: int, count: int, levels: tuple[int, ...]) -> Iterator[Task]:
        size = max(1, BLOCK // self.ladder.fidelities[levels[-1]])
        for a, n in blocks(first, count, size):
            yield Task(stream, a, n, levels[-1], levels)

    def run_rows(self, source: Source, task: Task) -> State:
        """Increments of Y and V, and the fine values themselves, at the task's levels."""
        fidelities = self.ladder.fidelities[: task.depth + 1]
        replicates = range(task.first, task.first + task.count)
        chunks = (
            source.passes(task.stream, replicates, range(a, a + n))
            for low, high in zip((0, *fidelities), fidelities, strict=False)
            for a, n in blocks(low, high - low, BLOCK)
        )
        prefixes = prefix_estimates(chunks, fidelities)
        state: dict[str, MomentBlock] = {}
        for level in task.levels:
            fine = prefixes[level]
            dY, dV = fine.Y, fine.V
            if level:
                dY, dV = dY - prefixes[level - 1].Y, dV - prefixes[level - 1].V
            for key, values in (("dY", dY), ("dV", dV), ("Y", fine.Y), ("V", fine.V)):
                state[f"{level}.{key}"] = MomentBlock.of(values)
        return state

    def summarise(self, state: State, done: Mapping[str, int]) -> Estimates:
        """The telescoping sums, the paper's S², and the standard errors of the variant that was run."""
        dY = [state[f"{level}.dY"] for level in range(len(self.ladder))]
        dV = [state[f"{level}.dV"] for level in range(len(self.ladder))]
        S2 = [sum(block.variance_of_mean for block in parts) for parts in (dY, dV)]
        truth = S2
        if self.levels == "nested":
            last = len(self.ladder) - 1
            truth = [_nested_variance(state[f"{last}.Y"], dY), _nested_variance(state[f"{last}.V"], dV)]
        return Estimates(
            np.asarray(sum(block.mean for block in dY)),
            np.asarray(sum(block.mean for block in dV)),
            np.sqrt(truth[0]),
            np.sqrt(truth[1]),
            done["passes"],
            np.asarray(S2[0]),
            np.asarray(S2[1]),
            tuple(self._level(state, level) for level in range(len(self.ladder))),
            tuple(self._notes(dY)),
            trust=Trust(trust(dY[0]).mean, trust(dV[0]).mean),  # the mean of V is what estimates the variance
        )

    def _level(self, state: State, level: int) -> LevelEstimate:
        dY, dV = state[f"{level}.dY"], state[f"{level}.dV"]
        telescoping = None
        if level:
            telescoping = max(_telescoping(state, level, key) for key in "YV")
        steps = theory.cost_per_replicate(self.ladder.fidelities, "coupled" if self.levels == "nested" else "uncoupled")
        return LevelEstimate(
            f"level {level}",
            self.ladder.fidelities[level],
            dY.count,
            float(steps[level] * dY.count),
            dY.mean,
            dY.variance,
            dY.kurtosis,
            dV.mean,
            dV.variance,
            dV.kurtosis,
            telescoping,
        )

    def _notes(self, dY: list[MomentBlock]) -> Iterator[str]:
        yield _NOTES[self.levels]
        if dY[-1].count < 10:
            yield (
                f"The finest level has only {dY[-1].count} replicates; standard errors rest on them and are rough. "
                "Raise the budget or shorten the ladder."
            )

    def describe(self) -> dict[str, Any]:
        """Ladder, coupling and counts."""
        return {
            "ladder": list(self.ladder.fidelities),
            "levels": self.levels,
            "counts": None if self.counts is None else list(self.counts),
            "target": self.target,
        }


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


def _telescoping(state: State, level: int, key: str) -> float:
    """Giles' consistency check |a − b + c| / (3(√Va + √Vb + √Vc)), the mean over components; below 1 is sound.

    a is the mean increment, b the mean fine value of this level, c that of the level below.
    """
    a, b, c = state[f"{level}.d{key}"], state[f"{level}.{key}"], state[f"{level - 1}.{key}"]
    allowed = 3 * (np.sqrt(a.variance_of_mean) + np.sqrt(b.variance_of_mean) + np.sqrt(c.variance_of_mean))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.abs(a.mean - b.mean + c.mean) / allowed
    return float(np.nanmean(ratio)) if np.isfinite(ratio).any() else 0.0
