"""Quantiles of the output of a pass, from shares of passes below a grid of thresholds.

The grid of a component follows from its centre m and scale s, found from a few passes: t_j = m + s sinh(u_j), fine in
the middle and reaching far into the tails, so that a rough scale will do. Between two thresholds the normal quantile
of the share is taken as linear in t. Standard errors are Woodruff's (J. Amer. Statist. Assoc. 47, 1952): with e the
standard error of the share at the quantile, half the distance of the quantiles at the levels τ ± e. What the grid does
not resolve is told by leaving out every second threshold: half of what that changes is added in squares. Probabilities
are looked at through their logits, which keep quantiles in order and know no steep ends at 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri
from torch import Tensor

from mlmc_dropout.errors import InputError
from mlmc_dropout.quantities.base import Feature, GroupMeans, QuantityEstimate, Question
from mlmc_dropout.quantities.outputs import CLASS_OUTPUTS, is_number
from mlmc_dropout.quantities.student import student_factor
from mlmc_dropout.quantities.view import View

__all__ = ["LOCATION_PASSES", "Quantile", "locate"]

Array = NDArray[np.float64]

LOCATION_PASSES = 8  # passes that find centre and scale
POINTS = 97
_TINY, _EPS = np.finfo(np.float32).tiny, np.finfo(np.float64).eps  # of probabilities that are 0 and 1
_INTERVAL = 1.96  # standard errors at which the distance of levels is measured
_JUMPS, _STEEP = 4.0, 0.12  # standard errors of a share, and share, that one cell of the grid may hold
_REACH = 6.0  # u of the last threshold: sinh 6 = 200 scales
_U = torch.linspace(-_REACH, _REACH, POINTS, dtype=torch.float64)


def locate(main: Array, outputs: str = "values") -> Array:
    """Centres and scales of a few passes.

    Args:
        main: Passes, (passes, rows, width).
        outputs: What the network returns; of probabilities it is their logits that are located.

    Returns:
        Both, (2, rows, width); scales are positive.
    """
    if outputs in CLASS_OUTPUTS:
        main = logit(np.clip(main, _TINY, 1 - _EPS))
    centre = np.median(main, axis=0)
    scale = np.abs(main - centre).mean(axis=0)
    return np.stack([centre, np.maximum(scale, 1e-12 * np.abs(centre) + 1e-300)])


@dataclass(frozen=True, slots=True)
class Quantile:
    """The value that a pass stays below with a given probability, one for every output component.

    Attributes:
        level: The probability τ, between 0 and 1.

    Examples:
        >>> Quantile(0.95).name
        'quantile_0.95'
    """

    level: float

    def __post_init__(self) -> None:
        if not is_number(self.level) or not 0 < self.level < 1:
            raise InputError(f"the level of a quantile is a probability between 0 and 1: got Quantile({self.level!r})")

    @property
    def name(self) -> str:
        """Its name in results."""
        return f"quantile_{self.level:g}"

    def question(self, outputs: str = "values") -> Question:
        """The quantile, from the shares below a grid that all quantiles have in common.

        Args:
            outputs: What the network returns.

        Returns:
            The question.
        """
        back = expit if outputs in CLASS_OUTPUTS else np.asarray
        return Question(self.name, (_BELOW, _CENTRE, _SCALE), partial(self._answer, back), like_outputs=True)

    def _answer(self, back: Callable[[Array], Array], groups: GroupMeans) -> QuantityEstimate:
        """The quantile from groups; ``back`` leads from the grid to the outputs."""
        below, n = groups.means["below"], groups.passes
        weights = groups.counts / groups.counts.sum()
        centre, scale = (np.tensordot(weights, groups.means[name], axes=1) for name in ("centre", "scale"))
        shares = np.maximum.accumulate(np.tensordot(weights, below, axes=1), axis=-1)
        u = _quantile(shares, self.level, n)
        at = _interpolated(below, u)
        K = len(weights)
        spread = np.tensordot(weights, np.square(at - np.tensordot(weights, at, axes=1)), axes=1) / max(K - 1, 1)
        error = float(student_factor(K)) * np.sqrt(spread) + 0.5 / (n + 4)  # a share is known to half a pass
        reach = _INTERVAL * error
        below_it, above_it = np.clip(self.level - reach, 0, 1), np.clip(self.level + reach, 0, 1)
        levels: tuple[Array | float, ...] = (self.level, below_it, above_it)
        value, low, high = (back(centre + scale * np.sinh(_quantile(shares, level, n))) for level in levels)
        coarse = back(centre + scale * np.sinh(_quantile(shares[..., ::2], self.level, n)))
        inside = (shares[..., 0] <= below_it) & (shares[..., -1] >= above_it)  # the grid reaches as far as is needed
        left, right, jump = _cell(shares, u)
        cell = np.abs(back(centre + scale * np.sinh(right)) - back(centre + scale * np.sinh(left)))
        smooth = jump <= np.maximum(_JUMPS * error, _STEEP)  # otherwise few values carry the law, and one lies here
        stderr = np.hypot((high - low) / (2 * _INTERVAL), (coarse - value) / 2)
        return QuantityEstimate(value, np.where(smooth, stderr, np.maximum(stderr, cell / 2)), inside & smooth)


def _thresholds(view: View) -> Tensor:
    assert view.locations is not None
    centre, scale = view.locations
    thresholds: Tensor = centre[..., None] + scale[..., None] * torch.sinh(_U.to(centre))
    return thresholds


def _below(view: View) -> Tensor:
    main = (view.main if view.outputs not in CLASS_OUTPUTS else view.main.logit())[..., None]
    return (main <= _thresholds(view).to(main)).to(main.dtype)


def _location(index: int) -> Feature:
    def constant(view: View) -> Tensor:
        assert view.locations is not None
        return view.locations[index].expand(len(view.carried), -1, -1)

    return Feature(("centre", "scale")[index], constant)


_BELOW = Feature("below", _below)
_CENTRE, _SCALE = _location(0), _location(1)


def _quantile(shares: Array, level: Array | float, n: int) -> Array:
    """The u at which the share is ``level``; shares at all or every second threshold do not decrease."""
    target = np.broadcast_to(np.asarray(level, dtype=np.float64), shares.shape[:-1])
    clear = 0.5 / (n + 1)  # no pass beyond a threshold is not the same as none to come
    z, wanted = (ndtri(np.clip(values, clear, 1 - clear)) for values in (shares, target))
    right = np.clip((z < wanted[..., None]).sum(axis=-1), 1, shares.shape[-1] - 1)[..., None]
    z0, z1 = np.take_along_axis(z, right - 1, -1)[..., 0], np.take_along_axis(z, right, -1)[..., 0]
    u = np.asarray(_U)[:: (POINTS - 1) // (shares.shape[-1] - 1)]
    u0, u1 = u[right[..., 0] - 1], u[right[..., 0]]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.clip(np.nan_to_num((wanted - z0) / (z1 - z0), nan=0.5, posinf=1.0, neginf=0.0), 0, 1)
    return np.asarray(np.arcsinh(np.sinh(u0) + part * (np.sinh(u1) - np.sinh(u0))))


def _cell(shares: Array, u: Array) -> tuple[Array, Array, Array]:
    """The ends of the cell of the grid that holds u, and the share of passes in it."""
    grid = np.asarray(_U)
    right = np.clip(np.searchsorted(grid, u), 1, POINTS - 1)
    high, low = (np.take_along_axis(shares, index[..., None], -1)[..., 0] for index in (right, right - 1))
    return grid[right - 1], grid[right], high - low


def _interpolated(shares: Array, u: Array) -> Array:
    """Shares of every group at u, linear between thresholds."""
    grid = np.asarray(_U)
    right = np.clip(np.searchsorted(grid, u), 1, POINTS - 1)
    t, t0, t1 = np.sinh(u), np.sinh(grid[right - 1]), np.sinh(grid[right])
    part = (t - t0) / (t1 - t0)
    index = np.broadcast_to(right[None, ..., None], (*shares.shape[:-1], 1))
    low, high = np.take_along_axis(shares, index - 1, -1)[..., 0], np.take_along_axis(shares, index, -1)[..., 0]
    return np.asarray(low + part * (high - low))
