"""``mlmc-dropout plan``: what a ladder and a budget give, before anything is run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import numpy as np
import typer

from mlmc_dropout import theory
from mlmc_dropout.cli.console import Output, Table, number
from mlmc_dropout.cli.options import Debug, Json, Quiet, check_budget, parse_ladder
from mlmc_dropout.errors import InputError
from mlmc_dropout.methods.mlmc.allocation import allocate
from mlmc_dropout.methods.mlmc.ladder import Ladder
from mlmc_dropout.moments import Moments

__all__ = ["plan"]


@dataclass(frozen=True, slots=True)
class Line:
    """One allocation; variances are those of the estimator, in units of the moments given."""

    target: str
    cost_model: str
    optimum: tuple[float, ...]
    counts: tuple[int, ...]
    charged: int
    S2: float
    nested_passes: int
    nested_variance: float
    nested_plain_variance: float
    independent_passes: int
    independent_variance: float
    independent_plain_variance: float


def plan(
    ladder: Annotated[str, typer.Option(help="Fidelities T_0,T_1,… in passes.")] = "4,8,16",
    budget: Annotated[float, typer.Option(help="Passes per input.")] = 1000.0,
    mu2: Annotated[float, typer.Option(help="Variance of a pass, if known.")] = 1.0,
    mu4: Annotated[float | None, typer.Option(help="Fourth central moment; 3 mu2² if not given.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Allocations under both costs, beside plain Monte Carlo at the same passes."""
    steps = parse_ladder(ladder)
    check_budget(budget)
    moments = _moments(mu2, mu4)
    pairs = [(target, cost) for target in ("mean", "variance") for cost in ("coupled", "uncoupled")]
    lines = [_line(steps, budget, target, cost, moments) for target, cost in pairs]  # type: ignore[arg-type]
    output = Output(as_json, quiet)
    output.table(_table(steps, budget, lines))
    output.say("\nS², nested, independent: variance of the estimator over that of plain averaging at the same passes.")
    output.say("S² is what the multilevel formula reports; nested (Algorithm 1) and independent are what is true.")
    output.say("Above 1, averaging the same passes plainly is more accurate.")
    output.data(
        {"ladder": list(steps), "budget": budget, "mu2": mu2, "mu4": mu4, "plans": [asdict(line) for line in lines]}
    )


def _moments(mu2: float, mu4: float | None) -> Moments:
    if not (math.isfinite(mu2) and 0 < mu2 < 1e100):
        raise InputError(f"--mu2 is a variance and must be positive: got {mu2:g}")
    if mu4 is not None and not (math.isfinite(mu4) and mu4 >= mu2**2):
        raise InputError(f"--mu4 is a fourth moment and must be at least mu2² = {mu2**2:g}: got {mu4:g}")
    return Moments(mu2, mu4)


def _line(
    ladder: Ladder,
    budget: float,
    target: Literal["mean", "variance"],
    cost: Literal["coupled", "uncoupled"],
    moments: Moments,
) -> Line:
    chosen = allocate(ladder, budget, target, cost, moments)
    T, counts = ladder.fidelities, chosen.counts
    if target == "mean":
        levels = theory.level_variances_mean(T, moments.mu2)
    else:
        levels = theory.level_variances_variance(T, moments.mu2, moments.mu4)
    nested, independent = (theory.cost_spent(T, counts, kind) for kind in ("nested", "independent"))
    return Line(
        target,
        cost,
        chosen.continuous,
        counts,
        chosen.cost,
        float(theory.expected_S2(levels, counts)),
        nested,
        float(theory.variance_nested(levels, counts)),
        _plain(nested, target, moments),
        independent,
        float(theory.variance_independent(levels, counts)),
        _plain(independent, target, moments),
    )


def _plain(passes: int, target: str, moments: Moments) -> float:
    if target == "mean":
        return float(theory.variance_of_sample_mean(passes, moments.mu2))
    return float(theory.variance_of_sample_variance(passes, moments.mu2, moments.mu4))


def _table(ladder: Ladder, budget: float, lines: list[Line]) -> Table:
    columns = (
        "target",
        "cost model",
        "optimum",
        "counts",
        "charged",
        "S²",
        "nested",
        "passes",
        "independent",
        "passes",
    )
    rows = [
        (
            line.target,
            line.cost_model,
            ", ".join(f"{m:.2f}" for m in line.optimum),
            ", ".join(map(str, line.counts)),
            number(line.charged),
            f"{line.S2 / line.nested_plain_variance:.2f}×",
            f"{line.nested_variance / line.nested_plain_variance:.2f}×",
            number(line.nested_passes),
            f"{line.independent_variance / line.independent_plain_variance:.2f}×",
            number(line.independent_passes),
        )
        for line in lines
    ]
    shown = ", ".join(map(str, np.asarray(ladder.fidelities)))
    return Table(f"ladder {shown} with a budget of {number(budget)} passes per input", columns, rows, text_columns=2)
