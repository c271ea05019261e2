"""H: the paper's headline, gains over single-level Monte Carlo dropout at matched cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlmc_dropout.reproduction import cost_curves, figures
from mlmc_dropout.reproduction.cost_curves import KEYS, LABELS, measured, ratio, spent
from mlmc_dropout.reproduction.experiment import Experiment
from mlmc_dropout.reproduction.verdict import Check, Judgement, Quantity, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

Data = Mapping[str, Any]

BENCHMARKS = ("boundary-layer", "source-inference")  # the paper's; the other networks are ours
_STYLE = {
    "plain": ("INK", "o-"),
    "single": ("GREY", "s:"),
    "nested": ("RED", "^-"),
    "independent": ("RED", "v:"),
    "stratified": ("SKY", "D-"),
    "control-variate": ("BLUE", "s-"),
    "auto": ("BLUE", "o:"),
}


def judge(data: Data) -> Judgement:
    """Claim: on both benchmarks, Algorithm 1 or its independent version has the smaller error at matched cost.

    Args:
        data: What :func:`cost_curves.compute` returns.

    Returns:
        The judgement.
    """
    checks: list[Check] = []
    ours: list[Quantity] = []
    for name, network in data["networks"].items():
        for key in KEYS:
            checks.append(_gain(name, network["curves"], key))
            for method in ("nested", "independent"):
                r = ratio(network["curves"], method, key)
                ours.append(Quantity(f"variance of the {key}, {LABELS[method]}, {name}", r.value, r.low, r.high))
    for name, network in data["networks"].items():
        checks += [_longer(name, network, key, data["long_ladder"]) for key in KEYS if name in BENCHMARKS]
        checks += [_other(name, network["curves"], key) for key in KEYS]
    checks += [_reference(name, network["agreement"]) for name, network in data["networks"].items()]
    paper = [
        Quantity("at matched cost (abstract)", "efficiency gains over single-level MC-dropout"),
        Quantity("at a given budget (conclusions)", "substantially reducing sampling variance"),
    ]
    return Judgement(paper, ours, checks, [table(data)])


def _gain(name: str, curves: Data, key: str) -> Check:
    found = {method: ratio(curves, method, key) for method in ("nested", "independent")}
    return Check(
        "claim" if name in BENCHMARKS else "note",
        f"{name}: at matched cost the multilevel estimator of the {key}, nested or independent, has the smaller error",
        any(r.high < 1 for r in found.values()),
        f"{name}, {key}: at equal passes Algorithm 1 has {found['nested']} times the variance of plain Monte Carlo, "
        f"independent levels {found['independent']}.",
    )


def _longer(name: str, network: Data, key: str, ladder: list[int]) -> Check:
    r = ratio(network["long"], "nested", key)
    budget = network["long"]["nested"][0]["budget"]
    return Check(
        "note",
        f"{name}: on the ladder {tuple(ladder)} Algorithm 1 has the smaller error of the {key}",
        r.high < 1,
        f"{name}, {key}: on the ladder {tuple(ladder)} with {budget} passes the factor is {r}.",
    )


def _other(name: str, curves: Data, key: str) -> Check:
    r = ratio(curves, "auto", key)
    return Check(
        "note",
        f"{name}: at matched cost the library's choice has the smaller error of the {key}",
        r.high < 1,
        f"{name}, {key}: the library's choice has {r} times the variance of plain Monte Carlo.",
    )


def _reference(name: str, agreement: Data) -> Check:
    ratios = " and ".join(
        f"{agreement[key]['ratio']:.2f} for the {key} (limit {agreement[key]['limit']:.2f})" for key in KEYS
    )
    return Check(
        "note",
        f"{name}: the reference agrees with plain passes",
        all(agreement[key]["ratio"] <= agreement[key]["limit"] for key in KEYS),
        f"{name}: the squared distance of the reference from a plain run, over its expectation, is {ratios}.",
    )


def table(data: Data) -> Table:
    """Variance at equal passes in units of plain Monte Carlo's.

    Args:
        data: What :func:`cost_curves.compute` returns.

    Returns:
        One row per network and moment.
    """
    methods = [method for method in LABELS if method != "plain"]
    rows = []
    for name, network in data["networks"].items():
        for key in KEYS:
            cells = [str(ratio(network["curves"], m, key)) if m in network["curves"] else "" for m in methods]
            rows.append((name, key, *cells))
    caption = (
        "Mean squared error × passes divided by that of plain Monte Carlo, geometric mean over the budgets (99 % "
        "interval); below 1 is a gain. Single fidelity is the paper's single-level estimator with T = 16."
    )
    return Table(caption, ("network", "moment", *(LABELS[m] for m in methods)), tuple(rows))


def draw(data: Data) -> dict[str, Figure]:
    """Error against passes, a row per network.

    Args:
        data: What :func:`cost_curves.compute` returns.

    Returns:
        The figure by its file name.
    """
    figure, grid = figures.canvas(len(data["networks"]), 2, height=2.3)
    for row, (name, network) in zip(grid, data["networks"].items(), strict=True):
        for axes, key in zip(row, KEYS, strict=True):
            for method, curve in network["curves"].items():
                colour, marker = _STYLE[method]
                errors = [measured(point, key)[0] ** 0.5 for point in curve]
                axes.plot(
                    spent(curve), errors, marker, color=getattr(figures, colour), lw=1.0, ms=2.6, label=LABELS[method]
                )
            axes.set(xscale="log", yscale="log")
            unit = r"$\sqrt{\mu_2}$" if key == "mean" else r"$\mu_2$"
            figures.panel(axes, f"{name}, {key}", "passes per input", f"rms error / {unit}")
    figures.legend(grid[0][1], loc="upper left", ncols=1, bbox_to_anchor=(1.02, 1.0))
    return {"figure": figure}


def csv_rows(data: Data) -> Table:
    """One row per point of a curve.

    Args:
        data: What :func:`cost_curves.compute` returns.

    Returns:
        The rows of ``numbers.csv``.
    """
    rows = []
    for name, network in data["networks"].items():
        for ladder, part in (("4 8 16", "curves"), (" ".join(map(str, data["long_ladder"])), "long")):
            for method, curve in network[part].items():
                for point in curve:
                    values = [measured(point, key) for key in KEYS]
                    errors = [cell for mse, relative in values for cell in (mse**0.5, relative / 2)]
                    rows.append((name, LABELS[method], ladder, point["budget"], point["cost"], *errors))
    columns = ("network", "method", "ladder", "budget", "passes", "rms_mean", "relative_stderr_mean")
    return Table("Errors of all curves.", (*columns, "rms_variance", "relative_stderr_variance"), tuple(rows))


_LONG = {"ladder": [16, 32, 64], "budget": 2048}

EXPERIMENT = Experiment(
    id="H",
    title="Headline: error against cost, beside single-level Monte Carlo",
    claim=(
        "The multilevel estimators reduce the sampling variance at a fixed budget: efficiency gains over single-level "
        "MC-dropout at matched cost (abstract and conclusions; no figure or table of the paper makes the comparison)."
    ),
    surrogates=(*BENCHMARKS, "diabetes", "digits"),
    profiles={
        "paper": {
            "points": 20,
            "costs": [50, 100, 200, 500, 1000, 2000, 5000],
            "long": _LONG,
            "repetitions": 10,
            "reference": 60_000,
            "check": 20_000,
            "seed": 9_000_000,
        },
        "quick": {
            "points": 10,
            "costs": [50, 200, 1000],
            "long": _LONG,
            "repetitions": 6,
            "reference": 20_000,
            "check": 4000,
            "seed": 9_000_000,
        },
    },
    compute=cost_curves.compute,
    judge=judge,
    draw=draw,
    rows=csv_rows,
)
