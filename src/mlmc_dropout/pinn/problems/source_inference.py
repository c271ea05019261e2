"""The inverse benchmark: infer a source from a random target.

Minimise ``1/2 |u - u_target|^2 + alpha/2 |f|^2`` subject to ``-u'' = f`` and zero ends, where

    u_target = (1 + omega)(1 + alpha pi^4) sin(pi x),   omega ~ Unif(-delta/2, delta/2).

The minimisers are ``u = (1 + omega) sin(pi x)`` and ``f = pi^2 u``, so all moments are known. The equations have one
``omega`` for the whole target; the authors' code (commit 7c1a764) can do that, but its settings draw one
for every point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from mlmc_dropout.errors import ConfigError
from mlmc_dropout.pinn.config import Config, Network, Optimizer, Uzawa, positive
from mlmc_dropout.pinn.jets import Jet, jet, multiply, value
from mlmc_dropout.pinn.networks import SharedTrunk
from mlmc_dropout.pinn.problem import Draw, Losses

__all__ = ["SourceInference"]

OMEGA = ("point", "pass")


@dataclass(frozen=True, slots=True)
class SourceInference:
    """The source behind a random target.

    Attributes:
        alpha: Weight of the regularisation.
        beta: Weight of the penalty on the equation.
        delta: Width of the random target.
        omega: What shares a draw of omega: nothing (``"point"``: fresh for every point and pass), or all points of a
            pass (``"pass"``: a scalar, as in the paper's equations).
    """

    alpha: float = 1e-4
    beta: float = 1e-4
    delta: float = 0.025
    omega: str = "point"

    name: ClassVar[str] = "source-inference"
    terms: ClassVar[tuple[str, ...]] = ("target", "source", "curvature", "equation", "multiplier")
    noisy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self, "alpha", "beta", "delta")
        if self.omega not in OMEGA:
            raise ConfigError(f"omega must be one of {', '.join(OMEGA)}: got {self.omega!r}")

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
            epochs=200_000,
            keep="last",
            network=Network(width=128, depth=4, activation="tanh", dropout=0.2, start="xavier"),
            optimizer=Optimizer(learning_rate=1e-3, decay=1.0, decay_every=10_000),
            uzawa=Uzawa(rho=2.5e-5, every=50, lag_passes=20),
        )
        return paper.shortened() if name == "quick" else paper

    def network(self, shape: Network) -> nn.Module:
        """One trunk with the outputs ``u`` and ``f``.

        Args:
            shape: Width, depth, activation and dropout rate.

        Returns:
            The network.
        """
        return SharedTrunk(shape.width, shape.depth, shape.activation, shape.dropout)

    def rows(self, points: int) -> Tensor:
        """The uniform grid.

        Args:
            points: Points of the grid.

        Returns:
            Inputs ``(points, 1)``.
        """
        return torch.linspace(0.0, 1.0, points, dtype=torch.float64)[:, None]

    def multiplier(self, points: int) -> Tensor:
        """One multiplier per point, zero at first.

        Args:
            points: Points of the grid.

        Returns:
            Zeros ``(points,)``.
        """
        return torch.zeros(points, dtype=torch.float64)

    def loss(self, model: nn.Module, rows: Tensor, draw: Draw, multiplier: Tensor) -> Losses:
        """The average over the passes of the penalised, augmented functional.

        It is ``1/2 mean (u - target)^2 + alpha/4 mean f^2 + alpha/4 mean u''^2 + beta/2 mean r^2 + mean lambda r`` with
        ``r = u'' + f`` and a fresh omega for every point and pass, or for every pass. ``f`` and ``-u''`` are the same
        function in the end and share the regulariser.

        Args:
            model: The network.
            rows: The inputs of :meth:`rows`.
            draw: Masks and noise of the passes.
            multiplier: ``lambda``, (points,).

        Returns:
            The five terms, and ``r`` averaged over the passes.
        """
        assert isinstance(model, SharedTrunk)
        u, curvature, f = _fields(model, rows, draw.masks)
        noise = draw.noise if self.omega == "point" else draw.noise[:, :1]
        omega = self.delta * (noise - 0.5)
        residual = curvature + f
        terms = (
            0.5 * (u - (1.0 + omega) * self._target(rows)).square().mean(),
            0.25 * self.alpha * f.square().mean(),
            0.25 * self.alpha * curvature.square().mean(),
            0.5 * self.beta * residual.square().mean(),
            (multiplier * residual).mean(),
        )
        return Losses(torch.stack(terms), residual.mean(dim=0))

    def _target(self, rows: Tensor) -> Tensor:
        return (1.0 + self.alpha * math.pi**4) * torch.sin(math.pi * rows[:, 0])

    def exact_mean(self, x: Tensor) -> dict[str, Tensor]:
        """The means of the minimisers.

        Args:
            x: Points ``(N, 1)``.

        Returns:
            ``{"u": sin(pi x), "f": pi^2 sin(pi x)}``.
        """
        wave = torch.sin(math.pi * x)
        return {"u": wave, "f": math.pi**2 * wave}

    def exact_variance(self, x: Tensor) -> dict[str, Tensor]:
        """The variances of the minimisers.

        Args:
            x: Points ``(N, 1)``.

        Returns:
            ``{"u": ..., "f": ...}``, where omega has the variance ``delta^2 / 12``.
        """
        spread = self.delta**2 / 12.0 * torch.sin(math.pi * x).square()
        return {"u": spread, "f": math.pi**4 * spread}


def _fields(model: SharedTrunk, rows: Tensor, masks: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """``u``, ``u''`` and ``f``, each ``(passes, points)``; ``f`` is not differentiated."""
    *hidden, last = model.trunk
    trunk = jet(hidden, rows, masks[:-1])
    edge = Jet(rows * (1.0 - rows), 1.0 - 2.0 * rows, torch.full_like(rows, -2.0))
    u = multiply(edge, jet([last, *model.u], trunk, []))
    f = edge.value * value([last, *model.f], trunk.value, masks[-1:])
    return u.value[..., 0], u.second[..., 0], f[..., 0]
