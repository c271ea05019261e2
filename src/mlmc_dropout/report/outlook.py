"""The box *what next*: what more accuracy would cost, and where a little more buys a lot."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mlmc_dropout.methods.auto import FEWEST_FOR_DESIGNS
from mlmc_dropout.report.blocks import Note, Section
from mlmc_dropout.report.decided import question, settled_inputs
from mlmc_dropout.report.folder import Folder
from mlmc_dropout.report.formats import NOTHING_LEFT, duration, passes, short
from mlmc_dropout.report.numbers import Matrices, compare
from mlmc_dropout.report.predictions import predictions
from mlmc_dropout.result import Status
from mlmc_dropout.result.text import TO_TOLERANCE

__all__ = ["what_next"]


def what_next(folder: Folder, m: Matrices) -> Section:
    """What more accuracy would cost.

    Args:
        folder: The estimate with its settings.
        m: Its estimates.

    Returns:
        The section.
    """
    return Section("next", "What next", [Note(text, calm=True) for text in _advice(folder, m)])


def _advice(folder: Folder, m: Matrices) -> Iterator[str]:
    if question(folder) is not None:
        yield from _about_decisions(folder)
    else:
        yield from _about_errors(folder, m)
        yield from _about_methods(folder)


def _about_decisions(folder: Folder) -> Iterator[str]:
    """What settling the open ones would cost; passes go to nothing else."""
    spent, opened = folder.result.passes, ~settled_inputs(folder.result)
    if not opened.any():
        yield "Every decision is settled: more passes are needed for a higher confidence only."
        return
    more = float(spent[opened].sum()) / len(spent)
    yield (
        f"Decisions are open for {passes(opened.sum())} of {passes(len(spent))} inputs, and passes go to these only: "
        f"twice as many for each of them, {passes(2 * spent[opened].max())} at most, add {passes(more)} passes per "
        f"input on average{_time(folder, more)}."
    )
    yield (
        "Half the distance to the edge takes four times as many passes, and what lies right at the edge is never "
        "settled: take it as a tie, or let somebody look at it."
    )


def _about_errors(folder: Folder, m: Matrices) -> Iterator[str]:
    result = folder.result
    what, largest = _largest_error(folder, m)
    yield from (note for note in result.notes if TO_TOLERANCE in note)
    if largest > 0 and not compare(result).gain_mean >= NOTHING_LEFT:
        yield (
            f"Half the largest error of {what} ({short(largest / 2, 2)} instead of {short(largest, 2)}) for "
            f"{passes(4 * result.cost)} passes per input{_time(folder, 4 * result.cost)}: standard errors fall with "
            "the square root of the passes."
        )
    else:
        yield "The means are exact up to rounding: more passes would not change them."


def _about_methods(folder: Folder) -> Iterator[str]:
    result, asked = folder.result, folder.info.get("asked") or {}
    by_auto = result.metadata.get("asked") == "auto" and "outputs" not in result.metadata
    if result.method == "pooled" and by_auto and _budget(folder) < FEWEST_FOR_DESIGNS:
        yield (
            f"From {FEWEST_FOR_DESIGNS} passes per input on, method auto can draw masks evenly and look for other ways "
            "to save passes, which most networks allow."
        )
    elif result.method == "pooled" and asked.get("method") == "pooled":
        yield "Method auto estimates the same mean and variance, mostly with smaller errors at the same cost."
    if result.method == "mlmc" and compare(result).gain_mean < 1:
        yield "Method pooled needs fewer passes for the same errors; method auto looks for something better still."


def _budget(folder: Folder) -> float:
    """Passes per input that might have been spent; what was, if the run ended by having spent them."""
    asked = folder.info.get("asked") or {}
    if asked.get("budget") is not None:
        return float(asked["budget"])
    return folder.result.cost if folder.result.status is Status.COMPLETED else float("inf")


def _largest_error(folder: Folder, m: Matrices) -> tuple[str, float]:
    """The error that the findings state: of the predicted classes, where there are classes, or else of all means."""
    found = predictions(folder.result, folder.data.class_names)
    if found is None:
        return "a mean", float(np.nanmax(m.mean_stderr))
    return "the probability of a predicted class", float(found.label_p[1][found.worst])


def _time(folder: Folder, needed: float) -> str:
    """The most that so many passes would take on the machine of this run.

    Preparations are in the time of a run and do not grow with the passes.
    """
    seconds = folder.info.get("seconds")
    if seconds is None or not folder.result.cost:
        return ""
    return f", at most about {duration(float(seconds) * needed / folder.result.cost)} here"
