"""F4: fixed-cost allocation test of the forward surrogate."""

from __future__ import annotations

from mlmc_dropout.experiments import allocation_figures, allocation_test
from mlmc_dropout.experiments.experiment import Experiment

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    id="F4",
    title="Fixed-cost allocation, forward problem",
    claim="At a fixed coupled cost, S² is least at the allocation that theory gives.",
    surrogate="boundary-layer",
    profiles={name: {**settings, "seed": 4000} for name, settings in allocation_test.PROFILES.items()},
    compute=allocation_test.compute,
    judge=allocation_test.judge,
    draw=allocation_figures.draw,
    rows=allocation_test.csv_rows,
)
