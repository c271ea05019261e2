"""Error bars you can trust for MC dropout.

The flow of data, and where it is found:

1. ``engine``     a trained model -> its dropout sites; names of passes -> masks -> passes of the model, many at once
2. ``moments``    passes -> mergeable moment blocks
3. ``ladder``     fidelities T_0 < … < T_L; ``coupling`` gives a replicate's estimates at each of them
4. ``allocation`` level variances and a budget -> counts; ``theory`` has the closed forms
5. ``expansion``  what is known in closed form about the passes of a network
6. ``estimators`` one file per method
7. ``running``    spend, look, stop (``stopping``), on any executor, with checkpoints
8. ``result``     estimates, standard errors, diagnostics

``pinn`` trains the paper's two benchmarks, ``reproduction`` reproduces its figures and tables.
"""

from __future__ import annotations

import importlib
from typing import Any

from mlmc_dropout import theory
from mlmc_dropout.errors import MLMCDropoutError, ModelWarning
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
    "Constant",
    "DropoutSampler",
    "FallbackWarning",
    "Ladder",
    "LevelStats",
    "MLMCDropoutError",
    "ModelWarning",
    "MomentBlock",
    "Moments",
    "Plan",
    "Result",
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
