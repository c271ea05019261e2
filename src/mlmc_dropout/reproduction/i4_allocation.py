"""I4: fixed-cost allocation test of the inverse surrogate."""

from __future__ import annotations

from mlmc_dropout.reproduction import fixed_cost, fixed_cost_figures
from mlmc_dropout.reproduction.experiment import Experiment

__all__ = ["EXPERIMENT"]

STEPS = {"paper": 4, "quick": 20}  # of the lattice of separate runs: a pass costs several times that of F4

EXPERIMENT = Experiment(
    id="I4",
    title="Fixed-cost allocation, inverse problem",
    claim="At a fixed coupled cost, S² is least at the allocation that theory gives.",
    surrogates=("source-inference",),
    profiles={name: {**fixed_cost.PROFILES[name], "seed": 8000, "step": step} for name, step in STEPS.items()},
    compute=fixed_cost.compute,
    judge=fixed_cost.judge,
    draw=fixed_cost_figures.draw,
    rows=fixed_cost.csv_rows,
)
