"""The paper's multilevel estimators (Algorithm 1), with nested, independent or uncoupled levels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout import theory
from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.methods.base import Estimates, OneKindOfPasses, Rows, Task, blocks
from mlmc_dropout.methods.mlmc.adaptive import Adaptive, next_fidelity
from mlmc_dropout.methods.mlmc.allocation import allocate, averaged, least_counts
from mlmc_dropout.methods.mlmc.coupling import Prefix, prefix_estimates
from mlmc_dropout.methods.mlmc.ladder import Ladder
from mlmc_dropout.methods.mlmc.summary import COST_MODELS, Levels, LevelState, MLMCState, Summary
from mlmc_dropout.methods.states import Block, from_blocks, states_beside
from mlmc_dropout.moments import MomentBlock, Moments
from mlmc_dropout.sampling.source import BLOCK, Source
from mlmc_dropout.stopping.goal import PILOT, Goal

__all__ = ["MLMC", "BoundMLMC", "coupled_prefixes"]

Array = NDArray[np.float64]

PILOT_REPLICATES = 16  # per level, for the pilot that a new level of a growing ladder gets


@dataclass(frozen=True, slots=True)
class MLMC:
    """𝒴 = mean Y_0 + Σ mean ΔY_ℓ and 𝒱 = mean V_0 + Σ mean ΔV_ℓ on a ladder, M_ℓ replicates at level ℓ.

    Nested: replicate m of level ℓ extends replicate m of level ℓ−1. Independent: every level draws
    its own. Inside a replicate the coarse passes are the first of the fine in both cases. Uncoupled: as
    independent, but the coarse passes are further ones, a baseline without any coupling.

    Attributes:
        ladder: The fidelities T_0 < … < T_L.
        levels: "nested" (Algorithm 1), "independent" or "uncoupled".
        counts: Replicates per level; ``None``: from the budget.
        target: The moment the allocation is optimal for.
        growth: When to add a level; ``None``: never.
        moments: Moments of a pass for the allocation; "pilot": from a first round; ``None``: the closure.
        mean_only: Whether sample variances inside a replicate, or over the replicates of finer levels, may be missing.
    """

    ladder: Ladder
    levels: Levels = "nested"
    counts: tuple[int, ...] | None = None
    target: Literal["mean", "variance"] = "mean"
    growth: Adaptive | None = None
    moments: Moments | Literal["pilot"] | None = None
    mean_only: bool = False

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
        """Whether levels are added, or moments measured first."""
        return self.growth is not None or self.moments == "pilot"

    @property
    def cost_model(self) -> Literal["coupled", "uncoupled", "separate"]:
        """What a replicate of a level costs."""
        return COST_MODELS[self.levels]

    def min_cost(self) -> int:
        """Two replicates a level, or one where that will do."""
        counts = least_counts(self.ladder, self.mean_only) if self.counts is None else self.counts
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
        """Ladder, coupling and counts; what is not usual is added."""
        described: dict[str, Any] = {
            "ladder": list(self.ladder.fidelities),
            "levels": self.levels,
            "counts": None if self.counts is None else list(self.counts),
            "target": self.target,
        }
        if self.moments is not None:
            described["moments"] = _plain(self.moments)
        if self.growth is not None and self.growth != Adaptive():
            described["adaptive"] = [self.growth.start, self.growth.ratio, self.growth.share]
        return described | ({"mean_only": True} if self.mean_only else {})

    def at_stage(self, stage: Any) -> MLMC:
        """The method as a saved run had it: on the ladder it had reached, with the moments it had found.

        Args:
            stage: Fidelities and moments; ``None``: nothing is refined.

        Returns:
            The method.
        """
        if stage is None:
            return self
        fidelities, moments = stage
        known = moments if moments is None or moments == "pilot" else Moments(*moments)
        return replace(self, ladder=Ladder(fidelities), moments=known)

    def bind(self, source: Source) -> BoundMLMC:
        """Nothing to prepare.

        Args:
            source: The passes of the inputs.

        Returns:
            The method, ready to run.
        """
        return BoundMLMC(self)


@dataclass(frozen=True, slots=True)
class BoundMLMC(OneKindOfPasses):
    """Coupled replicates on a ladder.

    Attributes:
        method: The method it was made from.
    """

    method: MLMC

    @property
    def stage(self) -> tuple[Any, Any] | None:
        """The fidelities of a ladder that grows, and the moments that a pilot has found."""
        method = self.method
        refines = method.growth is not None or method.moments is not None
        return (method.ladder.fidelities, _plain(method.moments)) if refines else None

    def min_cost(self) -> int:
        """That of the method."""
        return self.method.min_cost()

    def weight(self, task: Task) -> float:
        """Its passes.

        Args:
            task: Some replicates.
        """
        return float(task.count * self._deepest(task.depth))

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
        moments = None if method.moments == "pilot" else method.moments
        target, model = method.target, method.cost_model
        counts = allocate(method.ladder, budget, target, model, moments, method.mean_only).counts
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
        size = max(1, BLOCK // self._deepest(levels[-1]))
        for a, n in blocks(first, count, size):
            yield Task(stream, a, n, levels[-1], levels)

    def _deepest(self, level: int) -> int:
        """Passes of a replicate that ends at a level."""
        T = self.method.ladder.fidelities
        return T[level] + (T[level - 1] if level and self.method.levels == "uncoupled" else 0)

    def run(self, source: Source, task: Task) -> MLMCState:
        """Increments of Y and V, and the fine values themselves, at the task's levels.

        Args:
            source: The passes of the inputs.
            task: Some replicates.

        Returns:
            Their moments.
        """
        return states_beside((self._run_rows(part, task) for _, part in source.parts()), source.batch.rows)

    def _run_rows(self, source: Source, task: Task) -> MLMCState:
        states: list[LevelState | None] = [None] * (task.depth + 1)
        width = source.observation.main.width
        for level, coarse, fine in coupled_prefixes(source, self.method, task):
            dY, dV = (fine.Y, fine.V) if coarse is None else (fine.Y - coarse.Y, fine.V - coarse.V)
            features = GroupBlock.of(dY[..., width:], task.first, source.groups) if dY.shape[-1] > width else None
            of_dY, of_dV, of_Y, of_V = (MomentBlock.of(v[..., :width]) for v in (dY, dV, fine.Y, fine.V))
            states[level] = LevelState(of_dY, of_dV, of_Y, of_V, features)
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

    def read_state(self, blocks: Mapping[str, Block]) -> MLMCState:
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
        method = self.method
        summary = Summary(state.present, method.ladder.fidelities, method.levels, done["passes"])
        return summary.of_the_mean() if method.mean_only else summary.of_both()

    def select(self, rows: Rows) -> BoundMLMC:
        """Nothing belongs to rows.

        Args:
            rows: Places of the rows in the batch.

        Returns:
            Itself.
        """
        return self

    def refined(self, estimates: Estimates) -> tuple[MLMC, float] | None:
        """Moments from the first round if they were asked for; one level more, while the finest is not negligible.

        Args:
            estimates: What is known so far.

        Returns:
            The refined method and the passes of its pilot; ``None`` if there is nothing to refine.
        """
        if self.method.moments == "pilot":
            level, mu2 = estimates.levels[0], np.maximum(estimates.variance, 0.0)
            mu4 = np.maximum(theory.fourth_moment(level.fidelity, mu2, level.variance_V), mu2**2)
            known = replace(self.method, moments=averaged(Moments(mu2, mu4)))
            return (known, known.min_cost()) if np.any(mu2 > 0) else None
        growth = self.method.growth
        if growth is None or len(estimates.levels) != len(self.method.ladder):
            return None
        mean = [float(level.variance.mean()) for level in estimates.levels]
        variance = [float(level.variance_V.mean()) for level in estimates.levels]
        if growth.settled(mean, variance):
            return None
        longer = replace(self.method, ladder=next_fidelity(self.method.ladder, growth.ratio))
        return longer, max(PILOT, PILOT_REPLICATES / 2 * longer.min_cost())


def coupled_prefixes(source: Source, method: MLMC, task: Task) -> Iterator[tuple[int, Prefix | None, Prefix]]:
    """The replicates of a task: level, coarse estimate (none at level 0) and fine estimate of each of its levels.

    Args:
        source: The passes of the inputs.
        method: Ladder and coupling.
        task: Some replicates.

    Yields:
        Estimates (replicates, rows, width), those of features beside those of the main numbers.
    """
    fidelities = method.ladder.fidelities[: task.depth + 1]
    replicates = range(task.first, task.first + task.count)

    def prefixes(start: int, lengths: Sequence[int]) -> list[Prefix]:
        chunks = (
            _observed(source, source.passes(task.stream, replicates, range(start + a, start + a + n)))
            for low, high in zip((0, *lengths), lengths, strict=False)
            for a, n in blocks(low, high - low, BLOCK)
        )
        return prefix_estimates(chunks, lengths)

    if method.levels == "uncoupled":
        level, T = task.depth, fidelities[-1]
        (fine,) = prefixes(0, (T,))
        yield level, prefixes(T, (fidelities[-2],))[0] if level else None, fine
        return
    found = prefixes(0, fidelities)
    for level in task.levels:
        yield level, found[level - 1] if level else None, found[level]


def _observed(source: Source, values: Array) -> Array:
    """Passes (passes, replicates, rows, width) as what is asked of them: the main numbers, then features."""
    if source.observation.plain:
        return values
    main, features = source.observe(values.reshape(-1, *values.shape[2:]))
    both = main if features is None else np.concatenate([main, features], axis=-1)
    return both.reshape(*values.shape[:2], *both.shape[1:])


def _plain(moments: Moments | str | None) -> Any:
    """Moments as plain data."""
    if not isinstance(moments, Moments):
        return moments
    return [moments.mu2, moments.mu4]
