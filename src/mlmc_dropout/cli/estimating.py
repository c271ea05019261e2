"""The work of ``mlmc-dropout estimate``: read the files, estimate, write the folder."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlmc_dropout
from mlmc_dropout.cli.console import Output, show_page
from mlmc_dropout.cli.inputs import read_class_names, read_feature_names, read_inputs, read_labels
from mlmc_dropout.cli.loading import read_model, read_transform, read_weights, with_weights
from mlmc_dropout.cli.options import parse_decision
from mlmc_dropout.cli.running import check_method, command_line, finish, model_title, open_executor
from mlmc_dropout.errors import InputError, MLMCDropoutError, ModelError
from mlmc_dropout.quantities.questions import questions_for
from mlmc_dropout.report.data import PageData
from mlmc_dropout.report.folder import PAGE
from mlmc_dropout.report.passes import passes_of, telling_rows
from mlmc_dropout.result import Result
from mlmc_dropout.runtime.fingerprint import of_model
from mlmc_dropout.sampling.sampler import DropoutSampler
from mlmc_dropout.stopping.decisions import decision_for
from mlmc_dropout.stopping.goal import Goal

__all__ = ["Files", "Work", "estimate_files"]

_OF_SAMPLER = ("masks", "include", "exclude", "rates", "transform")  # settings that say what a pass is


@dataclass(frozen=True, slots=True)
class Files:
    """What is read.

    Attributes:
        model: Name of the model.
        inputs: File of the inputs.
        weights: File of the state dict, or None.
        dtype: Type to convert inputs to, or None.
        labels: File of labels, or None.
        class_names: File of class names, or None.
        transform: Name of the transform, or None.
    """

    model: str
    inputs: Path
    weights: Path | None = None
    dtype: str | None = None
    labels: Path | None = None
    class_names: Path | None = None
    transform: str | None = None

    def plain(self) -> dict[str, str]:
        """What was given, by the names of the options."""
        names = ("model", "weights", "inputs", "dtype", "labels", "class_names", "transform")
        return {name: str(value) for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class Work:
    """Who does it, and what is written.

    Attributes:
        out: The folder.
        workers: Number of processes.
        scheduler: Address of a Dask scheduler, or None.
        page: Whether to write the page.
        show: Whether to show it in a browser.
    """

    out: Path
    workers: int = 1
    scheduler: str | None = None
    page: bool = True
    show: bool = False


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
    x = read_inputs(files.inputs, files.dtype)
    names = () if files.class_names is None else read_class_names(files.class_names)
    labels = None if files.labels is None else _labels(files.labels, x, names)
    state = None if files.weights is None else read_weights(files.weights)
    settings["transform"] = None if files.transform is None else read_transform(files.transform)
    network, doubt = read_model(files.model, settings["seed"], trained=state is not None)
    if state is not None and files.weights is not None:
        network = with_weights(network, state, files.weights)
    started = time.perf_counter()
    with executor as pool:
        result, remarks = _run(network, x, {**settings, "executor": pool}, output)
    info: dict[str, Any] = {
        "title": f"{model_title(files.model)} on {files.inputs.name}",
        "command": command_line(),
        "seconds": time.perf_counter() - started,
        "asked": {**files.plain(), **_plain(settings)},
        "weights": of_model(network),
        "warnings": [*([doubt] if doubt else []), *remarks],
    }
    passes = _passes(network, x, result, settings) if work.page else {}
    data, problems = PageData.of(x, labels, names, read_feature_names(files.inputs), passes).fitting(result)
    info["warnings"] += problems
    if names and settings["outputs"] == "values" and files.transform is None and not problems:
        output.note("class names were given, and outputs are read as values; for a classifier add --outputs logits")
    code = finish(work.out, result, info, data, work.page, output)
    if work.show and work.page:
        show_page(work.out / PAGE)
    return code


def _labels(path: Path, x: Any, names: Sequence[str]) -> Any:
    labels = read_labels(path, names)
    first = next(iter(x.values())) if isinstance(x, dict) else x[0] if isinstance(x, tuple) else x
    if len(labels) != len(first):
        raise InputError(f"there are {len(labels)} labels for {len(first)} inputs; give one for each")
    return labels


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


def _run(network: Callable[..., Any], x: Any, settings: dict[str, Any], output: Output) -> tuple[Result, list[str]]:
    """The estimate and what was warned of on the way; whatever a user's model raises is bad input."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decision = None if settings["decision"] is None else parse_decision(settings["decision"])
        shown = output.prints_text and sys.stderr.isatty()
        try:
            result = mlmc_dropout.estimate(network, x, progress=shown, **{**settings, "decision": decision})
        except MLMCDropoutError:
            raise
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
            first = (str(error).strip().splitlines() or [""])[0]
            where = ", ".join(getattr(error, "__notes__", ()))
            raise ModelError(
                f"the model fails on these inputs: {type(error).__name__}: {first}{f' ({where})' if where else ''}"
            ) from error
    return result, list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)))


def _passes(network: Callable[..., Any], x: Any, result: Result, settings: dict[str, Any]) -> dict[int, Any]:
    """Single passes of a few inputs for the page; without them where the model does not take so few."""
    with contextlib.suppress(MLMCDropoutError, RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the estimate has given them already
        questions = questions_for(settings["outputs"], "mean")
        sampler = DropoutSampler(network, questions=questions, **{name: settings[name] for name in _OF_SAMPLER})
        return passes_of(sampler, x, telling_rows(result), settings["seed"])
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
    if settings["tolerance"] is None and settings["tolerance_variance"] is None:
        idle.add("quantile")
    plain = {key: value for key, value in settings.items() if value not in (None, False) and key not in idle}
    if not isinstance(plain.get("ladder", ""), str):
        plain["ladder"] = list(plain["ladder"])
    if "quantities" in plain:
        plain["quantities"] = list(plain["quantities"])
    if "checkpoint" in plain:
        plain["checkpoint"] = str(plain["checkpoint"])
    return plain
