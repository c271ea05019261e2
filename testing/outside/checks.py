"""What is asked of a model from outside: random kernels in training, the honest loop, z-scores, before and after."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from testing import zoo
from testing.outside.models import Case

__all__ = ["Agreement", "agreement", "honest_passes", "in_training", "matrix", "random_kernels"]

# --------------------------------------------------------------------------- the train-mode pass


@contextlib.contextmanager
def in_training(module: nn.Module) -> Iterator[None]:
    """``train()`` with normalisation in ``eval()``, and every flag as it was afterwards."""
    flags = [(part, part.training) for part in module.modules()]
    module.train()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._NormBase):
            part.eval()
    try:
        yield
    finally:
        for part, flag in flags:
            part.training = flag


def call(case: Case) -> Any:
    """One call of the model, as a user writes it, and the transform."""
    output = zoo.call(case.model, case.x)
    return output if case.transform is None else case.transform(output)


def rows(x: Any) -> int:
    """The number of input rows."""
    return len(next(leaf for leaf in _leaves(x) if leaf.dim()))


def matrix(output: Any, count: int, first: int = 0) -> Tensor:
    """All tensors of floats with ``count`` rows, side by side; what else a ModelOutput holds is left out.

    Args:
        output: A tensor, or containers of tensors.
        count: Number of rows.
        first: The axis that the rows are on; passes may stand before them.

    Returns:
        A tensor (…, rows, width).
    """
    fits = [part for part in _leaves(output) if part.dim() > first and part.shape[first] == count]
    parts = [part.reshape(*part.shape[: first + 1], -1) for part in fits if part.is_floating_point()]
    return torch.cat(parts, dim=-1)


def _leaves(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from itertools.chain.from_iterable(map(_leaves, output.values()))
    elif isinstance(output, (tuple, list)):
        yield from itertools.chain.from_iterable(map(_leaves, output))
    elif dataclasses.is_dataclass(output):
        yield from _leaves([getattr(output, field.name) for field in dataclasses.fields(output)])


def honest_passes(case: Case, passes: int, seed: int = 0) -> Tensor:
    """Passes (passes, rows, width) of the plain loop, with torch's own draws."""
    count = rows(case.x)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), in_training(case.trained):
        torch.manual_seed(seed)
        return torch.stack([matrix(call(case), count) for _ in range(passes)])


# ------------------------------------------------------------------------------- random kernels


class _Counter(TorchDispatchMode):
    """Names of the kernels that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _rate(func, args, kwargs) != 0.0:
            self.names.append(str(func))
        return func(*args, **kwargs)


def _rate(func: Any, args: Any, kwargs: Any) -> Any:
    """The dropout rate of an attention kernel, which draws nothing at 0; None for other kernels."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else kwargs.get("dropout_p", argument.default_value)
            return 0.0 if given is None else float(given)
    return None


def random_kernels(case: Case) -> list[str]:
    """The kernels of one train-mode pass that draw random numbers, in order."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), in_training(case.trained):
        torch.manual_seed(0)
        with _Counter() as counter:
            call(case)
    return counter.names


# -------------------------------------------------------------------------------------- z-scores


@dataclass(frozen=True, slots=True)
class Agreement:
    """z-scores of two sets of passes, over the components that vary: root mean square and largest."""

    mean_rms: float
    mean_max: float
    variance_rms: float
    variance_max: float
    components: int

    @property
    def worst(self) -> float:
        """The larger root mean square."""
        return max(self.mean_rms, self.variance_rms)


def agreement(ours: Tensor, theirs: Tensor) -> Agreement:
    """z-scores of means and variances of passes (passes, rows, width)."""
    if ours.shape[1:] != theirs.shape[1:]:
        raise AssertionError(f"outputs of shape {tuple(ours.shape[1:])} against {tuple(theirs.shape[1:])}")
    a, b = (_moments(some.double().flatten(1).numpy()) for some in (ours, theirs))
    floor = 1e-10 * (np.square(b[0]) + b[1].max(initial=0.0))
    varies = np.maximum(a[1], b[1]) > floor
    if not np.allclose(a[0][~varies], b[0][~varies], rtol=1e-4, atol=1e-5):
        raise AssertionError("components that never vary have other values than in the honest loop")
    z = [(a[i] - b[i])[varies] / np.sqrt(a[i + 2] + b[i + 2])[varies] for i in (0, 1)]
    (mean_rms, mean_max), (variance_rms, variance_max) = map(_size, z)
    return Agreement(mean_rms, mean_max, variance_rms, variance_max, int(varies.sum()))


def _moments(values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Mean, variance, and the squared standard errors of both, the latter from fourth moments."""
    n = len(values)
    mean = values.mean(0)
    centred = values - mean
    variance = np.square(centred).sum(0) / (n - 1)
    fourth = (centred**4).mean(0)
    error = np.maximum(fourth - variance**2 * (n - 3) / (n - 1), 0) / n
    return mean, variance, variance / n, np.maximum(error, 1e-9 * variance**2)


def _size(z: np.ndarray) -> tuple[float, float]:
    if not len(z):
        return math.nan, math.nan
    return float(np.sqrt(np.mean(z**2))), float(np.abs(z).max())
