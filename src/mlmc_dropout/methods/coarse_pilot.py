"""A few passes of a few rows beside the coarse level: how many coarse samples pay, and what they gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.methods.coarse_fit import LEAST_DESIGNS, MIN_PASSES
from mlmc_dropout.methods.coarse_level import CoarseLevel
from mlmc_dropout.methods.coarse_rows import DESIGN, CoarseRows, both_levels, coarse_cost, coarse_features
from mlmc_dropout.methods.coarse_time import time_of_sample
from mlmc_dropout.sampling import streams
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal
from mlmc_dropout.surrogates.linear import linearise, outputs_at_mean

__all__ = [
    "CoarseLook",
    "LookSize",
    "affordable_coarse_look",
    "asked_moments",
    "coarse_look",
    "fits_memory",
    "outputs_that_matter",
]

Array = NDArray[np.float64]

FEW_ROWS, SHARE = 8, 0.04  # of the passes to come: more is not spent on looking at a few rows
MOST_ROWS, LITTLE = 64, 0.005  # the same for more rows: those of one pilot may be all easy ones
FEW_CLASSES = 24  # up to which all are expanded
MOST_READ = 64  # rows whose probabilities tell which
NEARLY_ALL = 0.98  # of the variance
SHARE_OF_MANY = 0.1  # of the passes to come, for derivatives of many classes
RATIOS = (2.0, 400.0)  # of coarse samples to passes
MOST_COARSE = 1.0  # of the cost of passes: few of them would not show what an expansion misses now and then
UNKNOWN_BUDGET = 1280.0
_SIZES = ((32, 8), (16, 4))  # passes and designs of a row, the second where the first costs too much
_MOST_DESIGNS = 32  # where they cost little: few of them say little about their variance
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class LookSize:
    """How much a pilot looks at.

    Attributes:
        rows: Rows.
        passes: Passes of each.
        designs: Designs of the coarse level of each.
    """

    rows: int
    passes: int
    designs: int


@dataclass(frozen=True, slots=True)
class CoarseLook:
    """What a pilot found.

    Attributes:
        ratio: Coarse samples per pass that serve the moments best that are asked for.
        plain: Variances of a pass, and of its squares, summed over rows and components.
        rest: The same of what the coarse level leaves of them, with the coefficient that fits all.
        coarse: The same of a coarse sample, times the square of that.
        coarse_cost: c_0, in passes.
        cost: What the pilot cost, in passes of all rows.
        overhead: What the derivatives of all rows will cost.
        outputs: Indices of the outputs that are expanded; ``None``: all.
        coarse_time: Time of a coarse sample, in passes.
    """

    ratio: float
    plain: tuple[float, float]
    rest: tuple[float, float]
    coarse: tuple[float, float]
    coarse_cost: float
    cost: float
    overhead: float
    outputs: tuple[int, ...] | None = None
    coarse_time: float = 0.0

    def method(self, overhead: float = 0.0, reason: str = "") -> CoarseLevel:
        """The method it suggests.

        Args:
            overhead: Passes spent before the pilot.
            reason: Why it is chosen.

        Returns:
            The method.
        """
        return CoarseLevel(self.ratio, self.outputs, overhead + self.cost, reason)

    def at(self, budget: float) -> tuple[float, float]:
        """Times fewer passes than plain averaging needs, all that is spent in advance included.

        Args:
            budget: Passes per input.

        Returns:
            Both gains, of the mean and of the variance; 0 where the budget does not hold the method.
        """
        passes, samples = self._counts(budget)
        if passes < MIN_PASSES:
            return 0.0, 0.0
        parts = zip(self.plain, self.rest, self.coarse, strict=True)
        mean, variance = (v / budget / max(r / passes + c / samples, _TINY) for v, r, c in parts)
        return mean, variance

    def in_time(self, budget: float) -> tuple[float, float]:
        """Times less time than plain averaging needs, both gains.

        Args:
            budget: Passes per input.
        """
        passes, samples = self._counts(budget)
        spent = self.cost + self.overhead + passes + self.coarse_time * (passes + samples)
        mean, variance = (gain * budget / spent for gain in self.at(budget))
        return mean, variance

    def _counts(self, budget: float) -> tuple[float, float]:
        """Passes and coarse samples that a budget holds."""
        left, c0, least = budget - self.cost - self.overhead, self.coarse_cost, LEAST_DESIGNS * DESIGN
        passes = left / (1 + c0 * (1 + self.ratio))
        if passes * self.ratio < least:
            passes = (left - least * c0) / (1 + c0)
        return passes, max(passes * self.ratio, least)


def outputs_that_matter(source: Source, budget: float) -> tuple[int, ...] | None:
    """Of many classes, those that carry nearly all of the variance Σ p (1 − p) over the inputs, at the mean mask.

    The logits of the others are held where they are, which leaves the coarse level what it is, a function of the masks:
    it explains a little less, and costs far less.

    Args:
        source: The passes of the inputs.
        budget: Passes per input, of which derivatives are to take a small share.

    Returns:
        Their indices; ``None`` where there are few outputs, or no classes.
    """
    seen = source.observation
    classes = seen.outputs in ("logits", "probabilities") and [len(shape) for _, shape in seen.structure.names()] == [1]
    if seen.structure.width <= FEW_CLASSES or not classes:
        return None
    step = -(-source.batch.rows // MOST_READ)
    batch = source.batch.map(lambda t: t[::step], len(range(0, source.batch.rows, step)))
    carried = outputs_at_mean(source.sampler, source.program, batch).double().cpu()
    p = replace(seen, questions=()).observe(carried[None], None)[0][0].numpy()
    shares = (p * (1 - p)).sum(axis=0)
    order = np.argsort(-shares, kind="stable")
    enough = 1 + int(np.searchsorted(np.cumsum(shares[order]), NEARLY_ALL * shares.sum()))
    most = max(FEW_CLASSES, int(SHARE_OF_MANY * budget))
    return tuple(sorted(order[: min(enough, most)].tolist()))


def fits_memory(source: Source, outputs: tuple[int, ...] | None) -> bool:
    """Whether the derivatives of all inputs stay within the memory limit.

    Args:
        source: The passes of the inputs.
        outputs: Indices of the outputs that are expanded; ``None``: all.
    """
    units = sum(site.units for site in source.program.active)
    width = source.program.structure.width if outputs is None else len(outputs)
    return bool(4.0 * source.batch.rows * width * units <= source.sampler.memory_limit)


def affordable_coarse_look(source: Source, goal: Goal, outputs: tuple[int, ...] | None = None) -> LookSize | None:
    """The pilot that costs no more than its share of the passes to come.

    Args:
        source: The passes of the inputs.
        goal: When to stop.
        outputs: Indices of the outputs that are expanded; ``None``: all.

    Returns:
        What to look at; ``None`` if even the least costs too much.
    """
    to_come = (goal.budget or UNKNOWN_BUDGET) * source.batch.rows
    for passes, least in _SIZES:
        designs = int(np.clip(passes / 2 / (DESIGN * coarse_cost(source, outputs)), least, _MOST_DESIGNS))
        rows = to_come / _cost_of_row(source, passes, designs, outputs)
        if SHARE * rows >= 1:
            wanted = max(min(SHARE * rows, FEW_ROWS), min(LITTLE * rows, MOST_ROWS))
            return LookSize(min(int(wanted), source.batch.rows), passes, designs)
    return None


def _cost_of_row(source: Source, passes: int, designs: int, outputs: tuple[int, ...] | None) -> float:
    """About what looking at one row costs, in its passes."""
    c0 = coarse_cost(source, outputs)
    width = source.program.structure.width if outputs is None else len(outputs)
    return 1 + 2 * width + passes * (1 + c0) + designs * DESIGN * c0


def asked_moments(goal: Goal) -> tuple[int, ...]:
    """The moments that a goal is about: 0 for the mean, 1 for the variance; a budget is about both.

    Args:
        goal: When to stop.
    """
    asked = tuple(i for i, wanted in enumerate((goal.tolerance, goal.tolerance_variance)) if wanted is not None)
    return asked or (0, 1)


def coarse_look(
    source: Source,
    size: LookSize | None,
    outputs: tuple[int, ...] | None = None,
    by_time: bool = False,
    moments: Sequence[int] = (0, 1),
) -> CoarseLook:
    """Look at a few rows.

    Args:
        source: The passes of the inputs.
        size: How much to look at; ``None``: as little as possible.
        outputs: Indices of the outputs that are expanded; ``None``: all.
        by_time: Whether the ratio suits the time of a coarse sample, where that is more than its operations.
        moments: The moments that it has to suit, see :func:`asked_moments`.

    Returns:
        What was found.

    Raises:
        DerivativeError: If the outputs have no derivatives.
    """
    size = size or LookSize(1, *_SIZES[-1])
    all_rows = source.batch.rows
    spread = np.linspace(0, all_rows - 1, size.rows).round().astype(int)  # neighbours are often alike
    overhead, sums = _moments_of(source.select(spread), size, outputs)
    found = [_left(of_moment) for of_moment in sums]
    c0 = coarse_cost(source, outputs)
    time = time_of_sample(source, outputs)
    price = max(c0, time) if by_time else c0
    ratios = [_best_ratio(*found[moment][1:], price) for moment in moments]
    most = max(RATIOS[0], min(RATIOS[1], MOST_COARSE * (1 + price) / price))
    ratio = float(np.clip(math.prod(ratios) ** (1 / len(ratios)), RATIOS[0], most))
    cost = (overhead + size.passes * (1 + c0) + size.designs * DESIGN * c0) * size.rows / all_rows
    plain, rest, coarse = zip(*found, strict=True)
    return CoarseLook(ratio, plain, rest, coarse, c0, cost, overhead, outputs, time)


def _left(moments: Array) -> tuple[float, float, float]:
    """Var v, Var(v − β c) and β² times the variance of a coarse sample, sums over rows and components."""
    plain, together, companion, coarse = moments
    beta = float(np.clip(together / companion, 0.0, 2.0)) if companion > 0 else 0.0
    rest = plain - 2 * beta * together + beta**2 * companion
    return float(plain), float(max(rest, 0.0)), float(beta**2 * coarse)


def _best_ratio(rest: float, coarse: float, c0: float) -> float:
    """n_0/n_1 = sqrt(V_0 (1 + c_0) / (V_1 c_0))."""
    return math.sqrt(coarse * (1 + c0) / max(rest * c0, _TINY)) if rest > 0 else RATIOS[1]


def _moments_of(source: Source, size: LookSize, outputs: tuple[int, ...] | None) -> tuple[float, tuple[Array, Array]]:
    """What the derivatives of these rows cost; for mean and variance, sums of four moments over rows and components.

    They are Var v, Cov(v, c) and Var c of passes v and their companions c, and the variance of a coarse sample.
    """
    slopes = linearise(source.sampler, source.program, source.batch, outputs)
    part = CoarseRows.of(slice(0, source.batch.rows), source, slopes, outputs)
    observation = source.observation.squared()
    D, _, S, _ = both_levels(source, part, observation, range(size.passes), streams.PILOT)
    designs = coarse_features(source, part, observation, np.arange(size.designs), streams.PILOT + 1)
    width, centre = observation.main.width, D.mean(axis=0)
    first, second = designs[..., :width], designs[..., width : 2 * width]
    squares = second + 2 * (part.origin(observation) - centre) * first  # about the centre, up to a constant
    return slopes.cost, (_moments(D, S, first), _moments(np.square(D - centre), np.square(S - centre), squares))


def _moments(v: Array, c: Array, designs: Array) -> Array:
    v, c = v - v.mean(axis=0), c - c.mean(axis=0)
    sums = [(a * b).sum() / (len(v) - 1) for a, b in ((v, v), (v, c), (c, c))]
    return np.array([*sums, DESIGN * designs.var(axis=0, ddof=1).sum()])
