"""The work of ``mlmc-dropout evaluate``: read the files, evaluate, write the folder."""

from __future__ import annotations

import os
import time
from typing import Any

import mlmc_dropout
from mlmc_dropout.cli.console import Output, TextTable, show_page
from mlmc_dropout.cli.request import (
    Files,
    Material,
    Work,
    check_class_axis_told,
    read_material,
    run_model,
    shows_progress,
)
from mlmc_dropout.cli.running import SHORT_OF_GOAL, command_line, model_title, open_executor, write_page_if_possible
from mlmc_dropout.cli.words import as_options
from mlmc_dropout.evaluation.goal import EvaluationGoal
from mlmc_dropout.evaluation.metrics import select_metrics
from mlmc_dropout.evaluation.plan import Planner
from mlmc_dropout.evaluation.result import Evaluation
from mlmc_dropout.quantities.class_axis import check_class_axis
from mlmc_dropout.quantities.outputs import check_outputs
from mlmc_dropout.report.evaluation import write_evaluation_folder
from mlmc_dropout.report.formats import passes, short

__all__ = ["evaluate_files"]


def evaluate_files(files: Files, settings: dict[str, Any], work: Work, output: Output) -> int:
    """Read the files, evaluate, write the folder.

    Everything that can be refused is refused before the user's own code is imported.

    Args:
        files: What is read.
        settings: Arguments of :func:`mlmc_dropout.evaluate`.
        work: Who does it, and what is written.
        output: Where findings are printed.

    Returns:
        The exit code.

    Raises:
        InputError: If the request cannot be carried out as stated.
        ModelError: If the model fails on the inputs.
    """
    check_outputs(settings["outputs"])
    check_class_axis(settings["class_axis"], settings["outputs"])
    metrics = select_metrics(settings["metrics"], settings["outputs"], files.labels is not None)
    goal = EvaluationGoal(settings["tolerance"], settings["relative"], settings["budget"])
    Planner(settings["method"], settings["passes"], goal, metrics)
    executor = open_executor(work.workers, work.scheduler)
    material = read_material(files, settings["seed"])
    settings["transform"] = material.transform
    started = time.perf_counter()
    with executor as pool:
        found, remarks = _run(material, {**settings, "executor": pool}, output)
    plain = {key: value for key, value in settings.items() if value is not None and key != "transform"}
    asked = {key: list(value) if isinstance(value, tuple) else str(value) for key, value in plain.items()}
    info = {
        "title": f"{model_title(files.model)} on {files.inputs.name}",
        "command": command_line(),
        "seconds": time.perf_counter() - started,
        "asked": {**files.plain(), **asked},
        "warnings": [*([material.doubt] if material.doubt else []), *remarks],
        "notes": [as_options(note) for note in found.notes],
    }
    return _finish(found, info, work, output)


def _run(material: Material, settings: dict[str, Any], output: Output) -> tuple[Evaluation, list[str]]:
    """The evaluation and what was warned of on the way."""

    def call() -> Evaluation:
        check_class_axis_told(material, settings)
        shown = shows_progress(output)
        return mlmc_dropout.evaluate(material.network, material.x, material.labels, progress=shown, **settings)

    return run_model(call)


def _finish(found: Evaluation, info: dict[str, Any], work: Work, output: Output) -> int:
    """Write everything and tell the user."""
    written = write_evaluation_folder(work.out, found, info)
    output.table(_table(found))
    for warning in info["warnings"]:
        output.warn(warning)
    for note in found.notes:
        output.note(note)
    page = write_page_if_possible(work.out, output) if work.page else None
    output.say(f"{found.status.value} Results are in {work.out}{os.sep} ({', '.join(written)}).")
    if page:
        output.say(f"Open the page: {page}")
        if work.show:
            show_page(page)
    output.data({**found.to_json(), "out": str(work.out), "files": written, "page": page})
    return 1 if found.status in SHORT_OF_GOAL else 0


def _table(found: Evaluation) -> TextTable:
    rows = [
        (name, short(one.value, 4, plain=True), short(one.stderr, plain=True), short(one.shown_bias, plain=True))
        for name, one in found.estimates.items()
    ]
    caption = f"{found.method}: {found.rows} inputs, {passes(found.cost)} passes per input on average"
    return TextTable(caption, ("metric", "value", "± stderr", "bias left"), rows)
