"""How far the dropout mean of a trained network is from the exact solution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mlmc_dropout.pinn.config import Config
from mlmc_dropout.pinn.draws import EVALUATION, Drawer
from mlmc_dropout.pinn.networks import dropout_layers

__all__ = ["Moments", "dropout_moments", "masked", "relative_error", "summary"]

Moments = dict[str, tuple[Tensor, Tensor]]  # output -> mean and variance over passes
_CHUNK = 20  # passes at once


@contextmanager
def masked(model: nn.Module, masks: Sequence[Tensor]) -> Iterator[None]:
    """Inside, ``model`` in eval mode applies ``masks``, one per dropout layer, and is otherwise itself."""
    handles: list[RemovableHandle] = []
    try:
        for layer, mask in zip(dropout_layers(model), masks, strict=True):
            handles.append(layer.register_forward_hook(_multiplier(mask, layer.p)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _multiplier(mask: Tensor, p: float) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output * (mask.to(output.dtype) / (1.0 - p))

    return hook


@torch.no_grad()
def dropout_moments(config: Config, model: nn.Module, x: Tensor, passes: int) -> Moments:
    """Mean and unbiased variance of every output at ``x`` over ``passes`` dropout passes."""
    drawer = Drawer(model, len(x), config.seed, config.torch_dtype, noisy=False)
    samples: dict[str, list[Tensor]] = {}
    for first in range(0, passes, _CHUNK):
        (draw,) = drawer.block(EVALUATION, first, 1, min(_CHUNK, passes - first))
        with masked(model, draw.masks):
            outputs = model(x.expand(len(draw.noise), *x.shape))
        outputs = outputs if isinstance(outputs, dict) else {"u": outputs}
        for name, output in outputs.items():
            samples.setdefault(name, []).append(output.to(torch.float64))
    return {name: (torch.cat(parts).mean(dim=0), torch.cat(parts).var(dim=0)) for name, parts in samples.items()}


def relative_error(estimate: Tensor, exact: Tensor) -> float:
    """``|estimate - exact| / |exact|`` in the discrete L2 norm.

    >>> relative_error(torch.tensor([3.0, 4.4]), torch.tensor([3.0, 4.0]))  # doctest: +ELLIPSIS
    0.08...
    """
    return float((estimate - exact).norm() / exact.norm())


def summary(config: Config, model: nn.Module, passes: int = 10_000) -> dict[str, object]:
    """Distance to the exact solution on the training grid, and what was done to measure it."""
    x = torch.linspace(0.0, 1.0, config.points, dtype=torch.float64)[:, None]
    moments = dropout_moments(config, model.eval(), x.to(config.torch_dtype), passes)
    exact = config.equation.exact_mean(x)
    errors = {name: relative_error(mean, exact[name]) for name, (mean, _) in moments.items()}
    spread = {name: float(variance.mean().sqrt()) for name, (_, variance) in moments.items()}
    return {"passes": passes, "points": config.points, "relative_l2_of_mean": errors, "rms_std": spread}
