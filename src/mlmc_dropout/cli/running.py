"""What ``estimate`` and ``demo`` share: workers, the folder, the summary on the screen."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from mlmc_dropout.cli.averages import Averages
from mlmc_dropout.cli.console import Output, TextTable, print_error
from mlmc_dropout.cli.decisions import decision_report
from mlmc_dropout.cli.quantities import quantity_summary, quantity_tables
from mlmc_dropout.errors import InputError, MissingExtraError, did_you_mean
from mlmc_dropout.report.folder import write_somewhere
from mlmc_dropout.report.formats import passes, percent, short
from mlmc_dropout.report.numbers import matrices
from mlmc_dropout.report.predictions import predictions
from mlmc_dropout.report.truth import judge
from mlmc_dropout.result import Result, Status
from mlmc_dropout.result.arrays import leaves
from mlmc_dropout.result.text import worth_sentence

__all__ = [
    "beside_labels",
    "check_method",
    "command_line",
    "finish",
    "model_title",
    "open_executor",
    "summary",
    "typical",
    "write_page_if_possible",
]

MAX_WORKERS = 1024
SHORT_OF_GOAL = (
    Status.PRECISION_REACHED,
    Status.BUDGET_EXHAUSTED,
    Status.OUT_OF_REACH,
    Status.UNSETTLED,
    Status.STOPPED,
    Status.FAILED,
)


def check_method(method: str) -> str:
    """Refuse a method that the library does not have.

    Args:
        method: Its name.

    Returns:
        The name.

    Raises:
        InputError: If it is unknown.
    """
    from mlmc_dropout.methods.registry import SPECS

    if method not in SPECS:
        raise InputError(f"unknown method {method!r}{did_you_mean(method, SPECS)}; use one of {', '.join(SPECS)}")
    return method


def model_title(model: str) -> str:
    """What to call a model: ``net.make`` for ``path/to/net.py:make``, the last folder of a run.

    Args:
        model: Its name on the command line.

    Returns:
        The title.
    """
    where, _, name = model.rpartition(":")
    return f"{Path(where).name.removesuffix('.py')}.{name}" if where else Path(model).name


def command_line() -> str:
    """The command that was typed, ready to be pasted."""
    return shlex.join(["mlmc-dropout", *sys.argv[1:]])


def open_executor(workers: int, scheduler: str | None) -> AbstractContextManager[Any]:
    """A number of processes, a Dask cluster, or nothing: entered while the work is done.

    Args:
        workers: Number of processes; 1 for this one alone.
        scheduler: Address of a Dask scheduler to use instead.

    Returns:
        A context that gives what ``estimate`` takes as its executor.

    Raises:
        InputError: If the number makes no sense or no scheduler answers.
        MissingExtraError: If Dask is not installed.
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise InputError(f"--workers is a number of processes between 1 and {MAX_WORKERS}: got {workers}")
    if scheduler is not None:
        return _dask(scheduler)
    return contextlib.nullcontext(None if workers == 1 else workers)


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError:
        raise MissingExtraError("distributed", "distributed") from None
    try:
        client = Client(address, timeout="10s")  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"no Dask scheduler answers at {address!r} ({error})") from None
    with client:
        yield client


def finish(out: Path, result: Result, info: Mapping[str, Any], x: Any, page: bool, output: Output) -> int:
    """Write everything and tell the user.

    Args:
        out: The folder.
        result: The estimate.
        info: Title, command, request, warnings and time, as plain data.
        x: The inputs.
        page: Whether to write the page.
        output: Where findings are printed.

    Returns:
        The exit code: 1 if the run ended short of the request or the folder could not be written, 0 otherwise.
    """
    out, files, moved = write_somewhere(out, result, info, x)
    names = getattr(x, "class_names", ())
    output.table(overview(result, names))
    averages = Averages.of(result, names)
    if averages.inputs * averages.places > 1:
        output.say(f"{averages.error_head}: the standard error of the numbers of one {averages.unit}, on average.")
    for table, sentence in quantity_tables(result, names):
        output.say()
        output.table(table)
        if sentence:
            output.say(sentence)
    if sentence := beside_labels(result, x):
        output.say(sentence)
    if worth := worth_sentence(result):
        output.say(f"{worth[0].upper()}{worth[1:]}.")
    if "decision" in result.quantities:
        _show_decisions(result, info.get("asked", {}), names, output)
    for warning in info.get("warnings", ()):
        output.warn(warning)
    for note in result.notes:
        output.note(note)
    written = write_page_if_possible(out, output) if page else None
    if moved:
        print_error(f"{moved}; the results are in {out} instead")
    output.say(f"{result.status.value} Results are in {out}{os.sep} ({', '.join(files)}).")
    if written:
        output.say(f"Open the page: {written}")
    output.data(
        {**summary(result), **quantity_summary(result, names), "out": str(out), "files": files, "page": written}
    )
    return 1 if moved or result.status in SHORT_OF_GOAL else 0


def beside_labels(result: Result, data: Any) -> str:
    """How often the mean prediction is right, or how far it is off, by the labels that were given.

    Args:
        result: The estimate.
        data: What the page shows besides, with labels or without.

    Returns:
        A sentence; empty without labels.
    """
    labels = getattr(data, "labels", None)
    if labels is None:
        return ""
    verdict = judge(matrices(result), labels, predictions(result))
    if verdict.classes:
        share = percent(1 - verdict.error(), 3, plain=True)
        return f"Accuracy of the mean prediction: {share} of {verdict.wrong.size} true labels."
    sentence = f"Root mean square error of the mean, by the true values of {verdict.wrong.size} inputs: "
    sentence += short(verdict.error(), plain=True)
    if verdict.by_output is None:
        return f"{sentence}."
    errors = ", ".join(short(float(error), plain=True) for error in verdict.by_output)
    return f"{sentence}; of single outputs {errors}."


def _show_decisions(result: Result, asked: Mapping[str, Any], names: Sequence[str], output: Output) -> None:
    table, sentences = decision_report(result, asked, names)
    output.say()
    if table is not None:
        output.table(table)
    for sentence in sentences:
        output.say(sentence)


def write_page_if_possible(out: Path, output: Output) -> str | None:
    """Write the page, or remark how to get one.

    Args:
        out: The folder.
        output: Where remarks are printed.

    Returns:
        The page's name, or None without jinja2.
    """
    from mlmc_dropout.report import write_page

    try:
        return str(write_page(out))
    except (MissingExtraError, OSError) as error:
        output.note(f"the report page was not written: {error}")
        return None


def typical(value: Any) -> float:
    """The average over inputs and components.

    Args:
        value: An array, or a structure of arrays; NaN is passed over.

    Returns:
        The average; NaN if nothing is finite.
    """
    joined = np.concatenate([np.ravel(leaf) for leaf in leaves(value)])
    return float(np.nanmean(joined)) if np.isfinite(joined).any() else float("nan")


def summary(result: Result) -> dict[str, Any]:
    """The averages of a result, as plain data.

    Args:
        result: The estimate.

    Returns:
        Method, status, cost, shapes, averages and notes.
    """
    names = ("mean", "mean_stderr", "variance", "variance_stderr", "S2_mean", "S2_variance")
    averages = {name: typical(getattr(result, name)) for name in names if getattr(result, name) is not None}
    return {
        "method": result.method,
        "status": result.status.name,
        "sentence": result.status.value,
        "cost": result.cost,
        "inputs": len(leaves(result.mean)[0]),
        "outputs": result.structure.width,
        "seed": result.seed,
        "averages": averages,
        "notes": list(result.notes),
    }


def overview(result: Result, names: Sequence[str] = ()) -> TextTable:
    """Averages over the inputs, one line per output component, or per class or channel of all pixels.

    Args:
        result: The estimate.
        names: Names of the components; those of the output's structure by default.

    Returns:
        The table.
    """
    averages = Averages.of(result, names)
    parts = ((result.mean, 4), (result.mean_stderr, 2), (result.variance, 4), (result.variance_stderr, 2))
    columns = [[short(float(v), digits, plain=True) for v in averages(values)] for values, digits in parts]
    spent = f"{passes(result.cost)} passes per input"
    if result.passes.min() < result.passes.max():
        spent += " on average"
    caption = f"{result.method}: averages over {averages.over}, {spent}"
    error = averages.error_head
    return TextTable(caption, ("output", "mean", error, "variance", error), averages.lines(*columns))
