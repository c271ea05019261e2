"""Physics-informed training of dropout networks by Uzawa's method: the two benchmarks, and yours.

    problem.py      what a problem states      problems/  one file per problem
    networks.py     ordinary modules           jets.py    their derivatives under masks
    config.py       a run as a value           draws.py   epoch -> masks and noise
    training.py     the loop                   runs.py    what a run leaves behind
"""

from __future__ import annotations

from mlmc_dropout.pinn.config import Config, Network, Optimizer, Uzawa
from mlmc_dropout.pinn.problem import Draw, Losses, Problem
from mlmc_dropout.pinn.problems import BoundaryLayer, Poisson, SourceInference
from mlmc_dropout.pinn.runs import Run, load_run, pretrained
from mlmc_dropout.pinn.training import TrainingError, resume, start, train

__all__ = [
    "BoundaryLayer",
    "Config",
    "Draw",
    "Losses",
    "Network",
    "Optimizer",
    "Poisson",
    "Problem",
    "Run",
    "SourceInference",
    "TrainingError",
    "Uzawa",
    "load_run",
    "pretrained",
    "resume",
    "start",
    "train",
]
