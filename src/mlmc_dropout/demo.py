"""The shipped demonstration: a boundary-layer surrogate, estimated in several ways at the same cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mlmc_dropout.estimate import estimate
from mlmc_dropout.result import Result

__all__ = ["Surrogate", "compare", "surrogate"]


@dataclass(frozen=True, slots=True)
class Surrogate:
    """A trained dropout network and the points to look at.

    Attributes:
        name: What it stands for.
        model: The network.
        x: Points (points, 1).
    """

    name: str
    model: nn.Module
    x: Tensor


def surrogate(points: int = 200) -> Surrogate:
    """The network trained on u − ε²u'' = 1 with zero ends, on uniform points of [0, 1].

    Args:
        points: Number of points.

    Returns:
        The surrogate.
    """
    from mlmc_dropout.pinn import pretrained

    model = pretrained("boundary-layer").model
    return Surrogate("Boundary-layer surrogate", model, torch.linspace(0.0, 1.0, points)[:, None])


def compare(surrogate: Surrogate, budget: float, seed: int = 0) -> dict[str, Result]:
    """Plain Monte Carlo, the paper's multilevel estimator and the library's choice, at the same cost.

    Args:
        surrogate: The network and its points.
        budget: Passes per point for each method.
        seed: Every mask follows from it.

    Returns:
        Method asked for -> its result.
    """
    return {method: _one(surrogate, method, budget, seed) for method in ("pooled", "mlmc", "auto")}


def _one(surrogate: Surrogate, method: str, budget: float, seed: int) -> Result:
    settings: dict[str, Any] = {"ladder": (4, 8, 16)} if method == "mlmc" else {}
    return estimate(surrogate.model, surrogate.x, method=method, budget=budget, masks="shared", seed=seed, **settings)
