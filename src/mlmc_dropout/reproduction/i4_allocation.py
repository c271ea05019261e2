"""I4: fixed-cost allocation test of the inverse surrogate."""

from __future__ import annotations

from typing import Any

from mlmc_dropout.reproduction import fixed_cost, fixed_cost_figures
from mlmc_dropout.reproduction.experiment import Experiment

__all__ = ["EXPERIMENT"]

# A pass costs several times that of F4: fewer repetitions, and a coarser lattice of separate runs.
_SAVING: dict[str, dict[str, Any]] = {
    "paper": {"repetitions": 12, "plan_repetitions": 8, "step": 4},
    "quick": {"repetitions": 4, "plan_repetitions": 3, "step": 20},
}

EXPERIMENT = Experiment(
    id="I4",
    title="Fixed-cost allocation, inverse problem",
    claim="At a fixed coupled cost, S² is least at the allocation that theory gives.",
    surrogates=("source-inference",),
    profiles={name: {**settings, "seed": 8000, **_SAVING[name]} for name, settings in fixed_cost.PROFILES.items()},
    compute=fixed_cost.compute,
    judge=fixed_cost.judge,
    draw=fixed_cost_figures.draw,
    rows=fixed_cost.csv_rows,
)
