"""What each of two levels leaves of the error of a mean, and where the next round lowers it most.

With n passes and d designs of the coarse level, the squared standard error of a mean is a/n + b/d. Both parts are
estimated from all their samples, so that many degrees of freedom are behind them. Each input has its own a and b, and
the least cost of a/n + b/d ≤ v at prices c_n and c_d is that of

    n = (a + sqrt(a b c_d/c_n))/v,    d = (b + sqrt(a b c_n/c_d))/v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.methods.designs import Joint
from mlmc_dropout.methods.tails import student_factor
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.stopping.goal import MAX_GROWTH
from mlmc_dropout.stopping.rows import Needs, aimed_at

__all__ = ["LevelErrors", "next_counts"]

Array = NDArray[np.float64]

_BEYOND = (1.05, 1.1, 1.2, 1.4, 2.0)  # times the least passes that are considered
_SHARE = 0.6  # of these inputs that the round is to settle: a few would take much more
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class LevelErrors:
    """Squared standard errors of a mean, (rows, width).

    Attributes:
        fine: What passes leave, a/n.
        coarse: What the coarse level leaves, b/d.
        freedom: Degrees of freedom of their sum (Satterthwaite), fewer where samples have heavy tails.
        counted: The same as if they were Gaussian, for Student's factor.
    """

    fine: Array
    coarse: Array
    freedom: Array
    counted: Array

    @classmethod
    def of(
        cls,
        halves: tuple[Joint, Joint],
        betas: tuple[Array, Array],
        counts: tuple[NDArray[np.int64], NDArray[np.int64]],
        rest: MomentBlock,
        designs: MomentBlock,
    ) -> LevelErrors:
        """From the moments of both levels.

        Args:
            halves: Passes with even and with odd numbers.
            betas: The coefficients that each of them gets.
            counts: Passes, and designs, of each group; even groups have the coefficient of even passes.
            rest: Passes less the coarse level beside them.
            designs: Means over designs of the coarse level.

        Returns:
            The errors.
        """
        width = rest.mean.shape[-1]
        n = sum(half.v.count for half in halves)
        pairs = zip(halves, betas, strict=True)
        spreads = [half.features(slice(width)).spread(beta[..., :width]) for half, beta in pairs]
        fine = sum(half.v.count * spread for half, spread in zip(halves, spreads, strict=True)) / n**2
        shares = np.square(counts[0] / n) / counts[1]
        of_halves = [shares[start::2].sum() * np.square(betas[start][..., :width]) for start in range(2)]
        coarse = sum(of_halves) * designs.variance
        tails = [np.maximum(np.nan_to_num(block.kurtosis, nan=3.0), 3.0) for block in (rest, designs)]
        parts = [(fine, rest.count - 1), (coarse, designs.count - 1)]
        heavy = [(error, np.maximum(2.0 * n / (k - 1.0), 1.0)) for (error, n), k in zip(parts, tails, strict=True)]
        return cls(np.asarray(fine), np.asarray(coarse), _freedom(*heavy), _freedom(*parts))

    @property
    def stderr(self) -> Array:
        """Standard errors, Student's factor included."""
        return np.asarray(student_factor(self.counted + 1.0) * np.sqrt(self.fine + self.coarse))


def _freedom(first: tuple[Array, Any], second: tuple[Array, Any]) -> Array:
    """(A + B)²/(A²/ν_A + B²/ν_B) of two parts with their degrees of freedom."""
    total = first[0] + second[0]
    shares = [(error / np.maximum(total, _TINY), freedom) for error, freedom in (first, second)]
    below = sum(np.square(share) / freedom for share, freedom in shares)
    return np.asarray(np.where(total > 0, 1.0 / np.maximum(below, 1e-12), first[1]))


def next_counts(
    errors: LevelErrors, passes: int, designs: int, needs: Needs, prices: tuple[float, float]
) -> tuple[int, int]:
    """Passes and designs after the next round, which is to settle the easiest inputs at the least cost.

    Args:
        errors: Of the inputs that go on.
        passes: Passes so far.
        designs: Designs so far.
        needs: What each of them needs.
        prices: Costs of a pass and of a design.

    Returns:
        Both counts; one of them at least is larger than before.
    """
    aimed = aimed_at(needs)
    a, b = errors.fine[aimed] * passes, errors.coarse[aimed] * designs
    wanted = np.maximum(a / passes + b / designs, _TINY).max(axis=1) / np.maximum(needs.precision[aimed], _TINY)
    least = passes * np.maximum(needs.least[aimed], _TINY)
    best = (np.inf, float(passes), float(designs))
    for beyond in _BEYOND:
        n = np.maximum(least * beyond, passes)
        v = wanted * (1.0 - np.square(least / n))  # the rest is for masks that may not have come up
        n = np.maximum(n, _alone(a, b, v, prices[1] / prices[0]))
        d = np.maximum((b / np.maximum(v[:, None] - a / n[:, None], _TINY)).max(axis=1), designs)
        n_all, d_all = (float(np.quantile(each, _SHARE, method="inverted_cdf")) for each in (n, d))
        n_all, d_all = min(n_all, MAX_GROWTH * passes), min(d_all, MAX_GROWTH * designs)
        best = min(best, (n_all * prices[0] + d_all * prices[1], n_all, d_all))
    n_all, d_all = int(np.ceil(best[1])), int(np.ceil(best[2]))
    grown = n_all >= 1.02 * passes or d_all >= 1.02 * designs
    return (n_all, d_all) if grown else (n_all + passes // 20 + 1, d_all + designs // 20 + 1)


def _alone(a: Array, b: Array, v: Array, ratio: float) -> Array:
    """Passes at the least cost of a/n + b/d ≤ v, the largest over the components of each input."""
    return np.asarray(((a + np.sqrt(a * b * ratio)) / v[:, None]).max(axis=1))
