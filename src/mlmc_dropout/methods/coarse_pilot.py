"""A few passes of a few rows beside the coarse level: how many coarse samples pay, and what they gain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.methods.coarse_level import (
    DESIGN,
    LEAST_DESIGNS,
    MIN_PASSES,
    BoundCoarseLevel,
    CoarseLevel,
    CoarseRows,
    coarse_cost,
    coarse_features,
)
from mlmc_dropout.sampling import streams
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal
from mlmc_dropout.surrogates.linear import linearise

__all__ = ["CoarseLook", "coarse_look"]

Array = NDArray[np.float64]

SHARE = 0.04  # of the passes to come: more is not spent on looking
PASSES = 32
DESIGNS = 8
MOST_ROWS = 8
RATIOS = (2.0, 400.0)  # of coarse samples to passes
UNKNOWN_BUDGET = 1280.0


@dataclass(frozen=True, slots=True)
class CoarseLook:
    """What a pilot found.

    Attributes:
        ratio: Coarse samples per pass that serve mean and variance best.
        gain: Times fewer passes than plain averaging needs for the mean, without what is spent in advance.
        gain_V: The same for the variance.
        cost: What the pilot cost, in passes of all rows.
        overhead: What the derivatives of all rows will cost.
    """

    ratio: float
    gain: float
    gain_V: float
    cost: float
    overhead: float

    def method(self, overhead: float = 0.0, reason: str = "") -> CoarseLevel:
        """The method it suggests.

        Args:
            overhead: Passes spent before the pilot.
            reason: Why it is chosen.

        Returns:
            The method.
        """
        return CoarseLevel(self.ratio, overhead + self.cost, reason)

    def at(self, budget: float) -> tuple[float, float]:
        """Both gains, less what is spent in advance.

        Args:
            budget: Passes per input.

        Returns:
            Those of the mean and of the variance.
        """
        left = max(budget - self.cost - self.overhead, 0.0) / budget
        return self.gain * left, self.gain_V * left


def coarse_look(source: Source, goal: Goal) -> CoarseLook:
    """Look at a few rows.

    Args:
        source: The passes of the inputs.
        goal: When to stop.

    Returns:
        What was found.

    Raises:
        DerivativeError: If the outputs have no derivatives.
    """
    budget, all_rows = goal.budget or UNKNOWN_BUDGET, source.batch.rows
    gradients = 1 + 2 * source.program.structure.width
    most = int(SHARE * budget * all_rows / (gradients + PASSES))
    looked_at = int(np.clip(most, 1, min(all_rows, MOST_ROWS)))
    spread = np.linspace(0, all_rows - 1, looked_at).round().astype(int)  # neighbours are often alike
    found = [_row(source.of_rows(slice(row, row + 1))) for row in spread]
    total = {name: sum(one[name] for one in found) for name in found[0]}
    c0 = coarse_cost(source)
    ratios = [_best_ratio(total["rest" + m], total["coarse" + m], c0) for m in ("", "_V")]
    ratio = float(np.clip(math.sqrt(ratios[0] * ratios[1]), *RATIOS))
    gains = [
        total["plain" + m] / max((total["rest" + m] + total["coarse" + m] / ratio) * (1 + c0 + ratio * c0), 1e-300)
        for m in ("", "_V")
    ]
    overhead = found[0]["cost"]
    cost = (overhead + PASSES * (1 + c0) + DESIGNS * DESIGN * c0) * looked_at / all_rows
    least = cost + overhead + MIN_PASSES * (1 + c0) + LEAST_DESIGNS * DESIGN * c0
    if budget < least:  # not one design for every group
        gains = [0.0, 0.0]
    return CoarseLook(ratio, gains[0], gains[1], cost, overhead)


def _best_ratio(rest: float, coarse: float, c0: float) -> float:
    """n_0/n_1 = sqrt(V_0 (1 + c_0) / (V_1 c_0))."""
    return math.sqrt(coarse * (1 + c0) / max(rest * c0, 1e-300)) if rest > 0 else RATIOS[1]


def _row(source: Source) -> dict[str, float]:
    """Variances of one row, summed over components: of passes, of what the coarse level leaves, of that level."""
    slopes = linearise(source.sampler, source.program, source.batch)
    part = CoarseRows.of(slice(0, source.batch.rows), source, slopes)
    observation = source.observation.squared()
    bound = BoundCoarseLevel(CoarseLevel(), (part,), 0.0, 0.0, observation)
    D, _, S, _ = bound.both_levels(source, range(PASSES), part, streams.PILOT)
    designs = coarse_features(source, part, observation, np.arange(DESIGNS), streams.PILOT + 1)
    width, centre = observation.main.width, D.mean(axis=0)
    coarse = {"": designs[..., :width], "_V": designs[..., width : 2 * width] - 2 * centre * designs[..., :width]}
    found = {"cost": slopes.cost}
    for moment, v, c in (("", D, S), ("_V", np.square(D - centre), np.square(S - centre))):
        found["plain" + moment] = float(v.var(axis=0, ddof=1).sum())
        found["rest" + moment] = float((v - c).var(axis=0, ddof=1).sum())
        found["coarse" + moment] = DESIGN * float(coarse[moment].var(axis=0, ddof=1).sum())
    return found
