"""The command line: every command is a thin layer over the library."""

from __future__ import annotations

import typer

from mlmc_dropout import theory
from mlmc_dropout.allocation import allocate
from mlmc_dropout.errors import MLMCDropoutError
from mlmc_dropout.ladder import Ladder

__all__ = ["app", "main"]

app = typer.Typer(no_args_is_help=True, add_completion=True, help="Error bars you can trust for MC dropout.")


@app.command()
def plan(ladder: str = "4,8,16", budget: float = 1000.0) -> None:
    """Allocations under both costs, beside plain Monte Carlo at the same passes."""
    steps = Ladder([int(part) for part in ladder.split(",")])
    for target in ("mean", "variance"):
        for cost in ("coupled", "uncoupled"):
            chosen = allocate(steps, budget, target, cost)  # type: ignore[arg-type]
            typer.echo(
                f"{target:<9} {cost:<10} {[round(m, 2) for m in chosen.continuous]} {chosen.counts} {chosen.cost}"
            )
    typer.echo(f"plain Monte Carlo: variance of the mean {theory.variance_of_sample_mean(budget, 1.0):.3g} μ2")


def main() -> None:
    """Entry point: errors in one readable line, exit code 2."""
    try:
        app(standalone_mode=True)
    except MLMCDropoutError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None
