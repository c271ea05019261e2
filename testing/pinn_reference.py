"""Both benchmarks trained the plain way: one pass at a time, derivatives by nested autograd.

Written from the equations, with nothing of ``mlmc_dropout.pinn.jets``; used by the tests, with given masks, and by
the training benchmark, with torch's own dropout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Prepare = Callable[[int, slice], None]


def nothing(pass_number: int, rows: slice) -> None:
    """Called before a pass; torch's own dropout needs no preparation."""


def given_masks(model: nn.Module, masks: Sequence[Tensor]) -> Prepare:
    """Make the dropout layers of ``model`` use ``masks``, each ``(passes, rows, units)``."""
    current: dict[int, Tensor] = {}

    def hook(number: int, p: float) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        return lambda layer, inputs, output: inputs[0] * current[number] / (1.0 - p)

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Dropout)]
    for number, layer in enumerate(layers):
        layer._forward_hooks.clear()
        layer.register_forward_hook(hook(number, layer.p))

    def prepare(pass_number: int, rows: slice) -> None:
        for number, mask in enumerate(masks):
            current[number] = mask[pass_number, rows]

    return prepare


def gradient(y: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def boundary_layer(
    model: nn.Module,
    x: Tensor,
    multiplier: Tensor,
    repeats: int,
    prepare: Prepare = nothing,
    eps: float = 1.0,
    gamma: float = 100.0,
) -> tuple[Tensor, Tensor]:
    """Loss and boundary residual; ``x`` is the grid, the ends are passed separately."""
    grid = x.clone().requires_grad_()
    residual: Tensor | float = 0.0
    for number in range(repeats):
        prepare(number, slice(0, len(grid)))
        u = model(grid)
        residual = residual + (u - eps**2 * gradient(gradient(u, grid), grid) - 1.0) / repeats
    ends: Tensor | float = 0.0
    for number in range(repeats):
        prepare(number, slice(len(grid), None))
        ends = ends + model(torch.tensor([[0.0], [1.0]], dtype=x.dtype)) / repeats
    assert isinstance(residual, Tensor)
    assert isinstance(ends, Tensor)
    loss = (residual**2).mean() + gamma * (ends**2).mean() + (multiplier[:, None] * ends).sum()
    return loss, ends[:, 0].detach()


def source_inference(
    model: nn.Module,
    x: Tensor,
    multiplier: Tensor,
    noise: Tensor,
    prepare: Prepare = nothing,
    alpha: float = 1e-4,
    beta: float = 1e-4,
    delta: float = 0.025,
) -> tuple[Tensor, Tensor]:
    """Loss and mean residual of the equation; ``noise``: uniform numbers ``(passes, points)``."""
    grid = x.clone().requires_grad_()
    target = (1.0 + alpha * math.pi**4) * torch.sin(math.pi * grid.detach())
    loss, mean = torch.zeros((), dtype=x.dtype), torch.zeros_like(x)
    for number, uniform in enumerate(noise):
        prepare(number, slice(None))
        out = model(grid)
        u, f = out["u"], out["f"]
        curvature = gradient(gradient(u, grid), grid)
        omega = delta * (uniform[:, None] - 0.5)
        residual = curvature + f
        loss = loss + 0.5 * ((u - (1.0 + omega) * target) ** 2).mean()
        loss = loss + alpha / 4.0 * (f**2).mean() + alpha / 4.0 * (curvature**2).mean()
        loss = loss + beta / 2.0 * (residual**2).mean() + (multiplier[:, None] * residual).mean()
        mean = mean + residual.detach()
    return loss / len(noise), (mean / len(noise))[:, 0]
