"""The default: a small pilot, then the cheapest way to the accuracy asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.methods.base import Method
from mlmc_dropout.methods.control_variate import GRADIENT_MASKS, ControlVariate, affordable
from mlmc_dropout.methods.paired_designs import SHORT, UNKNOWN_BUDGET, as_array, preparation_cost
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.sampling import streams
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import PILOT, Goal, stderr_upper_factor
from mlmc_dropout.surrogates.derivatives import DerivativeError
from mlmc_dropout.surrogates.linear import expansion_of, linearise, supported
from mlmc_dropout.surrogates.linear_head import heads_of, outputs_by_head, proof_cost, reduced_passes
from mlmc_dropout.surrogates.quadratic import fit_quadratic

__all__ = ["Auto"]

Array = NDArray[np.float64]

PILOT_PASSES = 32
PILOT_ROWS = 8
PILOT_SHARE = 0.05  # of the passes to come: more is not spent on looking
SINGLE_ROW_MARGIN = 3.0  # the second order contains the first: one row has to show this much in favour of the first
UNSEEN = 0.05  # the same for derivatives that no pilot has shown to be useful
TINY = 1e-300
EXACT = 1e6  # a gain that says that nothing but rounding is left
MIN_PILOT_BUDGET = 160  # passes below which there is nothing to choose


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A way to go: how many times fewer passes than plain Monte Carlo it needs, and what it spends in advance."""

    method: Pooled | Stratified | ControlVariate
    words: str
    gain: float
    gain_V: float
    overhead: float = 0.0
    handicap: float = 1.0

    def price(self, goal: Goal, needs: tuple[float, float]) -> float:
        """Passes to the asked accuracy, or the error a budget leaves: the dearer moment decides."""
        shares = [self.handicap * need / gain for need, gain in zip(needs, (self.gain, self.gain_V), strict=True)]
        together = max(shares) + 0.1 * sum(shares)
        if goal.has_tolerance:
            passes, per_sample = float(PILOT), 1 if isinstance(self.method, Pooled) else 2 * self.method.passes
            while together * stderr_upper_factor(passes / per_sample) > passes:  # few samples have to do better
                passes *= 1.05
            return self.overhead + max(passes, together)
        assert goal.budget is not None
        return together / max(1.0 - self.overhead / goal.budget, 1e-3)


@dataclass(frozen=True, slots=True)
class Auto:
    """Chooses among pooled, stratified and control-variate, with the last dropout averaged out or not."""

    @property
    def name(self) -> str:
        """The name users choose it by."""
        return "auto"

    def min_cost(self) -> int:
        """That of the simplest choice."""
        return Pooled().min_cost()

    @property
    def fixed_counts(self) -> bool:
        """Never."""
        return False

    def describe(self) -> dict[str, Any]:
        """Nothing to set."""
        return {}

    def choose(self, source: Source, goal: Goal) -> Method:
        """Look at a few rows, predict what each way would cost, take the cheapest.

        Args:
            source: The passes of the inputs.
            goal: When to stop.

        Returns:
            The method that is predicted to be cheapest.
        """
        budget = goal.budget or UNKNOWN_BUDGET
        if budget < MIN_PILOT_BUDGET:
            return Pooled(reason=f"auto chose pooled: {budget:g} passes are too few for designs.")
        plain = Stratified(heads=False)
        if not supported(source.program):
            plain = replace(plain, reason="auto chose stratified masks: some mask units belong to no single input.")
            return plain.choose(source, goal)
        samples = GRADIENT_MASKS if affordable(source, goal, GRADIENT_MASKS) else 0
        rows, pilot_cost = _what_to_look_at(source, budget, samples)
        try:
            if rows:
                return _decide(source, goal, rows, samples, pilot_cost).choose(source, goal)
            if preparation_cost(source) <= UNSEEN * budget:
                return _unseen(source, budget).choose(source, goal)
        except DerivativeError as error:
            plain = replace(plain, reason=f"auto chose stratified masks: there are no derivatives ({error.cause}).")
            return plain.choose(source, goal)
        reason = "auto chose stratified masks: one backward pass per output would be too expensive here."
        return replace(plain, reason=reason).choose(source, goal)


def _what_to_look_at(source: Source, budget: float, samples: int) -> tuple[int, float]:
    """Rows of a pilot that costs no more than its share of the passes, and that cost; 0 if there are none."""
    width = source.program.structure.width
    cost = 2 * PILOT_PASSES + (1 + 2 * width) + samples * (1 + width)
    rows = min(source.batch.rows, PILOT_ROWS, int(PILOT_SHARE * budget * source.batch.rows / cost))
    return rows, cost * rows / source.batch.rows


def _unseen(source: Source, budget: float) -> ControlVariate:
    """The expansion where a pilot would cost more than it can lose: its coefficients see for themselves.

    The second order costs so little only where there are many passes.
    """
    linearise(source.sampler, source.program, source.batch[: min(2, source.batch.rows)])  # it may be refused
    samples = GRADIENT_MASKS if preparation_cost(source, GRADIENT_MASKS) <= UNSEEN * budget else 0
    reason = "auto chose stratified masks and the expansion in them, which costs less here than a pilot."
    return ControlVariate(gradient_masks=samples, reason=reason)


def _decide(
    source: Source, goal: Goal, rows: int, samples: int, pilot_cost: float
) -> Pooled | Stratified | ControlVariate:
    pilot = _Pilot.run(source, rows, samples)
    needs = pilot.needs(goal)
    best = min(pilot.candidates(), key=lambda candidate: candidate.price(goal, needs))
    reason = f"auto chose {best.words}: the cheapest way by a pilot."
    method = replace(best.method, reason=reason, overhead=int(np.ceil(pilot_cost)))
    if isinstance(method, ControlVariate) and goal.has_tolerance:
        # The expansion makes up for short designs, and more of them give better standard errors.
        passes = (best.price(goal, needs) - best.overhead) / 2
        return replace(method, passes=int(np.clip(passes // 20, min(method.passes, SHORT), method.passes)))
    return method


@dataclass(frozen=True, slots=True)
class _Pilot:
    """A few independent passes of a few rows: D whole, h and s² with the last masks averaged out, G beside each.

    ``own_D`` and ``own_h`` are what single units add to G². ``second`` is the expansion of second order beside h, where
    it is considered.
    """

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
    def run(cls, source: Source, rows: int, samples: int) -> _Pilot:
        """Spend the pilot's passes."""
        spread = np.linspace(0, source.batch.rows - 1, rows).round().astype(int)  # neighbours are often alike
        few = replace(source, batch=source.batch.map(lambda t: t[spread], rows))
        sampler, program, batch = few.sampler, few.program, few.batch
        slopes = linearise(sampler, program, batch)
        heads = heads_of(sampler, program, batch, slopes, source.seed)
        masks = _masks(few)
        D, _ = reduced_passes(sampler, program, batch, masks, ())
        h, s2 = reduced_passes(sampler, program, batch, masks, heads)
        whole, rest = expansion_of(program, slopes), expansion_of(program, slopes, outputs_by_head(heads))
        second, more = None, 0.0
        if samples:
            with suppress(DerivativeError):  # the first order is there
                form, more = fit_quadratic(sampler, program, batch, samples, outputs_by_head(heads), source.seed)
                second = as_array(form.values(masks, rows))
        few.check(as_array(D))
        cost = slopes.cost + proof_cost(source.batch.rows, len(heads))
        return cls(
            as_array(D),
            as_array(h),
            as_array(s2),
            as_array(whole.values(masks, rows)),
            as_array(rest.values(masks, rows)),
            as_array(whole.squares(masks, rows)),
            as_array(rest.squares(masks, rows)),
            second,
            bool(heads),
            cost,
            cost + more,
            samples,
        )

    def candidates(self) -> Iterator[_Candidate]:
        """Every way to go, with its gains predicted from the pilot.

        Designs, and controls with coefficients of their own, do no harm: nothing but their cost counts against them.
        """
        mu2, plain_V = _squares(self.D), _squares(_noise(self.D))
        # Designs remove what is additive in the masks: of s² about as large a share as of h.
        left_h = _squares(_rest(self.h, self.G_h))
        of_s2 = _squares(self.s2) * left_h.mean() / max(_squares(self.h).mean(), TINY)
        yield _Candidate(Pooled(), "pooled", 1.0, 1.0)
        yield _Candidate(
            Stratified(heads=False),
            "stratified masks",
            _gain(mu2, _squares(_rest(self.D, self.G_D))),
            _gain(plain_V, _squares(_noise(self.D, self.G_D, self.own_D))),
        )
        if self.has_heads:
            yield _Candidate(
                Stratified(heads=True),
                "stratified masks with the last dropout averaged out",
                _gain(mu2, left_h),
                _gain(plain_V, _squares(_noise(self.h, self.G_h, self.own_h)) + of_s2),
                self.cost,
            )
        first = _Candidate(
            ControlVariate(gradient_masks=0),
            "stratified masks and the expansion in them as a control variate",
            _gain(mu2, left_h),
            _gain(plain_V, _squares(_noise(self.h, self.G_h, self.own_h, self.G_h)) + of_s2),
            self.cost,
        )
        certain = self.second is None or min(first.gain, first.gain_V) == EXACT
        yield first if certain else replace(first, handicap=SINGLE_ROW_MARGIN ** (1 / np.sqrt(self.D.shape[1])))
        if self.second is not None:
            yield _Candidate(
                ControlVariate(gradient_masks=self.samples),
                "stratified masks and the expansion of second order in them as a control variate",
                _gain(mu2, _squares(_rest(self.h, self.second))),
                _gain(plain_V, _squares(_noise(self.h, self.second, self.own_h, self.second)) + of_s2),
                self.cost_of_second,
            )

    def needs(self, goal: Goal) -> tuple[float, float]:
        """Passes plain Monte Carlo would need for either moment; a budget asks for both alike."""
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


def _masks(source: Source) -> list[Tensor | None]:
    keys = pass_keys(source.seed, streams.PILOT, 0, range(PILOT_PASSES))
    return [source.sampler.draw(site, keys, source.batch.rows, source.first_row) for site in source.program.sites]


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
