"""Stratified masks: designs of passes over which every unit is dropped equally often, no derivatives needed.

Where a linear head follows the last dropout, and derivatives are cheap, its masks are averaged out in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlmc_dropout.methods.base import OneStage
from mlmc_dropout.methods.design_length import (
    DESIGN,
    MIN_PAIRS,
    SHORT,
    UNKNOWN_BUDGET,
    preparation_cost,
    suited_length,
)
from mlmc_dropout.methods.paired_designs import BoundDesigns
from mlmc_dropout.methods.prepared_rows import PreparedRows
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal
from mlmc_dropout.surrogates.derivatives import DerivativeError
from mlmc_dropout.surrogates.linear import PASSES_OF_A_GRADIENT, linearise, supported
from mlmc_dropout.surrogates.linear_head import heads_of

__all__ = ["Stratified"]

PREPARATION_SHARE = 0.025  # of the passes to come: more is not spent on derivatives that heads alone may need


@dataclass(frozen=True, slots=True)
class Stratified(OneStage):
    """Pairs of stratified designs.

    Attributes:
        passes: T, the most passes of a design.
        heads: Average out the last dropout where a linear map follows it; ``None``: if that is cheap.
        overhead: Passes that a pilot spent before.
        reason: Why it was chosen, if it was.
    """

    passes: int = DESIGN
    heads: bool | None = None
    overhead: float = 0.0
    reason: str = ""

    @property
    def name(self) -> str:
        """The name users choose it by."""
        return "stratified"

    def min_cost(self) -> int:
        """A few pairs of designs, which may be short until they are bound."""
        return 2 * MIN_PAIRS * min(self.passes, SHORT) + int(np.ceil(self.overhead))

    def choose(self, source: Source, goal: Goal) -> Stratified:
        """Shorter designs for small budgets, so that enough pairs are left for standard errors.

        Args:
            source: The passes of the inputs.
            goal: When to stop.

        Returns:
            The method with designs that suit the goal.
        """
        heads = self.heads
        if source.observation.outputs != "values":
            heads = False  # what is affine before outputs are read is not after
        if heads is None:
            heads = preparation_cost(source) <= PREPARATION_SHARE * (goal.budget or UNKNOWN_BUDGET)
        ahead = self.overhead + (preparation_cost(source) if heads else 0.0)
        return replace(self, heads=heads, passes=suited_length(source, goal, self.passes, ahead, surrogate=False))

    def describe(self) -> dict[str, Any]:
        """The size of designs."""
        return {"design": self.passes}

    def bind(self, source: Source) -> BoundDesigns:
        """Differentiate once for these inputs, if heads are wanted.

        Args:
            source: The passes of the inputs.

        Returns:
            The method, ready to run.
        """
        if not supported(source.program) or not self.heads or source.observation.outputs != "values":
            parts = tuple(PreparedRows(rows) for rows, _ in source.parts(self.passes))
            return BoundDesigns(self, self.passes, parts, self.overhead, self.reason)
        bound = [_with_heads(rows, part) for rows, part in source.parts(PASSES_OF_A_GRADIENT)]
        parts = tuple(prepared for prepared, _ in bound)
        overhead = self.overhead + max(cost for _, cost in bound)
        return BoundDesigns(self, self.passes, parts, overhead, self.reason)


def _with_heads(rows: slice, source: Source) -> tuple[PreparedRows, float]:
    """Heads of some rows, and their cost in passes."""
    sampler, program, batch = source.sampler, source.program, source.batch
    try:
        slopes = linearise(sampler, program, batch)
    except DerivativeError as error:
        return PreparedRows(rows, without_heads=error.cause), 1.0
    heads = heads_of(sampler, program, batch, slopes, source.seed)
    return PreparedRows(rows, heads), slopes.cost
