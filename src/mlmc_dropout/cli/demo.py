"""``mlmc-dropout demo``: the shipped surrogate, estimated three ways, and a page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from mlmc_dropout.cli.console import Output, TextTable
from mlmc_dropout.cli.options import Debug, Json, Quiet, check_budget, check_output, check_seed
from mlmc_dropout.cli.running import command_line, summary, typical, write_page_if_possible
from mlmc_dropout.errors import InputError
from mlmc_dropout.report.formats import ratio, short
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
    """The boundary-layer surrogate that comes with the library: estimate, table, report page.

    Args:
        budget: Passes per input for each method.
        seed: Every mask follows from it.
        out: Folder for results and the page.
        as_json: Print one JSON object instead of text.
        quiet: Print nothing but errors.
        debug: Show the traceback of an error.

    Raises:
        InputError: If a number makes no sense or the folder holds other things.
    """
    from mlmc_dropout import demo as demonstration
    from mlmc_dropout.report.folder import INFO, write_folder

    check_budget(budget)
    check_seed(seed)
    check_output(out)
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / INFO).is_file()):
        raise InputError(f"--out {str(out)!r} holds other things; choose another folder")
    output = Output(as_json, quiet)
    started = time.perf_counter()
    surrogate = demonstration.surrogate()
    results = demonstration.compare(surrogate, budget, seed)
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
    output.data({"results": {name: summary(each) for name, each in results.items()}, "out": str(out), "page": page})


def _table(results: dict[str, Result]) -> TextTable:
    columns = ("method", "passes", "mean", "± stderr", "gain", "variance", "± stderr", "gain", "S²_Y", "S²_V")
    plain = results["pooled"]
    rows = []
    for name, result in results.items():
        cost = plain.cost / result.cost
        rows.append(
            (
                _label(name, result),
                short(result.cost, plain=True),
                _average(result.mean, 6),
                _average(result.mean_stderr, 2),
                ratio(_gain(plain.mean_stderr, result.mean_stderr, cost), plain=True),
                _average(result.variance, 4),
                _average(result.variance_stderr, 2),
                ratio(_gain(plain.variance_stderr, result.variance_stderr, cost), plain=True),
                _average(result.S2_mean, 3),
                _average(result.S2_variance, 3),
            )
        )
    return TextTable("", columns, rows)


def _average(value: Any, digits: int) -> str:
    return "–" if value is None else short(typical(value), digits, plain=True)


def _gain(plain_stderr: Any, stderr: Any, cost: float) -> float:
    """Variance of plain averaging over that of the method, at the same number of passes."""
    return float(np.mean(np.square(plain_stderr)) / np.mean(np.square(stderr)) * cost)


def _label(name: str, result: Result) -> str:
    titles = {"pooled": "plain Monte Carlo", "mlmc": "multilevel (Algorithm 1)"}
    return titles.get(name) or (f"{name}: {result.method}" if result.method != name else name)
