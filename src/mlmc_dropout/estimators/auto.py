"""The default: a small pilot, then the cheapest way to the accuracy asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.estimators.base import Method, Source
from mlmc_dropout.estimators.pooled import Pooled
from mlmc_dropout.estimators.stratified import GRADIENT_STREAM, HEAD_COST, Stratified, times
from mlmc_dropout.expansion import expansion_of, linearise, supported
from mlmc_dropout.heads import heads_of, reduced_passes, served_by
from mlmc_dropout.masks import pass_keys
from mlmc_dropout.stopping import Goal

__all__ = ["Auto"]

Array = NDArray[np.float64]

PILOT_STREAM = 1 << 22
PILOT_PASSES = 32
PILOT_ROWS = 8
PILOT_SHARE = 0.05  # of the passes to come: more is not spent on looking
AVERAGED = 64  # random masks, where averaging the gradient is considered at all
FEW = 160  # passes below which there is nothing to choose
UNKNOWN_BUDGET = 1280.0  # taken for the passes to come when only a tolerance is given


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A way to go: how many times fewer passes than plain Monte Carlo it needs, and what it spends in advance."""

    method: Pooled | Stratified
    words: str
    gain: float
    gain_V: float
    overhead: float = 0.0

    def cost(self, needs: tuple[float, float]) -> float:
        """Passes to the asked accuracy: the dearer moment decides, the other breaks ties."""
        shares = [need / gain for need, gain in zip(needs, (self.gain, self.gain_V), strict=True)]
        return self.overhead + max(shares) + 0.1 * sum(shares)


@dataclass(frozen=True, slots=True)
class Auto:
    """Chooses among pooled, stratified and control-variate, with the last dropout averaged out or not."""

    @property
    def name(self) -> str:
        """The name users choose it by."""
        return "auto"

    def least(self) -> int:
        """That of the simplest choice."""
        return Pooled().least()

    def describe(self) -> dict[str, Any]:
        """Nothing to set."""
        return {}

    def choose(self, source: Source, goal: Goal) -> Method:
        """Look at a few rows, predict what each way would cost, take the cheapest."""
        budget = goal.budget or UNKNOWN_BUDGET
        if budget < FEW:
            return Pooled(reason=f"auto chose pooled: {budget:g} passes are too few for designs.")
        plain = Stratified(heads=False)
        if not supported(source.program):
            plain = replace(plain, reason="auto chose stratified masks: some mask units belong to no single input.")
            return plain.choose(source, goal)
        rows = min(source.batch.rows, PILOT_ROWS)
        derivatives = 1 + 2 * source.program.structure.width
        looking = (2 * PILOT_PASSES + derivatives) * rows / source.batch.rows
        if looking <= PILOT_SHARE * budget:
            return _decide(source, goal, rows, looking).choose(source, goal)
        if derivatives <= PILOT_SHARE * budget:
            reason = "auto chose stratified masks and the expansion in them, which is cheaper here than a pilot."
            return Stratified(expansion=True, heads=True, reason=reason).choose(source, goal)
        reason = "auto chose stratified masks: one backward pass per output would be too dear here."
        return replace(plain, reason=reason).choose(source, goal)


def _decide(source: Source, goal: Goal, rows: int, looking: float) -> Pooled | Stratified:
    pilot = _Pilot.run(source, rows)
    candidates: list[_Candidate] = list(pilot.candidates(goal, source))
    needs = pilot.needs(goal)
    best = min(candidates, key=lambda candidate: candidate.cost(needs))
    reason = (
        f"auto chose {best.words}: a pilot predicts {times(best.gain)} times fewer passes for the mean and "
        f"{times(best.gain_V)} times fewer for the variance than plain Monte Carlo."
    )
    return replace(best.method, reason=reason, overhead=int(np.ceil(looking)))


@dataclass(frozen=True, slots=True)
class _Pilot:
    """A few independent passes of a few rows: D whole, h and s² with the last masks averaged out, G beside each."""

    source: Source
    D: Array
    h: Array
    s2: Array
    G_D: Array
    G_h: Array
    has_heads: bool
    derivative_cost: float

    @classmethod
    def run(cls, source: Source, rows: int) -> _Pilot:
        """Spend the pilot's passes."""
        spread = np.linspace(0, source.batch.rows - 1, rows).round().astype(int)  # neighbours are often alike
        few = replace(source, batch=source.batch.map(lambda t: t[spread], rows))
        sampler, program, batch = few.sampler, few.program, few.batch
        slopes = linearise(sampler, program, batch)
        heads = heads_of(sampler, program, batch, slopes, source.seed)
        masks = _masks(few)
        D, _ = reduced_passes(sampler, program, batch, masks, ())
        h, s2 = reduced_passes(sampler, program, batch, masks, heads)
        G_D = expansion_of(program, slopes).linear(masks, rows)
        G_h = expansion_of(program, slopes, served_by(heads)).linear(masks, rows)
        few.check(D.double().cpu().numpy())
        D_, h_, s2_, G_D_, G_h_ = (np.asarray(t.double().cpu().numpy()) for t in (D, h, s2, G_D, G_h))
        return cls(few, D_, h_, s2_, G_D_, G_h_, bool(heads), slopes.cost + (HEAD_COST if heads else 0.0))

    def candidates(self, goal: Goal, source: Source) -> Iterator[_Candidate]:
        """Every way to go, with its gains predicted from the pilot."""
        plain_V = _noise(self.D, 0.0, 0.0)
        mu2 = self.D.var(axis=0).mean()
        yield _Candidate(Pooled(), "pooled", 1.0, 1.0)
        yield _Candidate(Stratified(heads=False), "stratified masks", _ratio(mu2, _left(self.D, self.G_D)), 0.97)
        if self.has_heads:
            yield _Candidate(
                Stratified(heads=True),
                "stratified masks with the last dropout averaged out",
                _ratio(mu2, _left(self.h, self.G_h)),
                _ratio(plain_V, _noise(self.h, self.s2, 0.0)),
                self.derivative_cost,
            )
        yield _Candidate(
            Stratified(expansion=True, heads=True, gradient_masks=self._averaging(goal, source)),
            "stratified masks and the expansion in them as a control variate",
            _ratio(mu2, _left(self.h, self.G_h)),
            _ratio(plain_V, _noise(self.h, self.s2, self.G_h)),
            self.derivative_cost,
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

    def _averaging(self, goal: Goal, source: Source) -> int:
        """Average the gradient over random masks only if it is cheap and the pilot's passes vouch for it."""
        if AVERAGED * self.derivative_cost > 0.02 * (goal.budget or UNKNOWN_BUDGET):
            return 0
        few = self.source
        keys = pass_keys(source.seed, GRADIENT_STREAM, 0, range(AVERAGED))
        slopes = linearise(few.sampler, few.program, few.batch)
        heads = heads_of(few.sampler, few.program, few.batch, slopes, source.seed)
        averaged = expansion_of(few.program, linearise(few.sampler, few.program, few.batch, keys), served_by(heads))
        G = averaged.linear(_masks(few), few.batch.rows).double().cpu().numpy()
        return AVERAGED if _noise(self.h, self.s2, G) < 0.9 * _noise(self.h, self.s2, self.G_h) else 0


def _masks(source: Source) -> list[Tensor | None]:
    keys = pass_keys(source.seed, PILOT_STREAM, 0, range(PILOT_PASSES))
    return [source.sampler.draw(site, keys, source.batch.rows, source.first_row) for site in source.program.sites]


def _left(passes: Array, companion: Array) -> float:
    """Variance that the companion leaves, averaged over components."""
    return float((passes - companion).var(axis=0).mean())


def _noise(passes: Array, s2: Array | float, companion: Array | float) -> float:
    """Variance of a pass's contribution to μ2: (h − mean)² + s² − G², averaged over components."""
    contribution = np.square(passes - passes.mean(axis=0)) + s2 - np.square(companion)
    return float(contribution.var(axis=0).mean())


def _ratio(plain: float, left: float) -> float:
    return min(plain / left, 1e6) if left > 0 else 1e6
