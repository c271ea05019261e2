"""``mlmc-dropout evaluate``: averages over a data set from files; values, level table and a page in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlmc_dropout.cli.console import Output
from mlmc_dropout.cli.options import Debug, Json, Open, Quiet, check_budget, check_rate, check_seed, fresh_folder

__all__ = ["evaluate"]


def evaluate(
    model: Annotated[str, typer.Option(help="package.module:factory or path/to/file.py:factory")],
    inputs: Annotated[Path, typer.Option(help=".npy, .npz, .csv, .parquet, .pt or .safetensors, inputs first.")],
    out: Annotated[Path, typer.Option(help="Folder for results and the page.")],
    weights: Annotated[Path | None, typer.Option(help="State dict: .safetensors, or a torch file of tensors.")] = None,
    labels: Annotated[Path | None, typer.Option(help="True classes or values, one per input.")] = None,
    metrics: Annotated[str | None, typer.Option(help="As in nll,entropy; all that apply if not given.")] = None,
    outputs: Annotated[
        str,
        typer.Option(help="logits, binary-logits, probabilities, mean-variance, mean-log-variance or values."),
    ] = "logits",
    tolerance: Annotated[float | None, typer.Option(help="Error to reach, standard error and bias together.")] = None,
    relative: Annotated[
        bool, typer.Option("--relative/--absolute", help="Tolerance as a share of each value, or in its unit.")
    ] = True,
    budget: Annotated[float | None, typer.Option(help="Passes per input on average, at most.")] = None,
    method: Annotated[str, typer.Option(help="mlmc, jackknife, plug-in or unbiased.")] = "mlmc",
    passes: Annotated[int | None, typer.Option(help="Passes T of jackknife and plug-in, a power of 2.")] = None,
    transform: Annotated[str | None, typer.Option(help="softmax, sigmoid or module:function, on each pass.")] = None,
    include: Annotated[list[str] | None, typer.Option(help="Only dropout sites of this name pattern.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="No dropout sites of this name pattern.")] = None,
    rate: Annotated[float | None, typer.Option(help="Dropout rate to use instead of the model's.")] = None,
    seed: Annotated[int, typer.Option(help="Masks and choice of inputs follow from it.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes to share the work.")] = 1,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler to use instead.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="File to save progress in and to resume from.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run in the folder.")] = False,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Write report.html.")] = True,
    show: Open = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Averages over a data set: entropy, log-likelihood, calibration error and others, with standard errors and bias.

    Args:
        model: ``package.module:factory`` or ``path/to/file.py:factory``.
        inputs: File of the inputs.
        out: Folder for results and the page.
        weights: File of the state dict; None for the weights the factory makes.
        labels: File of true classes or values, or None.
        metrics: Names separated by commas; None for all that outputs and labels allow.
        outputs: What the network returns.
        tolerance: Root mean square error to reach.
        relative: The tolerance is a share of each value.
        budget: Passes per input on average, at most.
        method: The estimator.
        passes: T of jackknife and plug-in.
        transform: ``softmax``, ``sigmoid`` or ``module:function``, applied to each pass.
        include: Name patterns of the dropout sites to use; None for all.
        exclude: Name patterns of dropout sites to leave out.
        rate: Dropout rate to use instead of the model's.
        seed: Masks and choice of inputs follow from it.
        workers: Processes to share the work.
        scheduler: Address of a Dask scheduler to use instead.
        checkpoint: File to save progress in and to resume from.
        overwrite: Replace a run in the folder.
        page: Write ``report.html``.
        show: Show the page in a browser.
        as_json: Print one JSON object instead of text.
        quiet: Print nothing but errors.
        debug: Show the traceback of an error.

    Raises:
        InputError: If the request cannot be carried out as stated.
        ModelError: If the model fails on the inputs.
        typer.Exit: At the end, with the exit code.
    """
    check_budget(None if budget is None else max(budget, 1.0))
    check_seed(seed)
    check_rate(rate)
    from mlmc_dropout.cli.estimating import Files, Work
    from mlmc_dropout.cli.evaluating import evaluate_files

    settings = {
        "metrics": None if metrics is None else tuple(name.strip() for name in metrics.split(",") if name.strip()),
        "outputs": outputs,
        "tolerance": tolerance,
        "relative": relative,
        "budget": budget,
        "method": method,
        "passes": passes,
        "seed": seed,
        "include": include or None,
        "exclude": exclude or None,
        "rates": rate,
        "checkpoint": checkpoint,
    }
    fresh_folder(out, overwrite, "evaluation.json")
    files = Files(model, inputs, weights, None, labels, None, transform)
    raise typer.Exit(evaluate_files(files, settings, Work(out, workers, scheduler, page, show), Output(as_json, quiet)))
