"""``mlmc-dropout evaluate``: averages over a data set from files; values, level table and a page in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlmc_dropout.cli.console import Output
from mlmc_dropout.cli.options import (
    ASKED,
    FILES,
    METHOD,
    SAMPLING,
    STOP,
    CheckpointFile,
    ClassAxis,
    ClassNames,
    Debug,
    Dtype,
    Exclude,
    Include,
    Inputs,
    Json,
    Model,
    Open,
    Out,
    Overwrite,
    Quiet,
    Rate,
    Scheduler,
    Transform,
    Weights,
    Workers,
    WritePage,
    check_budget,
    check_rate,
    check_seed,
    fresh_folder,
    parse_names,
)

__all__ = ["evaluate"]


def evaluate(
    model: Model,
    inputs: Inputs,
    out: Out,
    weights: Weights = None,
    dtype: Dtype = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="True classes or values, one per input (or per pixel).", rich_help_panel=FILES),
    ] = None,
    class_names: ClassNames = None,
    outputs: Annotated[
        str,
        typer.Option(
            help="logits, binary-logits, probabilities, mean-variance, mean-log-variance or values.",
            rich_help_panel=ASKED,
        ),
    ] = "logits",
    class_axis: ClassAxis = None,
    metrics: Annotated[
        str | None, typer.Option(help="As in nll,entropy; all that apply if not given.", rich_help_panel=ASKED)
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Error to reach for every metric, standard error and bias.", rich_help_panel=STOP),
    ] = None,
    relative: Annotated[
        bool,
        typer.Option(
            "--relative/--absolute", help="Tolerance as a share of each value, or in its unit.", rich_help_panel=STOP
        ),
    ] = True,
    budget: Annotated[
        float | None, typer.Option(help="Passes per input on average, at most.", rich_help_panel=STOP)
    ] = None,
    method: Annotated[str, typer.Option(help="mlmc, jackknife, plug-in or unbiased.", rich_help_panel=METHOD)] = "mlmc",
    passes: Annotated[
        int | None, typer.Option(help="Passes T of jackknife and plug-in, a power of 2.", rich_help_panel=METHOD)
    ] = None,
    transform: Transform = None,
    include: Include = None,
    exclude: Exclude = None,
    rate: Rate = None,
    seed: Annotated[int, typer.Option(help="Masks and choice of inputs follow from it.", rich_help_panel=SAMPLING)] = 0,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    checkpoint: CheckpointFile = None,
    overwrite: Overwrite = False,
    page: WritePage = True,
    show: Open = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Averages over a data set: entropy, log-likelihood, calibration error and others, with standard errors and bias.

    Args:
        model: ``package.module:factory``, ``path/to/file.py:factory``, or the folder of a run of ``train``.
        inputs: File of the inputs.
        out: Folder for results and the page.
        weights: File of the state dict; None for the weights the factory makes.
        dtype: Type to convert the inputs to; None for what the model takes.
        labels: File of true classes or values, or None.
        class_names: Text file with the name of one class per line, where labels are names.
        outputs: What the network returns.
        class_axis: The axis of the outputs that holds the classes; None for the last.
        metrics: Names separated by commas; None for all that outputs and labels allow.
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
    from mlmc_dropout.cli.evaluating import evaluate_files
    from mlmc_dropout.cli.request import Files, Work

    settings = {
        "metrics": None if metrics is None else parse_names(metrics, "--metrics"),
        "outputs": outputs,
        "class_axis": class_axis,
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
    files = Files(model, inputs, weights, dtype, labels, class_names, transform)
    raise typer.Exit(evaluate_files(files, settings, Work(out, workers, scheduler, page, show), Output(as_json, quiet)))
