"""Stratified designs of outputs too wide to be held: their state from sums that are carried from pass to pass.

The same numbers as in ``designs``, up to rounding, for plain passes without a companion. Sums of powers tell the
moments of all passes; their differences between two designs tell the mean Y and the inner scatter of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.methods.designs import DesignState, HalfState, Joint
from mlmc_dropout.moments import MomentBlock, PowerSums

__all__ = ["fold_designs"]

Array = NDArray[np.float64]


class _Running:
    """Mean and central sum of squares of arrays that come one by one (Welford 1962), in place and in parts."""

    def __init__(self, size: int) -> None:
        self.count, self.mean, self.s2 = 0, np.zeros(size), np.zeros(size)

    def add(self, values: Array, part: slice) -> None:
        """Add a part of an array; ``count`` includes it."""
        mean, s2 = self.mean[part], self.s2[part]
        d = values - mean
        mean += d / self.count
        d *= values - mean
        s2 += d

    def joint(self, shape: tuple[int, ...]) -> Joint:
        return Joint(MomentBlock(self.count, self.mean.reshape(shape), self.s2.reshape(shape)))


class _Half:
    """Even or odd pairs of designs: see ``designs.HalfState``."""

    def __init__(self, size: int) -> None:
        self.own, self.design, self.estimates = (_Running(size) for _ in range(3))

    def state(self, shape: tuple[int, ...]) -> HalfState | None:
        if not self.own.count:
            return None
        estimates = self.estimates.joint(shape) if self.estimates.count else None
        return HalfState(self.own.joint(shape), self.design.joint(shape), estimates=estimates)


def fold_designs(designs: Iterable[Iterable[NDArray[Any]]], first: int) -> DesignState:
    """The state of designs of plain passes that come one by one, and are not kept.

    Args:
        designs: The passes of each design in chunks, (passes, rows, width); all designs have as many.
        first: The number of the first design.

    Returns:
        Their moments, as ``designs.state_of_designs`` finds them up to rounding.
    """
    sums, halves, so_far = PowerSums(), [], None
    before: list[Array] = []
    for number, passes in enumerate(designs, first):
        counted = sums.count
        for chunk in passes:
            sums.add(chunk)
        if so_far is None:
            size = sums.first.size
            so_far, halves, before = _Running(size), [_Half(size), _Half(size)], [np.zeros(size), np.zeros(size)]
        _add_design(sums, sums.count - counted, before, halves[number // 2 % 2], so_far)
    even, odd = (half.state(sums.shape) for half in halves)
    nothing = np.zeros(sums.shape)
    return DesignState(sums.block(), MomentBlock(sums.count, nothing, nothing), even=even, odd=odd)


def _add_design(sums: PowerSums, passes: int, before: list[Array], half: _Half, so_far: _Running) -> None:
    """Add the last design, of so many passes; ``before`` are the first two sums without it, and then with it."""
    earlier = so_far.count
    half.own.count += 1
    half.design.count += 1
    half.estimates.count += earlier > 0
    so_far.count += 1
    for part in sums.parts():
        shift, own = ((total[part] - old[part]) / passes for total, old in zip(sums.sums[:2], before, strict=True))
        own -= shift * shift
        np.maximum(own, 0.0, out=own)
        mean = shift + sums.first[part]
        half.own.add(own, part)
        half.design.add(mean, part)
        if earlier:
            half.estimates.add(own + np.square(mean - so_far.mean[part]) * (earlier / (earlier + 1)), part)
        so_far.mean[part] += (mean - so_far.mean[part]) / so_far.count
        for total, old in zip(sums.sums[:2], before, strict=True):
            old[part] = total[part]
