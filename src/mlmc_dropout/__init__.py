"""Error bars you can trust for MC dropout.

The flow of data, in the order of the files:

1. ``masks``      a pass's name (seed, stream, replicate, pass) -> its dropout masks
2. ``sites``      a trained model -> its dropout sites (``interception`` catches the dropout calls)
3. ``sampler``    names -> stochastic passes of the model, many at once
4. ``moments``    passes -> mergeable moment blocks
5. ``ladder``     fidelities T_0 < … < T_L; ``coupling`` gives a replicate's estimates at each of them
6. ``allocation`` level variances and a budget -> counts; ``theory`` has the closed forms
7. ``estimators`` one file per method; ``expansion`` and ``heads`` give them a level with known moments
8. ``driver``     spend, look, stop (``stopping``), on any executor, with checkpoints
9. ``result``     estimates, standard errors, diagnostics

``pinn`` trains the paper's two benchmarks, ``experiments`` reproduces its figures and tables.
"""

from __future__ import annotations

import importlib
from typing import Any

from mlmc_dropout import theory
from mlmc_dropout.allocation import Plan, allocate
from mlmc_dropout.driver import estimate
from mlmc_dropout.errors import MLMCDropoutError
from mlmc_dropout.ladder import Ladder
from mlmc_dropout.moments import MomentBlock, Moments
from mlmc_dropout.result import LevelStats, Result, Status, load_result
from mlmc_dropout.sampler import DropoutSampler, FallbackWarning
from mlmc_dropout.sites import Site
from mlmc_dropout.version import __version__

__all__ = [
    "DropoutSampler",
    "FallbackWarning",
    "Ladder",
    "LevelStats",
    "MLMCDropoutError",
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
    """``pinn`` and ``experiments`` are imported when first used."""
    if name in ("pinn", "experiments"):
        return importlib.import_module(f"mlmc_dropout.{name}")
    raise AttributeError(f"module 'mlmc_dropout' has no attribute {name!r}")
