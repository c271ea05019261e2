"""The trained networks under study, and how their outputs are laid out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mlmc_dropout import pinn

__all__ = ["POINTS", "Surrogate", "by_output", "load"]

Array = NDArray[np.float64]

POINTS = 200  # uniform points on [0, 1], the ends included


@dataclass(frozen=True, slots=True)
class Surrogate:
    """A trained network with the problem whose exact moments are known.

    Attributes:
        name: The problem's name.
        model: The network.
        problem: The problem.
    """

    name: str
    model: nn.Module
    problem: pinn.Problem

    @property
    def x(self) -> Array:
        """The evaluation grid, (points, 1)."""
        return np.linspace(0.0, 1.0, POINTS)[:, None]

    def exact_mean(self) -> dict[str, Array]:
        """The exact mean of every output on the grid."""
        return _plain(self.problem.exact_mean(torch.from_numpy(self.x)))

    def exact_std(self) -> dict[str, Array]:
        """The exact standard deviation of every output on the grid."""
        return {name: np.sqrt(v) for name, v in _plain(self.problem.exact_variance(torch.from_numpy(self.x))).items()}

    def fingerprint(self) -> str:
        """A hash of the weights and of the network's structure."""
        digest = hashlib.sha256(repr(self.model).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def load(name: str) -> Surrogate:
    """The surrogate that comes with the library.

    Args:
        name: ``"boundary-layer"`` or ``"source-inference"``.

    Returns:
        The surrogate.

    Raises:
        RunDirectoryError: If there is none of that name.
    """
    run = pinn.pretrained(name)
    return Surrogate(name, run.model, run.problem)


def by_output(values: Any) -> dict[str, Array]:
    """Estimates of every output as vectors over the grid; a single output is called ``u``.

    Args:
        values: An array (points, 1), or a dict of such by output.

    Returns:
        Output -> (points,), float64.

    Examples:
        >>> {name: v.shape for name, v in by_output(np.zeros((200, 1))).items()}
        {'u': (200,)}
    """
    named = values if isinstance(values, dict) else {"u": values}
    return {name: np.asarray(value, dtype=np.float64).reshape(len(value)) for name, value in named.items()}


def _plain(values: dict[str, torch.Tensor]) -> dict[str, Array]:
    return {name: value.numpy().reshape(-1) for name, value in values.items()}
