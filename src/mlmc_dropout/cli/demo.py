"""``mlmc-dropout demo``: the shipped surrogate, estimated three ways, and a page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlmc_dropout.cli.console import Output, TextTable, show_page
from mlmc_dropout.cli.options import Debug, Json, Open, Quiet, check_budget, check_output, check_seed
from mlmc_dropout.errors import InputError
from mlmc_dropout.report.formats import passes, ratio, short

if TYPE_CHECKING:
    from mlmc_dropout.result import Result

__all__ = ["demo"]

FOLDER = Path("mlmc-dropout-demo")
GAIN = (
    "Averages over the points. Gain: passes that plain Monte Carlo needs for the same standard error, over those spent "
    "here. S² is what the multilevel formula reports. The paper's multilevel estimator (Alg. 1) is for comparison: "
    "at equal passes it loses to plain averaging, and auto does not use it."
)


def demo(
    budget: Annotated[float, typer.Option(help="Passes per input.")] = 2000.0,
    seed: Annotated[int, typer.Option(help="Every mask follows from it.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for results and the page.")] = FOLDER,
    show: Open = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """The boundary-layer surrogate that comes with the library: estimate, table, report page.

    Args:
        budget: Passes per input for each method.
        seed: Every mask follows from it.
        out: Folder for results and the page.
        show: Show the page in a browser.
        as_json: Print one JSON object instead of text.
        quiet: Print nothing but errors.
        debug: Show the traceback of an error.

    Raises:
        InputError: If a number makes no sense or the folder holds other things.
    """
    check_budget(budget)
    check_seed(seed)
    check_output(out)
    from mlmc_dropout import demo as demonstration
    from mlmc_dropout.cli.running import command_line, summary, write_page_if_possible
    from mlmc_dropout.report.data import PageData
    from mlmc_dropout.report.folder import INFO, write_folder
    from mlmc_dropout.report.passes import passes_of, telling_rows
    from mlmc_dropout.runtime.fingerprint import of_model
    from mlmc_dropout.sampling.sampler import DropoutSampler

    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / INFO).is_file()):
        raise InputError(f"--out {str(out)!r} holds other things; choose another folder")
    output = Output(as_json, quiet)
    started = time.perf_counter()
    surrogate = demonstration.surrogate()
    results = demonstration.compare(surrogate, budget, seed)
    output.say(f"{surrogate.name}, {len(surrogate.x)} points, dropout kept on at test time\n")
    tables = _tables(results)
    for table in tables:
        output.table(table)
        output.say()
    output.say(GAIN)
    result = results["auto"]
    info = {
        "title": surrogate.name,
        "command": command_line(),
        "seconds": time.perf_counter() - started,
        "asked": {"model": surrogate.name, "budget": budget, "masks": "shared", "seed": seed},
        "weights": of_model(surrogate.model),
        "comparison": [{"caption": t.caption, "columns": t.columns, "rows": t.rows} for t in tables],
        "comparison_note": GAIN,
        "warnings": [],
    }
    shown = passes_of(DropoutSampler(surrogate.model, "shared"), surrogate.x, telling_rows(result), seed)
    files = write_folder(out, result, info, PageData.of(surrogate.x, feature_names=("x",), passes=shown))
    page = write_page_if_possible(out, output)
    output.say(f"Results are in {out}/ ({', '.join(files)}).")
    if page:
        output.say(f"Open the page: {page}")
    if show:
        show_page(page)
    output.data({"results": {name: summary(each) for name, each in results.items()}, "out": str(out), "page": page})


def _tables(results: dict[str, Result]) -> list[TextTable]:
    """Mean and variance side by side for all methods; two tables, so that they fit any terminal."""
    from mlmc_dropout.report.numbers import compare

    mean, variance = [], []
    for name, result in results.items():
        gains = compare(result)
        label, cost = _label(name, result), passes(result.cost)
        of_mean = (_average(result.mean, 6), _average(result.mean_stderr, 2), ratio(gains.gain_mean, plain=True))
        of_variance = (_average(result.variance, 4), _average(result.variance_stderr, 2))
        mean.append((label, cost, *of_mean, _average(result.S2_mean, 3)))
        gain = ratio(gains.gain_variance, plain=True)
        variance.append((label, cost, *of_variance, gain, _average(result.S2_variance, 3)))
    return [
        TextTable("Mean", ("method", "passes", "mean", "± stderr", "gain", "S²_Y"), mean),
        TextTable("Variance", ("method", "passes", "variance", "± stderr", "gain", "S²_V"), variance),
    ]


def _average(value: Any, digits: int) -> str:
    from mlmc_dropout.cli.running import typical

    return "–" if value is None else short(typical(value), digits, plain=True)


def _label(name: str, result: Result) -> str:
    titles = {"pooled": "plain Monte Carlo", "mlmc": "multilevel (Alg. 1)"}
    return titles.get(name) or (f"{name}: {result.method}" if result.method != name else name)
