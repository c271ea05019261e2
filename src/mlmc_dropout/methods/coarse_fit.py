"""What is carried of both levels, and what is made of it: coefficients, their sum group by group, and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.methods.base import LevelEstimate
from mlmc_dropout.methods.coarse_errors import LevelErrors
from mlmc_dropout.methods.coarse_rows import DESIGN
from mlmc_dropout.methods.designs import Joint, coefficients
from mlmc_dropout.methods.states import merge_states
from mlmc_dropout.methods.tails import Trust, trust
from mlmc_dropout.methods.worth import Worth, errors_doubted, excess, gain
from mlmc_dropout.moments import MomentBlock

__all__ = ["CoarseState", "Fitted", "coarse_trust", "coarse_worth", "level_errors", "level_estimates"]

Array = NDArray[np.float64]

MIN_PASSES = 16  # for groups that tell a standard error
LEAST_DESIGNS = 32  # one for every group
FEWEST_DESIGNS = 8  # where those would take most of the passes: fewer groups, and wider standard errors
_ALIKE = 12.0  # passes' worth of belief that a feature has the coefficient of all


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


def level_estimates(
    state: CoarseState, errors2: tuple[Array, Array], cost: float, coarse_cost: float
) -> Iterator[LevelEstimate]:
    """Statistics of both levels, for the table of levels.

    Args:
        state: Both levels.
        errors2: Squared errors of the mean and of the variance.
        cost: Passes spent.
        coarse_cost: c_0, in passes.

    Yields:
        Those of the coarse level, then those of the correction.
    """
    assert state.passes is not None and state.rest is not None and state.coarse is not None
    both: Joint = merge_states(state.even, state.odd)
    width, coarse = state.passes.mean.shape[-1], state.coarse
    assert both.c is not None
    main = both.c.mean[:, :width], both.c.variance[:, :width]
    unknown = np.full_like(main[0], np.nan)
    fourth = excess(state.passes)
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.sqrt(np.clip(1 - state.rest.variance / state.passes.variance, 0, 1))
    size = coarse.count * DESIGN
    yield LevelEstimate("coarse", 0, size, size * coarse_cost, *main, unknown, main[1], unknown, unknown)
    yield LevelEstimate(
        "correction",
        1,
        state.rest.count,
        state.rest.count * (1 + coarse_cost),
        state.rest.mean,
        state.rest.variance,
        state.rest.kurtosis,
        state.passes.variance,
        fourth,
        state.passes.kurtosis,
        correlation=correlation,
        gain=gain(state.passes.variance, errors2[0], cost),
        gain_V=gain(fourth, errors2[1], cost),
    )


def coarse_worth(state: CoarseState, errors2: tuple[Array, Array], groups: int) -> Worth:
    """Squared errors beside those of plain averaging.

    Args:
        state: Both levels.
        errors2: Squared errors of the mean and of the variance.
        groups: Groups that tell the second.

    Returns:
        Both.
    """
    assert state.passes is not None and state.rest is not None
    doubts = (
        errors_doubted(state.rest.kurtosis, state.rest.count - 1),
        np.maximum(errors_doubted(state.passes.kurtosis, state.passes.count - 1), np.sqrt(2.0 / max(groups - 1, 1))),
    )
    return Worth.of(state.passes.variance, excess(state.passes), *errors2, doubts, state.passes.count)


def coarse_trust(state: CoarseState, variance: Array, mean_stderr: Array, variance_stderr: Array) -> Trust:
    """What passes, and what the coarse level leaves of them, say about their tails.

    Args:
        state: Both levels.
        variance: Estimates of the variance.
        mean_stderr: Standard errors of the mean.
        variance_stderr: Standard errors of the variance.

    Returns:
        Where they can be believed.
    """
    assert state.passes is not None and state.rest is not None
    rest = trust(state.rest, are_outputs=False)
    whole = trust(state.passes) & Trust(rest.mean, rest.mean)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = mean_stderr / np.sqrt(variance), variance_stderr / variance
    return whole.where_it_matters(*share)


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
