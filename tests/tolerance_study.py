"""Runs to a tolerance on models of the zoo, judged by references of a million passes.

A *cell* is a model, a method, a moment and a tolerance, run with several seeds. Three questions are asked of it.

* Covered: the share of components whose nominal 95 % interval (± 1.96 reported standard errors) holds the reference.
* Met: the share of components within 1.96 *tolerances* of it.
* Spent: the mean cost over the least possible. The least possible is what somebody spends who uses the same method and
  knows its variance in advance: v/tolerance², v the variance of one pass's worth of work in the worst component, from a
  long run. It is never below the method's smallest run, which is ``PILOT`` passes or ``TRUSTED`` samples (pairs of
  designs, replicates of the finest level), whichever is more; what a method spends before its first sample (gradients,
  a look at the model) is added.

Components of a run share its stopping time: the run is the unit of all statistics.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from oracles import source_of
from zoo import ZOO

from mlmc_dropout.estimators import Chooser, Method, Source, make_method
from mlmc_dropout.expansion import supported
from mlmc_dropout.rounds import Run
from mlmc_dropout.stopping import PILOT, TRUSTED, Goal

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

METHODS: dict[str, Chooser] = {
    "pooled": make_method("pooled"),
    "stratified": make_method("stratified"),
    "auto": make_method("auto"),
    "mlmc": make_method("mlmc", ladder=(4, 8)),
}
LEASTS = {"mean": (400, 1000, 2500), "variance": (400, 1000, 2500, 6000)}  # passes of somebody who knows the variance
FEW = ("tiny", "mlp", "functional", "alpha", "attention", "rnn", "float64", "weight_dropout")  # for what is less common
MOST_GAIN = 100.0  # no tolerance is tighter than one for which plain averaging takes this many times as many
EXACT = 1e8  # a gain that says that nothing but rounding is left
COPIES = 16  # of every input in a long run, for speed: with masks of their own they are independent
REFERENCE = 1_000_000
SAVED = Path(__file__).parents[1] / "benchmarks" / "results" / "zoo_references.json"
LONG = 160_000
MARGIN = 1.96
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

    def best(self, other: Reference) -> Reference:
        """Component by component the one with the smaller standard error."""
        found: dict[str, list[float]] = {}
        for moment in ("mean", "variance"):
            (a, error_a), (b, error_b) = self.of(moment), other.of(moment)
            found[moment] = np.where(error_a <= error_b, a, b).tolist()
            found[f"{moment}_stderr"] = np.minimum(error_a, error_b).tolist()
        return Reference(self.passes + other.passes, **found)


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
        best = self.long(make_method("stratified").choose(self.source, Goal(budget=LONG)))
        self.reference = reference.best(best.found)

    def long(self, plan: Method) -> _Long:
        """A long run of a plan, once."""
        key = repr(plan)
        if key not in self._long:
            self._long[key] = _long(self.source, plan, LONG)
        return self._long[key]

    def disagreement(self) -> float:
        """Largest |z| between the plain reference and the long stratified run, over components and both moments."""
        found = next(iter(self._long.values())).found
        worst = 0.0
        for moment in ("mean", "variance"):
            (a, error_a), (b, error_b) = self.plain.of(moment), found.of(moment)
            scale = ROUNDING * np.abs(a).max()
            worst = max(worst, float(np.max(np.maximum(np.abs(a - b) - scale, 0) / np.hypot(error_a, error_b))))
        return worst

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
            assert stderr.max() <= tolerance
            covered.append(float(np.mean(off <= MARGIN * np.hypot(stderr, error))))
            met.append(float(np.mean(off <= MARGIN * np.hypot(tolerance, error))))
            spent.append(float(found.cost))
            long = self.long(plan)
            smallest = max(PILOT, TRUSTED * long.sample)
            floors.append(long.before + max(float(long.unit[moment].max()) / tolerance**2, smallest))
            ran = plan.name
        gain = float(min(plain / unit, 1e30)) if unit else 1e30
        return Cell(self.name, method, ran, moment, tolerance, float(np.mean(floors)), gain, spent, covered, met)


def _finished(run: Run) -> Run:
    while not run.finished:
        start, tasks = run.take(1)
        run.accept(start, [run.plan.run(run.source, task) for task in tasks])
    return run


def _long(source: Source, plan: Method, passes: int) -> _Long:
    """A run of ``passes`` passes in all, on copies of the inputs where these are independent."""
    rows, copies = source.batch.rows, COPIES if supported(source.program) else 1
    many = source.batch.map(lambda t: t.repeat_interleave(copies, 0), rows * copies)
    run = _finished(Run(0, replace(source, batch=many), plan, Goal(budget=passes // copies)))
    found = run.outcome.estimates
    before = float(getattr(run.plan, "overhead", 0.0))
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
