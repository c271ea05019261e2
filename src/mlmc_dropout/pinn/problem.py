"""What a problem has to state, so that the one training loop can train it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

if TYPE_CHECKING:
    from mlmc_dropout.pinn.config import Config, Network

__all__ = ["Draw", "Losses", "Problem"]


class Draw(NamedTuple):
    """Everything random about a batch of passes.

    ``masks``: for each dropout layer, keep bits ``(passes, rows, units)``.
    ``noise``: uniform numbers in [0, 1), ``(passes, rows)``, or none if the problem needs none.
    """

    masks: tuple[Tensor, ...]
    noise: Tensor


class Losses(NamedTuple):
    """The terms of the loss, whose sum is minimised, and the residual that drives the multiplier."""

    terms: Tensor
    constraint: Tensor


class Problem(Protocol):
    """A differential equation with its network, losses and exact solution.

    The fields of an implementing dataclass are the constants of the equation; they form the section
    ``[equation]`` of a config file.
    """

    name: ClassVar[str]
    terms: ClassVar[tuple[str, ...]]  # names of the terms of the loss, in order
    noisy: ClassVar[bool]  # whether the loss uses ``Draw.noise``

    @classmethod
    def profile(cls, name: str) -> Config:
        """The config called ``name``: ``"paper"`` or ``"quick"``."""

    def network(self, shape: Network) -> nn.Module:
        """The network, with dropout layers; its weights are set by the caller."""

    def rows(self, points: int) -> Tensor:
        """The inputs ``(rows, 1)`` of one training pass over a grid of ``points`` points, float64."""

    def multiplier(self, points: int) -> Tensor:
        """The multiplier before the first update, float64."""

    def loss(self, model: nn.Module, rows: Tensor, draw: Draw, multiplier: Tensor) -> Losses:
        """Terms of the loss and residual of the constraint, averaged over the passes of ``draw``."""

    def exact_mean(self, x: Tensor) -> dict[str, Tensor]:
        """The mean of every output at ``x``, in the shape of ``x``."""

    def exact_variance(self, x: Tensor) -> dict[str, Tensor]:
        """The variance of every output at ``x``, in the shape of ``x``."""
