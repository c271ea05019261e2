"""Stratified masks, with or without a coarse level whose moments are known.

Passes come in designs of T, over which every unit is dropped almost exactly pT times (Latin
hypercube sampling, ``masks.latin_hypercube``). Each pass has the right law, so that the mean over a
design is unbiased, while the main effect of every unit cancels inside it. Passes of a design are
negatively correlated; the exact total-variance identity mends the variance::

    μ2 = E[(1/T) Σ (D_t − Y)²] + Var[Y],

with Var[Y] from pairs of independent designs. If a linear head follows the last dropout it is averaged
out in closed form first (``expansion.heads``): D becomes h, and E s² adds to μ2.

The expansion G of first or second order (``expansion``) has mean 0 and a known variance.
It is subtracted from the passes; and the variance estimated from G in the same way as from D, less the
known one, is a control variate for μ2. Its coefficient is fitted on one half of the pairs and used on the
other, and vice versa, so that no bias creeps in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit
from torch import Tensor

from mlmc_dropout.errors import ModelError
from mlmc_dropout.methods.base import Estimates, LevelEstimate, State, Task, blocks, states_beside
from mlmc_dropout.methods.designs import Summary, state_of_designs, summary
from mlmc_dropout.methods.tails import Trust, trust, widened_for_tails
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.source import BLOCK, Source
from mlmc_dropout.stopping.goal import TRUSTED, Goal
from mlmc_dropout.surrogates.derivatives import DerivativeError, expandable
from mlmc_dropout.surrogates.linear import PASSES_OF_A_GRADIENT, Expansion, expansion_of, linearise, supported
from mlmc_dropout.surrogates.linear_head import Head, heads_of, outputs_by_head, proof_cost, reduced_passes
from mlmc_dropout.surrogates.quadratic import Quadratic, fit_quadratic, passes_in_memory

__all__ = ["Stratified"]

Array = NDArray[np.float64]

DESIGN = 20  # passes per design: pT is whole for the common rates 0.05, 0.1, 0.2, 0.25, 0.5
SHORT = 4
TO_TOLERANCE = 10  # the same where standard errors decide: they are better with more pairs
UNKNOWN_BUDGET = 1280.0  # taken for the passes to come when only a tolerance is given
LEAST_PAIRS = 4
GRADIENT_MASKS = 20  # random masks at which gradients show the curvature
PREPARING = 0.025  # of the passes to come: more is not spent on derivatives that heads alone may need
_BEYOND = 0.2  # the share of a variance that is taken to be beyond designs, for their length


@dataclass(frozen=True, slots=True)
class Stratified:
    """Pairs of stratified designs; ``expansion`` adds the control variate for the variance.

    ``heads``: average out the last dropout where it is followed by a linear map (``None``: if that is
    cheap compared with the budget). ``gradient_masks``: number of random masks at which gradients are taken
    for an expansion of second order; 0 expands to first order at the mean mask (``None``: by cost, too).
    """

    expansion: bool = False
    passes: int = DESIGN
    heads: bool | None = None
    gradient_masks: int | None = None
    overhead: float = 0.0  # passes spent before the first design: pilot and gradients
    reason: str = ""  # why it was chosen, if it was
    ready: _Ready | None = None

    @property
    def name(self) -> str:
        """The name users choose it by."""
        return "control-variate" if self.expansion else "stratified"

    def min_cost(self) -> int:
        """A few pairs of designs, which may be short until they are bound, and what preparing them costs."""
        passes = min(self.passes, SHORT) if self.ready is None else self.passes
        return 2 * LEAST_PAIRS * passes + int(np.ceil(self.overhead))

    def choose(self, source: Source, goal: Goal) -> Stratified:
        """Shorter designs for small budgets, so that enough pairs are left for standard errors."""
        if self.expansion and not supported(source.program):
            raise ModelError(_unsupported(source))
        heads = self.heads
        if heads is None:
            heads = self.expansion or preparing(source) <= PREPARING * (goal.budget or UNKNOWN_BUDGET)
        samples = self.gradient_masks
        if samples is None:
            samples = GRADIENT_MASKS if self.expansion and affordable(source, goal, GRADIENT_MASKS) else 0
        chosen = replace(self, heads=heads, gradient_masks=samples)
        if goal.budget is not None:
            ahead = self.overhead + (preparing(source, samples) if heads or self.expansion else 0.0)
            most = int(np.clip(goal.budget // 20, SHORT, self.passes)) if goal.has_tolerance else self.passes
            chosen = replace(chosen, passes=_length(source, goal.budget - ahead, most, self.expansion))
        if goal.has_tolerance and (goal.tolerance is None or _whole(source, TO_TOLERANCE)):
            chosen = replace(chosen, passes=min(chosen.passes, TO_TOLERANCE))
        return chosen

    def bind(self, source: Source) -> Stratified:
        """Differentiate once for these inputs, if anything needs it."""
        if not supported(source.program) or not (self.expansion or self.heads):
            return replace(self, ready=_Ready(tuple(_Rows(rows) for rows, _ in source.parts(self.passes))))
        samples = self.gradient_masks if self.expansion else 0
        held = passes_in_memory(source.program, samples) if samples else PASSES_OF_A_GRADIENT
        bound = [self._bind_rows(rows, part) for rows, part in source.parts(held)]
        return replace(
            self,
            ready=_Ready(tuple(prepared for prepared, _ in bound)),
            overhead=self.overhead + max(cost for _, cost in bound),
        )

    def _bind_rows(self, rows: slice, source: Source) -> tuple[_Rows, float]:
        """Heads and expansion of some rows, and their cost in passes."""
        sampler, program, batch = source.sampler, source.program, source.batch
        try:
            slopes = linearise(sampler, program, batch)
        except DerivativeError as error:
            if self.expansion:
                raise
            return _Rows(rows, without_heads=error.cause), 1.0
        cost = slopes.cost
        heads = heads_of(sampler, program, batch, slopes, source.seed) if self.heads else ()
        cost += proof_cost(batch.rows, len(heads))
        if not self.expansion:
            return _Rows(rows, heads), cost
        served, second, more = outputs_by_head(heads), None, 0.0
        if self.gradient_masks:
            with suppress(DerivativeError):  # the first order is there
                second, more = fit_quadratic(
                    sampler, program, batch, self.gradient_masks, served, source.seed, source.first_row
                )
        return _Rows(rows, heads, second or expansion_of(program, slopes, served)), cost + more

    def extend(self, done: Mapping[str, int], budget: float) -> tuple[list[Task], dict[str, int]]:
        """The next designs: whole pairs where there will be more, and one more if that is what is left."""
        first = done.get("designs", 0)
        spent = done.get("passes", int(np.ceil(self.overhead)))
        if not first:
            budget -= spent
        count = max(0, int(budget // self.passes))
        size = max(2, BLOCK // (2 * self.passes) * 2)
        after = {"designs": first + count, "passes": spent + self.passes * count}
        return [Task(0, a, n) for a, n in blocks(first, count, size)], after

    def run(self, source: Source, task: Task) -> State:
        """Means and inner scatter of designs, and of their companions."""
        assert self.ready is not None
        return states_beside(self._run_rows(source, task, own) for own in self.ready.parts)

    def _run_rows(self, source: Source, task: Task, own: _Rows) -> State:
        designs = np.arange(task.first, task.first + task.count)
        keys = pass_keys(source.seed, task.stream, designs // 2, designs % 2)
        D, s2, G = self._passes(source, keys, own)
        if own.expansion is None:
            return state_of_designs(D, s2, None, 0.0, task.first)
        return state_of_designs(D, s2, G, as_array(own.expansion.variance), task.first)

    def _passes(self, source: Source, keys: Tensor, own: _Rows) -> list[Array]:
        """h, s² and G of some rows and the designs named by ``keys``: each (designs, T, rows, width)."""
        part = replace(source, batch=source.batch[own.rows], first_row=source.first_row + own.rows.start)
        chunks = [own.passes(part, masks) for masks in part.design_chunks(keys, self.passes)]
        joined = [np.concatenate(arrays) for arrays in zip(*chunks, strict=True)]
        part.check(joined[0])
        return [values.reshape(len(keys), self.passes, *values.shape[1:]) for values in joined]

    def summarise(self, state: State, done: Mapping[str, int]) -> Estimates:
        """Means over designs and pairs; standard errors from their scatter."""
        assert self.ready is not None
        found, cost = summary(state), done["passes"]
        levels = tuple(self._levels(state, found, cost))
        mean_stderr = _widened(found.designs) * np.sqrt(found.error2_mean)
        variance_stderr = _widened(found.samples) * np.sqrt(found.error2_variance) * widened_for_tails(state["pass"])
        return Estimates(
            found.mean,
            found.variance,
            mean_stderr,
            variance_stderr,
            cost,
            levels=levels,
            notes=tuple(self._notes(levels)),
            overhead=self.overhead,
            trust=_trust(state, found, mean_stderr, variance_stderr),
        )

    def _levels(self, state: State, found: Summary, cost: float) -> Iterator[LevelEstimate]:
        assert self.ready is not None
        full, s2 = state["pass"], state["s2"]
        rest, mu2, error2_v = state.get("rest", full), found.variance, found.error2_variance
        with np.errstate(invalid="ignore", divide="ignore"):
            gain = mu2 / cost / found.error2_mean
            mu4 = full.fourth + 6 * full.variance * s2.mean + 3 * s2.mean**2  # of a pass with its last masks drawn
            gain_V = (mu4 - mu2**2) / cost / error2_v
            correlation = np.sqrt(np.clip(1 - rest.variance / full.variance, 0, 1))
        if self.ready.expanded:
            known = self.ready.variance
            nothing = np.zeros_like(known)
            yield LevelEstimate("analytic", 0, 0, self.overhead, nothing, known, nothing, known, nothing, nothing)
        yield LevelEstimate(
            "correction" if self.ready.expanded else "passes",
            self.passes,
            rest.count,
            cost - (self.overhead if self.ready.expanded else 0.0),
            rest.mean,
            rest.variance,
            rest.kurtosis,
            mu2,
            error2_v * cost,
            full.kurtosis,
            correlation=correlation if self.ready.expanded else None,
            gain=gain,
            gain_V=gain_V,
        )

    def _notes(self, levels: tuple[LevelEstimate, ...]) -> Iterator[str]:
        assert self.ready is not None
        last = levels[-1]
        assert last.gain is not None and last.gain_V is not None
        if self.reason:
            yield self.reason
        yield (
            f"Plain Monte Carlo would need about {times(_median(last.gain))} times as many passes for the mean and "
            f"{times(_median(last.gain_V))} times as many for the variance (medians over inputs and outputs)."
        )
        if self.ready.heads:
            names = ", ".join(map(repr, self.ready.heads))
            yield f"The outputs are affine in the units dropped at {names}, which were averaged out in closed form."
        if self.ready.without_heads and not self.reason:
            yield f"No dropout was averaged out in closed form, for lack of derivatives ({self.ready.without_heads})."

    def describe(self) -> dict[str, Any]:
        """Design size and what is averaged out."""
        return {"design": self.passes, "gradient_masks": self.gradient_masks}


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """What was computed for some rows."""

    rows: slice
    heads: tuple[Head, ...] = ()
    expansion: Expansion | Quadratic | None = None
    without_heads: str = ""  # why there can be none, if derivatives were missing

    def passes(self, source: Source, masks: Sequence[Tensor | None]) -> list[Array]:
        """h, s² and G of a chunk of masks."""

        def values(masks: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
            h, s2 = reduced_passes(source.sampler, source.program, source.batch, masks, self.heads)
            G = torch.zeros_like(h) if self.expansion is None else self.expansion.values(masks, source.batch.rows)
            return h, s2, G

        return [as_array(t) for t in source.program.run_cached(values, (self, *source.batch.values), masks)]


@dataclass(frozen=True, slots=True, eq=False)
class _Ready:
    """What was computed for one batch of inputs, in parts of its rows."""

    parts: tuple[_Rows, ...]

    @property
    def expanded(self) -> bool:
        """Whether there is an analytic level."""
        return self.parts[0].expansion is not None

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the sites averaged out."""
        return tuple(dict.fromkeys(head.site.name for part in self.parts for head in reversed(part.heads)))

    @property
    def without_heads(self) -> str:
        """Why derivatives were missing, if they were."""
        return next((part.without_heads for part in self.parts if part.without_heads), "")

    @property
    def variance(self) -> Array:
        """Var G."""
        known = [part.expansion for part in self.parts if part.expansion is not None]
        return np.concatenate([as_array(e.variance) for e in known])


def _trust(state: State, found: Summary, mean_stderr: Array, variance_stderr: Array) -> Trust:
    """What passes, and what the expansion leaves of them, say about their tails."""
    whole = trust(state["pass"])
    if "rest" in state:
        rest = trust(state["rest"])
        whole &= Trust(rest.mean, rest.mean)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = mean_stderr / np.sqrt(found.variance), variance_stderr / found.variance
    return whole.where_it_matters(*share)


def _unsupported(source: Source) -> str:
    """Why there can be no expansion, and what to do."""
    active = source.program.active
    unclear = [s.name for s in active if not s.splits_by_row or (s.row_axis is None and expandable(s))]
    found = f"which is not so for {unclear}" if unclear else f"of which {[s.name for s in active]} have none"
    return (
        f"method='control-variate' needs mask units that belong to one input row each, {found}; use method='stratified'"
    )


def as_array(values: Tensor) -> Array:
    """In double precision, for numpy."""
    return np.asarray(values.double().cpu().numpy())


def _whole(source: Source, passes: int) -> bool:
    """Whether a design of so many passes drops every unit equally often."""
    return all(float(passes * site.p).is_integer() for site in source.program.active)


def affordable(source: Source, goal: Goal, samples: int = 1, share: float = 0.1) -> bool:
    """Whether ``samples`` gradients of every output cost at most ``share`` of the passes to come."""
    width = source.program.structure.width
    return bool(samples * (1 + width) <= share * (goal.budget or UNKNOWN_BUDGET))


def preparing(source: Source, samples: int = 0) -> float:
    """About what derivatives at the mean mask, and at ``samples`` others, and proving a head cost, in passes."""
    return (1 + samples) * (1 + source.program.structure.width) + proof_cost(source.batch.rows)


def _length(source: Source, budget: float, most: int, expansion: bool) -> int:
    """Passes of a design: few enough for standard errors, that leave little of the budget and drop units evenly."""
    lengths = range(min(SHORT, most), most + 1)
    return lengths[int(np.argmax([_worth(source, budget, T, expansion) for T in lengths]))]


def _worth(source: Source, budget: float, T: int, expansion: bool) -> float:
    """Passes used, over what uneven dropping leaves of the variance.

    Without an expansion a design knows the scatter inside it to T − 1 degrees of freedom only, once its mean is fixed.
    """
    designs = int(budget // T)
    if designs < 2 * LEAST_PAIRS:
        return 0.0
    rates = {site.p for site in source.program.active if expandable(site)}
    uneven = max(((f := p * T % 1.0) * (1.0 - f) / (T * p * (1.0 - p)) for p in rates), default=0.0)
    used = designs * (T if expansion else T - 1)
    return float(used / (_BEYOND + (1.0 - _BEYOND) * uneven) * min(1.0, designs / TRUSTED) ** 0.25)


def _widened(samples: ArrayLike) -> Array:
    """Student's factor, with which ± 1.96 standard errors from few samples cover 95 %.

    >>> _widened([10, 100]).round(3).tolist()
    [1.154, 1.012]
    """
    freedom = np.asarray(samples, dtype=np.float64) - 1
    return np.asarray(stdtrit(np.where(freedom > 0, freedom, np.nan), 0.975) / ndtri(0.975))


def times(gain: float) -> str:
    """A gain in words: two digits are all it is known to."""
    if gain >= 1e4:
        return "more than 10 000"
    return f"{gain:.0f}" if gain >= 10 else f"{gain:.1f}"


def _median(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else float("inf")
