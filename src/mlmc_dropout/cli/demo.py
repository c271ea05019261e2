"""``mlmc-dropout demo``: the shipped surrogate, estimated three ways, and a page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from mlmc_dropout.cli.console import Output, Table, number
from mlmc_dropout.cli.options import Debug, Json, Quiet, check_budget, check_output, check_seed
from mlmc_dropout.cli.running import command_line, summary, typical, write_page_if_possible
from mlmc_dropout.errors import InputError
from mlmc_dropout.result import Result

__all__ = ["demo"]

FOLDER = Path("mlmc-dropout-demo")


def demo(
    budget: Annotated[float, typer.Option(help="Passes per input.")] = 1000.0,
    seed: Annotated[int, typer.Option(help="Every mask follows from it.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for results and the page.")] = FOLDER,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """The boundary-layer surrogate that comes with the library: estimate, table, report page."""
    from mlmc_dropout import demo as shown
    from mlmc_dropout.report.folder import INFO, write_folder

    check_budget(budget)
    check_seed(seed)
    check_output(out)
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / INFO).is_file()):
        raise InputError(f"--out {str(out)!r} holds other things; choose another folder")
    output = Output(as_json, quiet)
    started = time.perf_counter()
    surrogate = shown.surrogate()
    results = shown.compare(surrogate, budget, seed)
    output.say(f"{surrogate.name}, {len(surrogate.x)} points, dropout kept on at test time\n")
    output.table(_table(results))
    output.say("\nAverages over the points; gain: variance of plain Monte Carlo over that of the method, same passes.")
    result = results["auto"]
    info = {
        "title": surrogate.name,
        "command": command_line(),
        "seconds": time.perf_counter() - started,
        "asked": {"model": surrogate.name, "budget": budget, "masks": "shared", "seed": seed},
        "warnings": [],
    }
    files = write_folder(out, result, info, surrogate.x)
    page = write_page_if_possible(out, output)
    output.say(f"Results are in {out}/ ({', '.join(files)}).")
    if page:
        output.say(f"Open the page: {page}")
    output.data({"results": {name: summary(found) for name, found in results.items()}, "out": str(out), "page": page})


def _table(results: dict[str, Result]) -> Table:
    columns = ("method", "passes", "mean", "± stderr", "gain", "variance", "± stderr", "gain", "S²_Y", "S²_V")
    plain = results["pooled"]
    rows = []
    for name, found in results.items():
        paper = ["–", "–"]
        if found.S2_mean is not None:
            paper = [f"{typical(found.S2_mean):.2e}", f"{typical(found.S2_variance):.2e}"]
        rows.append(
            (
                _label(name, found),
                number(found.cost),
                f"{typical(found.mean):.6f}",
                f"{typical(found.mean_stderr):.1e}",
                f"{number(_gain(plain.mean_stderr, found.mean_stderr, plain.cost / found.cost), 2)}×",
                f"{typical(found.variance):.3e}",
                f"{typical(found.variance_stderr):.1e}",
                f"{number(_gain(plain.variance_stderr, found.variance_stderr, plain.cost / found.cost), 2)}×",
                *paper,
            )
        )
    return Table("", columns, rows)


def _gain(plain: object, found: object, cost: float) -> float:
    """Variance of plain averaging over that of the method, at the same number of passes."""
    import numpy as np

    return float(np.mean(np.square(plain)) / np.mean(np.square(found)) * cost)  # type: ignore[call-overload]


def _label(name: str, found: Result) -> str:
    titles = {"pooled": "plain Monte Carlo", "mlmc": "multilevel (Algorithm 1)"}
    return titles.get(name) or (f"{name}: {found.method}" if found.method != name else name)
