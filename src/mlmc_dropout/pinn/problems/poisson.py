"""How to add a problem of your own, on the smallest example.

    -u'' = pi^2 sin(pi x)  on (0, 1),   u(0) = u(1) = 0,   solved by  u = sin(pi x).

Copy this file, change the equation, and hand the class to ``pinn.start`` and ``pinn.load_run``.
The training loop averages over dropout passes, updates the multiplier, logs and checkpoints; what
has to be written is here: constants, network, rows, loss, exact solution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from mlmc_dropout.pinn.config import Config, Network, Optimizer, Uzawa, positive
from mlmc_dropout.pinn.jets import jet
from mlmc_dropout.pinn.networks import mlp
from mlmc_dropout.pinn.problem import Draw, Losses

__all__ = ["Poisson"]


@dataclass(frozen=True, slots=True)
class Poisson:
    """The equation ``-u'' = pi^2 sin(pi x)`` with zero ends.

    Attributes:
        gamma: Weight of the boundary penalty.
    """

    gamma: float = 100.0

    name: ClassVar[str] = "poisson"
    terms: ClassVar[tuple[str, ...]] = ("equation", "boundary", "multiplier")
    noisy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(self, "gamma")

    @classmethod
    def profile(cls, name: str) -> Config:
        """A run of some seconds, or a short one for tests; the paper has no such problem.

        Args:
            name: ``"paper"`` or ``"quick"``.

        Returns:
            The config.
        """
        full = Config(
            equation=cls(),
            epochs=5_000,
            keep="best",
            points=50,
            compile=False,
            network=Network(width=32, depth=2, activation="tanh", dropout=0.05, start="xavier"),
            optimizer=Optimizer(learning_rate=2e-3, decay=0.5, decay_every=1_000),
            uzawa=Uzawa(rho=0.1, every=50, lag_passes=0),
        )
        return full.shortened() if name == "quick" else full

    def network(self, shape: Network) -> nn.Module:
        """A multilayer perceptron for ``u``.

        Args:
            shape: Width, depth, activation and dropout rate.

        Returns:
            The network.
        """
        return mlp(shape.width, shape.depth, shape.activation, shape.dropout)

    def rows(self, points: int) -> Tensor:
        """The uniform grid; its first and last row are the boundary.

        Args:
            points: Points of the grid.

        Returns:
            Inputs ``(points, 1)``.
        """
        return torch.linspace(0.0, 1.0, points, dtype=torch.float64)[:, None]

    def multiplier(self, points: int) -> Tensor:
        """One multiplier per end, zero at first.

        Args:
            points: Points of the grid, not used.

        Returns:
            Zeros ``(2,)``.
        """
        return torch.zeros(2, dtype=torch.float64)

    def loss(self, model: nn.Module, rows: Tensor, draw: Draw, multiplier: Tensor) -> Losses:
        """``mean r^2 + gamma mean b^2 + sum lambda b`` of residuals averaged over the passes.

        Args:
            model: The network.
            rows: The inputs of :meth:`rows`.
            draw: Masks of the passes.
            multiplier: ``lambda``, (2,).

        Returns:
            The three terms, and the values ``b`` at the ends.
        """
        assert isinstance(model, nn.Sequential)
        u = jet(model, rows, draw.masks)
        source = math.pi**2 * torch.sin(math.pi * rows)
        inner = (u.second + source)[..., 0].mean(dim=0)
        ends = u.value[:, :: len(rows) - 1, 0].mean(dim=0)
        terms = (inner.square().mean(), self.gamma * ends.square().mean(), (multiplier * ends).sum())
        return Losses(torch.stack(terms), ends)

    def exact_mean(self, x: Tensor) -> dict[str, Tensor]:
        """The exact solution.

        Args:
            x: Points ``(N, 1)``.

        Returns:
            ``{"u": sin(pi x)}``.
        """
        return {"u": torch.sin(math.pi * x)}

    def exact_variance(self, x: Tensor) -> dict[str, Tensor]:
        """Zero: nothing is random.

        Args:
            x: Points ``(N, 1)``.

        Returns:
            ``{"u": zeros}``.
        """
        return {"u": torch.zeros_like(x)}
