"""Decisions on the screen: the question, the answers, and how many are open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.cli.averages import Averages
from mlmc_dropout.cli.console import TextTable
from mlmc_dropout.report.folder import QUANTITIES, TABLE
from mlmc_dropout.report.formats import passes, percent, short
from mlmc_dropout.report.names import class_words, is_classes
from mlmc_dropout.report.numbers import matrix
from mlmc_dropout.report.predictions import predictions
from mlmc_dropout.result import Result

__all__ = ["decision_report"]

MOST_ROWS = 20  # of a table
MOST_NAMED = 60  # inputs that are named one by one


def decision_report(
    result: Result, asked: Mapping[str, Any], class_names: Sequence[str] = ()
) -> tuple[TextTable | None, list[str]]:
    """What was decided.

    Args:
        result: An estimate with decisions.
        asked: The options of the command.
        class_names: Names of the classes, if known.

    Returns:
        A table of the answers, where they can be counted, and sentences below it.
    """
    kind, _, rest = str(asked.get("decision", "")).partition(":")
    of_classes = is_classes(result)
    value, settled = result["decision"].value, result["decision"].settled
    if kind == "label":
        counts = _labels(value, settled, class_words(result, class_names))
        table = _counted(
            "Which class has the largest mean probability?",
            ("predicted class", _items(result), "of these open"),
            counts,
        )
    elif kind == "above":
        question = f"Is the mean {'probability ' if of_classes else ''}above {short(float(rest), plain=True)}?"
        table = _single(question, value, settled)
        if value.ndim > 1:
            lines = _sides(value, settled, Averages.of(result, class_names).names)
            table = _counted(question, ("class" if of_classes else "output", "yes", "no", "of these open"), lines)
    else:
        return None, [*_chosen(result, rest), _how_many(settled, asked)]
    return table, [_how_many(settled, asked)]


def _counted(question: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> TextTable:
    shown = list(lines[:MOST_ROWS])
    if len(lines) > len(shown):
        shown.append((f"… {len(lines) - len(shown)} more in {TABLE}", *[""] * (len(columns) - 1)))
    return TextTable(question, columns, shown)


def _items(result: Result) -> str:
    """What has a predicted class: inputs, or pixels or positions of these."""
    found = predictions(result)
    return "inputs" if found is None else f"{found.unit}s"


def _labels(value: NDArray[Any], settled: NDArray[Any], names: Sequence[str]) -> list[tuple[str, str, str]]:
    """How often every class is the answer, and how many of these are open."""
    counts = np.bincount(value.reshape(-1), minlength=len(names))
    open_ones = np.bincount(value[~settled], minlength=len(names))
    return [(name, str(n), str(o)) for name, n, o in zip(names, counts, open_ones, strict=True)]


def _single(question: str, value: NDArray[Any], settled: NDArray[Any]) -> TextTable:
    """The answers of inputs with one output."""
    answers = (("yes", value.astype(bool)), ("no", ~value.astype(bool)))
    lines = [(text, str(which.sum()), str((which & ~settled).sum())) for text, which in answers]
    return TextTable(question, ("answer", "inputs", "of these open"), lines)


def _sides(value: NDArray[Any], settled: NDArray[Any], names: Sequence[str]) -> list[tuple[str, ...]]:
    """How many are above and not, and how many are open, per output or class."""
    above, sure = (matrix(array).astype(bool).reshape(-1, len(names)) for array in (value, settled))
    columns = (above.sum(axis=0), (~above).sum(axis=0), (~sure).sum(axis=0))
    return [(name, *(str(column[i]) for column in columns)) for i, name in enumerate(names)]


def _chosen(result: Result, rest: str) -> list[str]:
    """The inputs with the largest values, the largest first where the values are known."""
    count, _, by = rest.partition(":")
    by = by or "mutual_information"
    rows = np.flatnonzero(result["decision"].value)
    known = by in (*result.quantities, "mean", "variance") and matrix(result[by].value).shape[1] == 1
    if known:
        rows = rows[np.argsort(-matrix(result[by].value)[rows, 0], kind="stable")]
    total, what = len(result["decision"].value), by.replace("_", " ")
    named = ", ".join(map(str, rows[:MOST_NAMED]))
    named += f" and {len(rows) - MOST_NAMED} more in {QUANTITIES}" if len(rows) > MOST_NAMED else ""
    return [
        f"Which {count} of the {total} inputs have the largest {what}?",
        f"Inputs {named}{', the largest first' if known else ''}.",
    ]


def _how_many(settled: NDArray[Any], asked: Mapping[str, Any]) -> str:
    """How many decisions are settled, and which inputs have open ones."""
    confidence = f" at {percent(float(asked['confidence']), 4, plain=True)} confidence" if "confidence" in asked else ""
    if settled.all():
        return f"All {passes(settled.size)} decisions are settled{confidence}."
    rows = np.flatnonzero(~settled.reshape(len(settled), -1).all(axis=1))
    few = MOST_NAMED // 4
    where = f"{'input' if len(rows) == 1 else 'inputs'} {', '.join(map(str, rows[:few]))}"
    where += f" and {len(rows) - few} more" if len(rows) > few else ""
    count = int((~settled).sum())
    verb = "is" if count == 1 else "are"
    sizes = f"{passes(count)} of {passes(settled.size)}"
    return f"{sizes} decisions {verb} open{confidence}: {where}."
