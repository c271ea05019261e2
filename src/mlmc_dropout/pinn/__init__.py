"""Physics-informed training of dropout networks by Uzawa's method: the two benchmarks, and yours.

====================  ==========================================
``problem``           what a problem states
``problems``          the problems, one per file
``networks``          ordinary modules with dropout layers
``jets``              their derivatives under masks
``config``            a run as a value, to and from TOML
``draws``             an epoch's number -> its masks and noise
``training``          the one loop
``runs``              what a run leaves behind, and its return
``evaluation``        distance from the exact solution
====================  ==========================================
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
