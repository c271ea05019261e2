"""Pictures of the fixed-cost allocation test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.reproduction import figures, surface
from mlmc_dropout.reproduction.fixed_cost import PRINTED, optimum, theory_best, true_best, true_surface

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw"]

Array = NDArray[np.float64]
Data = Mapping[str, Any]

_CONTOURS = (0.25, 0.5, 0.75, 0.9, 0.97, 0.99)
_LABELS = {False: (0.5, 0.75, 0.9), True: (0.25, 0.5)}  # the innermost contours have no room for a label


def draw(data: Data) -> dict[str, Figure]:
    """The reciprocal of ‖S²‖ as in the paper, and beside it that of the variance Algorithm 1 really has.

    Args:
        data: What :func:`fixed_cost.compute` returns.

    Returns:
        Two figures by their file names.
    """
    return {"figure": _figure(data, true_variance=False), "figure-honest": _figure(data, true_variance=True)}


def _figure(data: Data, true_variance: bool) -> Figure:
    outputs = list(data["found"])
    figure, grid = figures.canvas(len(outputs), 2, height=2.9)
    for row, out in zip(grid, outputs, strict=True):
        for axes, key in zip(row, "YV", strict=True):
            _panel(figure, axes, data, out, key, true_variance)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": 2, "columnspacing": 3.0, "handletextpad": 0.3}
    figure.legend(handles, labels, fontsize=figures.SMALL, frameon=False, **where)
    return figure


def _panel(figure: Figure, axes: Axes, data: Data, out: str, key: str, true_variance: bool) -> None:
    """One surface with its markers."""
    counts = surface.feasible(data["ladder"], data["budget"])
    located = data["found"][out][key]
    values = true_surface(data, out, key) if true_variance else surface.surface(located["norms"], counts)
    kind = "mean" if key == "Y" else "variance"
    name = f"{kind} of {out.upper()}" if len(data["found"]) > 1 else f"{kind} estimator"
    symbol = rf"\mathrm{{Var}}\,\mathcal{{{key}}}" if true_variance else f"S^2_{key}"
    image = _heat(figure, axes, 1.0 / values, counts, rf"$1/\Vert {symbol}\Vert_{{L^1}}$", _LABELS[true_variance])
    figures.panel(axes, name, r"$M_1$", r"$M_2$", grid=False)
    if true_variance:
        _mark_true_variance(axes, data, out, key)
        return
    _mark(axes, data, out, key)
    _zoom(axes, image, data, out, key)


def _heat(figure: Figure, axes: Axes, values: Array, counts: NDArray[np.int64], label: str, named: Any) -> Array:
    """A map over (M_1, M_2) with contours at shares of the maximum; returns its pixels."""
    M1, M2 = counts[:, 1], counts[:, 2]
    image = np.full((M2.max() + 1, M1.max() + 1), np.nan)
    image[M2, M1] = values
    mesh = axes.pcolormesh(image, cmap="cividis", shading="nearest", rasterized=True)
    top = float(np.nanmax(image))
    lines = axes.contour(image, levels=[s * top for s in _CONTOURS], colors="white", linewidths=0.6, alpha=0.85)
    axes.clabel(lines, [s * top for s in named], fmt=lambda level: f"{level / top:.0%}", fontsize=6)
    axes.set(xlim=(0, M1.max()), ylim=(0, M2.max()))
    bar = figure.colorbar(mesh, ax=axes, pad=0.02, aspect=28)
    bar.ax.ticklabel_format(axis="y", scilimits=(-2, 3))
    bar.set_label(label, fontsize=figures.NORMAL, color=figures.INK)
    bar.ax.tick_params(labelsize=figures.SMALL, width=0.5, length=2.5)
    bar.ax.yaxis.get_offset_text().set_fontsize(figures.SMALL)
    bar.outline.set_linewidth(0.5)
    return image


def _zoom(axes: Axes, image: Array, data: Data, out: str, key: str) -> None:
    """The neighbourhood of the optimum, in the corner that no allocation reaches."""
    located = data["found"][out][key]
    at = optimum(data, key, "coupled")
    inset = axes.inset_axes((0.60, 0.56, 0.38, 0.42))
    top = float(np.nanmax(image))
    inset.pcolormesh(image, cmap="cividis", shading="nearest", rasterized=True, vmin=0.9 * top, vmax=top)
    inset.contour(image, levels=[0.99 * top, 0.997 * top], colors="white", linewidths=0.5)
    wide = located["high"][1] - located["low"][1], located["high"][2] - located["low"][2]
    box = (located["low"][1], located["low"][2]), *wide
    inset.add_patch(_rectangle(*box))
    _mark(inset, data, out, key, scale=0.75)
    inset.set(xlim=(at[1] - 7, at[1] + 7), ylim=(at[2] - 4, at[2] + 4))
    inset.tick_params(labelsize=5.5, width=0.4, length=1.5, pad=1.5)
    for spine in inset.spines.values():
        spine.set_linewidth(0.5)
    axes.indicate_inset_zoom(inset, edgecolor=figures.INK, lw=0.5, alpha=0.8)


def _rectangle(corner: tuple[float, float], width: float, height: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, width, height, fill=False, ec="black", lw=0.9, ls=(0, (3, 2)), zorder=4)


def _point(axes: Axes, at: Any, marker: str, size: float, fill: str, edge: str, label: str) -> None:
    axes.plot(at[1], at[2], marker, ms=size, mfc=fill, mec=edge, mew=0.8, ls="none", label=label, zorder=5)


def _mark(axes: Axes, data: Data, out: str, key: str, scale: float = 1.0) -> None:
    """Black: empirical. Red: theory. Shapes differ, so that colour is not needed."""
    located = data["found"][out][key]
    _point(axes, located["centre"], "o", 7.5 * scale, "black", "white", "empirical: mean of the best 0.5 %")
    _point(axes, located["single"], "X", 6.5 * scale, "black", "white", "empirical: single best")
    _point(axes, optimum(data, key, "coupled"), "*", 7.5 * scale, figures.CRIMSON, "white", "theory, coupled cost")
    _point(axes, PRINTED[key], "D", 5.0, "none", figures.CRIMSON, "printed = theory, uncoupled cost")


def _mark_true_variance(axes: Axes, data: Data, out: str, key: str) -> None:
    equal = (data["budget"] / data["ladder"][-1],) * 3
    _point(axes, true_best(data, out, key).single, "s", 8.0, "none", "black", "smallest true variance")
    _point(axes, equal, "P", 5.5, figures.ORANGE, "black", "equal counts (for the mean: plain Monte Carlo)")
    _point(axes, theory_best(data, out, key).single, "*", 9.0, figures.CRIMSON, "white", "where S² is smallest")
    _point(axes, PRINTED[key], "D", 5.0, "none", figures.CRIMSON, "printed optimum")
