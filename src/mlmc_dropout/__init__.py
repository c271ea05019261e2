"""Error bars you can trust for MC dropout.

The flow of data, and where each step is found:

1. ``sampling``    a trained model -> its dropout sites; names of passes -> masks -> passes of the model, many at once
2. ``moments``     passes -> mergeable moment blocks
3. ``theory``      closed forms of variances and costs
4. ``surrogates``  cheap companions of a network, whose moments are known in closed form
5. ``methods``     passes -> estimates and standard errors, one file per method (``mlmc``: ladder, coupling, allocation)
6. ``stopping``    standard errors -> how many passes to spend next: budget and tolerance
7. ``runtime``     runs the tasks of a method on any executor, with checkpoints; ``estimate`` is its front door
8. ``result``      estimates, standard errors, diagnostics

``pinn`` trains the paper's two benchmarks, ``reproduction`` reproduces its figures and tables.
"""

from __future__ import annotations

import importlib
from typing import Any

from mlmc_dropout import theory
from mlmc_dropout.errors import (
    AllocationError,
    CheckpointError,
    ConfigError,
    ExecutionError,
    InputError,
    LadderError,
    MissingExtraError,
    MLMCDropoutError,
    ModelError,
    ModelWarning,
    NonFiniteOutputError,
    ResultFileError,
    RunDirectoryError,
)
from mlmc_dropout.estimate import estimate
from mlmc_dropout.methods.mlmc.allocation import Plan, allocate
from mlmc_dropout.methods.mlmc.ladder import Ladder
from mlmc_dropout.moments import MomentBlock, Moments
from mlmc_dropout.result import LevelStats, Result, Status, load_result
from mlmc_dropout.sampling.inputs import Constant
from mlmc_dropout.sampling.sampler import DropoutSampler, FallbackWarning
from mlmc_dropout.sampling.sites import Site
from mlmc_dropout.version import __version__

__all__ = [
    "AllocationError",
    "CheckpointError",
    "ConfigError",
    "Constant",
    "DropoutSampler",
    "ExecutionError",
    "FallbackWarning",
    "InputError",
    "Ladder",
    "LadderError",
    "LevelStats",
    "MLMCDropoutError",
    "MissingExtraError",
    "ModelError",
    "ModelWarning",
    "MomentBlock",
    "Moments",
    "NonFiniteOutputError",
    "Plan",
    "Result",
    "ResultFileError",
    "RunDirectoryError",
    "Site",
    "Status",
    "__version__",
    "allocate",
    "estimate",
    "load_result",
    "theory",
]


def __getattr__(name: str) -> Any:
    """``pinn`` and ``reproduction`` are imported when first used."""
    if name in ("pinn", "reproduction"):
        return importlib.import_module(f"mlmc_dropout.{name}")
    raise AttributeError(f"module 'mlmc_dropout' has no attribute {name!r}")
