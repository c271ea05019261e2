"""Moments of stratified designs -> both estimates, with a companion of known moments or without.

A design has T passes h_t with mean Y and inner scatter own = (1/T) Σ (h_t − Y)². Every pass has the right law, hence::

    μ = E[Y],    μ2 = E[own] + Var[Y],

with Var[Y] from the sample variance over all designs. A companion G has mean 0 and a known variance, and the same
functions of it are control variates: Y − α Ȳ_G, and own + Var[Y] − β (own_G + Var[Ȳ_G] − Var G). The designs are
split in halves, and each half takes the coefficients that the other one fits, so that no bias creeps in. A component's
coefficients are drawn towards those that fit all components together, which few passes tell: a companion that explains
nothing then does no harm, and ten passes are enough for one that explains much. Designs of one pass are independent
passes, with own = 0.

Standard errors come from the scatter of independent designs. With w = own + (Y₁ − Y₂)²/2, own averaged over the two
designs of a pair, x = (Y, Ȳ_G) of covariance Σ and M = diag(1, −β), the estimate from R designs has the variance
(2/R)(Var w − tr MΣMΣ) + 2 tr MΣMΣ / (R(R−1)): pairs tell Var w, and pooling all designs saves the trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.methods.states import all_blocks, from_blocks, merge_states, states_beside, to_blocks
from mlmc_dropout.moments import MomentBlock

__all__ = [
    "DesignState",
    "HalfState",
    "Joint",
    "Summary",
    "coefficients",
    "fold_designs",
    "state_of_designs",
    "summary",
]

Array = NDArray[np.float64]

_EXPANSION = 6.0  # passes' worth of belief that an expansion is right: a coefficient of 1
_ALIKE = 12.0  # passes' worth of belief that a component has the coefficient of all
_ALIKE_V = 30.0  # the same for squares
_MOST = 2.0  # of a coefficient
_ROUNDING = 1e-8  # of the variance of a pass: a companion that varies less is nothing but rounding
_PRODUCTS = 1.17  # what few products of passes and companions, whose tails are heavy, understate of their variance


@dataclass(frozen=True, slots=True)
class Joint:
    """Moments of a quantity v and its control c.

    Attributes:
        v: The quantity.
        c: Its control, if there is one.
        total: v + c, which tells how the two vary together.
    """

    v: MomentBlock
    c: MomentBlock | None = None
    total: MomentBlock | None = None

    @classmethod
    def of(cls, v: Array, c: Array | None) -> Joint | None:
        """From samples along the first axis.

        Args:
            v: Samples of the quantity.
            c: Samples of its control, or ``None``.

        Returns:
            The moments; ``None`` if there is no sample.
        """
        if not len(v):
            return None
        if c is None:
            return cls(MomentBlock.of(v, order=2))
        return cls(*(MomentBlock.of(values, order=2) for values in (v, c, v + c)))

    @property
    def covariance(self) -> Array:
        """Cov(v, c)."""
        assert self.c is not None and self.total is not None
        return (self.total.variance - self.v.variance - self.c.variance) / 2

    def mean_less(self, coefficient: Array | float) -> Array:
        """The mean of v − coefficient · c.

        Args:
            coefficient: Of the control.
        """
        return self.v.mean if self.c is None else self.v.mean - coefficient * self.c.mean

    def variance_less(self, coefficient: Array | float) -> Array:
        """The variance of v less coefficient times that of c.

        Args:
            coefficient: Of the control.
        """
        return self.v.variance if self.c is None else self.v.variance - coefficient * self.c.variance

    def spread(self, coefficient: Array | float) -> Array:
        """The variance of v − coefficient · c.

        Args:
            coefficient: Of the control.
        """
        if self.c is None:
            return self.v.variance
        left = self.v.variance - 2 * coefficient * self.covariance + np.square(coefficient) * self.c.variance
        return np.maximum(left, 0.0)


@dataclass(frozen=True, slots=True)
class HalfState:
    """Half of the designs: even or odd pairs.

    Attributes:
        own: Scatter inside each design.
        design: The designs' means.
        square: Squares of single passes, where there is a companion.
    """

    own: Joint
    design: Joint
    square: Joint | None = None


@dataclass(frozen=True, slots=True)
class DesignState:
    """What is carried of stratified designs.

    Attributes:
        passes: Single passes.
        s2: Their variance over masks that were averaged out.
        rest: Passes less their companion, where there is one.
        whole: Estimates of μ2 from single pairs.
        inside: Scatter inside designs, averaged over pairs.
        even: Designs of even pairs.
        odd: Designs of odd pairs.
        features: Features of whole designs in groups, if any are asked.
    """

    passes: MomentBlock
    s2: MomentBlock
    rest: MomentBlock | None = None
    whole: Joint | None = None
    inside: Joint | None = None
    even: HalfState | None = None
    odd: HalfState | None = None
    features: GroupBlock | None = None

    @property
    def halves(self) -> list[HalfState]:
        """The halves that have designs."""
        return [half for half in (self.even, self.odd) if half is not None]

    @property
    def samples(self) -> int:
        """Pairs behind the standard errors; one, if some part has only that."""
        fewest = min(block.count for block in all_blocks(replace(self, features=None)))
        designs = sum(half.design.v.count for half in self.halves)
        return fewest if fewest <= 1 or self.whole is None else min(self.whole.v.count, designs)


@dataclass(frozen=True, slots=True)
class Summary:
    """Both estimates, the variances of these estimates, and the samples those rest on.

    Attributes:
        mean: The mean.
        variance: The variance.
        error2_mean: The variance of the first.
        error2_variance: The variance of the second.
        designs: Designs behind the error of the mean.
        samples: Samples behind the error of the variance.
        unexplained: The share of the scatter of squares that the companion leaves.
    """

    mean: Array
    variance: Array
    error2_mean: Array
    error2_variance: Array
    designs: float
    samples: Array
    unexplained: Array


def state_of_designs(D: Array, s2: Array, G: Array | None, known: Array | float, first: int) -> DesignState:
    """The state of some designs; two neighbours are a pair, even pairs make one half and odd ones the other.

    Args:
        D: Passes (designs, T, rows, width).
        s2: Variance of each pass over masks that were averaged out, of the same shape.
        G: The companion's values, or ``None``.
        known: Its variance (rows, width).
        first: The number of the first design.

    Returns:
        Their moments.
    """
    raw = D.reshape(-1, *D.shape[2:])
    v = _Parts.of(D, s2)
    c = None if G is None else _Parts.of(G, known=known)
    pair = np.arange(first, first + len(D)) // 2
    pairs = slice(first % 2, first % 2 + (len(D) - first % 2) // 2 * 2)  # a lone design at either end is in no pair
    return DesignState(
        MomentBlock.of(raw),
        MomentBlock.of(s2.reshape(raw.shape), order=2),
        None if G is None else MomentBlock.of(raw - G.reshape(raw.shape)),
        Joint.of(v.whole(pairs), None if c is None else c.whole(pairs)),
        Joint.of(v.inside(pairs), None if c is None else c.inside(pairs)),
        _half(v, c, pair % 2 == 0),
        _half(v, c, pair % 2 == 1),
    )


def fold_designs(designs: Iterable[MomentBlock], first: int) -> DesignState:
    """The state of designs of plain passes that come one by one, and are not kept.

    Components are worked through in small parts, whose arrays stay in the processor's caches.

    Args:
        designs: The moments of the passes of each design.
        first: The number of the first design.

    Returns:
        Their moments, as :func:`state_of_designs` finds them up to rounding.
    """
    shape: tuple[int, ...] = ()
    states: dict[int, DesignState] = {}
    earlier: dict[int, tuple[Array, Array]] = {}  # mean and inner scatter of first designs of pairs
    for number, design in enumerate(designs, first):
        shape = design.mean.shape
        for index, part in enumerate(design.parts()):
            one = _state_of_one(number, part, earlier.pop(index, None))
            states[index] = merge_states(states.get(index), one)
            if number % 2 == 0:
                earlier[index] = part.mean.copy(), part.s2 / part.count
        del design, part, one  # before the next one is made
    joined = to_blocks(states_beside(states.values()))
    moments = {name: block.reshape(shape) for name, block in joined.items() if isinstance(block, MomentBlock)}
    return from_blocks(DesignState, moments)


def _state_of_one(number: int, design: MomentBlock, earlier: tuple[Array, Array] | None) -> DesignState:
    """The state of a single design, and of the pair that it completes."""
    zeros = np.zeros(design.mean.shape)

    def single(value: Array) -> Joint:
        return Joint(MomentBlock(1, value, zeros))

    own, whole, inside = design.s2 / design.count, None, None
    if earlier is not None:
        both = (earlier[1] + own) / 2
        whole, inside = single(both + (earlier[0] - design.mean) ** 2 / 2), single(both)
    half = HalfState(single(own), single(design.mean))
    halves = (None, half) if number // 2 % 2 else (half, None)
    return DesignState(design, MomentBlock(design.count, zeros, zeros), None, whole, inside, *halves)


def _half(v: _Parts, c: _Parts | None, mine: NDArray[np.bool_]) -> HalfState | None:
    if not mine.any():
        return None
    own = Joint.of(v.own[mine], None if c is None else c.own[mine])
    design = Joint.of(v.means[mine], None if c is None else c.means[mine])
    assert own is not None and design is not None
    square = None if c is None else Joint.of(_flat(v.squares[mine]), _flat(c.squares[mine]))
    return HalfState(own, design, square)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Of each design: its mean, the scatter inside it, and its squares about the mean of all designs at hand."""

    means: Array
    own: Array
    squares: Array

    @classmethod
    def of(cls, values: Array, extra: Array | float = 0.0, known: Array | float = 0.0) -> _Parts:
        Y = values.mean(axis=1)
        own = (np.square(values - Y[:, None]) + extra).mean(axis=1) - known
        return cls(Y, own, np.square(values - Y.mean(axis=0)) + extra)

    def inside(self, pairs: slice) -> Array:
        own = self.own[pairs]
        return (own[::2] + own[1::2]) / 2

    def whole(self, pairs: slice) -> Array:
        """The estimate of μ2 from each pair alone."""
        Y = self.means[pairs]
        return self.inside(pairs) + (Y[::2] - Y[1::2]) ** 2 / 2


def _flat(values: Array) -> Array:
    return values.reshape(-1, *values.shape[2:])


# ----------------------------------------------------------------------------------- reading


def summary(state: DesignState, known: Array | None = None) -> Summary:
    """Both halves' estimates with the coefficients of the other, and what their scatter says about them.

    Args:
        state: Designs, of which at least two are a pair.
        known: The companion's variance (rows, width), if there is a companion.

    Returns:
        The estimates, their variances, and the samples behind them.
    """
    halves = [_Half.read(state, half, known) for half in state.halves]
    others = halves[::-1]
    total = float(sum(half.designs for half in halves))
    singles = state.passes.count == total
    mean, variance, error2_mean, error2_variance, single, left = (np.zeros_like(state.passes.mean) for _ in range(6))
    for half, other in zip(halves, others, strict=True):
        share = half.designs / total
        mean += share * half.half.design.mean_less(other.alpha)
        variance += share * half.variance(other.beta)
        error2_mean += share / total * half.half.design.spread(other.alpha)
        spread, inside = half.spread_of_variances(other.beta)
        error2_variance += share / total * spread
        single += share * inside
        left += share * half.unexplained(other.beta) if singles else share
    return Summary(mean, variance, error2_mean, error2_variance, total, total / 2 * (1.0 + single), left)


@dataclass(frozen=True, slots=True)
class _Half:
    """Half of the pairs: the coefficients it fits, and its estimates with given ones."""

    state: DesignState
    half: HalfState
    alpha: Array | float
    beta: Array | float

    @classmethod
    def read(cls, state: DesignState, half: HalfState, known: Array | None) -> _Half:
        if known is None or half.square is None:
            return cls(state, half, 0.0, 0.0)
        known = np.where(known > _ROUNDING * (state.passes.variance + state.s2.mean), known, 0.0)
        alpha, common = coefficients(half.design, known, 1.0, _ALIKE)
        beta, _ = coefficients(half.square, np.square(known), common**2, _ALIKE_V)
        return cls(state, half, alpha, beta)

    @property
    def designs(self) -> int:
        return self.half.design.v.count

    def variance(self, beta: Array | float) -> Array:
        return self.half.own.mean_less(beta) + self.half.design.variance_less(beta)

    def unexplained(self, beta: Array | float) -> Array | float:
        square = self.half.square
        if square is None:
            return 1.0
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.clip(np.nan_to_num(square.spread(beta) / square.v.variance, nan=1.0), 0.0, 1.0)

    def spread_of_variances(self, beta: Array | float) -> tuple[Array, Array]:
        """R times the variance of the estimate from R designs, and the share of w that is scatter inside designs.

        The scatter inside designs is seen in each of them, not only in pairs.
        """
        assert self.state.whole is not None and self.state.inside is not None
        even, odd = self.state.even, self.state.odd
        both: HalfState = merge_states(even, odd)
        designs = both.design.v.count
        if self.state.passes.count == designs and both.square is not None:  # single passes
            squares = _PRODUCTS * both.square.spread(beta)
            return squares + 2 * _trace(both.design, beta) / (designs - 1), np.ones_like(squares)
        whole, inside = self.state.whole.spread(beta), self.state.inside.spread(beta)
        single = np.maximum(whole - inside + both.own.spread(beta) / 2, whole / 4)
        saved = _trace(both.design, beta) * (1.0 - 1.0 / (self.designs - 1)) if self.designs > 1 else 0.0
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.clip(np.nan_to_num(inside / whole), 0.0, 1.0)
        return 2 * np.maximum(single - saved, single / 2), share


def coefficients(joint: Joint, scale: Array, expected: float, alike: float) -> tuple[Array, float]:
    """The coefficient of c in v − β c for every component, and the one that fits all together.

    Few samples say little about one component, and much about all: each coefficient is drawn towards the common one,
    and that, where there are few components too, towards what is expected.

    Args:
        joint: Samples of v and c.
        scale: The variance of c up to a factor; components where it is 0 get no coefficient.
        expected: The coefficient before anything is seen.
        alike: Samples' worth of belief in the common coefficient.

    Returns:
        The coefficients, and the common one.
    """
    c = joint.c
    assert c is not None
    freedom = max(c.count - 1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        unit = scale * (np.nansum(c.variance[scale > 0]) / np.sum(scale))
        ratios = (freedom * v / unit for v in (joint.covariance, c.variance))
        together, alone = (np.nan_to_num(ratio, posinf=0.0, neginf=0.0) for ratio in ratios)
    common = float((together.sum() + _EXPANSION * expected) / (alone.sum() + _EXPANSION))
    common = float(np.clip(common, 0.0, _MOST))
    return np.clip((together + alike * common) / (alone + alike), 0.0, _MOST) * (scale > 0), common


def _trace(joint: Joint, beta: Array | float) -> Array:
    """The trace of MΣMΣ, Σ_yy² − 2β Σ_yg² + β² Σ_gg², less what squares of sample moments overstate."""
    n = joint.v.count
    trace = np.square(joint.v.variance)
    if joint.c is not None:
        c = np.square(joint.c.variance)
        trace = trace - 2 * beta * np.square(joint.covariance) + np.square(beta) * c
    return np.maximum(trace, 0.0) * (n - 1) / (n + 1)
