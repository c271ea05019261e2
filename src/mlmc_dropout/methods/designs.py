"""Moments of stratified designs -> both estimates, with a companion of known moments or without.

A design has T passes h_t with mean Y and inner scatter own = (1/T) Σ (h_t − Y)². Every pass has the right law, hence::

    μ = E[Y],    μ2 = E[own] + Var[Y],

with Var[Y] from the sample variance over all designs. A companion G has mean 0 and a known variance, and the same
functions of it are control variates: Y − α Ȳ_G, and own + Var[Y] − β (own_G + Var[Ȳ_G] − Var G). The designs are
split in halves, and each half takes the coefficients that the other one fits, so that no bias creeps in. They are
fitted to single passes, of which there are many, and drawn towards 0 where these say little: a companion that explains
nothing then does no harm.

Standard errors come from the scatter of independent designs. With w = own + (Y₁ − Y₂)²/2, own averaged over the two
designs of a pair, x = (Y, Ȳ_G) of covariance Σ and M = diag(1, −β), the estimate from R designs has the variance
(2/R)(Var w − tr MΣMΣ) + 2 tr MΣMΣ / (R(R−1)): pairs tell Var w, and pooling all designs saves the trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.methods.base import State
from mlmc_dropout.moments import MomentBlock, merge_all

__all__ = ["Summary", "state_of_designs", "summary"]

Array = NDArray[np.float64]

HALVES = ("a", "b")
_DESIGNS = 4.0  # worth of belief that the coefficient of the mean is the one that passes show
_SHRINK = 3.0  # passes' worth of doubt about a coefficient
_MOST = 2.0  # of a coefficient


@dataclass(frozen=True, slots=True)
class Summary:
    """Both estimates, the variances of these estimates, and the samples those rest on."""

    mean: Array
    variance: Array
    error2_mean: Array
    error2_variance: Array
    designs: float
    samples: Array


def state_of_designs(D: Array, s2: Array, G: Array | None, known: Array | float, first: int) -> dict[str, MomentBlock]:
    """Blocks of some designs; two neighbours are a pair, even pairs make one half and odd ones the other.

    Args:
        D: passes (designs, T, rows, width).
        s2: variance of each pass over masks that were averaged out, of the same shape.
        G: the companion's values, or ``None``.
        known: its variance (rows, width).
        first: the number of the first design.
    """
    raw = D.reshape(-1, *D.shape[2:])
    state = {"pass": MomentBlock.of(raw), "s2": MomentBlock.of(s2.reshape(raw.shape), order=2)}
    if G is not None:
        state["rest"] = MomentBlock.of(raw - G.reshape(raw.shape))
    v = _Parts.of(D, s2)
    c = None if G is None else _Parts.of(G, known=known)
    numbers = np.arange(first, first + len(D))
    pairs = slice(first % 2, first % 2 + (len(D) - first % 2) // 2 * 2)  # a lone design at either end is in no pair
    state |= _blocks("whole", v.whole(pairs), None if c is None else c.whole(pairs))
    state |= _blocks("inside", v.inside(pairs), None if c is None else c.inside(pairs))
    for half, name in enumerate(HALVES):
        mine = numbers // 2 % 2 == half
        if mine.any():
            state |= _blocks(f"own.{name}", v.own[mine], None if c is None else c.own[mine])
            state |= _blocks(f"design.{name}", v.means[mine], None if c is None else c.means[mine])
            if c is not None:
                state |= _blocks(f"square.{name}", _flat(v.squares[mine]), _flat(c.squares[mine]))
    return {key: block for key, block in state.items() if block.count}


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


def _blocks(name: str, v: Array, c: Array | None) -> dict[str, MomentBlock]:
    """Moments of v, of its control c where there is one, and of their sum, which tells how they go together."""
    found = {"v": v} if c is None else {"v": v, "c": c, "v+c": v + c}
    return {f"{key}.{name}": MomentBlock.of(values, order=2) for key, values in found.items()}


# ----------------------------------------------------------------------------------- reading


def summary(state: State) -> Summary:
    """Both halves' estimates with the coefficients of the other, and what their scatter says about them."""
    halves = [_Half.read(state, name) for name in HALVES if f"v.own.{name}" in state]
    others = halves[::-1]
    total = float(sum(half.designs for half in halves))
    mean, variance, error2_mean, error2_variance, single = (np.zeros_like(state["pass"].mean) for _ in range(5))
    for half, other in zip(halves, others, strict=True):
        share = half.designs / total
        mean += share * half.mean(other.alpha)
        variance += share * half.variance(other.beta)
        error2_mean += share / total * half.spread_of_means(other.alpha)
        spread, inside = half.spread_of_variances(other.beta)
        error2_variance += share / total * spread
        single += share * inside
    return Summary(mean, variance, error2_mean, error2_variance, total, total / 2 * (1.0 + single))


@dataclass(frozen=True, slots=True)
class _Half:
    """Half of the pairs: the coefficients it fits, and its estimates with given ones."""

    state: State
    name: str
    alpha: Array | float
    beta: Array | float

    @classmethod
    def read(cls, state: State, name: str) -> _Half:
        if f"c.design.{name}" not in state:
            return cls(state, name, 0.0, 0.0)
        beta = _coefficient(state, f"square.{name}")
        v, c = state[f"v.design.{name}"], state[f"c.design.{name}"]
        with np.errstate(invalid="ignore", divide="ignore"):
            fitted = _covariance(state, f"design.{name}") / c.variance
        fitted = np.where(np.isfinite(fitted), fitted, np.sqrt(beta))
        alpha = (v.count * fitted + _DESIGNS * np.sqrt(beta)) / (v.count + _DESIGNS)
        return cls(state, name, np.clip(alpha, 0.0, _MOST), beta)

    @property
    def designs(self) -> int:
        return self.state[f"v.design.{self.name}"].count

    def mean(self, alpha: Array | float) -> Array:
        return self._less(f"design.{self.name}", alpha, "mean")

    def variance(self, beta: Array | float) -> Array:
        return self._less(f"own.{self.name}", beta, "mean") + self._less(f"design.{self.name}", beta, "variance")

    def _less(self, name: str, coefficient: Array | float, moment: str) -> Array:
        v: Array = getattr(self.state[f"v.{name}"], moment)
        c = self.state.get(f"c.{name}")
        return v if c is None else v - coefficient * getattr(c, moment)

    def spread_of_means(self, alpha: Array | float) -> Array:
        """Var(Y − α Ȳ_G)."""
        return _spread(self.state, f"design.{self.name}", alpha)

    def spread_of_variances(self, beta: Array | float) -> tuple[Array, Array]:
        """R times the variance of the estimate from R designs, and the share of w that is scatter inside designs.

        The scatter inside designs is seen in each of them, not only in pairs.
        """
        whole, inside = (_spread(self.state, name, beta) for name in ("whole", "inside"))
        both = _joined(self.state, "own") | _joined(self.state, "design")
        single = np.maximum(whole - inside + _spread(both, "own", beta) / 2, whole / 4)
        saved = _trace(both, "design", beta) * (1.0 - 1.0 / (self.designs - 1)) if self.designs > 1 else 0.0
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.clip(np.nan_to_num(inside / whole), 0.0, 1.0)
        return 2 * np.maximum(single - saved, single / 2), share


def _joined(state: State, name: str) -> dict[str, MomentBlock]:
    """Blocks of both halves together."""
    found: dict[str, MomentBlock] = {}
    for key in ("v", "c", "v+c"):
        halves = [state[own] for half in HALVES if (own := f"{key}.{name}.{half}") in state]
        if halves:
            found[f"{key}.{name}"] = merge_all(halves)
    return found


def _coefficient(state: State, name: str) -> Array:
    """Of c in v − β c, less what it owes to chance: the positive-part rule of James and Stein."""
    v, c = state[f"v.{name}"], state[f"c.{name}"]
    with np.errstate(invalid="ignore", divide="ignore"):
        covariance = _covariance(state, name)
        explained = np.square(covariance) / (v.variance * c.variance)
        kept = np.clip(1.0 - _SHRINK * (1.0 - explained) / (explained * v.count), 0.0, 1.0)
        beta = kept * covariance / c.variance
    return np.clip(np.nan_to_num(beta, nan=0.0, posinf=0.0, neginf=0.0), 0.0, _MOST)


def _covariance(state: State, name: str) -> Array:
    v, c, both = (state[f"{key}.{name}"].variance for key in ("v", "c", "v+c"))
    return (both - v - c) / 2


def _spread(state: State, name: str, coefficient: Array | float) -> Array:
    """The variance of v − β c."""
    v = state[f"v.{name}"].variance
    if f"c.{name}" not in state:
        return v
    c, both = state[f"c.{name}"].variance, _covariance(state, name)
    return np.maximum(v - 2 * coefficient * both + np.square(coefficient) * c, 0.0)


def _trace(state: State, name: str, beta: Array | float) -> Array:
    """The trace of MΣMΣ, Σ_yy² − 2β Σ_yg² + β² Σ_gg², less what squares of sample moments overstate."""
    block = state[f"v.{name}"]
    n = block.count
    trace = np.square(block.variance)
    if f"c.{name}" in state:
        c = np.square(state[f"c.{name}"].variance)
        trace = trace - 2 * beta * np.square(_covariance(state, name)) + np.square(beta) * c
    return np.maximum(trace, 0.0) * (n - 1) / (n + 1)
