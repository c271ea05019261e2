"""``mlmc-dropout plan``: what a ladder and a budget give, before anything is run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer

from mlmc_dropout import theory
from mlmc_dropout.cli.console import Output, TextTable
from mlmc_dropout.cli.options import Debug, Json, Quiet, check_budget, parse_ladder
from mlmc_dropout.errors import InputError
from mlmc_dropout.methods.mlmc.allocation import allocate
from mlmc_dropout.methods.mlmc.ladder import Ladder
from mlmc_dropout.moments import Moments
from mlmc_dropout.report.formats import ratio, short

__all__ = ["plan"]


@dataclass(frozen=True, slots=True)
class Allocation:
    """One allocation with its costs; variances are those of the estimator, for the moments asked for.

    Attributes:
        target: ``"mean"`` or ``"variance"``: what it is best for.
        cost_model: ``"coupled"`` or ``"uncoupled"``.
        optimum: Continuous optimum M_ℓ of S².
        counts: The same in whole numbers.
        charged: What these cost under the cost model, in passes.
        S2: Variance that the multilevel formula reports, E S².
        nested_passes: Passes run by nested levels.
        nested_variance: Variance of the estimator with nested levels.
        nested_plain_variance: Variance of plain Monte Carlo with as many passes.
        independent_passes: Passes run by independent levels.
        independent_variance: Variance of the estimator with independent levels.
        independent_plain_variance: Variance of plain Monte Carlo with as many passes.
    """

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
    """Allocations under both costs, beside plain Monte Carlo at the same passes.

    Args:
        ladder: Fidelities T_0,T_1,… in passes.
        budget: Passes per input.
        mu2: Variance of a pass.
        mu4: Fourth central moment of a pass; None for 3 mu2².
        as_json: Print one JSON object instead of text.
        quiet: Print nothing but errors.
        debug: Show the traceback of an error.

    Raises:
        InputError: If a number makes no sense.
    """
    steps = parse_ladder(ladder)
    check_budget(budget)
    moments = _moments(mu2, mu4)
    pairs = [(target, cost) for target in ("mean", "variance") for cost in ("coupled", "uncoupled")]
    allocations = [_allocation(steps, budget, target, cost, moments) for target, cost in pairs]  # type: ignore[arg-type]
    output = Output(as_json, quiet)
    output.table(_table(steps, budget, allocations))
    output.say("\nS², nested, independent: variance of the estimator over that of plain averaging at the same passes.")
    output.say("S² is what the multilevel formula reports; nested (Algorithm 1) and independent are what is true.")
    output.say("Above 1, averaging the same passes plainly is more accurate.")
    output.data(
        {
            "ladder": list(steps),
            "budget": budget,
            "mu2": mu2,
            "mu4": mu4,
            "plans": [asdict(each) for each in allocations],
        }
    )


def _moments(mu2: float, mu4: float | None) -> Moments:
    if not (math.isfinite(mu2) and 0 < mu2 < 1e100):
        raise InputError(f"--mu2 is a variance and must be positive: got {mu2:g}")
    if mu4 is not None and not (math.isfinite(mu4) and mu4 >= mu2**2):
        raise InputError(f"--mu4 is a fourth moment and must be at least mu2² = {mu2**2:g}: got {mu4:g}")
    return Moments(mu2, mu4)


def _allocation(
    ladder: Ladder,
    budget: float,
    target: Literal["mean", "variance"],
    cost: Literal["coupled", "uncoupled"],
    moments: Moments,
) -> Allocation:
    chosen = allocate(ladder, budget, target, cost, moments)
    T, counts = ladder.fidelities, chosen.counts
    if target == "mean":
        levels = theory.level_variances_mean(T, moments.mu2)
    else:
        levels = theory.level_variances_variance(T, moments.mu2, moments.mu4)
    nested, independent = (theory.cost_spent(T, counts, kind) for kind in ("nested", "independent"))
    return Allocation(
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


def _table(ladder: Ladder, budget: float, allocations: list[Allocation]) -> TextTable:
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
            each.target,
            each.cost_model,
            ", ".join(short(round(m, 2), 5, plain=True) for m in each.optimum),
            ", ".join(map(str, each.counts)),
            short(each.charged, plain=True),
            ratio(each.S2 / each.nested_plain_variance, 3, plain=True),
            ratio(each.nested_variance / each.nested_plain_variance, 3, plain=True),
            short(each.nested_passes, plain=True),
            ratio(each.independent_variance / each.independent_plain_variance, 3, plain=True),
            short(each.independent_passes, plain=True),
        )
        for each in allocations
    ]
    caption = (
        f"ladder {', '.join(map(str, ladder.fidelities))} with a budget of {short(budget, plain=True)} passes per input"
    )
    return TextTable(caption, columns, rows, text_columns=2)
