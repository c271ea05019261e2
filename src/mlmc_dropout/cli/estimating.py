"""The work of ``mlmc-dropout estimate``: read the files, estimate, write the folder."""

from __future__ import annotations

import contextlib
import time
import warnings
from typing import Any

import mlmc_dropout
from mlmc_dropout.cli.console import Output, show_page
from mlmc_dropout.cli.inputs import read_feature_names
from mlmc_dropout.cli.options import parse_decision
from mlmc_dropout.cli.request import (
    Files,
    Material,
    Work,
    check_class_axis_told,
    read_material,
    run_model,
    shows_progress,
)
from mlmc_dropout.cli.running import check_method, command_line, finish, model_title, open_executor
from mlmc_dropout.errors import InputError, MLMCDropoutError
from mlmc_dropout.quantities.questions import questions_for
from mlmc_dropout.report.data import PageData
from mlmc_dropout.report.folder import PAGE
from mlmc_dropout.report.numbers import matrices
from mlmc_dropout.report.passes import passes_of, telling_rows
from mlmc_dropout.report.truth import judge
from mlmc_dropout.result import Result
from mlmc_dropout.runtime.fingerprint import of_model
from mlmc_dropout.sampling.sampler import DropoutSampler
from mlmc_dropout.stopping.decisions import decision_for
from mlmc_dropout.stopping.goal import Goal

__all__ = ["estimate_files"]

_OF_SAMPLER = ("masks", "include", "exclude", "rates", "transform")  # settings that say what a pass is


def estimate_files(files: Files, settings: dict[str, Any], work: Work, output: Output) -> int:
    """Read the files, estimate, write the folder.

    Everything that can be refused is refused before the user's own code is imported.

    Args:
        files: What is read.
        settings: Arguments of :func:`mlmc_dropout.estimate`.
        work: Who does it, and what is written.
        output: Where findings are printed.

    Returns:
        The exit code.

    Raises:
        InputError: If the request cannot be carried out as stated.
        ModelError: If the model fails on the inputs.
    """
    check_method(settings["method"])
    _check_questions(settings, files)
    _check_goal(settings)
    executor = open_executor(work.workers, work.scheduler)
    material = read_material(files, settings["seed"])
    settings["transform"] = material.transform
    names = material.class_names
    started = time.perf_counter()
    with executor as pool:
        result, remarks = _run(material, {**settings, "executor": pool}, output)
    info: dict[str, Any] = {
        "title": f"{model_title(files.model)} on {files.inputs.name}",
        "command": command_line(),
        "seconds": time.perf_counter() - started,
        "asked": {**files.plain(), **_plain(settings)},
        "weights": of_model(material.network),
        "warnings": [*([material.doubt] if material.doubt else []), *remarks],
    }
    passes = _passes(material, result, settings) if work.page else {}
    data, problems = PageData.of(material.x, material.labels, names, read_feature_names(files.inputs), passes).fitting(
        result
    )
    info["warnings"] += problems
    if settings["outputs"] == "values" and files.transform is None and not problems and _has_classes(data, result):
        output.note(
            "the labels or names are of classes, and outputs are read as values; for probabilities, entropies and how "
            "sure the predicted classes are add --outputs logits"
        )
    code = finish(work.out, result, info, data, work.page, output)
    if work.show and work.page:
        show_page(work.out / PAGE)
    return code


def _check_questions(settings: dict[str, Any], files: Files) -> None:
    questions_for(settings["outputs"], settings["quantities"])
    if files.transform in ("softmax", "sigmoid") and settings["outputs"] != "values":
        raise InputError(
            f"--transform {files.transform} and --outputs {settings['outputs']} both say how to read the outputs; "
            "leave out --transform"
        )


def _check_goal(settings: dict[str, Any]) -> None:
    stop = {name: settings[name] for name in ("budget", "tolerance", "tolerance_variance")}
    if settings["decision"] is not None:
        decision_for(parse_decision(settings["decision"]), settings["confidence"], settings["familywise"])
    elif any(value is not None for value in stop.values()):
        Goal(**stop, relative=settings["relative"], quantile=settings["quantile"])
    elif settings["counts"] is None:
        raise InputError("say when to stop: --budget (passes per input), --tolerance or --tolerance-variance")


def _run(material: Material, settings: dict[str, Any], output: Output) -> tuple[Result, list[str]]:
    """The estimate and what was warned of on the way."""
    decision = None if settings["decision"] is None else parse_decision(settings["decision"])
    settings = {**settings, "decision": decision, "progress": shows_progress(output)}

    def call() -> Result:
        check_class_axis_told(material, settings)
        return mlmc_dropout.estimate(material.network, material.x, **settings)

    return run_model(call)


def _has_classes(data: PageData, result: Result) -> bool:
    """Whether names or labels tell that the outputs are of classes."""
    return bool(data.class_names) or (data.labels is not None and judge(matrices(result), data.labels).classes)


def _passes(material: Material, result: Result, settings: dict[str, Any]) -> dict[int, Any]:
    """Single passes of a few inputs for the page; without them where the model does not take so few."""
    with contextlib.suppress(MLMCDropoutError, RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the estimate has given them already
        questions = questions_for(settings["outputs"], "mean")
        sampler = DropoutSampler(
            material.network, questions=questions, **{name: settings[name] for name in _OF_SAMPLER}
        )
        return passes_of(sampler, material.x, telling_rows(result), settings["seed"])
    return {}


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as plain data, without what was left at its default or does not apply."""
    idle = {"transform"}
    if settings["outputs"] == "values":
        idle.add("outputs")
    if settings["decision"] is None:
        idle.add("confidence")
    if settings["method"] != "mlmc":
        idle.add("levels")
    if settings["quantile"] == 1.0 or (settings["tolerance"] is None and settings["tolerance_variance"] is None):
        idle.add("quantile")
    plain = {key: value for key, value in settings.items() if value not in (None, False) and key not in idle}
    if not isinstance(plain.get("ladder", ""), str):
        plain["ladder"] = list(plain["ladder"])
    if "quantities" in plain:
        plain["quantities"] = list(plain["quantities"])
    if "checkpoint" in plain:
        plain["checkpoint"] = str(plain["checkpoint"])
    return plain
