"""Pictures of the fixed-cost allocation test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.experiments import figures, surface
from mlmc_dropout.experiments.allocation_test import PRINTED, honest_best, honest_surface, optimum, theory_best

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw"]

Array = NDArray[np.float64]
Data = Mapping[str, Any]

_CONTOURS = (0.5, 0.75, 0.9, 0.97, 0.99)


def draw(data: Data) -> dict[str, Figure]:
    """The reciprocal of ‖S²‖ as in the paper, and beside it that of the variance Algorithm 1 really has."""
    return {"figure": _figure(data, honest=False), "figure-honest": _figure(data, honest=True)}


def _figure(data: Data, honest: bool) -> Figure:
    outputs = list(data["found"])
    figure, grid = figures.canvas(len(outputs), 2, height=2.95)
    counts = surface.feasible(data["ladder"], data["budget"])
    for row, out in zip(grid, outputs, strict=True):
        for axes, key in zip(row, "YV", strict=True):
            found = data["found"][out][key]
            values = honest_surface(data, out, key) if honest else surface.surface(found["norms"], counts)
            label = (
                rf"$1/\Vert S^2_{key}\Vert_{{L^1}}$"
                if not honest
                else rf"$1/\Vert\mathrm{{Var}}\,\mathcal{{{'Y' if key == 'Y' else 'V'}}}\Vert_{{L^1}}$"
            )
            _heat(figure, axes, 1.0 / values, counts, label)
            (_mark_honest if honest else _mark)(axes, data, out, key)
            name = (
                f"{key}, output {out.upper()}"
                if len(outputs) > 1
                else f"{'mean' if key == 'Y' else 'variance'} estimator"
            )
            figures.panel(axes, name, r"$M_1$", r"$M_2$", grid=False)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2, fontsize=figures.SMALL, frameon=False, handletextpad=0.4
    )
    return figure


def _heat(figure: Figure, axes: Axes, values: Array, counts: NDArray[np.int64], label: str) -> None:
    """A map over (M_1, M_2) with contours at shares of the maximum."""
    M1, M2 = counts[:, 1], counts[:, 2]
    image = np.full((M2.max() + 1, M1.max() + 1), np.nan)
    image[M2, M1] = values
    mesh = axes.pcolormesh(image, cmap="cividis", shading="nearest", rasterized=True)
    top = float(np.nanmax(image))
    lines = axes.contour(image, levels=[s * top for s in _CONTOURS], colors="white", linewidths=0.6, alpha=0.9)
    axes.clabel(lines, fmt={s * top: f"{s:.0%}" for s in _CONTOURS}, fontsize=6)
    axes.set(xlim=(0, M1.max()), ylim=(0, M2.max()))
    bar = figure.colorbar(mesh, ax=axes, pad=0.02, aspect=28)
    bar.set_label(label, fontsize=figures.NORMAL, color=figures.INK)
    bar.ax.tick_params(labelsize=figures.SMALL, width=0.5, length=2.5)
    bar.ax.yaxis.get_offset_text().set_fontsize(figures.SMALL)
    bar.outline.set_linewidth(0.5)


def _point(axes: Axes, at: Any, marker: str, size: float, fill: str, edge: str, label: str) -> None:
    axes.plot(at[1], at[2], marker, ms=size, mfc=fill, mec=edge, mew=0.9, ls="none", label=label, zorder=5)


def _mark(axes: Axes, data: Data, out: str, key: str) -> None:
    """Black: empirical. Red: theory. Shapes differ, so that colour is not needed."""
    found = data["found"][out][key]
    _point(axes, found["centre"], "o", 6.5, "black", "white", "empirical: mean of the best 0.5 %")
    _point(axes, found["single"], "X", 6.0, "black", "white", "empirical: single best")
    _point(axes, optimum(data, key, "coupled"), "*", 9.5, figures.CRIMSON, "white", "theory, coupled cost")
    _point(axes, PRINTED[key], "D", 5.0, "none", figures.CRIMSON, "printed = theory, uncoupled cost")


def _mark_honest(axes: Axes, data: Data, out: str, key: str) -> None:
    _point(axes, honest_best(data, out, key).single, "s", 5.5, "black", "white", "least real variance")
    _point(
        axes,
        (data["budget"] / data["ladder"][-1],) * 3,
        "P",
        6.5,
        figures.ORANGE,
        "black",
        "equal counts: plain Monte Carlo",
    )
    _point(axes, theory_best(data, out, key).single, "*", 9.5, figures.CRIMSON, "white", "where S² is least")
    _point(axes, PRINTED[key], "D", 5.0, "none", figures.CRIMSON, "printed optimum")
