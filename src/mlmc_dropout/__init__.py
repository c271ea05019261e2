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
9. ``evaluation``  averages over a data set, from formulas in ``quantities``; ``evaluate`` is its front door

``pinn`` trains the paper's two benchmarks, ``reproduction`` reproduces its figures and tables.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from mlmc_dropout.version import __version__

if TYPE_CHECKING:  # for readers and type checkers; at run time names are imported when first used (see below)
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
    from mlmc_dropout.evaluation.evaluate import evaluate
    from mlmc_dropout.evaluation.metrics import Metric
    from mlmc_dropout.evaluation.result import Evaluation, load_evaluation
    from mlmc_dropout.methods.mlmc.adaptive import Adaptive
    from mlmc_dropout.methods.mlmc.allocation import Plan, allocate, moments_of
    from mlmc_dropout.methods.mlmc.ladder import Ladder
    from mlmc_dropout.methods.mlmc.replicates import LevelReplicates, replicates
    from mlmc_dropout.moments import MomentBlock, Moments
    from mlmc_dropout.predictor import Predictor
    from mlmc_dropout.quantities.base import Quantity, QuantityEstimate
    from mlmc_dropout.quantities.quantile import Quantile
    from mlmc_dropout.quantities.shares import Above
    from mlmc_dropout.result import LevelStats, Result, Status, load_result
    from mlmc_dropout.runtime.checkpoint import CheckpointWarning
    from mlmc_dropout.runtime.progress import LongRunWarning
    from mlmc_dropout.sampling.inputs import Constant
    from mlmc_dropout.sampling.sampler import DropoutSampler, FallbackWarning
    from mlmc_dropout.sampling.sites import Site
    from mlmc_dropout.stopping.decisions import TopK

__all__ = [
    "Above",
    "Adaptive",
    "AllocationError",
    "CheckpointError",
    "CheckpointWarning",
    "ConfigError",
    "Constant",
    "DropoutSampler",
    "Evaluation",
    "ExecutionError",
    "FallbackWarning",
    "InputError",
    "Ladder",
    "LadderError",
    "LevelReplicates",
    "LevelStats",
    "LongRunWarning",
    "MLMCDropoutError",
    "Metric",
    "MissingExtraError",
    "ModelError",
    "ModelWarning",
    "MomentBlock",
    "Moments",
    "NonFiniteOutputError",
    "Plan",
    "Predictor",
    "Quantile",
    "Quantity",
    "QuantityEstimate",
    "Result",
    "ResultFileError",
    "RunDirectoryError",
    "Site",
    "Status",
    "TopK",
    "__version__",
    "allocate",
    "estimate",
    "evaluate",
    "load_evaluation",
    "load_result",
    "moments_of",
    "replicates",
    "theory",
]

_HOMES = {  # where each name is defined: ``mlmc-dropout --help`` shall not wait for torch
    **{name: "errors" for name in __all__ if name.endswith("Error") or name == "ModelWarning"},
    "Adaptive": "methods.mlmc.adaptive",
    "CheckpointWarning": "runtime.checkpoint",
    "Constant": "sampling.reading",
    "DropoutSampler": "sampling.sampler",
    "Evaluation": "evaluation.result",
    "FallbackWarning": "sampling.sampler",
    "Ladder": "methods.mlmc.ladder",
    "LevelReplicates": "methods.mlmc.replicates",
    "LevelStats": "result",
    "LongRunWarning": "runtime.progress",
    "Metric": "evaluation.metrics",
    "MomentBlock": "moments",
    "Moments": "moments",
    "Plan": "methods.mlmc.allocation",
    "Above": "quantities.shares",
    "Predictor": "predictor",
    "Quantile": "quantities.quantile",
    "Quantity": "quantities.base",
    "QuantityEstimate": "quantities.base",
    "Result": "result",
    "Site": "sampling.sites",
    "Status": "result",
    "TopK": "stopping.decisions",
    "allocate": "methods.mlmc.allocation",
    "estimate": "estimate",
    "evaluate": "evaluation.evaluate",
    "load_evaluation": "evaluation.result",
    "load_result": "result",
    "moments_of": "methods.mlmc.allocation",
    "replicates": "methods.mlmc.replicates",
}
_MODULES = ("pinn", "reproduction", "theory")


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name in _MODULES:
        return importlib.import_module(f"mlmc_dropout.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'mlmc_dropout' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"mlmc_dropout.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


class _Package(types.ModuleType):
    """Keeps ``mlmc_dropout.estimate`` the function when Python puts the module of that name in its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "estimate" and isinstance(value, types.ModuleType):
            value = value.estimate
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
