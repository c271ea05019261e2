"""The forward benchmark: a boundary layer.

    u - eps^2 u'' = 1  on (0, 1),   u(0) = u(1) = 0,

solved by ``u = 1 - (e^{x/eps} + e^{(1-x)/eps}) / (1 + e^{1/eps})``. The boundary values are imposed
by a penalty and a multiplier per end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from mlmc_dropout.pinn.config import Config, Network, Optimizer, Uzawa, positive
from mlmc_dropout.pinn.jets import jet
from mlmc_dropout.pinn.networks import mlp
from mlmc_dropout.pinn.problem import Draw, Losses

__all__ = ["BoundaryLayer"]


@dataclass(frozen=True, slots=True)
class BoundaryLayer:
    """The equation ``u - eps^2 u'' = 1`` with zero ends.

    Attributes:
        epsilon: Width of the layer, ``eps``.
        gamma: Weight of the boundary penalty.
    """

    epsilon: float = 1.0
    gamma: float = 100.0

    name: ClassVar[str] = "boundary-layer"
    terms: ClassVar[tuple[str, ...]] = ("equation", "boundary", "multiplier")
    noisy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(self, "epsilon", "gamma")

    @classmethod
    def profile(cls, name: str) -> Config:
        """The settings of the authors' code (commit 7c1a764), or a short run of them.

        The paper's table prints most of them; ``docs/pinn.md`` lists both.

        Args:
            name: ``"paper"`` or ``"quick"``.

        Returns:
            The config.
        """
        paper = Config(
            equation=cls(),
            epochs=50_000,
            keep="best",
            network=Network(width=64, depth=3, activation="silu", dropout=0.1, start="torch"),
            optimizer=Optimizer(learning_rate=1e-3, decay=0.5, decay_every=10_000),
            uzawa=Uzawa(rho=0.01, every=50, lag_passes=0),
        )
        return paper.shortened() if name == "quick" else paper

    def network(self, shape: Network) -> nn.Module:
        """A multilayer perceptron for ``u``.

        Args:
            shape: Width, depth, activation and dropout rate.

        Returns:
            The network.
        """
        return mlp(shape.width, shape.depth, shape.activation, shape.dropout)

    def rows(self, points: int) -> Tensor:
        """The uniform grid, and the two ends once more: boundary values come from passes that no other row shares.

        Args:
            points: Points of the grid.

        Returns:
            Inputs ``(points + 2, 1)``.
        """
        grid = torch.linspace(0.0, 1.0, points, dtype=torch.float64)
        return torch.cat([grid, grid[[0, -1]]])[:, None]

    def multiplier(self, points: int) -> Tensor:
        """One multiplier per end, zero at first.

        Args:
            points: Points of the grid, not used.

        Returns:
            Zeros ``(2,)``.
        """
        return torch.zeros(2, dtype=torch.float64)

    def loss(self, model: nn.Module, rows: Tensor, draw: Draw, multiplier: Tensor) -> Losses:
        """``mean r^2 + gamma mean b^2 + sum lambda b``, where ``r`` and ``b`` are averages over the passes.

        ``r = u - eps^2 u'' - 1`` on the grid and ``b = u`` at the ends: the residuals are averaged before they are
        squared.

        Args:
            model: The network.
            rows: The inputs of :meth:`rows`.
            draw: Masks of the passes.
            multiplier: ``lambda``, (2,).

        Returns:
            The three terms, and ``b``.
        """
        assert isinstance(model, nn.Sequential)
        u = jet(model, rows, draw.masks)
        inner = (u.value - self.epsilon**2 * u.second - 1.0)[:, :-2, 0].mean(dim=0)
        ends = u.value[:, -2:, 0].mean(dim=0)
        terms = (inner.square().mean(), self.gamma * ends.square().mean(), (multiplier * ends).sum())
        return Losses(torch.stack(terms), ends)

    def exact_mean(self, x: Tensor) -> dict[str, Tensor]:
        """The exact solution, written with decaying exponentials that do not overflow when ``epsilon`` is small.

        Args:
            x: Points ``(N, 1)``.

        Returns:
            ``{"u": ...}``.
        """
        left, right = torch.exp(-x / self.epsilon), torch.exp((x - 1.0) / self.epsilon)
        scale = 1.0 + torch.exp(torch.tensor(-1.0 / self.epsilon, dtype=x.dtype))
        return {"u": 1.0 - (left + right) / scale}

    def exact_variance(self, x: Tensor) -> dict[str, Tensor]:
        """Zero: nothing is random.

        Args:
            x: Points ``(N, 1)``.

        Returns:
            ``{"u": zeros}``.
        """
        return {"u": torch.zeros_like(x)}
