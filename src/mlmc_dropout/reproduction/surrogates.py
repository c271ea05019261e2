"""The trained networks under study, and how their outputs are laid out.

``Surrogate``  one of the paper's two networks, with its problem and the evaluation grid
``OrdinaryNetwork``  an ordinary regressor or classifier, for comparisons beyond the paper
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mlmc_dropout import pinn
from mlmc_dropout.pinn.runs import load_weights, read_tensors

__all__ = ["POINTS", "PREDICTORS", "Network", "OrdinaryNetwork", "Surrogate", "by_output", "load", "perceptron"]

Array = NDArray[np.float64]

POINTS = 200  # uniform points on [0, 1], the ends included
PREDICTORS = Path(__file__).parent / "predictors"  # written by benchmarks/predictors.py


class Network(Protocol):
    """What an experiment knows of every network.

    Attributes:
        name: Its name.
        model: The network.
    """

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def model(self) -> nn.Module:
        """The network."""

    @property
    def x(self) -> Array:
        """The inputs to look at."""

    def fingerprint(self) -> str:
        """A hash of weights, structure and, where they are not the grid, inputs."""


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
        return _hash(self.model, {})


@dataclass(frozen=True, slots=True)
class OrdinaryNetwork:
    """A trained regressor, or a classifier whose passes become class probabilities.

    Attributes:
        name: Name of its data.
        model: The network.
        x: Inputs it was not trained on, (inputs, features).
        classes: Whether its outputs are logits of classes.
    """

    name: str
    model: nn.Module
    x: Array
    classes: bool

    def transform(self, outputs: Tensor) -> Tensor:
        """What is estimated of each pass: class probabilities, or the outputs themselves.

        Args:
            outputs: Outputs of a pass, the last axis being that of the classes.

        Returns:
            The same shape.
        """
        return outputs.softmax(dim=-1) if self.classes else outputs

    def fingerprint(self) -> str:
        """A hash of weights, structure and inputs."""
        return _hash(self.model, {"inputs": torch.from_numpy(self.x)})


def _hash(model: nn.Module, more: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(repr(model).encode())
    for name, tensor in sorted({**model.state_dict(), **more}.items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def load(name: str) -> Network:
    """A network that comes with the library.

    Args:
        name: ``"boundary-layer"``, ``"source-inference"``, another run of one of them as :func:`pinn.pretrained` has
            it, ``"diabetes"`` or ``"digits"``.

    Returns:
        The network.

    Raises:
        RunDirectoryError: If there is none of that name.
    """
    path = PREDICTORS / f"{name}.safetensors"
    if path.is_file():
        return _predictor(name, path)
    run = pinn.pretrained(name)
    return Surrogate(name, run.model, run.problem)


def _predictor(name: str, path: Path) -> OrdinaryNetwork:
    tensors, notes = read_tensors(path)
    inputs = tensors.pop("inputs")
    widths = [tensor.shape[0] for key, tensor in tensors.items() if key.endswith("bias")]
    model = perceptron([inputs.shape[1], *widths], float(notes["dropout"]))
    load_weights(model, tensors, path)
    return OrdinaryNetwork(name, model.eval(), inputs.double().numpy(), notes["classes"] == "yes")


def perceptron(widths: list[int], dropout: float) -> nn.Sequential:
    """Linear layers with ReLU and dropout between them.

    Args:
        widths: Inputs, hidden units of each layer, outputs.
        dropout: Rate after each hidden layer.

    Returns:
        The network.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers[:-2])


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
