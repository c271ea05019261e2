"""I1: predictive means of the inverse surrogate against the exact means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from mlmc_dropout.reproduction import curves, figures
from mlmc_dropout.reproduction.experiment import Experiment
from mlmc_dropout.reproduction.statistics import CONFIDENCE, l1_norm
from mlmc_dropout.reproduction.verdict import Check, Judgement, Quantity, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "PROFILES", "draw_curves", "errors"]

Data = Mapping[str, Any]

_VISIBLE, _CONVERGED = 0.02, 0.5

PROFILES = {
    "paper": {"fidelities": [10, 10_000], "seed": 5000},
    "quick": {"fidelities": [10, 1000], "seed": 5000},
}


def errors(data: Data, index: int, out: str) -> dict[str, float]:
    """Root mean squares over the grid: error, Monte Carlo noise, and the bias that explains the rest.

    E (Y − E u)² = bias² + V/T at each point, so bias² is estimated by the mean of (Y − E u)² − V/T. Of that estimate
    the variance is Σ (2 s⁴ + 4 s² bias²)/n², s² = V/T, for independent points.

    Args:
        data: What :func:`curves.compute` returns.
        index: Index of the fidelity.
        out: Name of the output.

    Returns:
        Error, noise and bias by name, the bias with a 99 % interval.
    """
    Y, V, _ = curves.pick(data, index, out)
    gap, noise = Y - np.asarray(data["exact_mean"][out]), V / data["T"][index]
    square = float(np.mean(gap**2 - noise))
    slack = float(np.sqrt(np.sum(2 * noise**2 + 4 * noise * max(square, 0.0))) / len(Y))
    z = float(stats.norm.ppf(0.5 + CONFIDENCE / 2))
    return {
        "relative_l1": l1_norm(gap) / l1_norm(data["exact_mean"][out]),
        "error": curves.rms(gap),
        "noise": float(np.sqrt(np.mean(noise))),
        "bias": float(np.sqrt(max(square, 0.0))),
        "bias_low": float(np.sqrt(max(square - z * slack, 0.0))),
        "bias_high": float(np.sqrt(max(square + z * slack, 0.0))),
    }


def table(data: Data) -> Table:
    """Error, noise and bias for each output and fidelity.

    Args:
        data: What :func:`curves.compute` returns.

    Returns:
        One row per output and fidelity.
    """
    rows = []
    for out in data["exact_mean"]:
        for index, T in enumerate(data["T"]):
            e = errors(data, index, out)
            rows.append((out, T, e["relative_l1"], e["error"], e["noise"], e["bias"], e["bias_low"], e["bias_high"]))
    columns = ("output", "T", "‖Y − E‖/‖E‖", "error (rms)", "noise (rms)", "bias (rms)", "99 % low", "99 % high")
    return Table("Error of the mean split into Monte Carlo noise and bias of the surrogate.", columns, tuple(rows))


def judge(data: Data) -> Judgement:
    """Claims: the error falls with T, to what a plot cannot show, and bias is negligible beside the noise.

    Agreement: even at the highest fidelity no bias shows.

    Args:
        data: What :func:`curves.compute` returns.

    Returns:
        The judgement.
    """
    checks: list[Check] = []
    ours: list[Quantity] = []
    for out in data["exact_mean"]:
        first, last = errors(data, 0, out), errors(data, len(data["T"]) - 1, out)
        checks += _checks(out, data["T"][0], data["T"][-1], first, last)
        ours.append(Quantity(f"rms bias of the mean of {out}", last["bias"], last["bias_low"], last["bias_high"]))
        ours.append(Quantity(f"relative L1 error of the mean of {out} at T = {data['T'][-1]}", last["relative_l1"]))
    paper = [Quantity("means as T grows", "converge to the exact means; epistemic error negligible beside the noise")]
    return Judgement(paper, ours, checks, [table(data)])


def _checks(out: str, low: int, high: int, first: Mapping[str, float], last: Mapping[str, float]) -> list[Check]:
    """The statements about one output at fidelities ``low`` and ``high``."""
    falls, close = last["error"] <= _CONVERGED * first["error"], last["relative_l1"] <= _VISIBLE
    small, none = last["bias"] < first["noise"], last["bias_low"] == 0.0
    return [
        Check(
            "claim",
            f"the mean of {out} converges: its error at T = {high} is at most half of that at T = {low}",
            falls,
            f"{out}: rms error {first['error']:.3g} at T = {low}, {last['error']:.3g} at T = {high}"
            + ("." if falls else f"; noise alone would fall by a factor of {(high / low) ** 0.5:.0f}."),
        ),
        Check(
            "claim",
            f"at T = {high} the mean of {out} is within {_VISIBLE:.0%} of the exact one, a line width in the figure",
            close,
            f"{out}: relative L1 error {last['relative_l1']:.2%} at T = {high}.",
        ),
        Check(
            "claim",
            f"epistemic error is negligible: the bias of {out} is below the Monte Carlo noise at T = {low}",
            small,
            f"{out}: the bias, {last['bias']:.2g}, is {'below' if small else 'above'} the noise at T = {low}, "
            f"{first['noise']:.2g}.",
        ),
        Check(
            "agreement",
            f"no bias of {out} can be told from Monte Carlo noise at T = {high}",
            none,
            f"{out}: at T = {high} the noise is {last['noise']:.2g}, and "
            + ("no bias shows." if none else f"a bias of {last['bias']:.2g} remains that more passes cannot remove."),
        ),
    ]


def draw_curves(data: Data, estimate: str, exact: str, symbols: tuple[str, str]) -> Figure:
    """Per output and fidelity: the estimate with the exact curve dashed, and the pointwise error.

    Args:
        data: What :func:`curves.compute` returns.
        estimate: ``"mean"`` for Y, ``"std"`` for √V.
        exact: Key of the exact curves in ``data``.
        symbols: TeX of the estimate and of the exact curve; ``{out}`` and ``{OUT}`` are replaced by the output.

    Returns:
        The figure.
    """
    outputs, x = list(data["exact_mean"]), np.asarray(data["x"])
    figure, grid = figures.canvas(2 * len(outputs), 2, height=1.75)
    for place, (out, index) in enumerate((o, i) for o in outputs for i in range(len(data["T"]))):
        left, right = grid[place]
        Y, V, _ = curves.pick(data, index, out)
        ours, truth = (Y if estimate == "mean" else np.sqrt(V)), np.asarray(data[exact][out])
        symbol, reference = (s.format(out=out, OUT=out.upper()) for s in symbols)
        left.plot(x, ours, color=figures.BLUE, lw=1.1, label=symbol)
        left.plot(x, truth, "--", color=figures.INK, lw=1.0, label=reference)
        figures.panel(left, rf"${out.upper()}$, $T = {data['T'][index]}$", r"$x$", out.upper())
        if estimate == "mean":
            figures.legend(left, loc="lower center")
        else:  # noisy curves leave no room inside: make some above them
            left.set_ylim(top=1.35 * float(ours.max()))
            figures.legend(left, loc="upper center", ncols=2)
        right.axhline(0.0, color=figures.GREY, lw=0.7)
        right.plot(x, ours - truth, color=figures.RED, lw=0.9)
        figures.panel(right, "pointwise error", r"$x$", "")
        for axes in (left, right):
            axes.set(xlim=(0, 1))
    return figure


def draw(data: Data) -> dict[str, Figure]:
    """Means beside exact means, with pointwise errors.

    Args:
        data: What :func:`curves.compute` returns.

    Returns:
        The figure by its file name.
    """
    return {"figure": draw_curves(data, "mean", "exact_mean", (r"$Y({OUT})$", r"$\mathbb{{E}}[{out}]$"))}


EXPERIMENT = Experiment(
    id="I1",
    title="Predictive means, inverse problem",
    claim="The means converge to the exact means as T grows; epistemic error is negligible beside the noise.",
    surrogates=("source-inference",),
    profiles=PROFILES,
    compute=curves.compute,
    judge=judge,
    draw=draw,
    rows=curves.csv_rows,
)
