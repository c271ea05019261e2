"""How far the dropout mean of a trained network is from the exact solution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mlmc_dropout.pinn.config import Config
from mlmc_dropout.sampling import streams
from mlmc_dropout.sampling.sampler import DropoutSampler

__all__ = ["OutputMoments", "dropout_moments", "grid", "relative_error", "summary"]

OutputMoments = dict[str, tuple[Tensor, Tensor]]  # output -> mean and variance over passes


def grid(config: Config) -> Tensor:
    """The uniform points of a run.

    Args:
        config: The run.

    Returns:
        Points ``(points, 1)`` in float64, both ends of [0, 1] included.
    """
    return torch.linspace(0.0, 1.0, config.points, dtype=torch.float64)[:, None]


def dropout_moments(config: Config, model: nn.Module, x: Tensor, passes: int) -> OutputMoments:
    """Mean and unbiased variance of every output over dropout passes.

    Args:
        config: The run: its seed, precision and dropout rate.
        model: The network.
        x: Points ``(N, 1)``.
        passes: Number of passes, at least 2.

    Returns:
        Output name -> (mean, variance), each ``(N, 1)`` in float64.
    """
    x = x.to(config.torch_dtype)
    if config.network.dropout > 0.0:
        outputs = DropoutSampler(model).sample(x, passes, seed=config.seed, stream=streams.TRAINING_EVALUATION)
    else:  # without dropout all passes are the same one
        outputs = model(x.expand(2, *x.shape))
    named = outputs if isinstance(outputs, dict) else {"u": outputs}
    samples = {name: output.detach().to(torch.float64) for name, output in named.items()}
    return {name: (sample.mean(dim=0), sample.var(dim=0)) for name, sample in samples.items()}


def relative_error(estimate: Tensor, exact: Tensor) -> float:
    """``|estimate - exact| / |exact|`` in the discrete L2 norm.

    Args:
        estimate: Values at some points.
        exact: The exact values there.

    Returns:
        The relative error.

    Examples:
        >>> relative_error(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0]))
        0.1...
    """
    return float((estimate - exact).norm() / exact.norm())


def summary(config: Config, model: nn.Module) -> dict[str, Any]:
    """Distance to the exact solution on the training grid, and what was done to measure it.

    Args:
        config: The run.
        model: The trained network.

    Returns:
        Plain data: passes, points, relative L2 error of the mean and rms standard deviation by output.
    """
    x, passes = grid(config), config.evaluation_passes
    moments = dropout_moments(config, model.eval(), x, passes)
    exact = config.equation.exact_mean(x)
    errors = {name: relative_error(mean, exact[name]) for name, (mean, _) in moments.items()}
    spread = {name: float(variance.mean().sqrt()) for name, (_, variance) in moments.items()}
    return {"passes": passes, "points": config.points, "relative_l2_of_mean": errors, "rms_std": spread}
