"""How sampling variances fall with the fidelity T: shared by F2 and I3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import mlmc_dropout as md
from mlmc_dropout.reproduction import figures
from mlmc_dropout.reproduction.statistics import LineFit, fit_line, l1_norm, line_slope
from mlmc_dropout.reproduction.surrogates import Surrogate, by_output
from mlmc_dropout.reproduction.verdict import Check, Quantity, Table
from mlmc_dropout.reproduction.work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "PROFILES",
    "compute",
    "csv_rows",
    "draw",
    "fidelities",
    "fits",
    "quantities",
    "slope_name",
    "theory_checks",
    "theory_slope",
]

Array = NDArray[np.float64]
Data = Mapping[str, Any]

PROFILES = {
    "paper": {"lowest": 10, "highest": 10_000, "count": 20, "replicates": 10, "moment_passes": 20_000},
    "quick": {"lowest": 10, "highest": 1000, "count": 10, "replicates": 10, "moment_passes": 2000},
}


def fidelities(settings: Data) -> list[int]:
    """Log-spaced numbers of passes, cut to whole ones.

    Args:
        settings: ``lowest``, ``highest`` and ``count``.

    Returns:
        The fidelities T.

    Examples:
        >>> fidelities(PROFILES["paper"])[:5]
        [10, 14, 20, 29, 42]
    """
    spaced = np.geomspace(settings["lowest"], settings["highest"], settings["count"])
    return [int(T + 1e-9) for T in spaced]  # a power of ten may come out just below itself


def compute(surrogate: Surrogate, settings: Data, work: Work) -> dict[str, Any]:
    """Norms of 𝒮²_Y and 𝒮²_V per fidelity and output, every fidelity with passes that no other shares.

    Args:
        surrogate: The network.
        settings: As for :func:`fidelities`, with ``replicates``, ``moment_passes`` and ``seed``.
        work: Remembers what is done.

    Returns:
        Plain data: T, norms by output and estimator, moments by output.
    """
    T = fidelities(settings)

    def one(index: int) -> dict[str, Any]:
        result = md.estimate(
            surrogate.model,
            surrogate.x,
            method="mlmc",
            ladder=(T[index],),
            counts=(settings["replicates"],),
            seed=settings["seed"] + 1 + index,
        )
        level = result.levels[0]  # one level: its sample variances over the replicates are 𝒮²_Y and 𝒮²_V
        parts = {"Y": by_output(level.variance), "V": by_output(level.variance_V)}
        return {out: {key: l1_norm(parts[key][out]) for key in "YV"} for out in parts["Y"]}

    norms = work.each("fidelities", range(len(T)), one)
    (moments,) = work.each("moments", [settings["moment_passes"]], lambda n: measured_moments(surrogate, n, settings))
    outputs = list(norms[0])
    return {
        "T": T,
        "norms": {out: {key: [entry[out][key] for entry in norms] for key in "YV"} for out in outputs},
        "moments": moments,
    }


def measured_moments(surrogate: Surrogate, passes: int, settings: Data) -> dict[str, Any]:
    """μ2 and μ4 of every output on the grid, from one long plain run.

    Args:
        surrogate: The network.
        passes: Length of the run.
        settings: Its ``seed``.

    Returns:
        Output -> ``mu2`` and ``mu4`` along the grid.
    """
    result = md.estimate(surrogate.model, surrogate.x, method="pooled", budget=passes, seed=settings["seed"])
    mu2, kurtosis = by_output(result.variance), by_output(result.levels[0].kurtosis)
    return {
        out: {"mu2": v.tolist(), "mu4": np.where(v > 0, np.nan_to_num(kurtosis[out]) * v**2, 0.0).tolist()}
        for out, v in mu2.items()
    }


def theory_slope(T: Sequence[int], key: str, moments: Data | None = None, biased: bool = False) -> float:
    """The slope that the exact formulas give when a line is fitted to them at these very T.

    Var Y(T) = μ2/T and Var V(T) = (μ4 − (T−3)/(T−1) μ2²)/T.

    Args:
        T: Fidelities.
        key: ``"Y"`` for the mean, ``"V"`` for the variance.
        moments: ``mu2`` and ``mu4`` along the grid; None for μ4 = 3 μ2².
        biased: Take V with 1/T in place of 1/(T−1), which multiplies its variance by ((T−1)/T)².

    Returns:
        The slope in log T.

    Examples:
        >>> T = fidelities(PROFILES["paper"])
        >>> round(theory_slope(T, "Y"), 4), round(theory_slope(T, "V"), 4), round(theory_slope(T, "V", biased=True), 4)
        (-1.0, -1.0103, -0.9897)
    """
    mu2 = np.asarray([1.0] if moments is None else moments["mu2"])
    mu4 = None if moments is None else np.asarray(moments["mu4"])
    values = []
    for t in T:
        variance = (
            md.theory.variance_of_sample_mean(t, mu2)
            if key == "Y"
            else md.theory.variance_of_sample_variance(t, mu2, mu4)
        )
        values.append(float(np.sum(variance)) * (((t - 1) / t) ** 2 if biased else 1.0))
    return line_slope(np.log(T), np.log(values))


def fits(data: Data) -> dict[tuple[str, str], LineFit]:
    """Lines through log ‖𝒮²‖ against log T.

    Args:
        data: What :func:`compute` returns.

    Returns:
        (output, key) -> fit; key ``"V0"`` is V with the biased sample variance.
    """
    x = np.log(data["T"])
    lines = {}
    for out, norms in data["norms"].items():
        for key in "YV":
            lines[out, key] = fit_line(x, np.log(norms[key]))
        T = np.asarray(data["T"], dtype=float)
        lines[out, "V0"] = fit_line(x, np.log(norms["V"]) + 2 * np.log((T - 1) / T))
    return lines


def slope_name(out: str, key: str) -> str:
    """A slope's name in tables.

    Args:
        out: Name of the output.
        key: ``"Y"`` or ``"V"``.

    Returns:
        The name.
    """
    return f"slope of ‖𝒮²_{key}‖, output {out}"


def quantities(data: Data) -> list[Quantity]:
    """Our slopes with their intervals.

    Args:
        data: What :func:`compute` returns.

    Returns:
        One quantity per output and estimator.
    """
    return [
        Quantity(slope_name(out, key), f.slope, f.low, f.high) for (out, key), f in fits(data).items() if key in "YV"
    ]


def theory_checks(data: Data) -> list[Check]:
    """Whether each interval holds the slope that theory gives on these T for this network.

    Args:
        data: What :func:`compute` returns.

    Returns:
        One claim per output and estimator.
    """
    checks = []
    for (out, key), fit in fits(data).items():
        if key == "V0":
            continue
        expected = theory_slope(data["T"], key, data["moments"][out])
        holds = fit.contains(expected)
        checks.append(
            Check(
                "claim",
                f"the 99 % interval of the {slope_name(out, key)} holds the slope of the exact formula at these T",
                holds,
                f"𝒮²_{key}({out}): slope {fit.slope:.4f} [{fit.low:.4f}, {fit.high:.4f}], "
                f"theory on these T {expected:.4f}{'' if holds else ', outside'}.",
            )
        )
    return checks


def table(data: Data) -> Table:
    """Measured slopes beside three theoretical ones.

    Args:
        data: What :func:`compute` returns.

    Returns:
        One row per output and estimator.
    """
    rows = []
    for (out, key), fit in fits(data).items():
        plain, biased = key[0], key == "V0"
        rows.append(
            (
                f"𝒮²_{plain}({out})" + (", variance with ddof 0" if biased else ""),
                fit.low,
                fit.slope,
                fit.high,
                theory_slope(data["T"], plain, data["moments"][out], biased),
                theory_slope(data["T"], plain, None, biased),
                fit.residual_sd,
            )
        )
    theory = ("theory, measured moments", "theory, μ4 = 3 μ2²")
    columns = ("norm", "99 % low", "slope", "99 % high", *theory, "residual sd")
    return Table("Log-log slopes against T, and the slopes of the exact formulas on the same T.", columns, tuple(rows))


def csv_rows(data: Data) -> Table:
    """One row per fidelity.

    Args:
        data: What :func:`compute` returns.

    Returns:
        The rows of ``numbers.csv``.
    """
    outputs = list(data["norms"])
    columns = ("T", *(f"S2_{key}_{out}" for out in outputs for key in "YV"))
    rows = [(T, *(data["norms"][o][k][i] for o in outputs for k in "YV")) for i, T in enumerate(data["T"])]
    return Table("Norms of the outer sample variances.", columns, tuple(rows))


def draw(data: Data) -> dict[str, Figure]:
    """A row per output: ‖𝒮²_Y‖ and ‖𝒮²_V‖ against T with fit and band.

    Args:
        data: What :func:`compute` returns.

    Returns:
        The figure by its file name.
    """
    outputs = list(data["norms"])
    figure, grid = figures.canvas(len(outputs), 2)
    lines = fits(data)
    for row, out in zip(grid, outputs, strict=True):
        for axes, key in zip(row, "YV", strict=True):
            fit = lines[out, key]
            half = (fit.high - fit.low) / 2
            figures.loglog_fit(axes, data["T"], data["norms"][out][key], fit, f"slope −{-fit.slope:.4f} ± {half:.4f}")
            label = rf"$\mathcal{{S}}^2_{key}$" + (f" ({out.upper()})" if len(outputs) > 1 else "")
            figures.panel(axes, "", r"$T$", rf"$\Vert${label}$\Vert_{{L^1}}$")
            figures.legend(axes, loc="upper right")
    return {"figure": figure}
