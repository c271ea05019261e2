"""Two levels: the network, and its expansion in the masks pushed through the same reading of the outputs.

Let D be what a network returns before its softmax, and S = D(mean mask) + G its first-order expansion (``surrogates``).
For any features φ of the probabilities::

    E φ(D) = E φ(S) + E[φ(D) − φ(S)],

where φ(D) − φ(S) is small if both see the same masks, and φ(S) costs a product of masks and gradients instead of a
pass, so that it is sampled many times (``surrogates.cyclic``). With n_1 passes and n_0 coarse samples of cost c_0 each,
the variance V_1/n_1 + V_0/n_0 at a given cost is least for n_0/n_1 = sqrt(V_0 (1 + c_0) / (V_1 c_0)) (Giles, *Acta
Numerica* 24, 2015). A coefficient β of φ(S), close to 1, is fitted on one half of the passes and used on the other, so
that no bias creeps in. Passes and coarse samples come in groups, and everything that is asked, mean and variance
included, is a smooth function of means over groups (``quantities.jackknife``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.methods.base import Estimates, LevelEstimate, NoRefinement, OneStage, Rows, Task, blocks
from mlmc_dropout.methods.designs import Joint, coefficients
from mlmc_dropout.methods.paired_designs import PreparedRows, as_array, selected
from mlmc_dropout.methods.states import Block, from_blocks, merge_states, states_beside
from mlmc_dropout.methods.tails import Trust, trust, widened_for_tails
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.quantities.jackknife import jackknife
from mlmc_dropout.quantities.questions import Observation
from mlmc_dropout.sampling import streams
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.source import BLOCK, Source
from mlmc_dropout.stopping.goal import Goal
from mlmc_dropout.surrogates.cyclic import SAMPLES, cyclic_values, operations_per_sample
from mlmc_dropout.surrogates.linear import (
    PASSES_OF_A_GRADIENT,
    Expansion,
    Linearisation,
    expansion_of,
    linearise,
    pass_operations,
)

__all__ = ["BoundCoarseLevel", "CoarseLevel", "CoarseState", "coarse_cost", "coarse_features"]

Array = NDArray[np.float64]

DESIGN = SAMPLES  # coarse samples of a design
MIN_PASSES = 16  # for groups that tell a standard error
LEAST_DESIGNS = 32  # one for every group
FEWEST_DESIGNS = 8  # where those would take most of the passes: fewer groups, and wider standard errors
_TASK = 1024  # coarse samples of a task
_ALIKE = 12.0  # passes' worth of belief that a feature has the coefficient of all
_PER_OUTPUT = 40.0  # reading an output, in operations of a matrix product
_LEAST_COST = 0.001  # of a coarse sample: nothing is free


@dataclass(frozen=True, slots=True)
class CoarseLevel(OneStage):
    """Passes beside a coarse level that is sampled more often.

    Attributes:
        ratio: Coarse samples per pass, n_0/n_1.
        outputs: Indices of the outputs that are expanded, the others being held; ``None``: all.
        overhead: Passes that a pilot spent before.
        reason: Why it was chosen, if it was.
    """

    ratio: float = 20.0
    outputs: tuple[int, ...] | None = None
    overhead: float = 0.0
    reason: str = ""

    @property
    def name(self) -> str:
        """The name users choose it by."""
        return "control-variate"

    def min_cost(self) -> int:
        """A few passes; what the derivatives cost is known when it is bound."""
        return MIN_PASSES + 2 + int(np.ceil(self.overhead))

    def choose(self, source: Source, goal: Goal) -> CoarseLevel:
        """Nothing to choose: a pilot has.

        Args:
            source: The passes of the inputs.
            goal: When to stop.

        Returns:
            Itself.
        """
        return self

    def describe(self) -> dict[str, Any]:
        """Coarse samples per pass."""
        return {"coarse_samples_per_pass": round(self.ratio, 3)}

    def bind(self, source: Source) -> BoundCoarseLevel:
        """Differentiate once for these inputs.

        Args:
            source: The passes of the inputs.

        Returns:
            The method, ready to run.

        Raises:
            DerivativeError: If the outputs have no derivatives.
        """
        parts, costs = [], []
        for rows, part in source.parts(PASSES_OF_A_GRADIENT):
            slopes = linearise(part.sampler, part.program, part.batch, self.outputs)
            parts.append(CoarseRows.of(rows, part, slopes, self.outputs))
            costs.append(slopes.cost)
        observation = source.observation.squared()
        cost = coarse_cost(source, self.outputs)
        return BoundCoarseLevel(self, tuple(parts), cost, self.overhead + max(costs), observation)


@dataclass(frozen=True, slots=True, eq=False)
class CoarseRows:
    """The coarse level of some rows.

    Attributes:
        passes: What passes and their companions G are computed with.
        centre: Outputs at the mean mask, (rows, width).
        outputs: Indices of the outputs that are expanded; ``None``: all.
    """

    passes: PreparedRows
    centre: Tensor
    outputs: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls, rows: slice, source: Source, slopes: Linearisation, outputs: tuple[int, ...] | None = None
    ) -> CoarseRows:
        """From derivatives.

        Args:
            rows: Which rows of the batch.
            source: Their passes.
            slopes: Their derivatives.
            outputs: Indices of the outputs that were differentiated; ``None``: all.

        Returns:
            The coarse level.
        """
        return cls(PreparedRows(rows, (), expansion_of(source.program, slopes)), slopes.at_mean, outputs)

    def values(self, G: Tensor) -> Tensor:
        """The coarse level S from the expansion G.

        Args:
            G: Of the outputs that are expanded, (samples, rows, outputs).

        Returns:
            All outputs, (samples, rows, width).
        """
        centre = self.centre.to(G)
        if self.outputs is None:
            return centre + G
        S = centre.expand(len(G), -1, -1).clone()
        S[..., list(self.outputs)] += G
        return S

    def origin(self, observation: Observation) -> Array:
        """The main numbers at the mean mask.

        Args:
            observation: What is observed.

        Returns:
            Them, (rows, main width).
        """
        plain = replace(observation, questions=(), with_squares=False)
        main, _ = plain.observe(self.centre.double().cpu()[None], are_passes=False)
        return np.asarray(main[0].numpy())

    @property
    def rows(self) -> slice:
        """Which rows of the batch."""
        return self.passes.rows

    def select(self, rows: Rows, start: int) -> CoarseRows:
        """The coarse level of some of these rows.

        Args:
            rows: Places among these rows.
            start: Place of the first of them in the batch that is made of the rows selected.

        Returns:
            The same of these rows.
        """
        places = torch.from_numpy(np.asarray(rows, dtype=np.int64)).to(self.centre.device)
        return CoarseRows(self.passes.select(rows, start), self.centre[places], self.outputs)

    def joins(self, other: CoarseRows) -> bool:
        """Whether the rows after these can be computed together with them.

        Args:
            other: The coarse level of the rows after these.
        """
        return self.passes.joins(other.passes)

    def joined(self, other: CoarseRows) -> CoarseRows:
        """The coarse level of these rows and of those after them.

        Args:
            other: The coarse level of the rows after these.

        Returns:
            The joint one.
        """
        return CoarseRows(self.passes.joined(other.passes), torch.cat([self.centre, other.centre]), self.outputs)

    @property
    def expansion(self) -> Expansion:
        """G as a function of the masks."""
        assert isinstance(self.passes.surrogate, Expansion)
        return self.passes.surrogate


@dataclass(frozen=True, slots=True)
class CoarseState:
    """What is carried of passes and coarse samples.

    Attributes:
        passes: The main numbers of passes.
        rest: The same less those of the coarse level.
        fine: Features of passes, φ(D).
        companion: Features of the coarse level at the same masks, φ(S).
        coarse: Features of further coarse samples.
        even: φ(D) and φ(S) of passes with even numbers, together.
        odd: The same of the others.
    """

    passes: MomentBlock | None = None
    rest: MomentBlock | None = None
    fine: GroupBlock | None = None
    companion: GroupBlock | None = None
    coarse: GroupBlock | None = None
    even: Joint | None = None
    odd: Joint | None = None


def coarse_cost(source: Source, outputs: tuple[int, ...] | None = None) -> float:
    """What a coarse sample costs beside a pass, by their floating-point operations.

    Args:
        source: The passes of the inputs.
        outputs: Indices of the outputs that are expanded; ``None``: all.

    Returns:
        c_0, in passes; 1 where the operations of a pass cannot be counted.
    """
    width = source.program.structure.width
    units = sum(site.units for site in source.program.active)
    operations = pass_operations(source.sampler, source.program, source.batch)
    spent = operations_per_sample(units, width if outputs is None else len(outputs)) + _PER_OUTPUT * width
    return float(np.clip(spent / operations, _LEAST_COST, 1.0)) if operations else 1.0


def coarse_features(
    source: Source, rows: CoarseRows, observation: Observation, designs: NDArray[np.int64], stream: int
) -> Array:
    """Features of the coarse level, averaged over cyclic designs of masks.

    Args:
        source: The passes of these rows.
        rows: Their coarse level.
        observation: What is observed.
        designs: Numbers of the designs.
        stream: Number of the random stream.

    Returns:
        Means over designs, (designs, rows, features).
    """
    found = []
    locations = None if source.locations is None else torch.from_numpy(source.locations)
    for some in np.array_split(designs, -(-len(designs) * DESIGN // BLOCK)):
        keys = pass_keys(source.seed, stream, some, 0)
        # In double precision, as passes are: rounding must not tell the two levels apart.
        S = rows.values(cyclic_values(source, rows.expansion, keys).double())
        _, features = observation.observe(S.cpu(), locations, are_passes=False)
        assert features is not None
        found.append(features.unflatten(0, (-1, DESIGN)).mean(dim=1).numpy())
    return about(np.concatenate(found), rows.origin(observation))


def about(features: Array, origin: Array) -> Array:
    """Features whose squares are those of differences from an origin, so that coefficients fit what varies.

    Args:
        features: Main numbers x, then their squares, then others, (samples, rows, features); also means of these.
        origin: o, (rows, main width).

    Returns:
        The same with x² − 2ox + o² in place of x².
    """
    width = origin.shape[-1]
    x, squares, others = np.split(features, [width, 2 * width], axis=-1)
    return np.concatenate([x, squares - 2 * origin * x + np.square(origin), others], axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class BoundCoarseLevel(NoRefinement):
    """Both levels for one batch of inputs.

    Attributes:
        method: The method it was made from.
        parts: What was computed for the rows, part by part.
        coarse_cost: c_0, in passes.
        overhead: Passes spent before: pilot and derivatives.
        observation: What is observed of both levels.
    """

    method: CoarseLevel
    parts: tuple[CoarseRows, ...]
    coarse_cost: float
    overhead: float
    observation: Observation

    def min_cost(self) -> int:
        """A few passes, a few designs of the coarse level, and what preparing them cost."""
        coarse = FEWEST_DESIGNS * DESIGN * self.coarse_cost
        return int(np.ceil(MIN_PASSES * (1 + self.coarse_cost) + coarse + self.overhead))

    def select(self, rows: Rows) -> BoundCoarseLevel:
        """Both levels for some of the rows.

        Args:
            rows: Places of the rows in the batch, in ascending order.

        Returns:
            The method for these rows.
        """
        return replace(self, parts=selected(self.parts, rows))

    def extend(self, done: Mapping[str, int], budget: float) -> tuple[list[Task], dict[str, int]]:
        """Plan further passes, and as many coarse samples as pay beside them.

        Args:
            done: Passes and designs so far.
            budget: Passes that may be spent.

        Returns:
            Tasks, and the counts after them.
        """
        fine, designs = done.get("fine", 0), done.get("designs", 0)
        left = budget - (0.0 if done else self.overhead)
        of_design = DESIGN * self.coarse_cost
        per_pass = 1 + self.coarse_cost * (1 + self.method.ratio)
        count = int(left // per_pass)
        least = LEAST_DESIGNS if LEAST_DESIGNS * of_design <= left / 2 else FEWEST_DESIGNS
        if not done and count < MIN_PASSES:  # where a pass would go with very many coarse samples
            count = min(MIN_PASSES, int((left - least * of_design) // (1 + self.coarse_cost)))
        if count * self.method.ratio < (least - designs) * DESIGN:
            count = int((left - (least - designs) * of_design) // (1 + self.coarse_cost))
        if count < (1 if done else MIN_PASSES):
            return [], dict(done)
        wanted = max(least, round((fine + count) * self.method.ratio / DESIGN)) - designs
        affordable = int((left - count * (1 + self.coarse_cost)) // of_design)
        more = max(0, min(wanted, affordable))
        tasks = [(Task(0, a, n), a) for a, n in blocks(fine, count, BLOCK)]
        coarse = [(Task(streams.COARSE, a, n), a) for a, n in blocks(designs, more, _TASK // DESIGN)]
        mixed = [(i / len(group), task) for group in (tasks, coarse) for i, (task, _) in enumerate(group)]
        total = self.overhead + (fine + count) * (1 + self.coarse_cost) + (designs + more) * of_design
        after = {"fine": fine + count, "designs": designs + more, "passes": int(np.ceil(total - 1e-9))}
        return [task for _, task in sorted(mixed, key=lambda pair: (pair[0], pair[1].stream))], after

    def weight(self, task: Task) -> float:
        """Its cost.

        Args:
            task: Passes, or designs of the coarse level.
        """
        return task.count * (DESIGN * self.coarse_cost if task.stream else 1 + self.coarse_cost)

    def run(self, source: Source, task: Task) -> CoarseState:
        """Features of passes and of the coarse level beside them, or of further coarse samples.

        Args:
            source: The passes of the inputs.
            task: Passes, or designs of the coarse level.

        Returns:
            Their state.
        """
        run = self._coarse if task.stream else self._fine
        return states_beside(run(part.passes.of(source), task, part) for part in self.parts)

    def _coarse(self, source: Source, task: Task, part: CoarseRows) -> CoarseState:
        designs = np.arange(task.first, task.first + task.count)
        means = coarse_features(source, part, self.observation, designs, task.stream)
        return CoarseState(coarse=GroupBlock.of(means, task.first, source.groups))

    def _fine(self, source: Source, task: Task, part: CoarseRows) -> CoarseState:
        main, of_D, main_S, of_S = self.both_levels(source, range(task.first, task.first + task.count), part)
        even = slice(task.first % 2, None, 2)
        odd = slice(1 - task.first % 2, None, 2)
        return CoarseState(
            MomentBlock.of(main),
            MomentBlock.of(main - main_S),
            GroupBlock.of(of_D, task.first, source.groups),
            GroupBlock.of(of_S, task.first, source.groups),
            None,
            Joint.of(of_D[even], of_S[even]),
            Joint.of(of_D[odd], of_S[odd]),
        )

    def both_levels(self, source: Source, numbers: range, part: CoarseRows, stream: int = 0) -> list[Array]:
        """Passes and the coarse level at the same masks.

        Args:
            source: The passes of some rows.
            numbers: Which passes.
            part: The coarse level of these rows.
            stream: Number of the random stream.

        Returns:
            Main numbers and features of passes, and of the coarse level: four arrays (passes, rows, …).
        """
        keys = pass_keys(source.seed, stream, 0, np.asarray(numbers))
        chunks = list(source.design_chunks(keys, 1))
        D = np.concatenate([as_array(part.passes.outputs(source, masks)) for masks in chunks])
        source.check(D)
        # The expansion of all passes at once: how its sums are rounded must not depend on the chunks.
        masks = [None if site[0] is None else torch.cat(site) for site in zip(*chunks, strict=True)]
        S = part.values(part.expansion.values(masks, source.batch.rows).double()).cpu().numpy()
        locations = None if source.locations is None else torch.from_numpy(source.locations)
        levels = ((D, True), (S, False))
        seen = [self.observation.observe(torch.from_numpy(v), locations, are_passes) for v, are_passes in levels]
        main, of_D, main_S, of_S = (array.numpy() for pair in seen for array in pair if array is not None)
        origin = part.origin(self.observation)
        return [main, about(of_D, origin), main_S, about(of_S, origin)]

    # ------------------------------------------------------------------------------ states

    def has_estimates(self, state: CoarseState | None) -> bool:
        """Whether both levels have samples.

        Args:
            state: A merged state, or ``None``.
        """
        return state is not None and state.fine is not None and state.coarse is not None and state.odd is not None

    def samples(self, state: CoarseState) -> float:
        """The number of passes.

        Args:
            state: A merged state.
        """
        return 0.0 if state.fine is None else state.fine.count

    def read_state(self, blocks: Mapping[str, Block]) -> CoarseState:
        """A state from its saved blocks.

        Args:
            blocks: Blocks by path.

        Returns:
            The state.
        """
        return from_blocks(CoarseState, blocks)

    def summarise(self, state: CoarseState, done: Mapping[str, int]) -> Estimates:
        """Both levels together, group by group; mean and variance by the jackknife.

        Args:
            state: Both levels so far.
            done: Passes so far.

        Returns:
            The estimates.
        """
        groups = combined(state)
        means = self.observation.group_means(groups)
        origin = np.concatenate([part.origin(self.observation) for part in self.parts])
        mean, mean_stderr = jackknife(lambda e: e["main"], means)
        variance, variance_stderr = jackknife(lambda e: e["square of main"] - np.square(e["main"] - origin), means)
        cost = float(done["passes"])
        plain = GroupBlock(groups.counts, groups.means[..., self._own_columns()])
        assert state.passes is not None and state.rest is not None
        variance_stderr = variance_stderr * widened_for_tails(state.passes)
        return Estimates(
            mean,
            variance,
            mean_stderr,
            variance_stderr,
            cost,
            levels=tuple(self._levels(state, mean_stderr, variance_stderr, done)),
            notes=tuple(self._notes(done)),
            overhead=self.overhead,
            trust=_trust(state, variance, mean_stderr, variance_stderr),
            groups=plain,
        )

    def _own_columns(self) -> slice:
        """Where the features lie that were asked, behind the main numbers and their squares."""
        return slice(2 * self.observation.main.width, None)

    def _notes(self, done: Mapping[str, int]) -> Iterator[str]:
        if self.method.reason:
            yield self.method.reason
        yield (
            f"{done['designs'] * DESIGN} samples of the expansion, put through the same softmax, went with "
            f"{done['fine']} passes; one costs {self.coarse_cost:.2g} of a pass."
        )

    def _levels(
        self, state: CoarseState, mean_stderr: Array, variance_stderr: Array, done: Mapping[str, int]
    ) -> Iterator[LevelEstimate]:
        assert state.passes is not None and state.rest is not None and state.coarse is not None
        both: Joint = merge_states(state.even, state.odd)
        width, cost, coarse = self.observation.main.width, float(done["passes"]), state.coarse
        assert both.c is not None
        main = both.c.mean[:, :width], both.c.variance[:, :width]
        unknown = np.full_like(main[0], np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            gain = state.passes.variance / cost / np.square(mean_stderr)
            fourth = state.passes.fourth - np.square(state.passes.variance)
            gain_V = fourth / cost / np.square(variance_stderr)
            correlation = np.sqrt(np.clip(1 - state.rest.variance / state.passes.variance, 0, 1))
        size = coarse.count * DESIGN
        yield LevelEstimate("coarse", 0, size, size * self.coarse_cost, *main, unknown, main[1], unknown, unknown)
        yield LevelEstimate(
            "correction",
            1,
            state.rest.count,
            state.rest.count * (1 + self.coarse_cost),
            state.rest.mean,
            state.rest.variance,
            state.rest.kurtosis,
            state.passes.variance,
            fourth,
            state.passes.kurtosis,
            correlation=correlation,
            gain=gain,
            gain_V=gain_V,
        )


def combined(state: CoarseState) -> GroupBlock:
    """Features of both levels together: E_k = φ(D)_k − β (φ(S)_k − coarse_k) for every group k of passes.

    Args:
        state: Both levels.

    Returns:
        Groups, as many as have passes and coarse samples.
    """
    assert state.fine is not None and state.companion is not None and state.coarse is not None
    levels = [state.fine, state.companion, state.coarse]
    while len(levels[0].counts) > 2 and any((level.counts == 0).any() for level in levels):
        levels = [level.coarser() for level in levels]
    fine, companion, coarse = levels
    assert state.even is not None and state.odd is not None
    passes = state.even.v.count + state.odd.v.count
    from_even, from_odd = (_coefficient(half, coarse, passes) for half in (state.even, state.odd))
    beta = np.where((np.arange(len(fine.counts)) % 2 == 0)[:, None, None], from_odd, from_even)
    return GroupBlock(fine.counts, fine.means - beta * (companion.means - coarse.means))


def _coefficient(half: Joint, coarse: GroupBlock, passes: int) -> Array:
    """β from one half of the passes alone: what the other half has to do with it would be a bias."""
    assert half.c is not None
    found, _ = coefficients(half, np.nan_to_num(half.c.variance), 1.0, _ALIKE)
    return found / (1.0 + _coarse_noise(half.c, coarse, passes))


def _coarse_noise(companion: MomentBlock, coarse: GroupBlock, passes: int) -> float:
    """Variance of the mean over coarse samples, over that of the mean over as many of them as there are passes."""
    K = len(coarse.counts)
    of_means = coarse.means.var(axis=0, ddof=1).sum() / K if K > 1 else 0.0
    alone = float(companion.variance.sum()) / passes
    return float(of_means / alone) if alone > 0 else 0.0


def _trust(state: CoarseState, variance: Array, mean_stderr: Array, variance_stderr: Array) -> Trust:
    """What passes, and what the coarse level leaves of them, say about their tails."""
    assert state.passes is not None and state.rest is not None
    rest = trust(state.rest, are_outputs=False)
    whole = trust(state.passes) & Trust(rest.mean, rest.mean)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = mean_stderr / np.sqrt(variance), variance_stderr / variance
    return whole.where_it_matters(*share)
