"""Whether 95 % intervals cover 95 % across the zoo: 2000 runs of every method on every model, both moments.

Copies of one input with independent masks are independent runs. Where masks do not belong to single inputs the runs
have other seeds instead, and methods that need derivatives are left out. The truth is the average of all runs of all
methods, weighted by their precision, after a z-test that they agree with plain Monte Carlo. Where a method leaves
nothing but rounding to chance there is nothing to cover. ``--models`` repeats a part and keeps the rest.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import common
import numpy as np
import torch

from mlmc_dropout.methods.base import Estimates, MethodSpec
from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.sampling.sampler import FallbackWarning
from mlmc_dropout.surrogates.linear import supported
from testing.oracles import one_row_many_times, run_method, source_of, z_limit
from testing.zoo import ZOO

RESULTS = common.RESULTS / "interval_coverage.json"
BUDGET = 2000
RUNS = 2000
ROUNDING = 1e-5  # of the largest value: a method that scatters less leaves nothing to chance
METHODS: dict[str, MethodSpec] = {
    "pooled": Pooled(),
    "stratified": Stratified(),
    "control-variate, first order": ControlVariate(gradient_masks=0),
    "control-variate, second order": ControlVariate(),
}
Moments = tuple[tuple[np.ndarray, np.ndarray], ...]


def copies(x: Any, times: int) -> Any:
    """The first row of every input, ``times`` times."""
    if isinstance(x, dict):
        return {name: copies(value, times) for name, value in x.items()}
    return tuple(copies(value, times) for value in x) if isinstance(x, tuple) else one_row_many_times(x, times)


def moments(found: Estimates) -> Moments:
    """Both estimates with their standard errors, (runs, outputs) each."""
    return (found.mean, found.mean_stderr), (found.variance, found.variance_stderr)


def all_runs(name: str, seed: int, method: MethodSpec, runs: int) -> Moments:
    """The moments of independent runs of a method."""
    model, x = ZOO[name].make()
    source = source_of(model, x)
    if supported(source.program):
        return moments(run_method(method, source_of(model, copies(x, runs), seed=seed), BUDGET))
    found = [moments(run_method(method, replace(source, seed=runs * seed + k), BUDGET)) for k in range(runs)]
    return tuple((np.stack([f[i][0][0] for f in found]), np.stack([f[i][1][0] for f in found])) for i in (0, 1))


def study(name: str, runs: int = RUNS) -> Iterator[dict[str, Any]]:
    """Coverage and agreement of every method that suits a model."""
    suits = supported(source_of(*ZOO[name].make()).program)
    methods = METHODS if suits else {label: METHODS[label] for label in ("pooled", "stratified")}
    results = {label: all_runs(name, seed, method, runs) for seed, (label, method) in enumerate(methods.items())}
    for index, moment in enumerate(("mean", "variance")):
        centres = {label: both[index][0].mean(axis=0) for label, both in results.items()}
        errors2 = {label: both[index][0].var(axis=0, ddof=1) / runs + 1e-30 for label, both in results.items()}
        weight = sum(1 / e for e in errors2.values())
        truth = sum(centres[label] / errors2[label] for label in results) / weight
        for label, both in results.items():
            values, stderr = both[index]
            z = (centres[label] - centres["pooled"]) / np.sqrt(errors2[label] + errors2["pooled"])
            chance = values.std(axis=0) > ROUNDING * np.abs(truth).max()
            if not chance.any():
                yield {"model": name, "method": label, "moment": moment, "outputs": 0, "largest_z": 0.0}
                continue
            shares = (np.abs(values - truth) <= 1.959964 * stderr).mean(axis=0)[chance]
            yield {
                "model": name,
                "method": label,
                "moment": moment,
                "outputs": int(shares.size),
                "coverage": float(shares.mean()),
                "least": float(shares.min()),
                "most": float(shares.max()),
                "largest_z": float(np.abs(z[chance]).max()) if label != "pooled" else 0.0,
            }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(ZOO))
    options = parser.parse_args()
    warnings.simplefilter("ignore", FallbackWarning)
    torch.set_grad_enabled(False)
    fresh = []
    for name in options.models:
        for row in study(name):
            fresh.append(row)
            print("  ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = [row for row in kept if row["model"] not in options.models] + fresh
    common.save("interval_coverage", rows, runs=RUNS, budget=BUDGET)
    lines = []
    for label in METHODS:
        for moment in ("mean", "variance"):
            own = [r for r in rows if r["method"] == label and r["moment"] == moment]
            shares = [r["coverage"] for r in own if r["outputs"]]
            inside = sum(0.93 <= share <= 0.97 for share in shares)
            exact = len(own) - len(shares)
            spread = (min(shares), float(np.mean(shares)), max(shares))
            lines.append([label, moment, exact, f"{inside} of {len(shares)}", *spread])
    columns = ("method", "moment", "exact", "models within 93–97 %", "least", "average", "most")
    text = common.table(columns, lines)
    common.write_into("passes-saved.md", "coverage", text)
    print(text)
    limit = z_limit(sum(r["outputs"] for r in rows))
    biased = [r for r in rows if r["largest_z"] > limit]
    outside = [r for r in rows if r["outputs"] and not 0.93 <= r["coverage"] <= 0.97]
    print(f"largest |z| against plain Monte Carlo {max(r['largest_z'] for r in rows):.2f}, allowed {limit:.2f}")
    for row in outside + biased:
        print("missed:", row)
    return 1 if outside or biased else 0


if __name__ == "__main__":
    raise SystemExit(main())
