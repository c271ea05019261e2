"""Results of every method on three models, kept so that a change of structure can be told from a change of numbers.

``python -m testing.golden`` writes them anew; that a number changes needs a reason in the commit.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mlmc_dropout as md
from testing.zoo import ZOO

__all__ = ["MODELS", "PATH", "RUNS", "values"]

PATH = Path(__file__).with_name("golden.json")
MODELS = ("mlp", "encoder", "gru")
RUNS: dict[str, dict[str, Any]] = {
    "pooled": {"method": "pooled", "budget": 300},
    "nested": {"method": "mlmc", "ladder": (2, 4, 8), "budget": 400},
    "independent": {"method": "mlmc", "ladder": (2, 4, 8), "levels": "independent", "budget": 400},
    "adaptive": {"method": "mlmc", "ladder": "adaptive", "tolerance": 0.05, "budget": 3000, "effort": "equal"},
    "stratified": {"method": "stratified", "budget": 400},
    "control-variate": {"method": "control-variate", "budget": 600},
    "auto": {"method": "auto", "budget": 1000},
    "auto to a tolerance": {"method": "auto", "tolerance": 0.01, "budget": 4000, "effort": "equal"},
    "shared masks": {"method": "stratified", "masks": "shared", "budget": 400},
}


def values(model: str, run: str) -> dict[str, Any]:
    """The first row's estimates and standard errors, the cost and the method."""
    network, x = ZOO[model].make()
    result = md.estimate(network, x, seed=3, **RUNS[run])
    fields = ("mean", "variance", "mean_stderr", "variance_stderr")
    first = {name: np.ravel(getattr(result, name)[0]).tolist()[:4] for name in fields}
    return {**first, "cost": float(result.cost), "method": result.method}


def _all() -> Iterator[tuple[str, dict[str, Any]]]:
    for model in MODELS:
        for run in RUNS:
            yield f"{model}/{run}", values(model, run)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    PATH.write_text(json.dumps(dict(_all()), indent=1) + "\n")
