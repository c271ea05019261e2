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
from mlmc_dropout.methods.coarse_errors import LevelErrors, next_counts
from mlmc_dropout.methods.designs import Joint, coefficients
from mlmc_dropout.methods.prepared_rows import PreparedRows, as_array, selected
from mlmc_dropout.methods.states import Block, from_blocks, merge_states, states_beside
from mlmc_dropout.methods.tails import Trust, trust, widened_for_tails
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.quantities.jackknife import jackknife, plug_in
from mlmc_dropout.quantities.questions import Observation
from mlmc_dropout.sampling import streams
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.source import BLOCK, Source
from mlmc_dropout.stopping.goal import Goal
from mlmc_dropout.stopping.rows import Needs
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
        expansion, centre = expansion_of(source.program, slopes), slopes.at_mean
        if source.sampler.masks == "shared":
            expansion, centre = expansion.units_first(), centre.t().contiguous().t()
        return cls(PreparedRows(rows, (), expansion), centre, outputs)

    def values(self, G: Tensor) -> Tensor:
        """The coarse level S from the expansion G.

        Args:
            G: Of the outputs that are expanded, (samples, rows, outputs).

        Returns:
            All outputs, (samples, rows, width).
        """
        centre = self.centre.to(G)
        if self.outputs is None:
            return G + centre  # in this order: laid out as G is
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
        centre = self.centre.t().index_select(1, places).t()  # laid out as it is
        return CoarseRows(self.passes.select(rows, start), centre, self.outputs)

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
        designs: The main numbers of these, averaged over designs.
        even: φ(D) and φ(S) of passes with even numbers, together.
        odd: The same of the others.
    """

    passes: MomentBlock | None = None
    rest: MomentBlock | None = None
    fine: GroupBlock | None = None
    companion: GroupBlock | None = None
    coarse: GroupBlock | None = None
    designs: MomentBlock | None = None
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
    width, active = source.program.structure.width, source.program.active
    units, rates = sum(site.units for site in active), len({site.p for site in active})
    alike = source.batch.rows if source.sampler.masks == "shared" else 1
    operations = pass_operations(source.sampler, source.program, source.batch)
    expanded = width if outputs is None else len(outputs)
    spent = operations_per_sample(units, expanded, rates, alike) + _PER_OUTPUT * width
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
    origin = torch.from_numpy(rows.origin(observation))
    for G in cyclic_values(source, rows.expansion, pass_keys(source.seed, stream, designs, 0)):
        S = rows.values(G.double())  # as passes are: rounding must not tell the two levels apart
        _, features = observation.observe(S.cpu(), locations, are_passes=False, origin=origin, together=DESIGN)
        assert features is not None
        found.append(features.numpy())
    return observation.put_in_place(np.concatenate(found))


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
        count, more = self._counts(done, budget)
        if not count and not more:
            return [], dict(done)
        tasks = [(Task(0, a, n), a) for a, n in blocks(fine, count, BLOCK)]
        coarse = [(Task(streams.COARSE, a, n), a) for a, n in blocks(designs, more, _TASK // DESIGN)]
        mixed = [(i / len(group), task) for group in (tasks, coarse) for i, (task, _) in enumerate(group)]
        of_design = DESIGN * self.coarse_cost
        total = self.overhead + (fine + count) * (1 + self.coarse_cost) + (designs + more) * of_design
        after = {"fine": fine + count, "designs": designs + more, "passes": int(np.ceil(total - 1e-9))}
        return [task for _, task in sorted(mixed, key=lambda pair: (pair[0], pair[1].stream))], after

    def _counts(self, done: Mapping[str, int], budget: float) -> tuple[int, int]:
        """Passes and designs that the next round adds."""
        fine, designs = done.get("fine", 0), done.get("designs", 0)
        left = budget - (0.0 if done else self.overhead)
        of_design = DESIGN * self.coarse_cost
        if "next_fine" in done:
            count, more = done["next_fine"] - fine, done["next_designs"] - designs
            if count * (1 + self.coarse_cost) + more * of_design <= left * (1 + 1e-9):
                return count, more
        per_pass = 1 + self.coarse_cost * (1 + self.method.ratio)
        count = int(left // per_pass)
        least = LEAST_DESIGNS if LEAST_DESIGNS * of_design <= left / 2 else FEWEST_DESIGNS
        if not done and count < MIN_PASSES:  # where a pass would go with very many coarse samples
            count = min(MIN_PASSES, int((left - least * of_design) // (1 + self.coarse_cost)))
        if count * self.method.ratio < (least - designs) * DESIGN:
            count = int((left - (least - designs) * of_design) // (1 + self.coarse_cost))
        if count < (1 if done else MIN_PASSES):
            return 0, 0
        wanted = max(least, round((fine + count) * self.method.ratio / DESIGN)) - designs
        affordable = int((left - count * (1 + self.coarse_cost)) // of_design)
        return count, max(0, min(wanted, affordable))

    def steer(
        self, state: CoarseState, done: Mapping[str, int], wanted: float, needs: Needs
    ) -> tuple[Mapping[str, int], float]:
        """Passes, coarse samples or both, whatever the inputs lack that can be settled next.

        Args:
            state: What is known of these inputs.
            done: What earlier tasks covered.
            wanted: Passes per input for which the stop rule asks.
            needs: How many times as many passes each of them needs, and for what.

        Returns:
            ``done`` with the counts after the round, and its cost.
        """
        errors = level_errors(state, Fitted.of(state))
        if errors is None or not np.isfinite(needs.precision).all():
            return done, wanted
        prices = 1 + self.coarse_cost, DESIGN * self.coarse_cost
        fine, designs = next_counts(errors, done["fine"], done["designs"], needs, prices)
        cost = (fine - done["fine"]) * prices[0] + (designs - done["designs"]) * prices[1]
        return {**done, "next_fine": fine, "next_designs": designs}, cost

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
        return states_beside((run(part.passes.of(source), task, part) for part in self.parts), source.batch.rows)

    def _coarse(self, source: Source, task: Task, part: CoarseRows) -> CoarseState:
        designs = np.arange(task.first, task.first + task.count)
        means = coarse_features(source, part, self.observation, designs, task.stream)
        main = means[..., : self.observation.main.width]
        return CoarseState(coarse=GroupBlock.of(means, task.first, source.groups), designs=MomentBlock.of(main))

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
        origin = torch.from_numpy(part.origin(self.observation))
        levels = ((D, True), (S, False))
        seen = [self.observation.observe(torch.from_numpy(v), locations, passes, origin) for v, passes in levels]
        main, of_D, main_S, of_S = (array.numpy() for pair in seen for array in pair if array is not None)
        return [main, of_D, main_S, self.observation.put_in_place(of_S)]

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
        fitted = Fitted.of(state)
        groups = fitted.combined
        means = self.observation.group_means(groups)
        origin = np.concatenate([part.origin(self.observation) for part in self.parts])
        errors = level_errors(state, fitted)
        if errors is None:
            mean, mean_stderr = jackknife(lambda e: e["main"], means)
        else:  # of all samples, not of their groups
            mean, mean_stderr = plug_in(lambda e: e["main"], means), errors.stderr
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
            freedom=None if errors is None else errors.freedom,
            variance_freedom=float(len(groups.counts) - 1),
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


@dataclass(frozen=True, slots=True)
class Fitted:
    """Both levels in groups, all of which have samples, and how much of the coarse level is taken.

    Attributes:
        fine: Features of passes.
        companion: Those of the coarse level at the same masks.
        coarse: Those of further coarse samples.
        betas: Coefficients of even and of odd groups, each from the other half of the passes.
    """

    fine: GroupBlock
    companion: GroupBlock
    coarse: GroupBlock
    betas: tuple[Array, Array]

    @classmethod
    def of(cls, state: CoarseState) -> Fitted:
        """From all that is carried.

        Args:
            state: Both levels.

        Returns:
            The levels and their coefficients.
        """
        assert state.fine is not None and state.companion is not None and state.coarse is not None
        levels = [state.fine, state.companion, state.coarse]
        while len(levels[0].counts) > 2 and any((level.counts == 0).any() for level in levels):
            levels = [level.coarser() for level in levels]
        assert state.even is not None and state.odd is not None
        passes = state.even.v.count + state.odd.v.count
        from_even, from_odd = (_coefficient(half, levels[2], passes) for half in (state.even, state.odd))
        fine, companion, coarse = levels
        return cls(fine, companion, coarse, (from_odd, from_even))

    @property
    def combined(self) -> GroupBlock:
        """Features of both levels together: E_k = φ(D)_k − β (φ(S)_k − coarse_k) for every group k of passes."""
        beta = np.where((np.arange(len(self.fine.counts)) % 2 == 0)[:, None, None], *self.betas)
        return GroupBlock(self.fine.counts, self.fine.means - beta * (self.companion.means - self.coarse.means))


def level_errors(state: CoarseState, fitted: Fitted) -> LevelErrors | None:
    """Squared standard errors of the mean, level by level.

    Args:
        state: Both levels.
        fitted: The same in groups.

    Returns:
        The errors; ``None`` where there are too few designs to tell, or in states of earlier versions.
    """
    designs, rest = state.designs, state.rest
    if designs is None or rest is None or designs.count < FEWEST_DESIGNS or rest.count < 2:
        return None
    assert state.even is not None and state.odd is not None
    counts = fitted.fine.counts, fitted.coarse.counts
    return LevelErrors.of((state.even, state.odd), fitted.betas, counts, rest, designs)


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
