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

from mlmc_dropout.engine.masks import pass_keys
from mlmc_dropout.errors import ModelError
from mlmc_dropout.estimators.base import BLOCK, Estimates, LevelEstimate, Source, State, Task, blocks, states_beside
from mlmc_dropout.expansion.derivatives import DerivativeError, expandable
from mlmc_dropout.expansion.first_order import PASSES_OF_A_GRADIENT, Expansion, expansion_of, linearise, supported
from mlmc_dropout.expansion.heads import Head, heads_of, reduced_passes, served_by
from mlmc_dropout.expansion.second_order import Quadratic, curved, passes_in_memory
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.stopping import Goal

__all__ = ["Stratified"]

Array = NDArray[np.float64]

DESIGN = 20  # passes per design: pT is whole for the common rates 0.05, 0.1, 0.2, 0.25, 0.5
SHORT = 4
TO_TOLERANCE = 10  # the same where standard errors decide: they are better with more pairs
UNKNOWN_BUDGET = 1280.0  # taken for the passes to come when only a tolerance is given
LEAST_PAIRS = 4
GRADIENT_MASKS = 20  # random masks at which gradients show the curvature
HEAD_COST = 8.0  # passes on which a head is checked
_HALVES = ("a", "b")
_INSIDE, _APART = "inside", "apart"
_PRIOR = 3.0  # pairs' worth of belief in the coefficient 1


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

    def least(self) -> int:
        """A few pairs of designs, which may be short until they are bound, and what preparing them costs."""
        passes = min(self.passes, SHORT) if self.ready is None else self.passes
        return 2 * LEAST_PAIRS * passes + int(np.ceil(self.overhead))

    def choose(self, source: Source, goal: Goal) -> Stratified:
        """Shorter designs for small budgets, so that enough pairs are left for standard errors."""
        if self.expansion and not supported(source.program):
            raise ModelError(_unsupported(source))
        heads = self.heads
        if heads is None:
            heads = self.expansion or affordable(source, goal)
        samples = self.gradient_masks
        if samples is None:
            samples = GRADIENT_MASKS if self.expansion and affordable(source, goal, GRADIENT_MASKS) else 0
        chosen = replace(self, heads=heads, gradient_masks=samples).shortened(goal.budget)
        if goal.has_tolerance and (goal.tolerance is None or _whole(source, TO_TOLERANCE)):
            chosen = replace(chosen, passes=min(chosen.passes, TO_TOLERANCE))
        return chosen

    def shortened(self, budget: float | None) -> Stratified:
        """With designs of which a budget holds at least ten pairs, if they need not be very short for that."""
        if budget is None:
            return self
        return replace(self, passes=int(np.clip(budget // 20, min(self.passes, SHORT), self.passes)))

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
        if heads:
            cost += HEAD_COST
        if not self.expansion:
            return _Rows(rows, heads), cost
        served, second, more = served_by(heads), None, 0.0
        if self.gradient_masks:
            with suppress(DerivativeError):  # the first order is there
                second, more = curved(
                    sampler, program, batch, self.gradient_masks, served, source.seed, source.first_row
                )
        return _Rows(rows, heads, second or expansion_of(program, slopes, served)), cost + more

    def extend(self, done: Mapping[str, int], budget: float) -> tuple[list[Task], dict[str, int]]:
        """The next pairs of designs."""
        first = done.get("pairs", 0)
        spent = done.get("passes", int(np.ceil(self.overhead)))
        if not first:
            budget -= spent
        count = max(0, int(budget // (2 * self.passes)))
        size = max(1, BLOCK // (2 * self.passes))
        after = {"pairs": first + count, "passes": spent + 2 * self.passes * count}
        return [Task(0, a, n) for a, n in blocks(first, count, size)], after

    def run(self, source: Source, task: Task) -> State:
        """Design means, and the variance estimate and control of every pair."""
        assert self.ready is not None
        return states_beside(self._run_rows(source, task, own) for own in self.ready.parts)

    def _run_rows(self, source: Source, task: Task, own: _Rows) -> State:
        pairs = range(task.first, task.first + task.count)
        keys = pass_keys(source.seed, task.stream, np.repeat(pairs, 2), np.tile([0, 1], task.count))
        D, s2, G = self._passes(source, keys, own)
        raw = D.reshape(-1, *D.shape[2:])
        state: dict[str, MomentBlock] = {
            "y": MomentBlock.of((D - G).mean(axis=1), order=2),
            "pass": MomentBlock.of(raw),
            "rest": MomentBlock.of(raw - G.reshape(raw.shape)),
            "s2": MomentBlock.of(s2.reshape(raw.shape), order=2),
        }
        v = _variance_of_pairs(D, s2)
        c = None if own.expansion is None else _variance_of_pairs(G, known=as_array(own.expansion.variance))
        state |= _blocks(_INSIDE, v.inside, None if c is None else c.inside)
        state |= _blocks(_APART, v.apart, None if c is None else c.apart)
        for half, name in enumerate(_HALVES):
            mine = [i for i, pair in enumerate(pairs) if pair % 2 == half]
            if mine:
                state |= _blocks(name, v.whole[mine], None if c is None else c.whole[mine])
        return state

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
        y = state["y"]
        cost = done["passes"]
        variance, error2, samples = _variance(state)
        levels = tuple(self._levels(state, variance, y.variance_of_mean, error2, cost))
        return Estimates(
            y.mean,
            variance,
            _widened(y.count) * np.sqrt(y.variance_of_mean),
            _widened(samples) * np.sqrt(error2),
            cost,
            levels=levels,
            notes=tuple(self._notes(levels)),
            overhead=self.overhead,
        )

    def _levels(
        self, state: State, mu2: Array, error2_y: Array, error2_v: Array, cost: float
    ) -> Iterator[LevelEstimate]:
        assert self.ready is not None
        full, rest, s2 = state["pass"], state["rest"], state["s2"]
        with np.errstate(invalid="ignore", divide="ignore"):
            gain = mu2 / cost / error2_y
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

        return [as_array(t) for t in source.program.repeatedly(values, (self, *source.batch.values), masks)]


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


def _widened(samples: ArrayLike) -> Array:
    """Student's factor, with which ± 1.96 standard errors from few samples cover 95 %.

    >>> _widened([10, 100]).round(3).tolist()
    [1.154, 1.012]
    """
    freedom = np.asarray(samples, dtype=np.float64) - 1
    return np.asarray(stdtrit(np.where(freedom > 0, freedom, np.nan), 0.975) / ndtri(0.975))


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The variance of a pass from each pair of designs; of the scatter inside the two, average and half difference."""

    whole: Array
    inside: Array
    apart: Array


def _variance_of_pairs(values: Array, extra: Array | float = 0.0, known: Array | float = 0.0) -> _Pairs:
    """From (designs, T, ...): scatter inside, with ``extra`` of each pass, and between the two, less what is known."""
    Y = values.mean(axis=1)
    own = (np.square(values - Y[:, None]) + extra).mean(axis=1)
    inside = (own[::2] + own[1::2]) / 2 - known
    return _Pairs(inside + (Y[::2] - Y[1::2]) ** 2 / 2, inside, (own[::2] - own[1::2]) / 2)


def _blocks(name: str, v: Array, c: Array | None) -> dict[str, MomentBlock]:
    """Moments of v, of its control c where there is one, and of their sum, which tells how they go together."""
    found = {"v": v} if c is None else {"v": v, "c": c, "v+c": v + c}
    return {f"{key}.{name}": MomentBlock.of(values, order=2) for key, values in found.items()}


def times(gain: float) -> str:
    """A gain in words: two digits are all it is known to."""
    if gain >= 1e4:
        return "more than 10 000"
    return f"{gain:.0f}" if gain >= 10 else f"{gain:.1f}"


def _median(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else float("inf")


def _variance(state: State) -> tuple[Array, Array, Array]:
    """Mean of v − β c with β from the other half of the pairs, the variance of that mean, and the samples it rests on.

    Two designs of a pair are independent. What the scatter inside them seems to have in common is chance, and half of
    it is taken off the variance, which so rests on as many samples as there are designs, not pairs.
    """
    counts = {half: state[f"v.{half}"].count for half in _HALVES if f"v.{half}" in state}
    betas = {half: _coefficient(state, half) for half in counts}
    total = sum(counts.values())
    mean, error2, single = (np.zeros_like(state["y"].mean) for _ in range(3))
    for half, other in zip(_HALVES, reversed(_HALVES), strict=True):
        if half not in counts:
            continue
        beta, share = betas.get(other, betas[half]), counts[half] / total
        whole, inside, apart = (_spread(state, name, beta) for name in (half, _INSIDE, _APART))
        v = state[f"v.{half}"].mean
        mean += share * (v - beta * state[f"c.{half}"].mean if f"c.{half}" in state else v)
        error2 += share / total * np.maximum(whole + (apart - inside) / 2, whole / 4)
        with np.errstate(invalid="ignore", divide="ignore"):
            single += share * np.clip(np.nan_to_num(inside / whole), 0.0, 1.0)
    return mean, error2, total * (1.0 + single)


def _coefficient(state: State, name: str) -> Array | float:
    """Of the control in v − β c: drawn a little towards 1, that of a good expansion, since few pairs fit it badly."""
    if f"c.{name}" not in state:
        return 0.0
    v, c = state[f"v.{name}"], state[f"c.{name}"]
    with np.errstate(invalid="ignore", divide="ignore"):
        beta = (_covariance(state, name) * v.count + c.variance * _PRIOR) / (c.variance * (v.count + _PRIOR))
    return np.clip(np.nan_to_num(beta, nan=1.0), 0.0, 2.0)


def _covariance(state: State, name: str) -> Array:
    v, c, both = (state[f"{key}.{name}"].variance for key in ("v", "c", "v+c"))
    return (both - v - c) / 2


def _spread(state: State, name: str, beta: Array | float) -> Array:
    """The variance of v − β c."""
    v = state[f"v.{name}"].variance
    if f"c.{name}" not in state:
        return v
    return np.maximum(v - 2 * beta * _covariance(state, name) + beta**2 * state[f"c.{name}"].variance, 0.0)
