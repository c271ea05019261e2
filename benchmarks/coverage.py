"""Whether 95 % intervals cover 95 % across the zoo: 2000 runs of every method on every model, both moments.

Copies of one input with independent masks are independent runs. The truth is the average of all runs of all
methods, weighted by their precision, after a z-test that they agree with plain Monte Carlo. Where masks belong
to the whole batch the copies cannot be used; those models are left out and named.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

from mlmc_dropout.estimators import Chooser, Estimates, Pooled, Stratified
from mlmc_dropout.expansion import supported
from mlmc_dropout.sampler import FallbackWarning

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracles import one_row_many_times, run_method, source_of, z_limit
from zoo import ZOO

BUDGET = 2000
RUNS = 2000
METHODS: dict[str, Chooser] = {
    "pooled": Pooled(),
    "stratified": Stratified(),
    "control-variate, first order": Stratified(expansion=True, gradient_masks=0),
    "control-variate, second order": Stratified(expansion=True),
}
Moments = tuple[tuple[np.ndarray, np.ndarray], ...]


def copies(x: Any, times: int) -> Any:
    """The first row of every input, ``times`` times."""
    if isinstance(x, dict):
        return {name: copies(value, times) for name, value in x.items()}
    return tuple(copies(value, times) for value in x) if isinstance(x, tuple) else one_row_many_times(x, times)


def moments(found: Estimates) -> Moments:
    """Both estimates with their standard errors, (runs, outputs) each; outputs that do not vary are left out."""
    alive = found.variance.mean(axis=0) > 1e-10 * (1e-300 + found.variance.mean(axis=0).max())
    return (
        (found.mean[:, alive], found.mean_stderr[:, alive]),
        (found.variance[:, alive], found.variance_stderr[:, alive]),
    )


def study(name: str, runs: int = RUNS, budget: int = BUDGET) -> Iterator[dict[str, Any]]:
    """Coverage and agreement of every method on one model; nothing for models that cannot be copied."""
    model, x = ZOO[name].make()
    if not supported(source_of(model, x).program):
        return
    many = copies(x, runs)
    results = {
        label: moments(run_method(method, source_of(model, many, seed=seed), budget))
        for seed, (label, method) in enumerate(METHODS.items())
    }
    for index, moment in enumerate(("mean", "variance")):
        centres = {label: both[index][0].mean(axis=0) for label, both in results.items()}
        errors2 = {label: both[index][0].var(axis=0, ddof=1) / runs + 1e-300 for label, both in results.items()}
        weight = sum(1 / e for e in errors2.values())
        truth = sum(centres[label] / errors2[label] for label in results) / weight
        for label, both in results.items():
            values, stderr = both[index]
            z = (centres[label] - centres["pooled"]) / np.sqrt(errors2[label] + errors2["pooled"])
            shares = (np.abs(values - truth) <= 1.959964 * stderr).mean(axis=0)
            yield {
                "model": name,
                "method": label,
                "moment": moment,
                "outputs": int(shares.size),
                "coverage": float(shares.mean()),
                "least": float(shares.min()),
                "most": float(shares.max()),
                "largest_z": float(np.abs(z).max()) if label != "pooled" else 0.0,
            }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(ZOO))
    options = parser.parse_args()
    warnings.simplefilter("ignore", FallbackWarning)
    torch.set_grad_enabled(False)
    rows: list[dict[str, Any]] = []
    left_out = []
    for name in options.models:
        found = list(study(name))
        rows += found
        if not found:
            left_out.append(name)
        for row in found:
            print("  ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    common.save("coverage", rows, runs=RUNS, budget=BUDGET, left_out=left_out)
    lines = []
    for label in METHODS:
        for moment in ("mean", "variance"):
            shares = [r["coverage"] for r in rows if r["method"] == label and r["moment"] == moment]
            inside = sum(0.93 <= share <= 0.97 for share in shares)
            lines.append(
                [label, moment, f"{inside} of {len(shares)}", min(shares), float(np.mean(shares)), max(shares)]
            )
    columns = ("method", "moment", "models within 93–97 %", "least", "average", "most")
    text = common.table(columns, lines)
    common.write_into("variance-reduction.md", "coverage", f"{text}\n\nLeft out: {', '.join(left_out)}.")
    print(text)
    limit = z_limit(sum(r["outputs"] for r in rows))
    biased = [r for r in rows if r["largest_z"] > limit]
    outside = [r for r in rows if not 0.93 <= r["coverage"] <= 0.97]
    print(f"largest |z| against plain Monte Carlo {max(r['largest_z'] for r in rows):.2f}, allowed {limit:.2f}")
    for row in outside + biased:
        print("missed:", row)
    return 1 if outside or biased else 0


if __name__ == "__main__":
    raise SystemExit(main())
