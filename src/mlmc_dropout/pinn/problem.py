"""What a problem has to state, so that the one training loop can train it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

if TYPE_CHECKING:
    from mlmc_dropout.pinn.config import Config, Network

__all__ = ["Draw", "Losses", "Problem"]


class Draw(NamedTuple):
    """Everything random about a batch of passes.

    Attributes:
        masks: For each dropout layer, keep bits ``(passes, rows, units)``.
        noise: Uniform numbers in [0, 1), ``(passes, rows)``; ``(passes, 0)`` if the problem needs none.
    """

    masks: tuple[Tensor, ...]
    noise: Tensor


class Losses(NamedTuple):
    """The loss of a batch of passes.

    Attributes:
        terms: Its terms, whose sum is minimised.
        constraint: The residual of the constraint, which drives the multiplier.
    """

    terms: Tensor
    constraint: Tensor


class Problem(Protocol):
    """A differential equation with its network, losses and exact solution.

    The fields of an implementing dataclass are the constants of the equation; they form the section ``[equation]`` of a
    config file.

    Attributes:
        name: The problem's name in config files.
        terms: Names of the terms of the loss, in order.
        noisy: Whether the loss uses ``Draw.noise``.
    """

    name: ClassVar[str]
    terms: ClassVar[tuple[str, ...]]  # names of the terms of the loss, in order
    noisy: ClassVar[bool]  # whether the loss uses ``Draw.noise``

    @classmethod
    def profile(cls, name: str) -> Config:
        """A complete config of the problem.

        Args:
            name: ``"paper"`` or ``"quick"``.

        Returns:
            The config.
        """

    def network(self, shape: Network) -> nn.Module:
        """The network, with dropout layers; its weights are set by the caller.

        Args:
            shape: Width, depth, activation and dropout rate.

        Returns:
            The network.
        """

    def rows(self, points: int) -> Tensor:
        """The inputs of one training pass.

        Args:
            points: Points of the uniform grid.

        Returns:
            Inputs ``(rows, 1)``, float64.
        """

    def multiplier(self, points: int) -> Tensor:
        """The multiplier before the first update.

        Args:
            points: Points of the uniform grid.

        Returns:
            A vector of the shape of the constraint, float64.
        """

    def loss(self, model: nn.Module, rows: Tensor, draw: Draw, multiplier: Tensor) -> Losses:
        """Terms of the loss and residual of the constraint, averaged over the passes.

        Args:
            model: The network of :meth:`network`.
            rows: The inputs of :meth:`rows`.
            draw: Masks and noise of the passes.
            multiplier: The multiplier, constant here.

        Returns:
            The terms and the residual.
        """

    def exact_mean(self, x: Tensor) -> dict[str, Tensor]:
        """The exact mean of every output.

        Args:
            x: Points ``(N, 1)``.

        Returns:
            Output name -> mean, in the shape of ``x``.
        """

    def exact_variance(self, x: Tensor) -> dict[str, Tensor]:
        """The exact variance of every output.

        Args:
            x: Points ``(N, 1)``.

        Returns:
            Output name -> variance, in the shape of ``x``.
        """
