"""Quantities beside mean and variance on the screen: the most uncertain inputs by name, quantiles, shares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.cli.averages import Averages
from mlmc_dropout.cli.console import TextTable
from mlmc_dropout.report.certainty import file_of
from mlmc_dropout.report.formats import passes, percent, short
from mlmc_dropout.report.numbers import average, matrix
from mlmc_dropout.report.predictions import Predictions, passes_to_settle, predictions
from mlmc_dropout.result import Result
from mlmc_dropout.result.text import SETTLED

__all__ = ["quantity_summary", "quantity_tables"]

MOST_ITEMS = 8
MOST_LABEL, MOST_WORD = 20, 10  # characters of a class name and of its words: the table has 80 columns in all
WHERE = {"pixel": "row,column"}
_HEADS = {"entropy": "entropy", "expected_entropy": "of data", "mutual_information": "mutual inf."}


def quantity_tables(result: Result, class_names: Sequence[str] = ()) -> Iterator[tuple[TextTable, str]]:
    """Tables of what was asked beside mean and variance.

    Args:
        result: The estimate.
        class_names: Names of the classes, if known.

    Yields:
        Tables, each with a sentence below it.
    """
    found = predictions(result, class_names)
    if found is not None:
        decided = "decision" in result.quantities  # the status says how it went
        yield _uncertain(found), "" if decided else _settled(found, result.passes)
    shown = _averages(result, class_names, () if found is None else ("votes", *_HEADS))
    if shown is not None:
        yield shown, ""


def _uncertain(found: Predictions) -> TextTable:
    """The most uncertain inputs first."""
    entropies = [name for name in ("entropy", "mutual_information") if name in found.entropies]
    several = any(found.where)
    p, p_stderr = found.label_p
    items = found.order[:MOST_ITEMS]
    rows = []
    for item in items:
        cells = [_cut(found.name(item)), _pair(p[item], p_stderr[item])]
        if found.knows_confidence:
            cells.append(confidence_text(float(found.confidence[item])))
        cells += [_pair(*(float(values[item]) for values in found.entropies[name])) for name in entropies]
        where = f" {found.where[item]}" if several else ""
        rows.append((f"{found.rows[item]}{where}", *cells))
    heads = [found.unit, "predicted", "probability", *(["certain"] if found.knows_confidence else [])]
    count = len(found.label)
    caption = f"All {count} {found.unit}s, the most uncertain first"
    if count > len(items):
        where = f"as input at {WHERE.get(found.unit, found.unit)}; " if several else ""
        caption = f"The {len(items)} most uncertain of {count} {found.unit}s ({where}all are in {file_of(found)})"
    return TextTable(caption, [*heads, *(_HEADS[name] for name in entropies)], rows, text_columns=2)


def _settled(found: Predictions, spent: NDArray[np.float64]) -> str:
    if not found.knows_confidence:
        return ""
    unsettled, count = found.unsettled, len(found.label)
    if not len(unsettled):
        sure = percent(SETTLED, plain=True)
        return f"All {count} predicted classes are settled: more passes would change none, with {sure} confidence."
    needed = [passes_to_settle(float(found.confidence[item]), float(spent[found.rows[item]])) for item in unsettled]
    usual = float(np.median(needed))
    one = len(unsettled) == 1
    text = f"{len(unsettled)} of {count} predicted classes {'is' if one else 'are'} not settled at "
    text += f"{percent(SETTLED, plain=True)} confidence"
    if math.isfinite(usual):
        who = "it" if one else "half"
        text += f"; about {passes(float(f'{usual:.2g}'))} passes per input would settle {who}"
    return text + "."


def _averages(result: Result, class_names: Sequence[str], leave_out: Sequence[str]) -> TextTable | None:
    """What has one value per output, averaged over the inputs."""
    width, averages = result.structure.width, Averages.of(result, class_names)
    shown = {
        name: [_pair(float(v), float(e)) for v, e in zip(averages(one.value), averages(one.stderr), strict=True)]
        for name, one in result.quantities.items()
        if name not in leave_out and one.stderr is not None and matrix(one.value).shape[1] == width
    }
    if not shown:
        return None
    caption = f"Averages over {averages.over}, {averages.error_head}"
    return TextTable(caption, ["output", *shown], averages.lines(*shown.values()))


def confidence_text(confidence: float) -> str:
    """A confidence in percent, as narrow as possible.

    Args:
        confidence: The confidence.

    Returns:
        The text.

    Examples:
        >>> confidence_text(0.5389), confidence_text(0.99999)
        ('53.9 %', '>99.9 %')
    """
    return ">99.9 %" if confidence > 0.999 else percent(confidence, 3, plain=True)


def _pair(value: float, error: float) -> str:
    """A number and its standard error in few characters, the error rounded up where it is tiny.

    >>> _pair(0.51234, 0.0213), _pair(0.51234, 0.00002), _pair(1234.5, 3.2), _pair(0.5, float("nan"))
    ('0.512±0.021', '0.5123±0.0001', '1234±3.2', '0.5')
    """
    if not math.isfinite(error):
        return short(value, 3, plain=True)
    if not 1e-3 <= abs(value) < 10:
        return f"{short(value, 4, plain=True)}±{short(error, 2, plain=True)}"
    decimals = 3 if error >= 5e-4 else 4
    return f"{value:.{decimals}f}±{max(error, 10.0**-decimals):.{decimals}f}"


def _cut(name: str) -> str:
    """A name of few characters, none of its words long.

    >>> _cut("Iris-versicolor"), _cut("a quiet night"), _cut("an alarm worth getting up for")
    ('Iris-vers…', 'a quiet night', 'an alarm worth gett…')
    """
    return _at_most(" ".join(_at_most(word, MOST_WORD) for word in name.split()), MOST_LABEL)


def _at_most(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"


def quantity_summary(result: Result, class_names: Sequence[str] = ()) -> dict[str, Any]:
    """What was asked beside mean and variance, as plain data.

    Args:
        result: The estimate.
        class_names: Names of the classes, if known.

    Returns:
        Averages over inputs of every quantity; for classes also the most uncertain inputs.
    """
    averages = {
        name: {"value": average(one.value), "stderr": average(one.stderr)}
        for name, one in result.quantities.items()
        if one.stderr is not None
    }
    found = predictions(result, class_names)
    content: dict[str, Any] = {"quantities": averages} if averages else {}
    if found is None:
        return content
    content["most_uncertain"] = [_plain(found, int(item)) for item in found.order[:MOST_ITEMS]]
    if found.knows_confidence:
        content["labels"] = {"count": len(found.label), "unsettled": len(found.unsettled), "confidence": SETTLED}
    return content


def _plain(found: Predictions, item: int) -> dict[str, Any]:
    p, p_stderr = found.label_p
    plain: dict[str, Any] = {"input": int(found.rows[item])}
    if found.where[item]:
        plain["where"] = found.where[item]
    plain |= {"label": found.name(item), "probability": float(p[item]), "probability_stderr": float(p_stderr[item])}
    if found.knows_confidence:
        plain["confidence"] = float(found.confidence[item])
    for name, (value, error) in found.entropies.items():
        plain[name] = float(value[item])
        plain |= {f"{name}_stderr": float(error[item])} if math.isfinite(error[item]) else {}
    return plain
