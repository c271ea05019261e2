"""The two networks of the benchmarks: ordinary PyTorch modules with ordinary ``nn.Dropout`` layers.

Nothing here knows about jets, masks or equations. A trained network is used like any other model.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mlmc_dropout.errors import InputError

__all__ = ["ACTIVATIONS", "STARTS", "SharedTrunk", "Sine", "dropout_layers", "initialized", "mlp"]


class Sine(nn.Module):
    """``sin z``, elementwise."""

    def forward(self, z: Tensor) -> Tensor:
        """``sin z``.

        Args:
            z: Any shape.

        Returns:
            The sine, elementwise.
        """
        return torch.sin(z)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sine": Sine,
    "gelu": nn.GELU,
    "softplus": nn.Softplus,
}


def _hidden(inputs: int, width: int, activation: str, dropout: float) -> list[nn.Module]:
    if activation not in ACTIVATIONS:
        raise InputError(f"unknown activation {activation!r}; use one of {', '.join(ACTIVATIONS)}")
    return [nn.Linear(inputs, width), ACTIVATIONS[activation](), nn.Dropout(dropout)]


def mlp(width: int, depth: int, activation: str, dropout: float) -> nn.Sequential:
    """1 - width - ... - width - 1 with dropout after each activation.

    Args:
        width: Units of a hidden layer.
        depth: Number of hidden layers.
        activation: One of :data:`ACTIVATIONS`.
        dropout: Dropout rate.

    Returns:
        The network, from ``(..., 1)`` to ``(..., 1)``.

    Raises:
        InputError: If the activation is unknown.

    Examples:
        >>> [type(layer).__name__ for layer in mlp(8, 1, "silu", 0.1)]
        ['Linear', 'SiLU', 'Dropout', 'Linear']
    """
    layers: list[nn.Module] = []
    for level in range(depth):
        layers += _hidden(width if level else 1, width, activation, dropout)
    return nn.Sequential(*layers, nn.Linear(width if depth else 1, 1))


class SharedTrunk(nn.Module):
    """Two functions ``u`` and ``f`` from one trunk, both zero at 0 and 1 by a factor ``x(1 - x)``.

    The trunk has ``depth`` linear layers with activation and dropout after all but the last; ``u`` is linear on top of
    it, ``f`` has one more hidden layer.

    Args:
        width: Units of a hidden layer.
        depth: Linear layers of the trunk.
        activation: One of :data:`ACTIVATIONS`.
        dropout: Dropout rate.

    Examples:
        >>> net = SharedTrunk(8, depth=4, activation="tanh", dropout=0.2)
        >>> {name: tuple(out.shape) for name, out in net(torch.rand(5, 1)).items()}
        {'u': (5, 1), 'f': (5, 1)}
    """

    def __init__(self, width: int, depth: int, activation: str, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for level in range(depth - 1):
            layers += _hidden(width if level else 1, width, activation, dropout)
        self.trunk = nn.Sequential(*layers, nn.Linear(width if depth > 1 else 1, width))
        self.u = nn.Sequential(nn.Linear(width, 1))
        self.f = nn.Sequential(*_hidden(width, width, activation, dropout), nn.Linear(width, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Both functions.

        Args:
            x: Points ``(..., 1)``.

        Returns:
            ``{"u": ..., "f": ...}``, each in the shape of ``x``.
        """
        shared = self.trunk(x)
        edge = x * (1.0 - x)
        return {"u": edge * self.u(shared), "f": edge * self.f(shared)}


def dropout_layers(model: nn.Module) -> list[nn.Dropout]:
    """The dropout layers of a model, in the order in which it takes masks.

    Args:
        model: Any network.

    Returns:
        Its ``nn.Dropout`` layers.
    """
    return [layer for layer in model.modules() if isinstance(layer, nn.Dropout)]


def initialized(make: Callable[[], nn.Module], start: str, seed: int, dtype: torch.dtype) -> nn.Module:
    """A network with weights that follow from ``seed`` alone.

    The layers are made without memory first, since their constructors would otherwise draw from torch's global
    generator.

    Args:
        make: Makes the network.
        start: ``"torch"`` for PyTorch's usual uniform start, ``"xavier"`` for Glorot's with the gain of tanh and zero
            biases.
        seed: Seed of the weights.
        dtype: Type of the weights.

    Returns:
        The network, on the CPU.
    """
    with torch.device("meta"):
        model = make()
    model = model.to(dtype).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            STARTS[start](layer, generator)
    return model


def _start_torch(layer: nn.Linear, generator: torch.Generator) -> None:
    bound = 1.0 / math.sqrt(layer.in_features)
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def _start_xavier(layer: nn.Linear, generator: torch.Generator) -> None:
    nn.init.xavier_uniform_(layer.weight, nn.init.calculate_gain("tanh"), generator=generator)
    nn.init.zeros_(layer.bias)


STARTS: dict[str, Callable[[nn.Linear, torch.Generator], None]] = {"torch": _start_torch, "xavier": _start_xavier}
