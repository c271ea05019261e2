"""Pairs of stratified designs made ready for some inputs: what ``stratified`` and ``control_variate`` both run.

Passes come in designs of T, over which every unit is dropped almost exactly pT times (Latin
hypercube sampling, ``masks.latin_hypercube``). Each pass has the right law, so that the mean over a
design is unbiased, while the main effect of every unit cancels inside it. Passes of a design are
negatively correlated; the exact total-variance identity mends the variance::

    μ2 = E[(1/T) Σ (D_t − Y)²] + Var[Y],

with Var[Y] from independent designs (``designs``). If a linear head follows the last dropout it is averaged
out in closed form first (``surrogates.linear_head``): D becomes h, and E s² adds to μ2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.methods.base import Estimates, LevelEstimate, Method, NoRefinement, Rows, Task, blocks
from mlmc_dropout.methods.design_length import MIN_PAIRS, MIN_PASSES
from mlmc_dropout.methods.designs import DesignState, Summary, state_of_designs, summary
from mlmc_dropout.methods.prepared_rows import PreparedRows, as_array, check_squares, selected
from mlmc_dropout.methods.running import main_numbers, means_of
from mlmc_dropout.methods.states import Block, from_blocks, states_beside
from mlmc_dropout.methods.tails import (
    Trust,
    student_factor,
    trust,
    widened_for_others,
    widened_for_scale,
    widened_for_skewness,
)
from mlmc_dropout.methods.wide_designs import fold_designs
from mlmc_dropout.methods.worth import Worth, errors_doubted, excess, gain
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.memory import return_freed_memory
from mlmc_dropout.sampling.source import BLOCK, Source

__all__ = ["BoundDesigns"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class BoundDesigns(NoRefinement):
    """Designs of T passes for one batch of inputs.

    Attributes:
        method: The method it was made from.
        passes: T, the passes of a design.
        parts: What was computed for the rows, part by part.
        overhead: Passes spent before the first design: pilot and derivatives.
        reason: Why the method was chosen, if it was.
        pass_cost: What a pass costs together with its companion, in passes.
    """

    method: Method
    passes: int
    parts: tuple[PreparedRows, ...]
    overhead: float = 0.0
    reason: str = ""
    pass_cost: float = 1.0

    @property
    def has_surrogate(self) -> bool:
        """Whether there is an analytic level."""
        return self.parts[0].surrogate is not None

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the sites averaged out."""
        return tuple(dict.fromkeys(head.site.name for part in self.parts for head in reversed(part.heads)))

    @property
    def known_variance(self) -> Array:
        """The variance of the surrogate, (rows, width)."""
        return np.concatenate([as_array(p.surrogate.variance) for p in self.parts if p.surrogate is not None])

    def min_cost(self) -> int:
        """A few pairs of designs, or passes, and what preparing them cost."""
        least = MIN_PASSES if self.passes == 1 else 2 * MIN_PAIRS * self.passes
        return self._cost(least) + int(np.ceil(self.overhead))

    def _cost(self, passes: int) -> int:
        """What passes cost, with their companions."""
        return int(np.ceil(passes * self.pass_cost))

    def select(self, rows: Rows) -> BoundDesigns:
        """The method for some of the rows; parts that have become small are computed together.

        Args:
            rows: Places of the rows in the batch, in ascending order.

        Returns:
            The method for these rows.
        """
        return replace(self, parts=selected(self.parts, rows))

    def extend(self, done: Mapping[str, int], budget: float) -> tuple[list[Task], dict[str, int]]:
        """Plan the next designs: whole pairs where there will be more, and one more if that is what is left.

        Args:
            done: Designs and passes so far.
            budget: Passes that may be spent.

        Returns:
            Tasks, and the counts after them.
        """
        first = done.get("designs", 0)
        spent = done.get("passes", int(np.ceil(self.overhead)))
        if not first:
            budget -= spent
        count = max(0, int(np.floor(budget) // (self.passes * self.pass_cost)))
        size = max(2, BLOCK // (2 * self.passes) * 2)
        after = {"designs": first + count, "passes": spent + self._cost(self.passes * count)}
        return [Task(0, a, n) for a, n in blocks(first, count, size)], after

    def whole(self, done: Mapping[str, int], budget: float) -> float:
        """Designs are paired within a round: it ends with a whole pair.

        Args:
            done: Designs and passes so far.
            budget: Passes per input that are wanted.

        Returns:
            Passes of that many designs, and of one more if the last were alone.
        """
        first = done.get("designs", 0)
        ahead = 0 if first else done.get("passes", int(np.ceil(self.overhead)))
        count = max(1, int((budget - ahead) // (self.passes * self.pass_cost)))
        return float(ahead + self._cost(self.passes * (count + (first + count) % 2)))

    def run(self, source: Source, task: Task) -> DesignState:
        """Means and inner scatter of designs, and of their companions.

        Args:
            source: The passes of the inputs.
            task: Some designs.

        Returns:
            Their moments.
        """
        return states_beside((self._run_rows(source, task, part) for part in self.parts), source.batch.rows)

    def _run_rows(self, source: Source, task: Task, part: PreparedRows) -> DesignState:
        designs = np.arange(task.first, task.first + task.count)
        keys = pass_keys(source.seed, task.stream, designs // 2, designs % 2)
        rows = part.of(source)
        if source.wide and not part.heads and part.surrogate is None:
            groups: list[GroupBlock] = []
            state = fold_designs(self._wide_designs(rows, keys, part, task.first, groups), task.first)
            return replace(state, features=groups[0] if groups else None)
        h, s2, G, D = self._passes(rows, keys, part)
        h, features = self._observed(rows, h, D, task.first)
        known = 0.0 if part.surrogate is None else as_array(part.surrogate.variance)
        return replace(state_of_designs(h, s2, G, known, task.first), features=features)

    def _wide_designs(
        self, source: Source, keys: Tensor, part: PreparedRows, first: int, groups: list[GroupBlock]
    ) -> Iterator[Iterator[NDArray[Any]]]:
        """The passes of one design after the other; their features are merged into the only entry of ``groups``."""
        return_freed_memory()
        for design, key in enumerate(keys.split(1), first):
            chunks = source.design_chunks(key, self.passes)
            outputs = (source.as_numpy(part.outputs(source, masks)) for masks in chunks)
            seen: list[GroupBlock] = []
            yield main_numbers(source, outputs, 0, 1, seen)
            for found in map(means_of, seen):
                groups[:] = groups or [_empty(found, source.groups)]
                _add_design(groups[0], found, design % source.groups)

    def _group_of(self, means: Array, first: int, groups: int) -> GroupBlock:
        """Features of whole designs, every design in one group, counted by their passes."""
        block = GroupBlock.of(means, first, groups)
        return GroupBlock(block.counts * self.passes, block.means)

    def _passes(
        self, source: Source, keys: Tensor, part: PreparedRows
    ) -> tuple[Array, Array | None, Array | None, Array]:
        """h, s² and G of some rows and the designs named by ``keys``, each (designs, T, …), and D, (designs · T, …)."""
        drawn = source.design_chunks(keys, self.passes, part.held(source))
        h, s2, G, D = map(_joined, zip(*(part.passes(source, masks) for masks in drawn), strict=True))
        assert h is not None and D is not None
        source.check(h)
        check_squares(source, h, *(squares for squares in (s2, G) if squares is not None))
        h, s2, G = (v if v is None else v.reshape(len(keys), self.passes, *v.shape[1:]) for v in (h, s2, G))
        assert h is not None
        return h, s2, G, D

    def _observed(self, source: Source, h: Array, D: Array, first: int) -> tuple[Array, GroupBlock | None]:
        """What moments are taken of, and features of whole passes."""
        if source.observation.plain:
            return h, None
        main, features = source.observe(D)
        if source.observation.outputs != "values":  # nothing is averaged out of such outputs
            h = main.reshape(*h.shape[:2], *main.shape[1:])
        if features is None:
            return h, None
        means = features.reshape(*h.shape[:2], *features.shape[1:]).mean(axis=1, dtype=np.float64)
        return h, self._group_of(means, first, source.groups)

    # ------------------------------------------------------------------------------ states

    def has_estimates(self, state: DesignState | None) -> bool:
        """Whether there are two designs.

        Args:
            state: A merged state, or ``None``.
        """
        return state is not None and state.estimates is not None

    def samples(self, state: DesignState) -> float:
        """Designs.

        Args:
            state: A merged state.
        """
        return state.samples

    def read_state(self, blocks: Mapping[str, Block]) -> DesignState:
        """A state from its saved blocks.

        Args:
            blocks: Blocks by path.

        Returns:
            The state.
        """
        return from_blocks(DesignState, blocks)

    def summarise(self, state: DesignState, done: Mapping[str, int]) -> Estimates:
        """Means over designs; standard errors from their scatter.

        Args:
            state: The designs so far.
            done: Passes so far.

        Returns:
            The estimates.
        """
        found = summary(state, self.known_variance if self.has_surrogate else None)
        cost = done["passes"]
        levels = tuple(self._levels(state, found, cost))
        shown = self._shown(state)
        mean_stderr, variance_stderr, widening = _standard_errors(state, found, shown)
        return Estimates(
            found.mean,
            found.variance,
            mean_stderr,
            variance_stderr,
            cost,
            levels=levels,
            notes=tuple(self._notes()),
            overhead=self.overhead,
            trust=_trust(state, found, mean_stderr, variance_stderr),
            groups=state.features,
            mean_samples=found.designs,
            shown=shown,
            widening=widening,
            worth=_worth(state, found),
        )

    def _shown(self, state: DesignState) -> Array | None:
        """The share of the surrogate's variance that passes show; small where masks that matter have not come up."""
        if not self.has_surrogate or state.estimates is None or state.estimates.c is None:
            return None
        known = self.known_variance
        return np.where(known > 0, 1.0 + state.estimates.c.mean / np.where(known > 0, known, 1.0), 1.0)

    def _levels(self, state: DesignState, found: Summary, cost: float) -> Iterator[LevelEstimate]:
        full, error2_v = state.passes, found.error2_variance
        rest, (spread, excess_V) = state.rest or full, _plain(state)
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation = np.sqrt(np.clip(1 - rest.variance / full.variance, 0, 1))
        if self.has_surrogate:
            known = self.known_variance
            nothing = np.zeros_like(known)
            yield LevelEstimate("analytic", 0, 0, self.overhead, nothing, known, nothing, known, nothing, nothing)
        yield LevelEstimate(
            "correction" if self.has_surrogate else "passes",
            self.passes,
            rest.count,
            cost - (self.overhead if self.has_surrogate else 0.0),
            rest.mean,
            rest.variance,
            rest.kurtosis,
            found.variance,
            error2_v * cost,
            full.kurtosis,
            correlation=correlation if self.has_surrogate else None,
            gain=gain(spread, found.error2_mean, cost),
            gain_V=gain(excess_V, error2_v, cost),
        )

    def _notes(self) -> Iterator[str]:
        if self.reason:
            yield self.reason
        if self.heads:
            names = ", ".join(map(repr, self.heads))
            sites = "site" if len(self.heads) == 1 else "sites"
            yield f"The outputs are affine in the units dropped at {sites} {names}, which were averaged out exactly."
        without = next((part.without_heads for part in self.parts if part.without_heads), "")
        if without and not self.reason:
            yield f"No dropout was averaged out in closed form, for lack of derivatives ({without})."


def _joined(chunks: Sequence[Array | None]) -> Array | None:
    """Chunks of passes one after the other; ``None`` where there are none."""
    there = [chunk for chunk in chunks if chunk is not None]
    return there[0] if len(there) == 1 else np.concatenate(there) if there else None


def _empty(design: GroupBlock, groups: int) -> GroupBlock:
    """No samples of the features of a design, in so many groups."""
    return GroupBlock(np.zeros(groups, dtype=np.int64), np.zeros((groups, *design.means.shape[1:])))


def _add_design(block: GroupBlock, design: GroupBlock, group: int) -> None:
    """Merge the features of a whole design into one group, in place: wide ones are not copied."""
    block.counts[group] += design.count
    block.means[group] += (design.means[0] - block.means[group]) * (design.count / block.counts[group])


def _standard_errors(
    state: DesignState, found: Summary, shown: Array | None
) -> tuple[Array, Array, tuple[Array, Array]]:
    """Of the mean and of the variance, so that 1.96 of them are a 95 % interval however few designs there are.

    What n passes show of the surrogate's variance, a share w, they are likely to show of what it leaves. That goes with
    products of masks: squared errors of the mean are taken to be 1/w' times as large, those of the variance 1/w'², with
    w' = (n w + 1)/(n + 1). These are the ratio estimators of Wu (1982) with g = 1 and 2.

    Also the factors in them for tails that few passes show.
    """
    passes = state.passes.count
    w = 1.0 if shown is None else (passes * shown + 1.0) / (passes + 1.0)
    error2_variance = found.error2_variance / np.square(w)
    mean = student_factor(found.designs) * np.sqrt(found.error2_mean / w)
    variance = student_factor(found.samples) * np.sqrt(error2_variance)
    of_mean, of_variance = np.ones_like(mean), widened_for_scale(error2_variance, found.variance)
    if state.mean_left is not None and state.variance_left is not None:
        of_mean = widened_for_skewness(state.mean_left, passes)
        of_variance = of_variance * widened_for_skewness(state.variance_left, passes, power=2)
    if state.rest is not None:
        of_variance = of_variance * widened_for_others(variance * of_variance, found.variance, passes)
    return mean * of_mean, variance * of_variance, (of_mean, of_variance)


def _plain(state: DesignState) -> tuple[Array, Array]:
    """μ2 and μ4 − μ2² of a pass with all its masks drawn, as the passes show them.

    What the last masks add to h is taken to be Gaussian, of variance E s².
    """
    h, s2 = state.passes, state.s2.mean
    return h.variance + s2, excess(h) + 4.0 * h.variance * s2 + 2.0 * np.square(s2)


def _worth(state: DesignState, found: Summary) -> Worth:
    """Squared errors beside those of plain averaging."""
    mean_left, variance_left = state.mean_left or state.passes, state.variance_left or state.passes
    doubts = (
        errors_doubted(mean_left.kurtosis, found.designs - 1),
        errors_doubted(variance_left.kurtosis, found.samples - 1),
    )
    return Worth.of(*_plain(state), found.error2_mean, found.error2_variance, doubts, found.samples)


def _trust(state: DesignState, found: Summary, mean_stderr: Array, variance_stderr: Array) -> Trust:
    """What passes, and what the surrogate leaves of them, say about their tails."""
    whole = trust(state.passes)
    if state.rest is not None:
        rest = trust(state.rest, are_outputs=False)
        whole &= Trust(rest.mean, rest.mean)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = mean_stderr / np.sqrt(found.variance), variance_stderr / found.variance
    return whole.where_it_matters(*share)
