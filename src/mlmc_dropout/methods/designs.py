"""Moments of stratified designs -> both estimates, with a companion of known moments or without.

A design has T passes h_t with mean Y and inner scatter own = (1/T) Σ (h_t − Y)². Every pass has the right law, hence::

    μ = E[Y],    μ2 = E[own] + Var[Y],

with Var[Y] from the sample variance over all designs. A companion G has mean 0 and a known variance, and the same
functions of it are control variates: Y − α Ȳ_G, and own + Var[Y] − β (own_G + Var[Ȳ_G] − Var G). The designs are
split in halves, and each half takes the coefficients that the other one fits, so that no bias creeps in. A component's
coefficients are drawn towards those that fit all components together, which few passes tell: a companion that explains
nothing then does no harm, and ten passes are enough for one that explains much. Designs of one pass are independent
passes, with own = 0.

Standard errors come from the scatter of independent designs. With Ȳ_r the mean of the r designs of a task before a
design, u = own + (Y − Ȳ_r)² r/(r+1) is an unbiased estimate of μ2 from this design, and hardly correlated with those
from others (recursive residuals, Brown, Durbin & Evans 1975); u_G is the same of the companion. The estimate from R
designs has the variance Var[u − β u_G]/R, which includes what fitting costs, since β is that of the other half. The
skewness of u − u_G tells what so few of them may hide (``tails``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.methods.states import merge_states
from mlmc_dropout.moments import MomentBlock, recursive_squares

__all__ = [
    "DesignState",
    "HalfState",
    "Joint",
    "Summary",
    "coefficients",
    "state_of_designs",
    "summary",
]

Array = NDArray[np.float64]

_EXPANSION = 6.0  # passes' worth of belief that an expansion is right: a coefficient of 1
_ALIKE = 12.0  # passes' worth of belief that a component has the coefficient of all
_ALIKE_V = 30.0  # the same for squares
_MOST = 2.0  # of a coefficient
_ROUNDING = 1e-8  # of the variance of a pass: a companion that varies less is nothing but rounding


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
        return cls(*MomentBlock.several([v] if c is None else [v, c, v + c], order=2))

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

    def features(self, columns: slice) -> Joint:
        """Some of the components, along the last axis.

        Args:
            columns: Which.

        Returns:
            Their moments.
        """
        return Joint(*(None if block is None else block.features(columns) for block in (self.v, self.c, self.total)))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class HalfState:
    """Half of the designs: even or odd pairs.

    Attributes:
        own: Scatter inside each design.
        design: The designs' means.
        square: Squares of single passes, where there is a companion.
        estimates: Estimates of μ2 from single designs.
    """

    own: Joint
    design: Joint
    square: Joint | None = None
    estimates: Joint | None = None


@dataclass(frozen=True, slots=True)
class DesignState:
    """What is carried of stratified designs.

    Attributes:
        passes: Single passes.
        s2: Their variance over masks that were averaged out.
        rest: Passes less their companion, where there is one.
        mean_left: The designs' means, less those of the companion; ``None`` where outputs are too wide to keep it.
        variance_left: Their estimates of μ2, less those of the companion, likewise.
        even: Designs of even pairs.
        odd: Designs of odd pairs.
        features: Features of whole designs in groups, if any are asked.
    """

    passes: MomentBlock
    s2: MomentBlock
    rest: MomentBlock | None = None
    mean_left: MomentBlock | None = None
    variance_left: MomentBlock | None = None
    even: HalfState | None = None
    odd: HalfState | None = None
    features: GroupBlock | None = None

    @property
    def halves(self) -> list[HalfState]:
        """The halves that have designs."""
        return [half for half in (self.even, self.odd) if half is not None]

    @property
    def estimates(self) -> Joint | None:
        """Estimates of μ2 from single designs of both halves."""
        even, odd = (None if half is None else half.estimates for half in (self.even, self.odd))
        return merge_states(even, odd)

    @property
    def samples(self) -> int:
        """Designs behind the standard errors; one, if some part has only that."""
        counts = [half.design.v.count for half in self.halves]
        return 1 if min(counts) <= 1 or self.estimates is None else sum(counts)


@dataclass(frozen=True, slots=True)
class Summary:
    """Both estimates, the variances of these estimates, and the samples those rest on.

    Attributes:
        mean: The mean.
        variance: The variance.
        error2_mean: The variance of the first.
        error2_variance: The variance of the second.
        designs: Designs behind the error of the mean.
        samples: Designs behind the error of the variance.
    """

    mean: Array
    variance: Array
    error2_mean: Array
    error2_variance: Array
    designs: int
    samples: int


def state_of_designs(D: Array, s2: Array | None, G: Array | None, known: Array | float, first: int) -> DesignState:
    """The state of some designs; two neighbours are a pair, even pairs make one half and odd ones the other.

    Args:
        D: Passes (designs, T, rows, width).
        s2: Variance of each pass over masks that were averaged out, of the same shape; ``None``: none were.
        G: The companion's values, or ``None``.
        known: Its variance (rows, width).
        first: The number of the first design.

    Returns:
        Their moments.
    """
    raw = D.reshape(-1, *D.shape[2:])
    v = _Parts.of(D, s2, squares=G is not None)
    c = None if G is None else _Parts.of(G, known=known)
    nothing = np.zeros(raw.shape[1:])
    left = v.estimates if c is None else v.estimates - c.estimates
    pair = np.arange(first, first + len(D)) // 2
    return DesignState(
        MomentBlock.of(raw),
        MomentBlock(len(raw), nothing, nothing) if s2 is None else MomentBlock.of(s2.reshape(raw.shape), order=2),
        None if G is None else MomentBlock.of(raw - G.reshape(raw.shape)),
        MomentBlock.of(v.means if c is None else v.means - c.means),
        MomentBlock.of(left) if len(left) else None,
        _half(v, c, pair % 2 == 0),
        _half(v, c, pair % 2 == 1),
    )


def _half(v: _Parts, c: _Parts | None, mine: NDArray[np.bool_]) -> HalfState | None:
    if not mine.any():
        return None
    own = Joint.of(v.own[mine], None if c is None else c.own[mine])
    design = Joint.of(v.means[mine], None if c is None else c.means[mine])
    assert own is not None and design is not None
    square = None
    if c is not None and v.squares is not None and c.squares is not None:
        square = Joint.of(_flat(v.squares[mine]), _flat(c.squares[mine]))
    estimates = Joint.of(v.estimates[mine[1:]], None if c is None else c.estimates[mine[1:]])
    return HalfState(own, design, square, estimates)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Of each design: its mean, the scatter inside it and, if asked, its squares about the mean of all designs at hand.

    Of each but the first also an estimate of μ2, with its deviation from the mean of those before.
    """

    means: Array
    own: Array
    squares: Array | None
    estimates: Array

    @classmethod
    def of(cls, values: Array, extra: Array | None = None, known: Array | float = 0.0, squares: bool = True) -> _Parts:
        Y = values.mean(axis=1, dtype=np.float64)
        own = _squares_about(values, Y[:, None], extra).mean(axis=1) - known
        about_all = _squares_about(values, Y.mean(axis=0), extra) if squares else None
        return cls(Y, own, about_all, own[1:] + recursive_squares(Y))


def _squares_about(values: Array, centre: Array, extra: Array | None) -> Array:
    d = np.subtract(values, centre, dtype=np.float64)
    np.square(d, out=d)
    return d if extra is None else np.add(d, extra, out=d)


def _flat(values: Array) -> Array:
    return values.reshape(-1, *values.shape[2:])


# ----------------------------------------------------------------------------------- reading


def summary(state: DesignState, known: Array | None = None) -> Summary:
    """Both halves' estimates with the coefficients of the other, and what their scatter says about them.

    Args:
        state: At least two designs.
        known: The companion's variance (rows, width), if there is a companion.

    Returns:
        The estimates, their variances, and the samples behind them.
    """
    both = state.estimates
    assert both is not None
    halves = [_Half.read(state, half, known) for half in state.halves]
    total = sum(half.designs for half in halves)
    mean, variance, error2_mean, error2_variance = (np.zeros_like(state.passes.mean) for _ in range(4))
    for half, other in zip(halves, halves[::-1], strict=True):
        share, own = half.designs / total, half.half.estimates
        mean += share * half.half.design.mean_less(other.alpha)
        variance += share * half.variance(other.beta)
        error2_mean += share / total * half.half.design.spread(other.alpha)
        few = own is None or own.v.count < 2
        error2_variance += share / total * (both if few else own).spread(other.beta)  # type: ignore[union-attr]
    samples = both.v.count - len(halves) + 1  # each half has a mean of its own
    return Summary(mean, variance, error2_mean, error2_variance, total, samples)


@dataclass(frozen=True, slots=True)
class _Half:
    """Half of the pairs: the coefficients it fits, and its estimates with given ones."""

    half: HalfState
    alpha: Array | float
    beta: Array | float

    @classmethod
    def read(cls, state: DesignState, half: HalfState, known: Array | None) -> _Half:
        if known is None or half.square is None:
            return cls(half, 0.0, 0.0)
        known = np.where(known > _ROUNDING * (state.passes.variance + state.s2.mean), known, 0.0)
        alpha, common = coefficients(half.design, known, 1.0, _ALIKE)
        beta, _ = coefficients(half.square, np.square(known), common**2, _ALIKE_V)
        return cls(half, alpha, beta)

    @property
    def designs(self) -> int:
        return self.half.design.v.count

    def variance(self, beta: Array | float) -> Array:
        return self.half.own.mean_less(beta) + self.half.design.variance_less(beta)


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
        together, alone = (np.where(np.isfinite(ratio), ratio, 0.0) for ratio in ratios)
    common = float((together.sum() + _EXPANSION * expected) / (alone.sum() + _EXPANSION))
    common = float(np.clip(common, 0.0, _MOST))
    return np.clip((together + alike * common) / (alone + alike), 0.0, _MOST) * (scale > 0), common
