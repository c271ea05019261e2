"""``mlmc-dropout estimate``: a model, its weights and inputs from files; results and a page in a folder."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from mlmc_dropout.cli.console import Output
from mlmc_dropout.cli.loading import read_inputs, read_model, read_transform, read_weights, with_weights
from mlmc_dropout.cli.options import (
    Debug,
    Json,
    Quiet,
    check_budget,
    check_seed,
    fresh_folder,
    parse_integers,
    parse_ladder,
)
from mlmc_dropout.cli.running import check_method, command_line, finish, open_executor
from mlmc_dropout.errors import InputError, MLMCDropoutError, ModelError
from mlmc_dropout.result import Result
from mlmc_dropout.stopping.goal import Goal

__all__ = ["estimate"]


def estimate(
    model: Annotated[str, typer.Option(help="package.module:factory or path/to/file.py:factory")],
    inputs: Annotated[Path, typer.Option(help=".npy, .npz, .csv, .parquet, .pt or .safetensors, inputs first.")],
    out: Annotated[Path, typer.Option(help="Folder for results and the page.")],
    weights: Annotated[Path | None, typer.Option(help="State dict: .safetensors, or a torch file of tensors.")] = None,
    budget: Annotated[float | None, typer.Option(help="Passes per input.")] = None,
    tolerance: Annotated[float | None, typer.Option(help="Standard error of the mean to reach.")] = None,
    tolerance_variance: Annotated[float | None, typer.Option(help="Standard error of the variance to reach.")] = None,
    relative: Annotated[bool, typer.Option("--relative", help="Tolerances as shares of the largest value.")] = False,
    quantile: Annotated[float, typer.Option(help="Share of components that must meet the tolerance.")] = 1.0,
    method: Annotated[str | None, typer.Option(help="The estimator; the library's choice if not given.")] = None,
    ladder: Annotated[str | None, typer.Option(help="Fidelities for method mlmc, as in 4,8,16, or adaptive.")] = None,
    counts: Annotated[str | None, typer.Option(help="Replicates per level for method mlmc.")] = None,
    levels: Annotated[str, typer.Option(help="nested (Algorithm 1) or independent, for method mlmc.")] = "nested",
    transform: Annotated[str | None, typer.Option(help="softmax, sigmoid or module:function, on each pass.")] = None,
    masks: Annotated[str, typer.Option(help="independent, or shared by all inputs of a pass.")] = "independent",
    include: Annotated[list[str] | None, typer.Option(help="Only dropout sites of this name pattern.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="No dropout sites of this name pattern.")] = None,
    rate: Annotated[float | None, typer.Option(help="Dropout rate to use instead of the model's.")] = None,
    seed: Annotated[int, typer.Option(help="Every mask follows from it.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes to share the work.")] = 1,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler to use instead.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="File to save progress in and to resume from.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run in the folder.")] = False,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Write report.html.")] = True,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Mean and variance of a dropout network's predictions, with standard errors of both.

    Args:
        model: ``package.module:factory`` or ``path/to/file.py:factory``.
        inputs: File of the inputs.
        out: Folder for results and the page.
        weights: File of the state dict; None for the weights the factory makes.
        budget: Passes per input.
        tolerance: Standard error of the mean to reach.
        tolerance_variance: Standard error of the variance to reach.
        relative: Tolerances are shares of the largest value.
        quantile: Share of components that must meet the tolerance.
        method: The estimator; None for the library's choice.
        ladder: Fidelities for method mlmc, as in ``4,8,16``, or ``adaptive``.
        counts: Replicates per level for method mlmc, as in ``103,73,37``.
        levels: ``nested`` (Algorithm 1) or ``independent``, for method mlmc.
        transform: ``softmax``, ``sigmoid`` or ``module:function``, applied to each pass.
        masks: ``independent``, or ``shared`` by all inputs of a pass.
        include: Name patterns of the dropout sites to use; None for all.
        exclude: Name patterns of dropout sites to leave out.
        rate: Dropout rate to use instead of the model's.
        seed: Every mask follows from it.
        workers: Processes to share the work.
        scheduler: Address of a Dask scheduler to use instead.
        checkpoint: File to save progress in and to resume from.
        overwrite: Replace a run in the folder.
        page: Write ``report.html``.
        as_json: Print one JSON object instead of text.
        quiet: Print nothing but errors.
        debug: Show the traceback of an error.

    Raises:
        InputError: If the request cannot be carried out as stated.
        ModelError: If the model fails on the inputs.
        typer.Exit: At the end, with the exit code.
    """
    output = Output(as_json, quiet)
    _check(budget, tolerance, tolerance_variance, relative, quantile, counts is not None, seed, rate)
    settings: dict[str, Any] = {
        "budget": budget,
        "tolerance": tolerance,
        "tolerance_variance": tolerance_variance,
        "relative": relative,
        "quantile": quantile,
        "ladder": ladder if ladder in (None, "adaptive") else parse_ladder(ladder),
        "counts": None if counts is None else parse_integers(counts, "--counts"),
        "levels": levels,
        "masks": masks,
        "seed": seed,
        "include": include or None,
        "exclude": exclude or None,
        "rates": rate,
        "checkpoint": checkpoint,
        **({} if method is None else {"method": check_method(method)}),
    }
    fresh_folder(out, overwrite, "run.json")
    executor = open_executor(workers, scheduler)
    x = read_inputs(inputs)
    state = None if weights is None else read_weights(weights)
    settings["transform"] = None if transform is None else read_transform(transform)
    network = read_model(model)
    if state is not None and weights is not None:
        network = with_weights(network, state, weights)
    started = time.perf_counter()
    with executor as pool:
        result, remarks = _run(network, x, {**settings, "executor": pool}, output)
    info = {
        "title": f"{model.rpartition(':')[2]} on {inputs.name}",
        "command": command_line(),
        "seconds": time.perf_counter() - started,
        "asked": _asked(model, weights, inputs, settings, transform),
        "warnings": remarks,
    }
    raise typer.Exit(finish(out, result, info, x, page, output))


def _check(
    budget: float | None,
    tolerance: float | None,
    tolerance_variance: float | None,
    relative: bool,
    quantile: float,
    has_counts: bool,
    seed: int,
    rate: float | None,
) -> None:
    check_budget(budget)
    check_seed(seed)
    if rate is not None and not 0 < rate < 1:
        raise InputError(f"--rate must lie strictly between 0 and 1: got {rate:g}")
    if budget is None and tolerance is None and tolerance_variance is None:
        if has_counts:
            return
        raise InputError("say when to stop: --budget (passes per input), --tolerance or --tolerance-variance")
    Goal(budget, tolerance, tolerance_variance, relative, quantile)


def _run(network: Callable[..., Any], x: Any, settings: dict[str, Any], output: Output) -> tuple[Result, list[str]]:
    """The estimate and what was warned of on the way; whatever a user's model raises is bad input."""
    import mlmc_dropout

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = mlmc_dropout.estimate(network, x, progress=output.prints_text and sys.stderr.isatty(), **settings)
        except MLMCDropoutError:
            raise
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
            first = (str(error).strip().splitlines() or [""])[0]
            raise ModelError(f"the model fails on these inputs: {type(error).__name__}: {first}") from error
    return result, list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)))


def _asked(
    model: str, weights: Path | None, inputs: Path, settings: dict[str, Any], transform: str | None
) -> dict[str, Any]:
    """The request as plain data, without what was left at its default."""
    plain = {key: value for key, value in settings.items() if value not in (None, False)}
    if not isinstance(plain.get("ladder", ""), str):
        plain["ladder"] = list(plain["ladder"])
    plain.update({"transform": transform} if transform else {})
    if "checkpoint" in plain:
        plain["checkpoint"] = str(plain["checkpoint"])
    files = {"model": model, "weights": None if weights is None else str(weights), "inputs": str(inputs)}
    return {**{key: value for key, value in files.items() if value}, **plain}
