"""A ladder that grows: how many levels, decided from pilots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlmc_dropout.errors import LadderError
from mlmc_dropout.methods.mlmc.ladder import Ladder

__all__ = ["Adaptive", "finest_share", "next_fidelity"]


def finest_share(variances: Sequence[float]) -> float:
    """Contribution of the finest correction to S² when all levels have equally many replicates.

    The share is the last variance over their sum. At equal counts M it is (S²(ΔY_L)/M) / S²_Y, the two sides of the
    paper's criterion (eq:mlmc:fidelity_stopping_criterion). Equal counts matter: with optimal counts every correction
    of a geometric ladder contributes about the same, so that the share falls only like one over the number of levels.

    Args:
        variances: Sample variances S²(Y_0), S²(ΔY_1), … S²(ΔY_L) (or those of V), averaged over components.

    Returns:
        The share, between 0 and 1.

    Example:
        >>> round(finest_share([1.0, 0.5, 0.25]), 3)
        0.143
        >>> finest_share([0.0, 0.0])
        0.0
    """
    total = float(np.sum(variances))
    return float(variances[-1]) / total if total > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Adaptive:
    """A ladder T_0, T_0·r, T_0·r², … that grows until the finest correction is negligible for mean and variance.

    Attributes:
        start: T_0, at least 2.
        ratio: r, a whole number of at least 2.
        share: What is negligible: a share of S², between 0 and 1.

    Examples:
        >>> Adaptive(start=4, ratio=3).first_levels.fidelities
        (4, 12)
    """

    start: int = 2
    ratio: int = 2
    share: float = 0.05

    def __post_init__(self) -> None:
        for name in ("start", "ratio"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 2:
                raise LadderError(f"{name} of an adaptive ladder is a whole number of at least 2: got {value!r}")
        if not 0.0 < self.share < 1.0:
            raise LadderError(
                f"share of an adaptive ladder must lie between 0 and 1: got {self.share!r}; 0.05 is usual"
            )

    @property
    def first_levels(self) -> Ladder:
        """The ladder to begin with."""
        return Ladder((self.start, self.start * self.ratio))

    def settled(self, mean: Sequence[float], variance: Sequence[float]) -> bool:
        """Whether the finest of these level variances are negligible for both moments.

        Args:
            mean: Level variances of Y.
            variance: Level variances of V.

        Returns:
            Whether no further level is needed.
        """
        return max(finest_share(mean), finest_share(variance)) < self.share


def next_fidelity(ladder: Ladder, ratio: int = 2) -> Ladder:
    """The ladder with one level more.

    Args:
        ladder: A ladder.
        ratio: Of the new fidelity to the last.

    Returns:
        The longer ladder.

    Example:
        >>> next_fidelity(Ladder((2, 4))).fidelities
        (2, 4, 8)
    """
    return Ladder((*ladder.fidelities, ladder.fidelities[-1] * ratio))
