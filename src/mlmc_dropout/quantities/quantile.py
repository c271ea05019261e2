"""Quantiles of the output of a pass, from shares of passes below a grid of thresholds.

The grid of a component and level follows from a few passes: it is laid out around where these have the quantile, as
finely as they know it, and reaches far into the tails. Of every cell between two thresholds the mean and the variance
of the places of its passes are kept as well, so that a law of few values, each in a cell of its own, is known exactly.

The interval is Woodruff's (J. Amer. Statist. Assoc. 47, 1952): with e the standard error of the share at the quantile,
it reaches from the quantile at the level τ − 1.96 e to that at τ + 1.96 e. It is not symmetric, and needs no density:
it holds for laws of few values, too, of which the quantile is the least t with P(D ≤ t) ≥ τ. Where one cell holds
several values and more passes than e can tell apart, the interval reaches to the ends of the cell, and the component is
not reliable. Probabilities are looked at through their logits, which keep quantiles in order and know no steep ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaincinv, expit, logit, ndtri
from torch import Tensor

from mlmc_dropout.errors import InputError
from mlmc_dropout.quantities.base import INTERVAL, Feature, GroupMeans, QuantityEstimate, Question
from mlmc_dropout.quantities.outputs import CLASS_OUTPUTS, is_number
from mlmc_dropout.quantities.student import student_factor
from mlmc_dropout.quantities.view import View

__all__ = ["LOCATION_PASSES", "Quantile", "locate"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

LOCATION_PASSES = 16  # that tell where quantiles lie
_ENOUGH = 4.0  # of them on either side of a level: beyond, a normal tail is taken to follow
POINTS = 49  # thresholds
_TINY, _EPS = np.finfo(np.float32).tiny, np.finfo(np.float64).eps  # of probabilities that are 0 and 1
_WIDTH = 0.25  # of the cells in the middle, in standard errors of what those passes tell
_FINE = 12.0  # cells to either side that are nearly as fine
_DEVIATIONS = 1.2533  # a standard deviation of a normal law in mean absolute deviations
_POINT = 1e-8  # variance within a cell, in squares of its width: all passes have one value but for rounding
_SOME, _MANY = 1.0, 3.0  # standard errors of a share that a cell holds: at an end of the interval, at the quantile
_ODD = 3.0  # standard errors by which its neighbours may differ
_EVEN, _OFF, _CHANCE = 1 / 12, 0.02, 0.11  # variance in a cell filled evenly, what it may be off, twice its error


def _offsets() -> Array:
    """Thresholds in units of the grid: widths of cells grow like exp((j/12)³), to 1000 times the least."""
    half = (POINTS - 1) // 2
    widths = _WIDTH * np.exp((np.arange(half) / _FINE) ** 3)
    right = np.cumsum(widths)
    return np.concatenate([-right[::-1], [0.0], right])


_X = _offsets()


def locate(main: Array, outputs: str = "values") -> Array:
    """A few passes in ascending order.

    Args:
        main: Passes, (passes, rows, width).
        outputs: What the network returns; of probabilities it is their logits that are located.

    Returns:
        The same, every component in order.
    """
    if outputs in CLASS_OUTPUTS:
        main = logit(np.clip(main, _TINY, 1 - _EPS))
    return np.sort(main, axis=0)


@dataclass(frozen=True, slots=True)
class Quantile:
    """The least value that a pass stays at or below with a given probability, one for every output component.

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
        """The quantile, from the shares below a grid of its own.

        Args:
            outputs: What the network returns.

        Returns:
            The question.
        """
        back = expit if outputs in CLASS_OUTPUTS else np.asarray
        known = {
            "cells": self._cells,
            "place": lambda view: _everywhere(view, self._grid(view)[0]),
            "unit": lambda view: _everywhere(view, self._grid(view)[1]),
        }
        shares = Feature(self._named("shares"), self._shares, needs_locations=True)
        of_passes = (Feature(self._named(w), of, needs_locations=True, controlled=False) for w, of in known.items())
        uses = (shares, *of_passes)
        return Question(self.name, uses, partial(self._answer, back), like_outputs=True)

    def _named(self, what: str) -> str:
        return f"{what} of {self.name}"

    def _grid(self, view: View) -> tuple[Tensor, Tensor]:
        """The middle of the grid and its unit, (rows, width): about where the quantile lies, and how well it is known.

        Where the level has too few of the located passes on one side, the last level that has enough, and from there
        on as far as in a normal law.
        """
        assert view.locations is not None
        located = view.locations
        count = len(located)
        inner = min(max(self.level, _ENOUGH / count), 1 - _ENOUGH / count) if count > 2 * _ENOUGH else 0.5
        index = min(max(inner * count - 0.5, 0.0), count - 1.0)
        low = int(index)
        place = located[low] + (index - low) * (located[min(low + 1, count - 1)] - located[low])
        centre = (located[(count - 1) // 2] + located[count // 2]) / 2
        scale = _DEVIATIONS * (located - centre).abs().mean(dim=0)
        scale = torch.maximum(scale, 1e-12 * centre.abs() + 1e-300)
        return place + scale * float(ndtri(self.level) - ndtri(inner)), scale / count**0.5

    def _shares(self, view: View) -> Tensor:
        """Whether a pass stays at or below each threshold."""
        places = self._places(view)
        return (places <= torch.from_numpy(_X).to(places)).to(places.dtype)

    def _cells(self, view: View) -> Tensor:
        """Whether a pass lies in each cell, where in it, from 0 to 1, and the square of that."""
        places = self._places(view)
        grid = torch.from_numpy(_X).to(places)
        right = torch.searchsorted(grid, places)  # of the cell, itself included
        inside = ((right > 0) & (right < POINTS)).to(places.dtype)
        cell = (right - 1).clamp_(0, POINTS - 2)
        where = (places - grid[cell]) / grid.diff()[cell]
        numbers = torch.stack([inside, inside * where, inside * where.square()], dim=-2)
        cells = places.new_zeros(*places.shape[:-1], 3, POINTS - 1)
        return cells.scatter_(-1, cell[..., None, :].expand(numbers.shape), numbers)

    def _places(self, view: View) -> Tensor:
        """Passes in units of the grid, (passes, rows, width, 1)."""
        place, unit = self._grid(view)
        main = view.main if view.outputs not in CLASS_OUTPUTS else view.main.logit()
        return ((main.to(place) - place) / unit)[..., None].contiguous()

    def _answer(self, back: Callable[[Array], Array], groups: GroupMeans) -> QuantityEstimate:
        """The quantile from groups; ``back`` leads from the grid to the outputs."""
        shares, cells, place, unit = (groups.means[self._named(w)] for w in ("shares", "cells", "place", "unit"))
        weights = groups.counts / groups.counts.sum()
        law = _Law.of(np.tensordot(weights, shares, axes=1), np.tensordot(weights, cells, axes=1), groups.passes)
        middle = law.quantile(self.level)
        error = _error_of_share(law, middle, shares, weights)
        ends = [np.clip(self.level + sign * INTERVAL * error, 0.0, 1.0) for sign in (-1, 1)]
        left, right = law.interval(law.quantile(ends[0]), law.quantile(ends[1]), error)
        value, low, high = (back(place[0] + unit[0] * x) for x in (middle.place, left, right))
        inside = (law.shares[..., 0] <= ends[0]) & (law.shares[..., -1] >= ends[1])
        stderr = np.maximum(high - value, value - low) / INTERVAL
        return QuantityEstimate(value, stderr, inside & ~law.lump(middle, error), low=low, high=high)


@dataclass(frozen=True, slots=True)
class _Found:
    """A quantile on the grid.

    Attributes:
        cell: Index of the cell that it lies in.
        held: Share of passes in this cell.
        part: Part of these that lie below it.
        place: Where it is, in units of the grid.
    """

    cell: Indices
    held: Array
    part: Array
    place: Array


@dataclass(frozen=True, slots=True)
class _Law:
    """The law of passes on the grid; within a cell it is the beta law that has the mean and variance of its passes.

    Attributes:
        shares: Shares of passes at or below the thresholds, not decreasing.
        mean: Mean place within each cell, from 0 to 1.
        variance: Its variance.
        passes: Passes behind it.
    """

    shares: Array
    mean: Array
    variance: Array
    passes: int

    @classmethod
    def of(cls, shares: Array, cells: Array, passes: int) -> _Law:
        """From means of features. Control variates can leave shares slightly out of order."""
        upper = np.maximum.accumulate(shares, axis=-1)
        lower = np.minimum.accumulate(shares[..., ::-1], axis=-1)[..., ::-1]
        held, first, second = (cells[..., i, :] for i in range(3))
        some, count = held > 0, np.maximum(held, 1e-300)
        mean = np.where(some, np.clip(first / count, 0.0, 1.0), 0.5)
        variance = np.where(some, second / count - np.square(mean), _EVEN)
        return cls((upper + lower) / 2, mean, np.clip(variance, 0.0, mean * (1 - mean)), passes)

    def quantile(self, level: Array | float) -> _Found:
        """Where the share is ``level``."""
        target = np.broadcast_to(np.asarray(level, dtype=np.float64), self.shares.shape[:-1])
        cell = np.clip((self.shares < target[..., None]).sum(axis=-1), 1, POINTS - 1) - 1
        held = _taken(np.diff(self.shares), cell)
        part = np.clip((target - _taken(self.shares, cell)) / np.where(held > 0, held, 1.0), 0.0, 1.0)
        mean, variance = _taken(self.mean, cell), _taken(self.variance, cell)
        point = variance <= _POINT
        total = np.maximum(mean * (1 - mean) / np.where(point, 1.0, variance) - 1, 1e-3)
        shape = [np.where(point, 1.0, np.maximum(m * total, 1e-3)) for m in (mean, 1 - mean)]
        within = np.where(point, mean, betaincinv(*shape, part))
        return _Found(cell, held, part, _X[cell] + within * (_X[cell + 1] - _X[cell]))

    def interval(self, lower: _Found, upper: _Found, error: Array) -> tuple[Array, Array]:
        """Both ends, where necessary as far as their cells reach; a single value is known up to rounding."""
        ends = []
        for sign, found in ((-1, lower), (1, upper)):
            variance, width = _taken(self.variance, found.cell), np.diff(_X)[found.cell]
            rounding = np.where(variance <= _POINT, 4 * np.sqrt(variance) + 1e-7, 0.0) * width
            uneven = (found.held > _SOME * error) & self._uneven(found) | self.lump(found, error)
            ends.append(np.where(uneven, _X[found.cell + (sign > 0)], found.place + sign * rounding))
        return ends[0], ends[1]

    def lump(self, found: _Found, error: Array) -> NDArray[np.bool_]:
        """Whether a cell has more passes than the error can tell apart, unlike its neighbours or within it."""
        width = np.diff(_X)
        density = np.diff(self.shares) / width
        beside = (_taken(density, np.clip(found.cell + step, 0, POINTS - 2)) for step in (-1, 1))
        left, right = (width[found.cell] * each for each in beside)
        odd = np.abs(found.held - (left + right) / 2) + np.abs(left - right) / 2 > _ODD * error
        several = _taken(self.variance, found.cell) > _POINT
        return np.asarray((found.held > _MANY * error) & (odd & several | self._uneven(found)))

    def _uneven(self, found: _Found) -> NDArray[np.bool_]:
        """Whether a cell has several values that do not fill it evenly."""
        variance = _taken(self.variance, found.cell)
        chance = _CHANCE / np.sqrt(np.maximum(found.held * self.passes, 1.0))
        return np.asarray((np.abs(variance - _EVEN) > _OFF + chance) & (variance > _POINT))


def _error_of_share(law: _Law, found: _Found, shares: Array, weights: Array) -> Array:
    """Standard error of the share at a quantile, from groups; within its cell by that of so many plain passes."""
    index = np.broadcast_to(found.cell, shares.shape[:-1])
    low, high = _taken(shares, index), _taken(shares, index + 1)
    at = low + found.part * (high - low)
    K, n = len(weights), law.passes
    spread = np.tensordot(weights, np.square(at - np.tensordot(weights, at, axes=1)), axes=1) / max(K - 1, 1)
    within = found.held * found.part * (1 - found.part) / n
    # Passes that all lie on one side leave a doubt, as if one more had been seen on the other.
    return np.asarray(np.hypot(float(student_factor(K)) * np.sqrt(spread + within), 1 / (n + 4)))


def _everywhere(view: View, values: Tensor) -> Tensor:
    """What does not depend on the pass, as a feature of every one."""
    return values.expand(len(view.carried), *values.shape)


def _taken(values: Array, index: Indices) -> Array:
    return np.take_along_axis(values, index[..., None], -1)[..., 0]
