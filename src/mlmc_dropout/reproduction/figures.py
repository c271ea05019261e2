"""One look for all figures: sizes for a page column, colours that survive colour blindness and grey print.

Every property is set on the objects themselves; matplotlib's global state is not touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLUE",
    "CRIMSON",
    "GREEN",
    "GREY",
    "INK",
    "NORMAL",
    "ORANGE",
    "RED",
    "SKY",
    "SMALL",
    "canvas",
    "legend",
    "loglog_fit",
    "panel",
    "save",
]

# Okabe & Ito's palette.
BLUE, ORANGE, GREEN, RED, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9"
CRIMSON = "#E3132C"
INK, GREY = "#222222", "#8A8A8A"

SMALL, NORMAL = 7.5, 8.5


def canvas(rows: int, columns: int, width: float = 7.0, height: float = 2.6) -> tuple[Figure, NDArray[Any]]:
    """A figure with a grid of axes.

    Args:
        rows: Rows of axes.
        columns: Columns of axes.
        width: Width of the figure in inches.
        height: Height of a row in inches.

    Returns:
        The figure, and its axes (rows, columns).

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report") from error
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.04)
    figure = Figure(figsize=(width, height * rows), layout=layout)
    return figure, figure.subplots(rows, columns, squeeze=False)


def panel(axes: Axes, title: str = "", xlabel: str = "", ylabel: str = "", grid: bool = True) -> None:
    """Titles, labels, ticks and spines in the common look.

    Args:
        axes: The axes to dress.
        title: Title, at the left.
        xlabel: Label below.
        ylabel: Label at the side.
        grid: Whether to draw grid lines.
    """
    axes.set_title(title, fontsize=NORMAL, loc="left", color=INK)
    axes.set_xlabel(xlabel, fontsize=NORMAL, color=INK)
    axes.set_ylabel(ylabel, fontsize=NORMAL, color=INK)
    axes.tick_params(labelsize=SMALL, colors=INK, width=0.6, length=3)
    axes.tick_params(which="minor", width=0.4, length=1.8)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_linewidth(0.6)
        spine.set_color(INK)
    axes.yaxis.get_offset_text().set_fontsize(SMALL)
    if grid:
        axes.grid(True, which="major", color="#E4E4E4", linewidth=0.5)
        axes.set_axisbelow(True)


def legend(axes: Axes, **placement: Any) -> None:
    """A frameless legend in small print.

    Args:
        axes: The axes to which it belongs.
        **placement: Placement, as for matplotlib's ``legend``.
    """
    axes.legend(**{"fontsize": SMALL, "frameon": False, "handlelength": 1.8, "labelspacing": 0.3, **placement})


def loglog_fit(axes: Axes, x: Any, y: Any, fit: Any, label: str) -> None:
    """Points, the fitted line dashed, and its confidence band, on log-log axes.

    Args:
        axes: Where to draw.
        x: Abscissae of the points.
        y: Their ordinates.
        fit: The :class:`LineFit` of log y against log x.
        label: Legend of the line.
    """
    grid = np.geomspace(min(x) / 1.15, max(x) * 1.15, 100)
    line, half = fit.line(np.log(grid)), fit.half_width(np.log(grid))
    axes.fill_between(grid, np.exp(line - half), np.exp(line + half), color=SKY, alpha=0.45, lw=0, label="99 % band")
    axes.plot(grid, np.exp(line), "--", color=BLUE, lw=1.1, label=label)
    axes.plot(x, y, "o", color=INK, ms=3.0, mew=0, label="measured")
    axes.set(xscale="log", yscale="log")


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write ``name.pdf`` and ``name.png``; the files carry no dates, so equal figures are equal files.

    Args:
        figure: The figure.
        folder: Where.
        name: File name without suffix.
    """
    figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None, "Producer": None})
    figure.savefig(folder / f"{name}.png", dpi=200, metadata={"Software": None})
