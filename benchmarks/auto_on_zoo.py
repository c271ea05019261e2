"""Whether ``auto`` ever loses to plain Monte Carlo, and whether it finds the best method: every model of the zoo.

As in ``efficiency.py``, all methods get the same total cost, copies of an input are independent runs, and variances
are seen directly. Where masks do not belong to single inputs the runs are repeated with other seeds instead. ``auto``
decides anew from pilots of several seeds; its variance is the average over what it decided. A gain is a ratio of
variances summed over inputs and outputs; its own error is a few per cent. The best method is the one whose smaller
gain, of the two moments, is largest.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any

import common
import numpy as np
import torch

from mlmc_dropout.methods.auto import Auto
from mlmc_dropout.methods.base import Method, MethodSpec
from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.methods.pilot import EXACT
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.sampling.sampler import FallbackWarning
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal
from mlmc_dropout.surrogates.linear import supported
from testing.oracles import run_method, source_of
from testing.zoo import ZOO

BUDGET = 1000
METHODS: dict[str, MethodSpec] = {
    "pooled": Pooled(),
    "stratified": Stratified(),
    "first order": ControlVariate(gradient_masks=0),
    "second order": ControlVariate(gradient_masks=20),
    "second derivatives": ControlVariate(second_derivatives=True),
}
Spread = tuple[float, float]


def spread(plan: Method, source: Source, copies: int) -> Spread:
    """The variances of a method's two estimates, summed."""
    rows = source.batch.rows
    if supported(source.program):
        many = source.batch.map(lambda t: t.repeat_interleave(copies, 0), rows * copies)
        found = run_method(plan, replace(source, batch=many), BUDGET)
        samples = [values.reshape(rows, copies, -1) for values in (found.mean, found.variance)]
    else:
        runs = [run_method(plan, replace(source, seed=seed), BUDGET) for seed in range(4 * copies)]
        samples = [np.stack([getattr(f, name) for f in runs], axis=1) for name in ("mean", "variance")]
    mean, variance = (float(values.var(axis=1, ddof=1).sum()) for values in samples)
    return mean, variance


def label(plan: Method) -> str:
    """The method a plan of ``auto`` comes to."""
    if isinstance(plan, ControlVariate):
        if plan.second_derivatives:
            return "second derivatives"
        return "second order" if plan.gradient_masks else "first order"
    return plan.name


def decided(source: Source, pilots: int, copies: int) -> tuple[Counter[str], Spread]:
    """What ``auto`` decides from several pilots, and the average variances of that."""
    plans = [Auto().choose(replace(source, seed=seed), Goal(budget=BUDGET)) for seed in range(pilots)]
    counts = Counter(map(label, plans))
    spreads = {name: spread(next(p for p in plans if label(p) == name), source, copies) for name in counts}
    mean, variance = (sum(n * spreads[name][i] for name, n in counts.items()) / pilots for i in (0, 1))
    return counts, (mean, variance)


def gains(plain: Spread, ours: Spread) -> Spread:
    """How many times smaller our variances are."""
    mean, variance = (p / o if o > 0 else math.inf for p, o in zip(plain, ours, strict=True))
    return mean, variance


def shown(gain: float) -> str:
    """A gain for readers."""
    return "exact" if gain > EXACT else f"{gain:.3g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=100, help="independent runs per input")
    parser.add_argument("--pilots", type=int, default=10, help="times auto decides")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FallbackWarning)
    torch.set_grad_enabled(False)
    rows: list[dict[str, Any]] = []
    for name in ZOO:
        source = source_of(*ZOO[name].make())
        possible = METHODS if supported(source.program) else {k: METHODS[k] for k in ("pooled", "stratified")}
        goal = Goal(budget=BUDGET)
        plans = {key: method.choose(source, goal) for key, method in possible.items()}
        affordable = {key: plan for key, plan in plans.items() if plan.bind(source).min_cost() <= BUDGET}
        spreads = {key: spread(plan, source, options.copies) for key, plan in affordable.items()}
        counts, ours = decided(source, options.pilots, options.copies)
        all_gains = {key: gains(spreads["pooled"], own) for key, own in spreads.items()}
        best = max(all_gains, key=lambda key: min(min(all_gains[key]), EXACT))
        row = {"model": name, "auto": gains(spreads["pooled"], ours), "took": dict(counts), "best": best, **all_gains}
        rows.append(row)
        print(row, flush=True)
    lines = []
    for row in rows:
        took = ", ".join(f"{key} ({n})" if n < options.pilots else key for key, n in row["took"].items())
        lines.append([row["model"], took, *map(shown, row["auto"]), row["best"], *map(shown, row[row["best"]])])
    text = common.table(("model", "auto took", "mean", "variance", "best single method", "mean", "variance"), lines)
    common.write_into("passes-saved.md", "auto", text)
    print(text)
    worst = min(min(row["auto"]) for row in rows)
    behind = [
        (row["model"], min(min(row["auto"]), EXACT) / min(min(row[row["best"]]), EXACT))
        for row in rows
        if min(row[row["best"]]) > 1.5
    ]
    print(f"the least gain of auto over plain Monte Carlo, either moment: {worst:.3g}")
    print("auto over the best method, where that gains more than 1.5 times:", min(behind, key=lambda pair: pair[1]))
    missed = [row["model"] for row in rows if min(row[row["best"]]) > 1.5 and set(row["took"]) != {row["best"]}]
    print("some pilot took another method than that:", ", ".join(missed) or "nowhere")
    common.save("auto_on_zoo", rows, budget=BUDGET, copies=options.copies, pilots=options.pilots)
    return 0 if worst >= 0.95 and not missed else 1


if __name__ == "__main__":
    raise SystemExit(main())
