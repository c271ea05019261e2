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
from numpy.typing import NDArray

from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.methods.base import Estimates, NoRefinement, OneStage, Rows, Task, blocks
from mlmc_dropout.methods.coarse_errors import next_counts
from mlmc_dropout.methods.coarse_fit import (
    FEWEST_DESIGNS,
    LEAST_DESIGNS,
    MIN_PASSES,
    CoarseState,
    Fitted,
    coarse_trust,
    coarse_worth,
    level_errors,
    level_estimates,
)
from mlmc_dropout.methods.coarse_rows import DESIGN, CoarseRows, both_levels, coarse_cost, coarse_features
from mlmc_dropout.methods.designs import Joint
from mlmc_dropout.methods.prepared_rows import selected
from mlmc_dropout.methods.states import Block, from_blocks, states_beside
from mlmc_dropout.methods.tails import student_factor, widened_for_tails
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.quantities.jackknife import jackknife, plug_in
from mlmc_dropout.quantities.questions import Observation
from mlmc_dropout.sampling import streams
from mlmc_dropout.sampling.source import BLOCK, Source
from mlmc_dropout.stopping.goal import Goal
from mlmc_dropout.stopping.rows import Needs
from mlmc_dropout.surrogates.linear import PASSES_OF_A_GRADIENT, linearise

__all__ = ["BoundCoarseLevel", "CoarseLevel"]

Array = NDArray[np.float64]

_TASK = 1024  # coarse samples of a task


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
        numbers = range(task.first, task.first + task.count)
        main, of_D, main_S, of_S = both_levels(source, part, self.observation, numbers)
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
        student = student_factor(len(groups.counts))
        errors2 = np.square(mean_stderr / student) if errors is None else errors.fine + errors.coarse
        both = errors2, np.square(variance_stderr / student)
        variance_stderr = variance_stderr * widened_for_tails(state.passes)
        return Estimates(
            mean,
            variance,
            mean_stderr,
            variance_stderr,
            cost,
            levels=tuple(level_estimates(state, both, cost, self.coarse_cost)),
            notes=tuple(self._notes(done)),
            overhead=self.overhead,
            trust=coarse_trust(state, variance, mean_stderr, variance_stderr),
            groups=plain,
            freedom=None if errors is None else errors.freedom,
            variance_freedom=float(len(groups.counts) - 1),
            worth=coarse_worth(state, both, len(groups.counts)),
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
