"""F3: sampling variances of the forward surrogate against the dropout rate used at test time."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

import mlmc_dropout as md
from mlmc_dropout.reproduction import figures, logit_model
from mlmc_dropout.reproduction.experiment import Experiment
from mlmc_dropout.reproduction.statistics import l1_norm
from mlmc_dropout.reproduction.surrogates import Surrogate, by_output
from mlmc_dropout.reproduction.verdict import Check, Judgement, Quantity, Table
from mlmc_dropout.reproduction.work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "PRINTED"]

Data = Mapping[str, Any]

# The paper's table: estimate, 99 % interval, for α1 … α4.
PRINTED = {
    "Y": ((-18.002, -18.143, -17.862), (0.250, 0.223, 0.277), (3.259, 3.037, 3.481), (5.059, 4.373, 5.744)),
    "V": ((-23.797, -24.064, -23.531), (0.513, 0.476, 0.550), (8.307, 7.917, 8.697), (4.766, 4.306, 5.226)),
}

PRINTED_T = 10_000  # the fidelity of that table
_GOOD_FIT = 0.98


def compute(surrogate: Surrogate, settings: Data, work: Work) -> dict[str, Any]:
    """Norms of the sample variances of Y and V over the replicates, per rate.

    They are taken of the trained network, and of the same network with fresh weights.

    Args:
        surrogate: The trained network.
        settings: Range and ``count`` of the rates, fidelities, ``replicates`` and ``seed``.
        work: Remembers what is done.

    Returns:
        Plain data: rates p, fidelities, replicates M, norms of the trained and the untrained network.
    """
    rates = np.linspace(settings["lowest"], settings["highest"], settings["count"]).round(6).tolist()

    def sweep(model: torch.nn.Module, T: int, seed: int) -> Any:
        def one(index: int) -> dict[str, float]:
            level = md.estimate(
                model,
                surrogate.x,
                method="mlmc",
                ladder=(T,),
                counts=(settings["replicates"],),
                rates=rates[index],
                seed=seed + index,
            ).levels[0]
            return {"Y": l1_norm(by_output(level.variance)["u"]), "V": l1_norm(by_output(level.variance_V)["u"])}

        return one

    T, T_untrained = settings["fidelity"], settings["fidelity_untrained"]
    trained = work.each("rates", range(len(rates)), sweep(surrogate.model, T, settings["seed"]))
    fresh = _untrained(surrogate.model, settings["seed"])
    untrained = work.each("rates, untrained", range(len(rates)), sweep(fresh, T_untrained, settings["seed"] + 500))
    sides = {
        name: {key: [entry[key] for entry in norms] for key in "YV"}
        for name, norms in (("trained", trained), ("untrained", untrained))
    }
    return {"p": rates, "T": T, "T_untrained": T_untrained, "M": settings["replicates"], **sides}


def _untrained(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """A copy with every weight and bias drawn anew, uniformly within 1/√(inputs)."""
    fresh = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for layer in fresh.modules():
        if isinstance(layer, torch.nn.Linear):
            bound = layer.in_features**-0.5
            for parameter in layer.parameters():
                torch.nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return fresh


def S2_norms(data: Data, which: str, key: str) -> NDArray[np.float64]:
    """‖S²‖ per rate: on a single level the paper's S² is the sample variance over the replicates divided by M.

    The paper's model is fitted to S² (eq:numerics:logit_model), and so is the authors' (commit 7c1a764). Norms of
    another fidelity than the paper's are referred to it by the rate 1/T.

    Args:
        data: What :func:`compute` returns.
        which: ``"trained"`` or ``"untrained"``.
        key: ``"Y"`` for the mean, ``"V"`` for the variance.

    Returns:
        One norm per rate.
    """
    T = data["T"] if which == "trained" else data["T_untrained"]
    return np.asarray(np.asarray(data[which][key]) / data["M"] * (T / PRINTED_T))


def _fit(data: Data, which: str, key: str) -> logit_model.LogitFit:
    return logit_model.fit(data["p"], np.log(S2_norms(data, which, key)))


def judge(data: Data) -> Judgement:
    """Claims: variances grow with p, and the model describes them. Agreement: the printed parameters.

    Args:
        data: What :func:`compute` returns.

    Returns:
        The judgement.
    """
    checks, paper, ours = [], [], []
    for key in "YV":
        values = S2_norms(data, "trained", key)
        fit = _fit(data, "trained", key)
        extremes = int(np.argmin(values)) == 0 and int(np.argmax(values)) == len(values) - 1
        checks.append(
            Check(
                "claim",
                f"‖S²_{key}‖ is least at the smallest rate and greatest at the largest",
                extremes,
                f"‖S²_{key}‖ goes from {values[0]:.2g} at p = {data['p'][0]:g} to {values[-1]:.2g} "
                f"at p = {data['p'][-1]:g}.",
            )
        )
        checks.append(
            Check(
                "claim",
                f"the four-parameter model explains at least {_GOOD_FIT:.0%} of the variation of log ‖S²_{key}‖",
                fit.r_squared >= _GOOD_FIT,
                f"The model explains {fit.r_squared:.2%} of the variation of log ‖S²_{key}‖.",
            )
        )
        agreeing = []
        for index, printed in enumerate(PRINTED[key]):
            low, high = fit.interval(index)
            agreeing.append(printed[1] <= fit.parameters[index] <= printed[2])
            paper.append(Quantity(f"α{index + 1} for {key}", *printed))
            ours.append(Quantity(f"α{index + 1} for {key}", float(fit.parameters[index]), low, high))
        checks.append(
            Check(
                "agreement",
                f"all four fitted parameters for {key} lie in the printed intervals",
                all(agreeing),
                f"{sum(agreeing)} of 4 fitted parameters for {key} lie in the printed intervals.",
            )
        )
        checks.append(_network_check(data, key))
    return Judgement(paper, ours, checks, [table(data)])


def _network_check(data: Data, key: str) -> Check:
    """Whether the parameters belong to the network rather than to dropout."""
    ours, fresh = _fit(data, "trained", key), _fit(data, "untrained", key)
    overlap = []
    for index in range(1, 4):  # α1 also carries the size of the outputs
        (a, b), (c, d) = ours.interval(index), fresh.interval(index)
        overlap.append(a <= d and c <= b)
    return Check(
        "note",
        f"α2, α3, α4 for {key} differ between the trained network and the same network with fresh weights",
        not all(overlap),
        f"The same network with fresh weights has α = ({', '.join(f'{a:.2f}' for a in fresh.parameters)}) for {key}: "
        + ("the parameters belong to the weights." if not all(overlap) else "the weights hardly matter."),
    )


def table(data: Data) -> Table:
    """Parameters, fit quality and what the data determine well.

    Args:
        data: What :func:`compute` returns.

    Returns:
        One row per estimator and network.
    """
    rows = []
    for key in "YV":
        for which in ("trained", "untrained"):
            fit = _fit(data, which, key)
            cells = []
            for index in range(4):
                low, high = fit.interval(index)
                cells.append(f"{fit.parameters[index]:.3f} ({low:.3f}, {high:.3f})")
            small, low, high = fit.small_p_exponent()
            rows.append(
                (
                    f"{key}, {which}",
                    *cells,
                    f"{small:.3f} ({low:.3f}, {high:.3f})",
                    fit.residual_sd,
                    fit.r_squared,
                    fit.largest_correlation(),
                )
            )
    columns = ("norm", "α1", "α2", "α3", "α4", "α2·α4", "residual sd", "R²", "largest correlation")
    caption = (
        "Fitted parameters with 99 % intervals. α2·α4 is the power of p at small p, α3 that of 1/(1−p) near 1. The "
        "last column is the largest correlation of any pair of them. Untrained: the same network with fresh weights, "
        f"T = {data['T_untrained']}, referred to T = {PRINTED_T} by the rate 1/T."
    )
    return Table(caption, columns, tuple(rows))


def draw(data: Data) -> dict[str, Figure]:
    """Norms against p with the fitted curve dashed and its band.

    Args:
        data: What :func:`compute` returns.

    Returns:
        The figure by its file name.
    """
    figure, grid = figures.canvas(1, 2, height=2.7)
    p = np.asarray(data["p"])
    curve = np.linspace(p[0], p[-1], 300)
    for axes, key in zip(grid[0], "YV", strict=True):
        fit = _fit(data, "trained", key)
        line, half = logit_model.model(curve, *fit.parameters), fit.half_width(curve)
        axes.fill_between(
            curve, np.exp(line - half), np.exp(line + half), color=figures.SKY, alpha=0.45, lw=0, label="99 % band"
        )
        axes.plot(curve, np.exp(line), "--", color=figures.BLUE, lw=1.1, label="fitted model")
        axes.plot(p, S2_norms(data, "trained", key), "o", color=figures.INK, ms=3.0, mew=0, label="measured")
        axes.set(yscale="log", xlim=(0, 1))
        figures.panel(axes, "", r"$p_\mathrm{drop}$", rf"$\Vert S^2_{key}\Vert_{{L^1}}$")
        figures.legend(axes, loc="upper left")
    return {"figure": figure}


def csv_rows(data: Data) -> Table:
    """One row per dropout rate.

    Args:
        data: What :func:`compute` returns.

    Returns:
        The rows of ``numbers.csv``.
    """
    columns = ("p", "S2_Y", "S2_V", "S2_Y_untrained", "S2_V_untrained")
    parts = (data["p"], *(S2_norms(data, which, key).tolist() for which in ("trained", "untrained") for key in "YV"))
    caption = "Norms of S², the sample variance over the replicates divided by their number."
    return Table(caption, columns, tuple(zip(*parts, strict=True)))


EXPERIMENT = Experiment(
    id="F3",
    title="Sampling variances against the dropout rate, forward problem",
    claim="The sampling variances vanish as p → 0, grow as p → 1, and follow a generalised logit model.",
    surrogates=("boundary-layer",),
    profiles={
        "paper": {
            "lowest": 0.02,
            "highest": 0.98,
            "count": 49,
            "fidelity": 10_000,
            "fidelity_untrained": 300,
            "replicates": 10,
            "seed": 3000,
        },
        "quick": {
            "lowest": 0.05,
            "highest": 0.95,
            "count": 13,
            "fidelity": 300,
            "fidelity_untrained": 100,
            "replicates": 10,
            "seed": 3000,
        },
    },
    compute=compute,
    judge=judge,
    draw=draw,
    rows=csv_rows,
)
