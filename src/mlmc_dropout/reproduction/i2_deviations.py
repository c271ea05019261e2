"""I2: predictive standard deviations of the inverse surrogate against the exact ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from mlmc_dropout.reproduction import curves
from mlmc_dropout.reproduction.experiment import Experiment
from mlmc_dropout.reproduction.f1_bands import roughness
from mlmc_dropout.reproduction.i1_means import PROFILES, draw_curves
from mlmc_dropout.reproduction.statistics import CONFIDENCE, l1_norm
from mlmc_dropout.reproduction.verdict import Check, Judgement, Quantity, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "mismatch"]

Data = Mapping[str, Any]

_VISIBLE = 0.1  # a gap that the eye sees in a plot


def mismatch(data: Data, index: int, out: str) -> dict[str, float]:
    """√V against the exact deviation: relative L¹ gap, rms gap and its noise, and the ratio of the mean deviations.

    The noise of √V is its delta-method error s = stderr(V)/(2√V). A gap that is noise alone has a mean square of mean
    s² with variance 2 Σ s⁴/n²; ``limit`` is the root of the 99 % quantile.

    Args:
        data: What :func:`curves.compute` returns.
        index: Index of the fidelity.
        out: Name of the output.

    Returns:
        The numbers by name.
    """
    _, V, stderr = curves.pick(data, index, out)
    std, exact = np.sqrt(V), np.asarray(data["exact_std"][out])
    inner = V > 0  # both ends are fixed at zero
    noise = np.zeros_like(V)
    noise[inner] = stderr[inner] / (2 * std[inner])
    z = float(stats.norm.ppf(CONFIDENCE))
    limit = float(np.mean(noise**2) + z * np.sqrt(2 * np.sum(noise**4)) / len(V))
    share = np.sqrt(np.sum(noise**2)) / np.sum(exact)
    ratio = float(std.sum() / exact.sum())
    half = float(stats.norm.ppf(0.5 + CONFIDENCE / 2) * share)
    return {
        "relative_l1": l1_norm(std - exact) / l1_norm(exact),
        "gap": curves.rms(std - exact),
        "noise": curves.rms(noise),
        "limit": float(np.sqrt(limit)),
        "ratio": ratio,
        "ratio_low": ratio - half,
        "ratio_high": ratio + half,
    }


def table(data: Data) -> Table:
    """Gap, noise and ratio for each output and fidelity.

    Args:
        data: What :func:`curves.compute` returns.

    Returns:
        One row per output and fidelity.
    """
    keys = ("relative_l1", "gap", "noise", "limit", "ratio", "ratio_low", "ratio_high")
    rows = []
    for out in data["exact_std"]:
        for index, T in enumerate(data["T"]):
            entry = mismatch(data, index, out)
            rows.append((out, T, *(entry[key] for key in keys)))
    columns = ("output", "T", "‖√V − σ‖/‖σ‖", "gap (rms)", "noise (rms)", "99 % limit of noise", "mean √V / mean σ")
    return Table("Standard deviations beside the exact σ.", (*columns, "99 % low", "99 % high"), tuple(rows))


def judge(data: Data) -> Judgement:
    """Claims: more passes reduce the noise, and a mismatch that can be seen remains. Agreement: its direction.

    Args:
        data: What :func:`curves.compute` returns.

    Returns:
        The judgement.
    """
    checks, ours = [], []
    low, high = data["T"][0], data["T"][-1]
    for out in data["exact_std"]:
        last = mismatch(data, len(data["T"]) - 1, out)
        rough = [roughness(np.sqrt(curves.pick(data, index, out)[1])) for index in (0, len(data["T"]) - 1)]
        wanted = 0.5 * (high / low) ** 0.5
        quieter = rough[0] >= wanted * rough[1]
        remains = last["gap"] > last["limit"] and last["relative_l1"] >= _VISIBLE
        short = last["ratio_high"] < 1
        checks += [
            Check(
                "claim",
                f"√V({out}) is smoother at T = {high} than at T = {low}, by half of √(T ratio) at least",
                quieter,
                f"{out}: the roughness of √V falls from {rough[0]:.2g} at T = {low} to {rough[1]:.2g} at T = {high}.",
            ),
            Check(
                "claim",
                f"at T = {high} the deviation of {out} differs from the exact one by {_VISIBLE:.0%} or more, and by "
                "more than Monte Carlo noise can",
                remains,
                f"{out}: relative gap {last['relative_l1']:.1%} at T = {high}, gap {last['gap']:.3g} against a noise "
                f"limit of {last['limit']:.2g}.",
            ),
            Check(
                "agreement",
                f"the dropout deviation of {out} falls short of the exact one: dropout 'does not fully capture' it (no "
                "direction is printed)",
                short,
                f"{out}: the dropout deviation is {last['ratio']:.3g} times the exact one on average: it "
                + ("falls short." if short else "does not fall short, it exceeds it."),
            ),
        ]
        ours.append(Quantity(f"mean √V over mean σ, {out}", last["ratio"], last["ratio_low"], last["ratio_high"]))
        ours.append(Quantity(f"relative L1 gap of √V({out}) at T = {high}", last["relative_l1"]))
    paper = [
        Quantity("standard deviations as T grows", "less noise; a mismatch remains at high T"),
        Quantity("direction of the mismatch", "dropout does not fully capture the variability of the target"),
    ]
    return Judgement(paper, ours, checks, [table(data)])


def draw(data: Data) -> dict[str, Figure]:
    """Standard deviations beside exact ones, with pointwise errors.

    Args:
        data: What :func:`curves.compute` returns.

    Returns:
        The figure by its file name.
    """
    symbols = (r"$\sqrt{{V({OUT})}}$", r"$\sqrt{{\mathrm{{Var}}[{out}]}}$")
    return {"figure": draw_curves(data, "std", "exact_std", symbols)}


EXPERIMENT = Experiment(
    id="I2",
    title="Predictive standard deviations, inverse problem",
    claim=(
        "Increasing T reduces the noise of V; a mismatch with the exact standard deviation remains at high T: dropout "
        "does not fully capture the variability of the target."
    ),
    surrogates=("source-inference",),
    profiles=PROFILES,  # the passes of I1
    compute=curves.compute,
    judge=judge,
    draw=draw,
    rows=curves.csv_rows,
)
