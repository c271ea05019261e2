"""``mlmc-dropout estimate``: a model, its weights and inputs from files; results and a page in a folder."""

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
    parse_integers,
    parse_ladder,
    parse_names,
)

__all__ = ["estimate"]


def estimate(
    model: Model,
    inputs: Inputs,
    out: Out,
    weights: Weights = None,
    dtype: Dtype = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="True classes or values, for accuracy on the page.", rich_help_panel=FILES),
    ] = None,
    class_names: ClassNames = None,
    outputs: Annotated[
        str,
        typer.Option(
            help="values, logits, binary-logits, probabilities, mean-variance or mean-log-variance.",
            rich_help_panel=ASKED,
        ),
    ] = "values",
    class_axis: ClassAxis = None,
    quantities: Annotated[
        str | None,
        typer.Option(
            help="As in entropy,label or std,quantile_0.95,above_0.3; all of such outputs if not given.",
            rich_help_panel=ASKED,
        ),
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Passes per input.", rich_help_panel=STOP)] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Standard error of the mean to reach.", rich_help_panel=STOP)
    ] = None,
    tolerance_variance: Annotated[
        float | None, typer.Option(help="Standard error of the variance to reach.", rich_help_panel=STOP)
    ] = None,
    relative: Annotated[
        bool, typer.Option("--relative", help="Tolerances as shares of the largest value.", rich_help_panel=STOP)
    ] = False,
    quantile: Annotated[
        float, typer.Option(help="Share of outputs that must meet the tolerance.", rich_help_panel=STOP)
    ] = 1.0,
    effort: Annotated[
        str | None,
        typer.Option(help="adaptive: every input stops when it may; equal: same passes for all.", rich_help_panel=STOP),
    ] = None,
    decision: Annotated[
        str | None,
        typer.Option(help="Settle label, above:0.5 or top:50:entropy; budget is the most.", rich_help_panel=STOP),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Probability with which a decision has to be right.", rich_help_panel=STOP)
    ] = 0.99,
    familywise: Annotated[
        bool, typer.Option("--familywise", help="All decisions together, not each.", rich_help_panel=STOP)
    ] = False,
    method: Annotated[
        str, typer.Option(help="auto, pooled, stratified, control-variate or mlmc.", rich_help_panel=METHOD)
    ] = "auto",
    ladder: Annotated[
        str | None,
        typer.Option(help="Fidelities for method mlmc, as in 4,8,16, or adaptive.", rich_help_panel=METHOD),
    ] = None,
    counts: Annotated[
        str | None, typer.Option(help="Replicates per level for method mlmc.", rich_help_panel=METHOD)
    ] = None,
    levels: Annotated[
        str, typer.Option(help="For mlmc: nested (Algorithm 1), independent, uncoupled.", rich_help_panel=METHOD)
    ] = "nested",
    transform: Transform = None,
    masks: Annotated[
        str, typer.Option(help="independent, or shared by all inputs of a pass.", rich_help_panel=SAMPLING)
    ] = "independent",
    include: Include = None,
    exclude: Exclude = None,
    rate: Rate = None,
    seed: Annotated[int, typer.Option(help="Every mask follows from it.", rich_help_panel=SAMPLING)] = 0,
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
    """Mean, variance and more of a dropout network's predictions, with standard errors.

    Args:
        model: ``package.module:factory``, ``path/to/file.py:factory``, or the folder of a run of ``train``.
        inputs: File of the inputs.
        out: Folder for results and the page.
        weights: File of the state dict; None for the weights the factory makes.
        dtype: Type to convert the inputs to; None for what the model takes.
        labels: File of true classes or values, for the page.
        class_names: Text file with the name of one class, or output, per line.
        outputs: What the network returns.
        class_axis: The axis of the outputs that holds the classes; None for the last.
        quantities: Names separated by commas, beside mean and variance; None for all that such outputs have.
        budget: Passes per input.
        tolerance: Standard error of the mean to reach.
        tolerance_variance: Standard error of the variance to reach.
        relative: Tolerances are shares of the largest value.
        quantile: Share of outputs that must meet the tolerance.
        effort: ``adaptive`` or ``equal``; adaptive by default where there is a tolerance.
        decision: ``label``, ``above:0.5``, ``top:50`` or ``top:50:entropy``: what to settle instead of numbers.
        confidence: The probability with which each decision has to be right.
        familywise: Whether it is that of all decisions together.
        method: The estimator; ``auto`` lets the library choose.
        ladder: Fidelities for method mlmc, as in ``4,8,16``, or ``adaptive``.
        counts: Replicates per level for method mlmc, as in ``103,73,37``.
        levels: ``nested`` (Algorithm 1), ``independent`` or ``uncoupled``, for method mlmc.
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
        show: Show the page in a browser.
        as_json: Print one JSON object instead of text.
        quiet: Print nothing but errors.
        debug: Show the traceback of an error.

    Raises:
        InputError: If the request cannot be carried out as stated.
        ModelError: If the model fails on the inputs.
        typer.Exit: At the end, with the exit code.
    """
    check_budget(budget)
    check_seed(seed)
    check_rate(rate)
    fresh_folder(out, overwrite, "run.json")  # before torch is imported, which takes seconds
    from mlmc_dropout.cli.estimating import estimate_files
    from mlmc_dropout.cli.request import Files, Work

    settings = {
        "outputs": outputs,
        "class_axis": class_axis,
        "quantities": None if quantities is None else parse_names(quantities, "--quantities"),
        "budget": budget,
        "tolerance": tolerance,
        "tolerance_variance": tolerance_variance,
        "relative": relative,
        "quantile": quantile,
        "effort": effort,
        "decision": decision,
        "confidence": confidence,
        "familywise": familywise,
        "method": method,
        "ladder": ladder if ladder in (None, "adaptive") else parse_ladder(ladder),
        "counts": None if counts is None else parse_integers(counts, "--counts"),
        "levels": levels,
        "masks": masks,
        "seed": seed,
        "include": include or None,
        "exclude": exclude or None,
        "rates": rate,
        "checkpoint": checkpoint,
    }
    files = Files(model, inputs, weights, dtype, labels, class_names, transform)
    work = Work(out, workers, scheduler, page, show)
    raise typer.Exit(estimate_files(files, settings, work, Output(as_json, quiet)))
