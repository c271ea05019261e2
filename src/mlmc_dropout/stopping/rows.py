"""When a single input may stop, and how many passes the others get next.

The standard error of an input that stops first is likely to be one that came out too small, and an input whose rare
masks have not come yet looks settled while it is not. So an input stops by upper limits:

- its squared standard errors are multiplied by the factor ν/χ²_ν(α), ν = 2n/(κ − 1), an upper confidence limit of a
  variance that was estimated from n samples of kurtosis κ. At the j-th look, of which each doubles the passes,
  α = ``ERROR_RATE``/(j (j + 1)): all looks together err with that probability. Errors that were widened for tails
  count as they are where this is more than the limit of what they were before,
- a mask pattern that has not come up in n passes has a probability of at most 3/n or so. If it can move an output by
  R, it hides an error of up to 3 R/n: standard errors count as at least ``UNSEEN`` R/n. Large deviations have a size of
  R² = μ4/μ2, the largest that any input shows is taken for all,
- where few passes carry most of a variance (``Trust``), the same is added to the standard error, and reported: with k
  events in n passes it is R sqrt(k + ``UNSEEN``²)/n, and covers what sqrt(k) R/n does not. After few passes, it is
  added for all inputs if it is for any: those that look quiet may not have had their events yet,
- where a surrogate's variance is known, and the passes show less than half of it, masks that matter have not come up:
  squared standard errors are multiplied by known over shown,
- if all inputs together meet the plain rule, all stop, as with equal effort: only those that leave earlier need limits,
- nothing leaves earlier than others before about ``LEAST`` passes, and ``PER_DOUBLING`` more for every doubling of the
  number of inputs: the more there are, the more of them are lucky.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from mlmc_dropout.stopping.goal import MAX_GROWTH, MAX_ROUND, PILOT, STEP_SHARE, TRUSTED, Estimates, Goal

__all__ = [
    "ABOUT",
    "Needs",
    "Part",
    "RowEstimates",
    "aimed_at",
    "least_passes",
    "needs_of_rows",
    "next_round",
    "reach_of",
    "row_factors",
    "with_unseen",
]

Array = NDArray[np.float64]

LEAST, PER_DOUBLING = 288, 16
ABOUT = 0.9  # a round may end before it has spent everything
ERROR_RATE = 0.1
UNSEEN = 1.6  # 1.96 of it is the 95 % limit 3/n for the probability of what did not come up in n passes
MOST = 16.0  # largest factor of an upper limit
HALF = 0.5  # of a known variance: where passes show less of it, rare masks have not come up
SETTLING = 0.1  # share of the open inputs that the next round is to settle, at least
WASTE = 0.005  # of all passes so far, that a round may give to inputs that could have done with fewer
MIN_STEP = 1.08  # by which passes grow at least
_GRID = np.geomspace(0.5, 1e7, 850)  # degrees of freedom
BLOCK, MANY_BLOCKS = 128, 8  # tasks have so many passes, and beyond so many of them rounds end with a whole one


class RowEstimates(Estimates, Protocol):
    """Estimates of some inputs, and what they say about themselves."""

    @property
    def trust(self) -> Any:
        """Flags per component for the mean and the variance, or ``None``."""

    @property
    def groups(self) -> Any:
        """Means of features over groups of passes, or ``None``."""

    @property
    def mean_samples(self) -> float | None:
        """Samples behind the standard errors of the mean, if more than behind the others."""

    @property
    def shown(self) -> Array | None:
        """The share of a surrogate's known variance that the passes have shown."""

    @property
    def freedom(self) -> Array | None:
        """Degrees of freedom of the standard errors of the mean, where the method knows them."""

    @property
    def variance_freedom(self) -> float | None:
        """The same of the variance."""

    @property
    def widening(self) -> tuple[Array, Array] | None:
        """Factors in both standard errors for tails that few samples show; ``None``: there are none."""

    @property
    def levels(self) -> Any:
        """Statistics of levels with ``count``, ``kurtosis`` and ``kurtosis_V``."""


@dataclass(frozen=True, slots=True)
class Part:
    """Inputs that have had the same passes.

    Attributes:
        estimates: Their estimates.
        samples: Samples behind the standard errors.
    """

    estimates: RowEstimates
    samples: float

    @property
    def passes(self) -> float:
        """Passes that count: those before the first sample do not."""
        return max(self.estimates.cost - self.estimates.overhead, 1.0)

    def __len__(self) -> int:
        return len(self.estimates.mean)


def least_passes(rows: int) -> float:
    """Passes before which no input stops on its own.

    Args:
        rows: Number of inputs.

    Returns:
        The number of passes.

    Examples:
        >>> least_passes(2), least_passes(1024)
        (304.0, 448.0)
    """
    return LEAST + PER_DOUBLING * float(np.log2(max(rows, 1)))


@dataclass(frozen=True, slots=True)
class Needs:
    """How many times as many passes inputs need, (rows,); at most 1: they may stop.

    Attributes:
        total: For everything.
        precision: For their standard errors alone.
        least: For masks that may not have come up, and for the least that every input gets.
    """

    total: Array
    precision: Array
    least: Array

    def of(self, rows: NDArray[np.bool_]) -> Needs:
        """Those of some inputs.

        Args:
            rows: Flags (rows,).

        Returns:
            Their needs.
        """
        return Needs(self.total[rows], self.precision[rows], self.least[rows])


def needs_of_rows(goal: Goal, parts: Sequence[Part]) -> Iterator[Needs]:
    """How many times as many passes each input needs; at most 1: it may stop.

    With a tolerance, by upper limits for standard errors; with a budget only, by shares of the passes in proportion to
    the spread.

    Args:
        goal: When to stop.
        parts: All inputs of a batch.

    Yields:
        Factors, part by part.
    """
    if not goal.has_tolerance:
        yield from (Needs(shares, shares, np.zeros_like(shares)) for shares in _shares(goal, parts))
        return
    rows = sum(map(len, parts))
    scales = _scales(goal, parts)
    least = least_passes(rows) if goal.budget is None else min(least_passes(rows), goal.budget)
    reach = reach_of([part.estimates for part in parts])
    yield from (_needs(goal, part, scales, reach, least) for part in parts)


def row_factors(goal: Goal, part: Part, parts: Sequence[Part]) -> Array:
    """The plain rule, input by input: the largest (stderr / tolerance)² of each.

    Args:
        goal: When to stop.
        part: Some inputs.
        parts: All inputs, for the scale of relative tolerances.

    Returns:
        Factors (rows,), at most 1 where the tolerance is met.
    """
    largest = [ratio.max(axis=1) for ratio, _ in _ratios(goal, part, _scales(goal, parts))]
    return np.asarray(np.max(largest, axis=0))


def next_round(goal: Goal, needs: Array, part: Part, spent: float) -> float:
    """Passes to spend next on inputs that go on.

    A round costs some time whatever it computes. The fewer inputs go on, the more of them it is to settle, because
    passes that the easier ones could have done without are few beside all others.

    Args:
        goal: When to stop.
        needs: How many times as many passes each of them needs.
        part: What is known of them.
        spent: Passes so far, of all inputs together.

    Returns:
        Passes per input that settle a good part of them, within limits of growth.
    """
    share = SETTLING if goal.has_tolerance else SETTLING / 2  # too many passes would be those of other inputs
    wanted = float(np.quantile(needs, share, method="inverted_cdf"))
    if goal.has_tolerance:
        wanted = max(wanted, _within_waste(needs, WASTE * spent / part.passes))
    growth = wanted * (STEP_SHARE if wanted > 2 else 1.0)
    most = min(1.0 + max(part.samples, 2.0) / TRUSTED, MAX_GROWTH)
    after = part.passes * min(max(growth, MIN_STEP), most)
    if after > MANY_BLOCKS * BLOCK:
        after = BLOCK * float(np.ceil(after / BLOCK))
    return float(min(after - part.passes, MAX_ROUND))


def _within_waste(needs: Array, allowed: float) -> float:
    """The largest need g for which Σ (g − need) over the smaller ones is at most what is allowed.

    Needs that are not known yet are infinite, and tell nothing.

    >>> _within_waste(np.array([1.5, 2.0, 9.0]), 0.5), _within_waste(np.array([1.5, 2.0, 9.0]), 20.0)
    (2.0, 9.0)
    >>> _within_waste(np.array([1.5, np.inf]), 0.5), _within_waste(np.array([np.inf, np.inf]), 0.5)
    (1.5, inf)
    """
    ordered = np.sort(np.maximum(needs[np.isfinite(needs)], 1.0))
    if not len(ordered):
        return float("inf")
    wasted = np.arange(len(ordered)) * ordered - (np.cumsum(ordered) - ordered)
    return float(ordered[np.flatnonzero(wasted <= allowed)[-1]])


def aimed_at(needs: Needs) -> NDArray[np.bool_]:
    """The inputs that the next round is to settle: the easiest.

    Args:
        needs: What all inputs that go on need.

    Returns:
        Flags (rows,), at least one of which is true.
    """
    return np.asarray(needs.total <= np.quantile(needs.total, SETTLING, method="inverted_cdf"))


@dataclass(frozen=True, slots=True)
class Reach:
    """How far rare passes move the outputs, (width,): the largest R = sqrt(μ4/μ2) that any input shows.

    Attributes:
        mean: Of a sample behind the mean.
        variance: What such a pass adds to a variance: R² of a pass; or, where samples are passes less their companion,
            R² + 2Rσ with the R of these, if that is less.
        rare: The same as ``mean``, of inputs of which few passes carry most of the variance; 0 if there are none.
        rare_variance: The same as ``variance`` of such inputs.
        early: Passes below which such events may have come up for some inputs only.
    """

    mean: Array
    variance: Array
    rare: Array
    rare_variance: Array
    early: float = 0.0


E = TypeVar("E", bound=RowEstimates)


def reach_of(found: Sequence[RowEstimates]) -> Reach:
    """How far rare passes move the outputs.

    Args:
        found: Estimates of all inputs, in parts.

    Returns:
        The largest reach over all inputs.
    """
    squares: list[list[Array]] = [[], [], [], []]
    for estimates in found:
        level = _level(estimates)
        spread = np.maximum(np.nan_to_num(estimates.variance), 0.0)
        kurtosis = np.full_like(spread, 3.0) if level is None else np.nan_to_num(level.kurtosis, nan=3.0)
        sample = spread if level is None else np.nan_to_num(level.variance)
        rare = np.zeros(spread.shape, dtype=bool) if estimates.trust is None else ~estimates.trust.mean
        jump = sample * kurtosis
        added = np.minimum(spread * kurtosis, jump + 2 * np.sqrt(jump * spread))
        for place, values in enumerate((jump, added)):
            squares[place].append(values.max(axis=0))
            squares[place + 2].append(np.where(rare, values, 0.0).max(axis=0))
    mean, variance, rare_mean, rare_variance = (np.maximum(np.max(each, axis=0), 0.0) for each in squares)
    return Reach(
        np.sqrt(mean), variance, np.sqrt(rare_mean), rare_variance, least_passes(sum(len(e.mean) for e in found))
    )


def with_unseen(found: E, reach: Reach) -> E:
    """Estimates whose standard errors allow for passes that did not come up.

    They do where few passes carry most of a variance; and after fewer passes than ``Reach.early`` everywhere, by what
    these few show at any input.

    Args:
        found: Estimates of some inputs.
        reach: How far rare passes move the outputs.

    Returns:
        The same with larger standard errors where they cannot be believed.
    """
    if found.trust is None:
        return found
    changes = {}
    early = _samples(found) < ABOUT * reach.early
    for name, rare in (("mean", reach.rare), ("variance", reach.rare_variance)):
        stderr, trusted = getattr(found, f"{name}_stderr"), getattr(found.trust, name)
        quiet = UNSEEN * rare / _samples(found) if early else 0.0
        changes[f"{name}_stderr"] = np.hypot(stderr, np.where(trusted, quiet, _unseen(found, reach, name)))
    return replace(found, **changes)  # type: ignore[type-var]


def _unseen(found: RowEstimates, reach: Reach, moment: str) -> Array:
    """Standard errors that passes may hide which did not come up, (width,)."""
    return np.asarray(UNSEEN * getattr(reach, moment) / _samples(found))


def _samples(found: RowEstimates) -> float:
    level = _level(found)
    return float(max(found.cost - found.overhead, 1.0) if level is None else max(level.count, 1))


def _level(found: RowEstimates) -> Any:
    """The level with most samples among those that show their tails; ``None`` if there is none.

    A coarse level is sampled far more often than the network, but its samples say nothing about what only passes show.
    """
    telling = [level for level in found.levels if np.isfinite(level.kurtosis).any()]
    return max(telling or found.levels, key=lambda level: level.count, default=None)


# ------------------------------------------------------------------------------------ tolerance


def _scales(goal: Goal, parts: Sequence[Part]) -> tuple[Any, Any]:
    """Units of the tolerances of mean and variance: common to all inputs."""
    if not goal.relative:
        return 1.0, 1.0
    values = ([getattr(part.estimates, name) for part in parts] for name in ("mean", "variance"))
    largest = [np.abs(np.concatenate(each)).max(axis=0) for each in values]
    mean, variance = (np.where(each > 0, each, 1.0) for each in largest)
    return mean, variance


def _ratios(goal: Goal, part: Part, scales: tuple[Any, Any]) -> list[tuple[Array, str]]:
    """(stderr / tolerance)² of every component, for each moment that has a tolerance."""
    found = part.estimates
    ratios = []
    with np.errstate(over="ignore", divide="ignore", invalid="ignore", under="ignore"):
        for name, tolerance, scale in (
            ("mean", goal.tolerance, scales[0]),
            ("variance", goal.tolerance_variance, scales[1]),
        ):
            if tolerance is not None:
                ratio = (getattr(found, f"{name}_stderr") / (tolerance * scale)) ** 2
                ratios.append((np.where(np.isnan(ratio), np.inf, ratio), name))
    return ratios


def _needs(goal: Goal, part: Part, scales: tuple[Any, Any], reach: Reach, least: float) -> Needs:
    found = part.estimates
    first = np.full(len(part), ABOUT * least / found.cost)
    total, precision, others = first, np.zeros(len(part)), first
    tolerances = {"mean": (goal.tolerance, scales[0]), "variance": (goal.tolerance_variance, scales[1])}
    for ratio, moment in _ratios(goal, part, scales):
        tolerance, scale = tolerances[moment]
        hidden = np.broadcast_to(_unseen(found, reach, moment) / (tolerance * scale), ratio.shape)
        trusted = np.ones(ratio.shape, dtype=bool) if found.trust is None else getattr(found.trust, moment)
        # Standard errors that were widened allow for tails already, and need no upper limit for that.
        widening = 1.0 if found.widening is None else found.widening[moment == "variance"]
        with np.errstate(over="ignore"):
            upper = np.maximum(ratio, ratio / np.square(widening) * _upper_factors(part, moment))
            # Where both add up, x times as many passes meet the tolerance if ratio/x + (hidden/x)² ≤ 1.
            both = (ratio + np.hypot(ratio, 2 * hidden)) / 2
        total = np.maximum(total, np.maximum(upper, np.where(trusted, hidden, both)).max(axis=1))
        precision = np.maximum(precision, upper.max(axis=1))
        others = np.maximum(others, hidden.max(axis=1))
    return Needs(total, precision, others)


def _upper_factors(part: Part, moment: str) -> Array:
    """Upper confidence limits of squared standard errors, relative to their estimates."""
    found = part.estimates
    look = 1 + np.ceil(np.log2(max(part.passes / PILOT, 1.0)))
    factors = _limits(_freedom(part, moment), ERROR_RATE / (look * (look + 1)))
    if found.shown is not None:  # masks have not come up that carry what is known
        factors = np.where(found.shown < HALF, factors / np.maximum(found.shown, 1 / MOST), factors)
    return np.asarray(np.minimum(factors, MOST))


def _freedom(part: Part, moment: str) -> Array:
    """Degrees of freedom ν of the standard errors of a moment, (rows, width)."""
    found = part.estimates
    known = found.freedom if moment == "mean" else found.variance_freedom
    if known is not None:
        return np.broadcast_to(np.asarray(known, dtype=np.float64), found.mean.shape)
    n = max((found.mean_samples if moment == "mean" else None) or part.samples, 2.0)
    level = _level(found)
    kurtosis = np.full(found.mean.shape, 3.0)
    if level is not None:
        raw = np.maximum(np.nan_to_num(level.kurtosis if moment == "mean" else 1.3 * level.kurtosis_V**2, nan=3.0), 3.0)
        kurtosis = 3.0 + (raw - 3.0) * min(1.0, n / max(level.count, 1))  # means of several passes have less
    return np.asarray(np.maximum(2 * n / (kurtosis - 1.0), 1.0) - 1.0 / n)


def _limits(freedom: Array, alpha: float) -> Array:
    """ν/χ²_ν(α), between values at steps of 2 % of ν where there are many: quantiles take long."""
    with np.errstate(divide="ignore"):
        if freedom.size <= _GRID.size:
            return np.asarray(freedom / (2.0 * gammaincinv(freedom / 2, alpha)))
        known = np.log(_GRID / (2.0 * gammaincinv(_GRID / 2, alpha)))
    return np.asarray(np.exp(np.interp(np.log(freedom), np.log(_GRID), known)))


# --------------------------------------------------------------------------------------- budget


def _shares(goal: Goal, parts: Sequence[Part]) -> list[Array]:
    """T_i ∝ spread of input i, where no input gives back what it had: T_i = max(n_i, λ s_i) and Σ T_i is the total."""
    assert goal.budget is not None
    had = np.concatenate([np.full(len(part), part.estimates.cost) for part in parts])
    squares = np.concatenate([part.estimates.mean_stderr**2 * part.passes for part in parts])
    squares = np.where(np.isfinite(squares), squares, 0.0)
    typical = squares.mean(axis=0)
    spread = np.sqrt((squares / np.where(typical > 0, typical, 1.0)).mean(axis=1))
    targets = _fill(had, spread, goal.budget * len(had))
    edges = np.cumsum([len(part) for part in parts])[:-1]
    return np.split(targets / had, edges)


def _fill(had: Array, spread: Array, total: float) -> Array:
    """max(had, λ spread) with the given sum.

    >>> _fill(np.array([1.0, 1.0, 1.0]), np.array([0.0, 1.0, 3.0]), 9.0).tolist()
    [1.0, 2.0, 6.0]
    """
    if total <= had.sum() or not spread.any():
        return had if total <= had.sum() else np.full_like(had, total / len(had))
    order = np.argsort(had / np.maximum(spread, 1e-300), kind="stable")  # who gets more at the smallest λ
    more, kept = np.cumsum(spread[order]), had.sum() - np.cumsum(had[order])
    candidates = (total - kept) / more
    last = int(np.flatnonzero(candidates * spread[order] >= had[order] - 1e-9 * had[order])[-1])
    return np.asarray(np.maximum(had, candidates[last] * spread))
