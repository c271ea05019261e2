"""F1: mean and bands of one and two standard deviations at increasing fidelity, forward problem."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from mlmc_dropout.reproduction import curves, figures
from mlmc_dropout.reproduction.experiment import Experiment
from mlmc_dropout.reproduction.statistics import CONFIDENCE, l1_norm, line_slope
from mlmc_dropout.reproduction.verdict import Check, Judgement, Quantity, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "roughness"]

Data = Mapping[str, Any]


def roughness(curve: Any) -> float:
    """Root mean square of second differences: what the eye calls frayed. White noise of deviation s gives √6 s.

    Args:
        curve: Values along the grid, (points,).

    Returns:
        The roughness.
    """
    return curves.rms(np.diff(curve, n=2))


def roughness_error(V: Any) -> float:
    """Standard deviation of log roughness for independent noise of variance V(x)/T at the points.

    Second differences have autocovariances 6, −4, 1, so their mean square over n points has relative variance (2/n)(1 +
    2(16 + 1)/36); n is reduced to (ΣV)²/ΣV² where V varies along the grid.

    Args:
        V: Variances along the grid, (points,).

    Returns:
        The standard deviation.
    """
    effective = float(np.sum(V) ** 2 / np.sum(np.square(V)))
    return 0.5 * float(np.sqrt(2 / effective * (1 + 2 * 17 / 36)))


def rates_of_smoothing(data: Data) -> dict[str, tuple[float, float, float]]:
    """Slopes of log roughness against log T, for the mean and the standard deviation.

    Args:
        data: What :func:`curves.compute` returns.

    Returns:
        ``"mean"`` and ``"std"`` -> slope and the ends of its 99 % interval.
    """
    x = np.log(data["T"])
    values: dict[str, list[float]] = {"mean": [], "std": []}
    for index in range(len(x)):
        Y, V, _ = curves.pick(data, index, "u")
        values["mean"].append(roughness(Y))
        values["std"].append(roughness(np.sqrt(V)))
    error = roughness_error(curves.pick(data, len(x) - 1, "u")[1])
    half = float(stats.norm.ppf(0.5 + CONFIDENCE / 2)) * error / float(np.sqrt(np.square(x - x.mean()).sum()))
    slopes = {key: line_slope(x, np.log(v)) for key, v in values.items()}
    return {key: (slope, slope - half, slope + half) for key, slope in slopes.items()}


def table(data: Data) -> Table:
    """Roughness, noise and distance from the exact solution.

    Args:
        data: What :func:`curves.compute` returns.

    Returns:
        One row per fidelity.
    """
    rows = []
    exact = np.asarray(data["exact_mean"]["u"])
    for index, T in enumerate(data["T"]):
        Y, V, _ = curves.pick(data, index, "u")
        std = np.sqrt(V)
        inside = float(np.mean(np.abs(exact - Y) <= 2 * std))
        rows.append((T, roughness(Y), float(np.sqrt(6 * np.mean(V) / T)), roughness(std), l1_norm(Y - exact), inside))
    columns = ("T", "roughness of Y", "√(6 V/T)", "roughness of √V", "‖Y − u‖", "share of u within ±2√V")
    return Table("Roughness is the root mean square of second differences along the grid.", columns, tuple(rows))


def judge(data: Data) -> Judgement:
    """Claim: bands get smoother; noise of independent passes makes roughness fall like T^(−1/2).

    Args:
        data: What :func:`curves.compute` returns.

    Returns:
        The judgement.
    """
    smoothing = rates_of_smoothing(data)
    rough = [row[1:4:2] for row in table(data).rows]
    falls = all(b < a for early, late in pairwise(rough) for a, b in zip(early, late, strict=True))
    checks = [
        Check(
            "claim",
            "the roughness of the mean and of the band falls at every step of T",
            falls,
            f"The roughness of mean and band {'falls' if falls else 'does not fall'} at every step of T.",
        )
    ]
    for key, (slope, low, high) in smoothing.items():
        holds = low <= -0.5 <= high
        text = f"Roughness of the {key} falls like T^{slope:.3f} [{low:.3f}, {high:.3f}]; independent noise gives −1/2."
        # √V is a curved function of V, so that its rate is only roughly −1/2 at small T
        checks.append(
            Check(
                "claim" if key == "mean" else "note", f"the 99 % interval of the {key}'s rate holds −1/2", holds, text
            )
        )
    ours = [Quantity(f"rate at which the roughness of the {key} falls", *values) for key, values in smoothing.items()]
    paper = [Quantity("bands as T grows", "less visible noise, smoother bands")]
    return Judgement(paper, ours, checks, [table(data)])


def draw(data: Data) -> dict[str, Figure]:
    """Four panels as in the paper: mean, ±1 and ±2 standard deviations, exact solution dashed.

    Args:
        data: What :func:`curves.compute` returns.

    Returns:
        The figure by its file name.
    """
    figure, grid = figures.canvas(2, 2, height=2.3)
    x = np.asarray(data["x"])
    for index, (axes, T) in enumerate(zip(grid.flat, data["T"], strict=True)):
        Y, V, _ = curves.pick(data, index, "u")
        std = np.sqrt(V)
        axes.fill_between(x, Y - 2 * std, Y + 2 * std, color=figures.SKY, alpha=0.35, lw=0, label=r"$Y\pm2\sqrt{V}$")
        axes.fill_between(x, Y - std, Y + std, color=figures.BLUE, alpha=0.38, lw=0, label=r"$Y\pm\sqrt{V}$")
        axes.plot(x, Y, color=figures.BLUE, lw=1.0, label=r"$Y(x,T)$")
        axes.plot(x, data["exact_mean"]["u"], "--", color=figures.INK, lw=1.0, label="exact")
        axes.set(xlim=(0, 1))
        figures.panel(axes, rf"$T = {T}$", r"$x$", r"$u$")
        axes.sharey(grid.flat[0])
    figures.legend(grid.flat[0], loc="lower center", ncols=2)
    return {"figure": figure}


EXPERIMENT = Experiment(
    id="F1",
    title="Mean and bands at increasing fidelity, forward problem",
    claim="Increasing T reduces the visible sampling noise and gives smoother uncertainty bands.",
    surrogates=("boundary-layer",),
    profiles={
        "paper": {"fidelities": [10, 100, 1000, 10_000], "seed": 1000},
        "quick": {"fidelities": [10, 50, 250, 1250], "seed": 1000},
    },
    compute=curves.compute,
    judge=judge,
    draw=draw,
    rows=curves.csv_rows,
)
