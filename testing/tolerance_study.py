"""Runs to a tolerance on models of the zoo, judged by references of a million passes and more.

A reference is a million plain passes and, after a comparison, long runs of the better methods, which make it as precise
as the tightest tolerance needs. A *cell* is a model, a method, a moment and a tolerance, run with several seeds. Three
questions are asked of it.

* Covered: the share of components whose nominal 95 % interval (± 1.96 reported standard errors) holds the reference.
* Met: the share of components within 1.96 *tolerances* of it.
* Spent: the mean cost over the least possible. The least possible is what somebody spends who uses the same method and
  knows its variance in advance: v/tolerance², v the variance of one pass's worth of work in the worst component, from a
  long run. A coefficient that is fitted on the way (the control variate of the variance) is fitted worse in a run of
  that length than in a long one, whoever stops it: v is larger there by the factor that the scatter of many such runs
  shows. The least is never below the method's smallest run, which is ``PILOT`` passes or ``TRUSTED`` samples
  (designs, replicates of the finest level), whichever is more; what a method spends before its first sample (gradients,
  a look at the model) is added.

Components of a run share its stopping time: the run is the unit of all statistics.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from mlmc_dropout.methods.base import Method, MethodSpec
from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.registry import make_method
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.result import Status
from mlmc_dropout.runtime.run import Run
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import PILOT, TRUSTED, Goal
from mlmc_dropout.surrogates.linear import supported
from testing.oracles import source_of
from testing.zoo import ZOO

__all__ = [
    "FEW",
    "LEASTS",
    "METHODS",
    "REFERENCE",
    "Cell",
    "Reference",
    "Study",
    "coverage",
    "parts",
    "reference_of",
    "saved_references",
]

METHODS: dict[str, MethodSpec] = {
    "pooled": make_method("pooled"),
    "stratified": make_method("stratified"),
    "auto": make_method("auto"),
    "mlmc": make_method("mlmc", ladder=(4, 8)),
}
LEASTS = {"mean": (400, 1000, 2500), "variance": (400, 1000, 2500, 6000)}  # passes of somebody who knows the variance
FEW = (
    "tiny",
    "mlp",
    "functional",
    "alpha",
    "attention",
    "rnn",
    "float64",
    "weight_dropout",
)  # for what is less common
MOST_GAIN = 100.0  # no tolerance is tighter than one for which plain averaging takes this many times as many
EXACT = 1e8  # a gain that says that nothing but rounding is left
COPIES = 16  # of every input in a long run, for speed: with masks of their own they are independent
REFERENCE = 1_000_000
SAVED = Path(__file__).parents[1] / "benchmarks" / "results" / "zoo_references.json"
LONG = 160_000
SHORT_RUNS = 400  # whose scatter shows the variance at a given length
MARGIN = 1.96
TINY = 1e-300
ROUNDING = 1e-6  # of the largest value: where nothing is left to chance, estimates differ by rounding


@dataclass(frozen=True, slots=True)
class Reference:
    """Both moments of every component, and their standard errors."""

    passes: int
    mean: list[float]
    mean_stderr: list[float]
    variance: list[float]
    variance_stderr: list[float]

    def of(self, moment: str) -> tuple[np.ndarray, np.ndarray]:
        """A moment and its standard error."""
        return np.array(getattr(self, moment)), np.array(getattr(self, f"{moment}_stderr"))

    def with_(self, other: Reference) -> Reference:
        """Both together, weighted by their precision."""
        found: dict[str, list[float]] = {}
        for moment in ("mean", "variance"):
            (a, error_a), (b, error_b) = self.of(moment), other.of(moment)
            share = error_a**2 / np.maximum(error_a**2 + error_b**2, TINY)
            found[moment] = (a + share * (b - a)).tolist()
            found[f"{moment}_stderr"] = (np.sqrt(share) * error_b).tolist()
        return Reference(self.passes + other.passes, **found)

    def z(self, other: Reference) -> float:
        """How far the two are apart beyond rounding: the largest |z| over components and both moments."""
        worst = 0.0
        for moment in ("mean", "variance"):
            (a, error_a), (b, error_b) = self.of(moment), other.of(moment)
            off = np.maximum(np.abs(a - b) - ROUNDING * np.abs(a).max(), 0)
            worst = max(worst, float(np.max(off / np.maximum(np.hypot(error_a, error_b), TINY))))
        return worst


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of the runs of a model and a method at one tolerance, run by run."""

    model: str
    method: str
    ran: str
    moment: str
    tolerance: float
    least: float
    gain: float  # over plain averaging, at equal cost and in the worst component
    spent: list[float]
    covered: list[float]
    met: list[float]

    @property
    def by_chance(self) -> bool:
        """Whether anything is left to chance: where the last dropout is averaged out nothing may be."""
        return self.gain < EXACT

    @property
    def ratio(self) -> float:
        """Mean cost over the least possible."""
        return float(np.mean(self.spent) / self.least)

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "ratio": self.ratio, "by_chance": self.by_chance}


@dataclass(frozen=True, slots=True)
class _Long:
    """A long run: what it found, and what a method's work is worth."""

    found: Reference
    unit: dict[str, np.ndarray]  # variance of one pass's worth of work
    sample: float  # passes per sample
    before: float  # passes before the first sample


def coverage(shares: Sequence[float]) -> tuple[float, float]:
    """Mean share over runs, and its standard error."""
    return float(np.mean(shares)), float(np.std(shares, ddof=1) / math.sqrt(len(shares)))


def parts(name: str) -> list[tuple[str, str]]:
    """The methods and moments a model is studied with."""
    usual = ["pooled", "stratified", "auto"]
    if name not in FEW:
        return [(method, "mean") for method in usual]
    return [(method, "mean") for method in [*usual, "mlmc"]] + [(method, "variance") for method in usual]


def reference_of(name: str) -> Reference:
    """A million plain passes."""
    source = source_of(*ZOO[name].make(), seed=1)
    return _long(source, make_method("pooled").choose(source, Goal(budget=REFERENCE)), REFERENCE).found


def saved_references() -> dict[str, Reference]:
    """The references that ``benchmarks/tolerance.py`` keeps."""
    rows = json.loads(SAVED.read_text())["rows"] if SAVED.exists() else []
    return {row.pop("model"): Reference(**row) for row in rows}


class Study:
    """A model of the zoo, its reference, and long runs of the methods asked about so far."""

    def __init__(self, name: str, reference: Reference) -> None:
        self.name = name
        self.source = source_of(*ZOO[name].make(), seed=2)
        self.plain = reference
        self._long: dict[str, _Long] = {}
        self._excess: dict[tuple[str, float], float] = {}
        methods = ("stratified", "control-variate") if supported(self.source.program) else ("stratified",)
        self._others = [self.long(make_method(m).choose(self.source, Goal(budget=LONG))).found for m in methods]
        self.reference = reduce(Reference.with_, self._others, reference)

    def long(self, plan: Method) -> _Long:
        """A long run of a plan, once."""
        key = _key(plan)
        if key not in self._long:
            self._long[key] = _long(self.source, plan, LONG)
        return self._long[key]

    def min_cost(self, plan: Method, moment: str, tolerance: float) -> float:
        """What somebody spends who knows the variance of a plan."""
        long = self.long(plan)
        passes, smallest = float(long.unit[moment].max()) / tolerance**2, max(PILOT, TRUSTED * long.sample)
        if moment == "variance" and isinstance(plan, ControlVariate) and passes > smallest:
            if (key := (_key(plan), passes)) not in self._excess:
                self._excess[key] = _excess(self.source, plan, long, passes)
            # The variance of a run of n passes is v/n · (1 + k/n): one length shows k.
            passes *= (1 + math.sqrt(max(1 + 4 * self._excess[key], 0))) / 2
        return long.before + max(passes, smallest)

    def disagreement(self) -> float:
        """Largest |z| between the plain reference and the long runs of better methods that are joined to it."""
        return max(self.plain.z(other) for other in self._others)

    def cell(self, method: str, least: int, seeds: int, moment: str = "mean", first: int = 0) -> Cell:
        """Runs of a method at the tolerance that takes ``least`` passes if its variance is known.

        No two cells of a model share a seed, for the same seed means the same passes.
        """
        chooser = METHODS[method]
        known = Goal(budget=least)
        plain = self.long(make_method("pooled").choose(self.source, known)).unit[moment].max()
        unit = self.long(chooser.choose(self.source, known)).unit[moment].max()
        tolerance = math.sqrt(max(unit, plain / MOST_GAIN) / least)
        goal = Goal(tolerance=tolerance) if moment == "mean" else Goal(tolerance_variance=tolerance)
        truth, error = self.reference.of(moment)
        rounding = ROUNDING * np.abs(truth).max()
        spent, covered, met, floors, ran = [], [], [], [], ""
        levels = LEASTS["variance"]
        place = (list(METHODS).index(method) * 2 + (moment == "variance")) * len(levels) + levels.index(least)
        for seed in range(first, first + seeds):
            source = replace(self.source, seed=1000 * (place + 1) + seed)
            plan = chooser.choose(source, goal)
            run = _finished(Run(0, source, plan, goal))
            found = run.outcome.estimates
            off = np.abs(getattr(found, moment).ravel() - truth) - rounding
            stderr = getattr(found, f"{moment}_stderr").ravel()
            limited = run.outcome.status is Status.PRECISION_REACHED  # no pass helps: the stated error is what is met
            assert limited or stderr.max() <= tolerance
            promised = np.maximum(stderr, tolerance) if limited else tolerance
            covered.append(float(np.mean(off <= MARGIN * np.hypot(stderr, error))))
            met.append(float(np.mean(off <= MARGIN * np.hypot(promised, error))))
            spent.append(float(found.cost))
            floors.append(self.min_cost(plan, moment, tolerance))
            ran = plan.name
        gain = float(min(plain / unit, 1e30)) if unit else 1e30
        return Cell(self.name, method, ran, moment, tolerance, float(np.mean(floors)), gain, spent, covered, met)


def _key(plan: Method) -> str:
    """What tells plans apart: not the sentence that says why one was chosen."""
    return repr(replace(plan, reason="") if isinstance(plan, Pooled | Stratified) else plan)


def _finished(run: Run) -> Run:
    while not run.finished:
        start, tasks = run.take(1)
        run.accept(start, [run.bound.run(run.source, task) for task in tasks])
    return run


def _run(source: Source, plan: Method, passes: float, copies: int) -> Run:
    """A run on copies of every input."""
    many = source.batch.map(lambda t: t.repeat_interleave(copies, 0), source.batch.rows * copies)
    return _finished(Run(0, replace(source, batch=many), plan, Goal(budget=passes)))


def _excess(source: Source, plan: Method, long: _Long, passes: float) -> float:
    """By how much runs of ``passes`` passes scatter more, relative to a long one: the variance, over all components."""
    found = _run(source, plan, long.before + passes, SHORT_RUNS).outcome.estimates
    scatter = found.variance.reshape(source.batch.rows, SHORT_RUNS, -1).var(axis=1, ddof=1).ravel()
    return float(np.mean(scatter * (found.cost - long.before) / long.unit["variance"])) - 1


def _long(source: Source, plan: Method, passes: int) -> _Long:
    """A run of ``passes`` passes in all, on copies of the inputs where these are independent."""
    rows, copies = source.batch.rows, COPIES if supported(source.program) else 1
    run = _run(source, plan, passes // copies, copies)
    found = run.outcome.estimates
    before = float(getattr(run.bound, "overhead", 0.0))
    cost = found.cost - before

    def over_copies(values: np.ndarray) -> np.ndarray:
        return values.reshape(rows, copies, -1).mean(axis=1).ravel()

    result: dict[str, Any] = {"passes": passes}
    unit = {}
    for moment in ("mean", "variance"):
        error2 = over_copies(np.square(getattr(found, f"{moment}_stderr")))
        result[moment] = over_copies(getattr(found, moment)).tolist()
        result[f"{moment}_stderr"] = np.sqrt(error2 / copies).tolist()
        unit[moment] = error2 * cost
    return _Long(Reference(**result), unit, cost / run.samples(), before)
