"""Stratified masks with a surrogate of known moments beside every pass.

The surrogate G, linear or quadratic in the masks (``surrogates``), has mean 0 and a known variance. It is subtracted
from the passes; and the variance estimated from G in the same way as from D, less the known one, is a control variate
for μ2. Coefficients are fitted on one half of the pairs and used on the other, and vice versa, so that no bias creeps
in (``designs``).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlmc_dropout.errors import ModelError
from mlmc_dropout.methods.base import OneStage
from mlmc_dropout.methods.coarse_level import CoarseLevel
from mlmc_dropout.methods.coarse_pilot import (
    affordable_coarse_look,
    asked_moments,
    coarse_look,
    outputs_that_matter,
)
from mlmc_dropout.methods.design_length import DESIGN, MIN_PASSES, UNKNOWN_BUDGET, preparation_cost, suited_length
from mlmc_dropout.methods.paired_designs import BoundDesigns
from mlmc_dropout.methods.prepared_rows import PreparedRows
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal
from mlmc_dropout.surrogates.derivatives import DerivativeError, expandable
from mlmc_dropout.surrogates.expansion import Expansion
from mlmc_dropout.surrogates.linear import PASSES_OF_A_GRADIENT, expansion_of, linearise, supported
from mlmc_dropout.surrogates.linear_head import heads_of, outputs_by_head
from mlmc_dropout.surrogates.quadratic import Quadratic, fit_quadratic, passes_in_memory
from mlmc_dropout.surrogates.taylor import Taylor, fit_taylor, taylor_bytes, taylor_cost, value_cost

__all__ = ["GRADIENT_MASKS", "ControlVariate", "affordable"]

GRADIENT_MASKS = 20  # random masks at which gradients show the curvature
COPIES = 3  # of second derivatives, while they are computed


@dataclass(frozen=True, slots=True)
class ControlVariate(OneStage):
    """Pairs of stratified designs with a surrogate as control variate.

    Attributes:
        passes: T, the most passes of a design.
        heads: Average out the last dropout where a linear map follows it.
        gradient_masks: Random masks at which gradients are taken for a quadratic surrogate; 0: a linear one at the mean
            mask; ``None``: by cost.
        second_derivatives: Whether the surrogate has all second derivatives at the mean mask.
        overhead: Passes that a pilot spent before.
        reason: Why it was chosen, if it was.
    """

    passes: int = DESIGN
    heads: bool = True
    gradient_masks: int | None = None
    second_derivatives: bool = False
    overhead: float = 0.0
    reason: str = ""

    @property
    def name(self) -> str:
        """The name users choose it by."""
        return "control-variate"

    def min_cost(self) -> int:
        """A few passes; what the derivatives cost is known when it is bound."""
        return MIN_PASSES + 2 + int(np.ceil(self.overhead))

    def choose(self, source: Source, goal: Goal) -> ControlVariate | CoarseLevel:
        """A linear or quadratic surrogate and the length of designs, by the passes to come.

        Where outputs are read as classes, or as means and variances, the expansion is read in the same way.

        Args:
            source: The passes of the inputs.
            goal: When to stop.

        Returns:
            The method with everything decided.

        Raises:
            ModelError: If masks belong to no single input row.
        """
        if not supported(source.program):
            raise ModelError(_unsupported(source))
        if source.observation.outputs != "values":
            outputs = outputs_that_matter(source, goal.budget or UNKNOWN_BUDGET)
            size = affordable_coarse_look(source, goal, outputs)
            return coarse_look(source, size, outputs, moments=asked_moments(goal)).method(self.overhead)
        if self.second_derivatives:
            cost, pass_cost = self._taylor_costs(source)
            length = suited_length(source, goal, self.passes, self.overhead + cost, surrogate=True, pass_cost=pass_cost)
            return replace(self, gradient_masks=0, passes=length)
        samples = self.gradient_masks
        if samples is None:
            samples = GRADIENT_MASKS if affordable(source, goal, GRADIENT_MASKS) else 0
        ahead = self.overhead + preparation_cost(source, samples)
        length = suited_length(source, goal, self.passes, ahead, surrogate=True)
        return replace(self, gradient_masks=samples, passes=length)

    def _taylor_costs(self, source: Source) -> tuple[float, float]:
        """What all derivatives cost in passes, and a pass with its companion; seen on one row."""
        sampler, program, row = source.sampler, source.program, source.batch[:1]
        slopes = linearise(sampler, program, row)
        heads = outputs_by_head(heads_of(sampler, program, row, slopes, source.seed) if self.heads else ())
        cost = slopes.cost + taylor_cost(sampler, program, row, heads)
        return cost, 1.0 + value_cost(sampler, program, row, heads)

    def describe(self) -> dict[str, Any]:
        """The size of designs, and what is behind the surrogate."""
        found = {"design": self.passes, "gradient_masks": self.gradient_masks}
        return found | ({"second_derivatives": True} if self.second_derivatives else {})

    def bind(self, source: Source) -> BoundDesigns:
        """Differentiate once for these inputs.

        Args:
            source: The passes of the inputs.

        Returns:
            The method, ready to run.

        Raises:
            DerivativeError: If the outputs have no derivatives.
        """
        samples, program = self.gradient_masks or 0, source.program
        held = passes_in_memory(program, samples) if samples else PASSES_OF_A_GRADIENT
        if self.second_derivatives:
            held = max(held, COPIES * taylor_bytes(program, {}) // program.bytes_per_row)
        bound = [self._prepared(rows, part, samples) for rows, part in source.parts(held)]
        parts = tuple(prepared for prepared, _ in bound)
        overhead = self.overhead + max(cost for _, cost in bound)
        pass_cost = 1.0
        if self.second_derivatives:
            heads = outputs_by_head(parts[0].heads)
            pass_cost += value_cost(source.sampler, program, source.batch, heads)
        return BoundDesigns(self, self.passes, parts, overhead, self.reason, pass_cost)

    def _prepared(self, rows: slice, source: Source, samples: int) -> tuple[PreparedRows, float]:
        """Heads and surrogate of some rows, and their cost in passes."""
        sampler, program, batch = source.sampler, source.program, source.batch
        slopes = linearise(sampler, program, batch)
        heads = heads_of(sampler, program, batch, slopes, source.seed) if self.heads else ()
        averaged, more = outputs_by_head(heads), 0.0
        surrogate: Expansion | Quadratic | Taylor = expansion_of(program, slopes, averaged)
        if self.second_derivatives:
            surrogate, more = fit_taylor(sampler, program, batch, averaged)
        elif samples:
            with suppress(DerivativeError):  # the linear one is there
                surrogate, more = fit_quadratic(
                    sampler, program, batch, samples, averaged, source.seed, source.row_numbers
                )
        return PreparedRows(rows, heads, surrogate), slopes.cost + more


def affordable(source: Source, goal: Goal, samples: int = 1, share: float = 0.1) -> bool:
    """Whether gradients of every output cost little of the passes to come.

    Args:
        source: The passes of the inputs.
        goal: When to stop.
        samples: Masks at which they are taken.
        share: Of the passes to come.

    Returns:
        Whether they cost at most that share.
    """
    width = source.program.structure.width
    return bool(samples * (1 + width) <= share * (goal.budget or UNKNOWN_BUDGET))


def _unsupported(source: Source) -> str:
    """Why there can be no surrogate, and what to do."""
    active = source.program.active
    unclear = [s.name for s in active if not s.splits_by_row or (s.row_axis is None and expandable(s))]
    found = f"which is not so for {unclear}" if unclear else f"of which {[s.name for s in active]} have none"
    return (
        f"method='control-variate' needs mask units that belong to one input row each, {found}; use method='stratified'"
    )
