"""Pictures of a run: its loss curve, and its dropout mean beside the exact solution."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from mlmc_dropout.errors import MissingExtraError
from mlmc_dropout.pinn.config import Config
from mlmc_dropout.pinn.evaluation import dropout_moments, grid
from mlmc_dropout.pinn.runs import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_losses", "draw_solution"]


def _figure(width: float, height: float) -> Figure:
    """A figure that needs no display and leaves matplotlib's global state alone."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report") from error
    return Figure(figsize=(width, height), layout="constrained")


def draw_losses(path: Path, config: Config, history: History) -> None:
    """Every term of the loss over the epochs; a term that may be negative is shown by its size.

    Args:
        path: The picture to write.
        config: The run.
        history: Average losses by window, as in ``losses.csv``.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    figure = _figure(6.4, 4.0)
    axes = figure.subplots()
    epochs = [epoch for epoch, _ in history]
    for column, name in enumerate(("total", *config.equation.terms)):
        axes.plot(epochs, [abs(losses[column]) for _, losses in history], label=name, lw=0.8)
    axes.set(yscale="log", xlabel="epoch", ylabel="|term of the loss|, average of a window")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def draw_solution(path: Path, config: Config, model: nn.Module) -> None:
    """Mean and two standard deviations over dropout passes, with the exact mean dashed.

    Args:
        path: The picture to write.
        config: The run.
        model: The trained network.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    x, passes = grid(config), min(config.evaluation_passes, 1000)
    moments = dropout_moments(config, model.eval(), x, passes)
    exact = config.equation.exact_mean(x)
    figure = _figure(4.8 * len(moments), 3.6)
    panels = figure.subplots(1, len(moments), squeeze=False)[0]
    for axes, (name, (mean, variance)) in zip(panels, moments.items(), strict=True):
        at, centre, width = x[:, 0].numpy(), mean[:, 0].numpy(), 2.0 * variance[:, 0].sqrt().numpy()
        axes.fill_between(at, centre - width, centre + width, alpha=0.25, label="mean ± 2 std")
        axes.plot(at, centre, label=f"dropout mean, {passes} passes")
        axes.plot(at, exact[name][:, 0].numpy(), "k--", label="exact")
        axes.set(xlabel="x", ylabel=name)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
