"""The work of ``mlmc-dropout evaluate``: read the files, evaluate, write the folder."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import mlmc_dropout
from mlmc_dropout.cli.console import Output, TextTable, show_page
from mlmc_dropout.cli.estimating import Files, Work
from mlmc_dropout.cli.inputs import read_inputs, read_labels
from mlmc_dropout.cli.loading import read_model, read_transform, read_weights, with_weights
from mlmc_dropout.cli.running import SHORT_OF_GOAL, command_line, model_title, open_executor, write_page_if_possible
from mlmc_dropout.errors import MLMCDropoutError, ModelError
from mlmc_dropout.evaluation.goal import EvaluationGoal
from mlmc_dropout.evaluation.metrics import select_metrics
from mlmc_dropout.evaluation.plan import Planner
from mlmc_dropout.evaluation.result import Evaluation
from mlmc_dropout.quantities.outputs import check_outputs
from mlmc_dropout.report.evaluation import write_evaluation_folder
from mlmc_dropout.report.formats import short

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
    metrics = select_metrics(settings["metrics"], settings["outputs"], files.labels is not None)
    goal = EvaluationGoal(settings["tolerance"], settings["relative"], settings["budget"])
    Planner(settings["method"], settings["passes"], goal, metrics)
    executor = open_executor(work.workers, work.scheduler)
    x = read_inputs(files.inputs)
    labels = None if files.labels is None else read_labels(files.labels)
    state = None if files.weights is None else read_weights(files.weights)
    settings["transform"] = None if files.transform is None else read_transform(files.transform)
    network, doubt = read_model(files.model, settings["seed"], trained=state is not None)
    if state is not None and files.weights is not None:
        network = with_weights(network, state, files.weights)
    started = time.perf_counter()
    with executor as pool:
        found, remarks = _run(network, x, labels, {**settings, "executor": pool}, output)
    plain = {key: value for key, value in settings.items() if value is not None and key != "transform"}
    asked = {key: list(value) if isinstance(value, tuple) else str(value) for key, value in plain.items()}
    info = {
        "title": f"{model_title(files.model)} on {files.inputs.name}",
        "command": command_line(),
        "seconds": time.perf_counter() - started,
        "asked": {**files.plain(), **asked},
        "warnings": [*([doubt] if doubt else []), *remarks],
    }
    return _finish(found, info, work, output)


def _run(
    network: Callable[..., Any], x: Any, labels: Any, settings: dict[str, Any], output: Output
) -> tuple[Evaluation, list[str]]:
    """The evaluation and what was warned of on the way; whatever a user's model raises is bad input."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            shown = output.prints_text and sys.stderr.isatty()
            found = mlmc_dropout.evaluate(network, x, labels, progress=shown, **settings)
        except MLMCDropoutError:
            raise
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
            first = (str(error).strip().splitlines() or [""])[0]
            raise ModelError(f"the model fails on these inputs: {type(error).__name__}: {first}") from error
    return found, list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)))


def _finish(found: Evaluation, info: dict[str, Any], work: Work, output: Output) -> int:
    """Write everything and tell the user."""
    written = write_evaluation_folder(work.out, found, info)
    output.table(_table(found))
    for note in (*found.notes, *info["warnings"]):
        output.note(note)
    page = write_page_if_possible(work.out, output) if work.page else None
    output.say(f"{found.status.value} Results are in {work.out} ({', '.join(written)}).")
    if page:
        output.say(f"The page is {page}")
        if work.show:
            show_page(page)
    output.data({**found.to_json(), "out": str(work.out), "files": written, "page": page})
    return 1 if found.status in SHORT_OF_GOAL else 0


def _table(found: Evaluation) -> TextTable:
    rows = [
        (name, short(one.value, 4, plain=True), short(one.stderr, plain=True), short(one.bias, plain=True))
        for name, one in found.estimates.items()
    ]
    caption = f"{found.method}: {found.rows} inputs, {short(found.cost, plain=True)} passes per input on average"
    return TextTable(caption, ("metric", "value", "± stderr", "bias left"), rows)
