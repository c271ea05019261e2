"""F4: fixed-cost allocation test of the forward surrogate."""

from __future__ import annotations

from mlmc_dropout.reproduction import fixed_cost, fixed_cost_figures
from mlmc_dropout.reproduction.experiment import Experiment

__all__ = ["EXPERIMENT"]

STEPS = {"paper": 1, "quick": 8}  # of the lattice of separate runs; 1: every allocation, as in 7c1a764

EXPERIMENT = Experiment(
    id="F4",
    title="Fixed-cost allocation, forward problem",
    claim="At a fixed coupled cost, S² is least at the allocation that theory gives.",
    surrogates=("boundary-layer",),
    profiles={name: {**fixed_cost.PROFILES[name], "seed": 4000, "step": step} for name, step in STEPS.items()},
    compute=fixed_cost.compute,
    judge=fixed_cost.judge,
    draw=fixed_cost_figures.draw,
    rows=fixed_cost.csv_rows,
)
