"""A few passes of a few rows, and what they tell about every way to go on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.methods.design_length import MIN_PAIRS, TO_TOLERANCE, UNKNOWN_BUDGET
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.prepared_rows import as_array, check_squares
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.sampling import streams
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import PILOT, Goal, stderr_upper_factor
from mlmc_dropout.surrogates.derivatives import DerivativeError
from mlmc_dropout.surrogates.linear import expansion_of, linearise
from mlmc_dropout.surrogates.linear_head import heads_of, outputs_by_head, whole_and_reduced_passes
from mlmc_dropout.surrogates.quadratic import fit_quadratic
from mlmc_dropout.surrogates.taylor import Averaged, fit_taylor, value_cost

__all__ = ["PILOT_SHARE", "Candidate", "Look", "Pilot", "affordable_look"]

Array = NDArray[np.float64]

PILOT_SHARE = 0.04  # of the passes to come: more is not spent on looking
LEAST_PASSES, MOST_PASSES = 16, 32
MOST_ROWS = 8
TAILS = 384.0  # passes until the tails of what second derivatives leave are seen at all of many independent inputs
SINGLE_ROW_MARGIN = 3.0  # one row has to show this much in favour of the first order, or of all second derivatives
TINY = 1e-300
EXACT = 1e6  # a gain that says that nothing but rounding is left


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to go.

    Attributes:
        method: The method.
        words: What it is, in words.
        gain: How many times fewer passes than plain Monte Carlo it needs for the mean.
        gain_V: The same for the variance.
        overhead: Passes that it spends in advance.
        handicap: A factor by which it has to be better than others.
        pass_cost: What a pass costs together with its companion, in passes.
        least: Passes that a tolerance takes at least.
    """

    method: Pooled | Stratified | ControlVariate
    words: str
    gain: float
    gain_V: float
    overhead: float = 0.0
    handicap: float = 1.0
    pass_cost: float = 1.0
    least: float = 0.0

    def price(self, goal: Goal, needs: tuple[float, float]) -> float:
        """Passes to the asked accuracy, or the error a budget leaves: the dearer moment decides.

        Args:
            goal: When to stop.
            needs: Passes that plain Monte Carlo needs for either moment.

        Returns:
            The price; the least is best.
        """
        shares = [self.handicap * need / gain for need, gain in zip(needs, (self.gain, self.gain_V), strict=True)]
        together = max(shares) + 0.1 * sum(shares)
        if goal.has_tolerance:
            per_sample = 1 if isinstance(self.method, Pooled) else min(self.method.passes, TO_TOLERANCE)
            passes = max((PILOT - self.overhead) / self.pass_cost, 2.0 * MIN_PAIRS * per_sample, self.least)
            while together * stderr_upper_factor(passes / per_sample) > passes:  # few samples have to do better
                passes *= 1.05
            return self.overhead + self.pass_cost * max(passes, together)
        assert goal.budget is not None
        return self.pass_cost * together / max((goal.budget - self.overhead - 1.0) / (goal.budget - 1.0), 1e-3)


@dataclass(frozen=True, slots=True)
class Look:
    """How much a pilot looks at.

    Attributes:
        rows: Number of rows.
        passes: Passes of each.
        gradient_masks: Random masks at which gradients are taken for the second order; 0: none.
        cost: What it costs, in passes of all rows.
    """

    rows: int
    passes: int
    gradient_masks: int
    cost: int


def affordable_look(source: Source, budget: float, gradient_masks: int) -> Look | None:
    """The pilot that costs no more than its share of the passes to come.

    Args:
        source: The passes of the inputs.
        budget: Passes per input.
        gradient_masks: Random masks at which gradients would be taken.

    Returns:
        What to look at; ``None`` if even the least costs too much.
    """
    rows = source.batch.rows
    gradients = (1 + gradient_masks) * (1 + source.program.structure.width)
    affordable = int(PILOT_SHARE * budget) * rows  # passes are paid as a whole
    looked_at = int(np.clip(affordable // (gradients + MOST_PASSES), 1, min(rows, MOST_ROWS)))
    passes = min(int(affordable / looked_at - gradients), MOST_PASSES)
    if passes < LEAST_PASSES:
        return affordable_look(source, budget, 0) if gradient_masks else None
    return Look(looked_at, passes, gradient_masks, math.ceil((gradients + passes) * looked_at / rows))


@dataclass(frozen=True, slots=True)
class Pilot:
    """A few independent passes of a few rows: D whole, h and s² with the last masks averaged out, G beside each.

    ``own_D`` and ``own_h`` are what single units add to G². ``second`` is the expansion of second order beside h, where
    it is considered.
    """

    source: Source  # of these rows
    averaged_out: Averaged
    D: Array
    h: Array
    s2: Array
    G_D: Array
    G_h: Array
    own_D: Array
    own_h: Array
    second: Array | None
    has_heads: bool
    cost: float  # of the derivatives at the mean mask
    cost_of_second: float
    samples: int

    @classmethod
    def run(cls, source: Source, look: Look) -> Pilot:
        """Spend the pilot's passes.

        Args:
            source: The passes of the inputs.
            look: What to look at.

        Returns:
            The pilot.

        Raises:
            DerivativeError: If the outputs have no derivatives.
        """
        rows, samples = look.rows, look.gradient_masks
        spread = np.linspace(0, source.batch.rows - 1, rows).round().astype(int)  # neighbours are often alike
        few = replace(source, batch=source.batch.map(lambda t: t[spread], rows))
        sampler, program, batch = few.sampler, few.program, few.batch
        slopes = linearise(sampler, program, batch)
        heads = heads_of(sampler, program, batch, slopes, source.seed)
        masks = _masks(few, look.passes)
        D, h, s2 = whole_and_reduced_passes(sampler, program, batch, masks, heads)
        whole, rest = expansion_of(program, slopes), expansion_of(program, slopes, outputs_by_head(heads))
        second, more = None, 0.0
        if samples:
            with suppress(DerivativeError):  # the first order is there
                form, more = fit_quadratic(sampler, program, batch, samples, outputs_by_head(heads), source.seed)
                second = as_array(form.values(masks, rows))
        few.check(as_array(D))
        own_D, own_h = as_array(whole.squares(masks, rows)), as_array(rest.squares(masks, rows))
        check_squares(few, as_array(D), as_array(s2), own_D, own_h)
        return cls(
            few,
            outputs_by_head(heads),
            as_array(D),
            as_array(h),
            as_array(s2),
            as_array(whole.values(masks, rows)),
            as_array(rest.values(masks, rows)),
            own_D,
            own_h,
            second,
            bool(heads),
            slopes.cost,
            slopes.cost + more,
            samples,
        )

    def candidates(self) -> Iterator[Candidate]:
        """Every way to go, with its gains predicted from the pilot.

        Designs, and controls with coefficients of their own, do no harm: nothing but their cost counts against them.
        """
        yield Candidate(Pooled(), "pooled", 1.0, 1.0)
        mu2, plain_V, left_h, of_s2 = self._parts()
        yield Candidate(
            Stratified(heads=False),
            "stratified masks",
            _gain(mu2, _squares(_rest(self.D, self.G_D))),
            _gain(plain_V, _squares(_noise(self.D, self.G_D, self.own_D))),
        )
        if self.has_heads:
            yield Candidate(
                Stratified(heads=True),
                "stratified masks with the last dropout averaged out",
                _gain(mu2, left_h),
                _gain(plain_V, _squares(_noise(self.h, self.G_h, self.own_h)) + of_s2),
                self.cost,
            )
        first = Candidate(
            ControlVariate(gradient_masks=0),
            "the expansion in the masks as a control variate",
            _gain(mu2, left_h),
            _gain(plain_V, _squares(_noise(self.h, self.G_h, self.own_h, self.G_h)) + of_s2),
            self.cost,
        )
        certain = self.second is None or min(first.gain, first.gain_V) == EXACT
        yield first if certain else replace(first, handicap=SINGLE_ROW_MARGIN ** (1 / np.sqrt(self.D.shape[1])))
        if self.second is not None:
            yield Candidate(
                ControlVariate(gradient_masks=self.samples),
                "the expansion of second order in the masks as a control variate",
                _gain(mu2, _squares(_rest(self.h, self.second))),
                _gain(plain_V, _squares(_noise(self.h, self.second, self.own_h, self.second)) + of_s2),
                self.cost_of_second,
            )

    def _parts(self) -> tuple[Array, Array, Array, Array]:
        """Squares of passes, their contributions to μ2, what designs leave of h, and of s²."""
        left_h = _squares(_rest(self.h, self.G_h))
        # Designs remove what is additive in the masks: of s² about as large a share as of h.
        of_s2 = _squares(self.s2) * left_h.mean() / max(_squares(self.h).mean(), TINY)
        return _squares(self.D), _squares(_noise(self.D)), left_h, of_s2

    @property
    def least_beside_second(self) -> float:
        """Passes beside all second derivatives that a tolerance takes at least."""
        return 0.0 if self.source.sampler.masks == "shared" else TAILS

    def with_second_derivatives(self, rows: int) -> Candidate:
        """The expansion with all second derivatives, seen at some of the pilot's rows.

        Args:
            rows: At how many.

        Returns:
            The way to go, with its gains predicted from these rows.

        Raises:
            DerivativeError: If there are no second derivatives.
        """
        places = ((np.arange(rows) + 0.5) / rows * self.source.batch.rows).astype(int)
        few = self.source.select(places)
        sampler, program, batch = few.sampler, few.program, few.batch
        form, cost = fit_taylor(sampler, program, batch, self.averaged_out)
        Q = as_array(form.values(_masks(few, len(self.h)), rows))
        here = replace(self, **{name: getattr(self, name)[:, places] for name in ("D", "h", "s2", "G_h", "own_h")})
        mu2, plain_V, _, of_s2 = here._parts()
        return Candidate(
            ControlVariate(second_derivatives=True),
            "the expansion in the masks with all second derivatives as a control variate",
            _gain(mu2, _squares(_rest(here.h, Q))),
            _gain(plain_V, _squares(_noise(here.h, Q, here.own_h, Q)) + of_s2),
            self.cost + cost,
            handicap=SINGLE_ROW_MARGIN ** (1 / np.sqrt(rows)),
            pass_cost=1.0 + value_cost(sampler, program, batch, self.averaged_out),
            least=self.least_beside_second,
        )

    def needs(self, goal: Goal) -> tuple[float, float]:
        """Passes plain Monte Carlo would need for either moment; a budget asks for both alike.

        Args:
            goal: When to stop.

        Returns:
            Passes for the mean, and for the variance.
        """
        if not goal.has_tolerance:
            return goal.budget or UNKNOWN_BUDGET, goal.budget or UNKNOWN_BUDGET
        scale = [1.0, 1.0]
        if goal.relative:
            scale = [float(np.abs(self.D.mean(axis=0)).max()) or 1.0, float(self.D.var(axis=0).max()) or 1.0]
        spreads = self.D.var(axis=0).max(), np.square(self.D - self.D.mean(axis=0)).var(axis=0).max()
        asked = goal.tolerance, goal.tolerance_variance
        mean, variance = (
            0.0 if tolerance is None else float(spread) / (tolerance * unit) ** 2
            for spread, tolerance, unit in zip(spreads, asked, scale, strict=True)
        )
        return mean, variance


def _masks(source: Source, passes: int) -> list[Tensor | None]:
    keys = pass_keys(source.seed, streams.PILOT, 0, range(passes))
    return [source.sampler.draw(site, keys, source.batch.rows, source.row_numbers) for site in source.program.sites]


def _rest(passes: Array, companion: Array) -> Array:
    """Passes less their companion, with the best coefficient for all components together."""
    return passes - _coefficient(passes, companion) * companion


def _noise(
    passes: Array, companion: Array | float = 0.0, own: Array | float = 0.0, control: Array | None = None
) -> Array:
    """A pass's contribution to μ2, (h − mean)² less what designs remove.

    The companion has mean 0, so that h less it tells the mean of h best: an error of it would count as noise here. The
    square of a ``control``, less what designs remove of it, is subtracted with the best coefficient for all components.
    """
    rest = passes if isinstance(companion, float) else _rest(passes, companion)
    noise = np.square(passes - rest.mean(axis=0)) - own
    if control is not None:
        known = np.square(control) - own
        noise = noise - _coefficient(noise, known) * known
    return np.asarray(noise)


def _coefficient(values: Array, control: Array) -> float:
    known = control - control.mean(axis=0)
    return float(np.clip((values * known).sum() / max(np.square(known).sum(), TINY), 0.0, 2.0))


def _squares(values: Array) -> Array:
    """Squared deviations from the mean, pass by pass, summed over components."""
    return np.asarray(np.square(values - values.mean(axis=0)).sum(axis=(1, 2)))


def _gain(plain: Array, left: Array) -> float:
    """A ratio of sums over passes, less one standard error of it, and at least 1.

    Where few passes carry the sums, the standard error is large.
    """
    if left.sum() <= plain.sum() / EXACT:
        return EXACT
    ratio = plain.sum() / left.sum()
    error = np.sqrt(np.square(plain / plain.mean() - left / left.mean()).sum()) / len(plain)
    return float(max(ratio / (1.0 + error), 1.0))
