"""Whether ``auto`` ever loses to plain Monte Carlo: every model of the test zoo, equal total cost.

As in ``efficiency.py``, copies of an input are independent runs, and variances are seen directly. Where
masks do not belong to single inputs the runs are repeated with other seeds instead. A ratio is that of
variances summed over inputs and outputs; its own error is a few per cent.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

from mlmc_dropout.estimators import Auto, Chooser, Estimates, Pooled, Source, Stratified, merge_states
from mlmc_dropout.expansion import supported
from mlmc_dropout.sampler import DropoutSampler, FallbackWarning
from mlmc_dropout.stopping import Goal

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from zoo import ZOO

BUDGET = 1000
METHODS: dict[str, Chooser] = {
    "pooled": Pooled(),
    "stratified": Stratified(),
    "control-variate": Stratified(expansion=True),
    "auto": Auto(),
}


def source_of(name: str) -> Source:
    """Passes of a model of the zoo."""
    model, x = ZOO[name].make()
    sampler = DropoutSampler(model)
    batch = next(sampler.batches(x))
    return Source(sampler, sampler.prepare(batch), batch, 0)


def run(plan: Any, source: Source) -> Estimates:
    """Spend the budget."""
    bound = plan.bind(source)
    tasks, done = bound.extend({}, BUDGET)
    state: Any = {}
    for task in tasks:
        state = merge_states(state, bound.run(source, task))
    found: Estimates = bound.summarise(state, done)
    return found


def spread(method: Chooser, source: Source, copies: int) -> tuple[str, float, float]:
    """Name of the method run, and the variances of its two estimates, summed."""
    plan = method.choose(source, Goal(budget=BUDGET))
    rows = source.batch.rows
    if supported(source.program):
        many = source.batch.map(lambda t: t.repeat_interleave(copies, 0), rows * copies)
        found = run(plan, replace(source, batch=many))
        samples = [values.reshape(rows, copies, -1) for values in (found.mean, found.variance)]
    else:
        runs = [run(plan, replace(source, seed=seed)) for seed in range(4 * copies)]
        samples = [np.stack([getattr(f, name) for f in runs], axis=1) for name in ("mean", "variance")]
    mean, variance = (float(values.var(axis=1, ddof=1).sum()) for values in samples)
    return plan.name, mean, variance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=100, help="independent runs per input")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FallbackWarning)
    rows = []
    for name in ZOO:
        source = source_of(name)
        with torch.no_grad():
            results = {
                label: spread(method, source, options.copies)
                for label, method in METHODS.items()
                if label != "control-variate" or supported(source.program)
            }
        plain = results["pooled"]
        for label, (ran, mean, variance) in results.items():
            rows.append(
                {
                    "model": name,
                    "method": label,
                    "ran": ran,
                    "gain_mean": plain[1] / mean if mean > 0 else float("inf"),
                    "gain_variance": plain[2] / variance if variance > 0 else float("inf"),
                }
            )
    columns = ("model", "method", "ran", "gain_mean", "gain_variance")
    print(common.table(columns, [[row[c] for c in columns] for row in rows if row["method"] != "pooled"]))
    kept = ("model", "ran", "gain_mean", "gain_variance")
    text = common.table(kept, [[row[c] for c in kept] for row in rows if row["method"] == "auto"])
    common.write_into("variance-reduction.md", "auto", text)
    worst = min(min(r["gain_mean"], r["gain_variance"]) for r in rows if r["method"] == "auto")
    print(f"the least gain of auto over plain Monte Carlo, either moment: {worst:.3g}")
    print("written to", common.save("auto_on_zoo", rows, budget=BUDGET, copies=options.copies).name)


if __name__ == "__main__":
    main()
