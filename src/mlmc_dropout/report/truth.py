"""Estimates beside true labels: how often the mean is right, and whether the spread knows where it is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.quantities.student import student_factor
from mlmc_dropout.report.blocks import Card, Figure, Section, TableBlock, Text
from mlmc_dropout.report.data import PageData
from mlmc_dropout.report.formats import passes, percent, short
from mlmc_dropout.report.numbers import Matrices
from mlmc_dropout.report.predictions import Predictions
from mlmc_dropout.report.svg import NARROW, WIDE, Axis, Chart, Size

__all__ = ["Verdict", "beside_labels", "effective_size", "judge"]

Array = NDArray[np.float64]
BINS = 5
MIN_ITEMS = 20  # for curves; with fewer they would show nothing but noise
MOST_OUTPUTS = 20  # that have an error of their own
SHARES = np.linspace(0.0, 0.9, 46)  # of items that are handed to somebody else


@dataclass(frozen=True, slots=True)
class Verdict:
    """How wrong each item is, and how uncertain: each input, or each pixel or position of an input.

    Attributes:
        wrong: 0 or 1 for classes; the squared error for values, averaged over the components.
        spread: How uncertain: the standard deviation of a pass, of the predicted class or over all components; the
            entropy where outputs were read as classes.
        classes: Whether labels are classes.
        measure: What ``spread`` is called.
        unit: What an item is called.
        rows: The input that an item belongs to, where inputs have several.
        by_output: The root mean square error of each component, where there are a few and labels are values.
    """

    wrong: Array
    spread: Array
    classes: bool
    measure: str = "standard deviation of a pass"
    unit: str = "input"
    rows: NDArray[np.int64] | None = None
    by_output: Array | None = None

    @property
    def labels(self) -> str:
        """What the labels are, in words."""
        return "true labels" if self.classes else "true values"

    def error(self, items: Any = slice(None)) -> float:
        """The error over some items.

        Args:
            items: Which; all by default.

        Returns:
            Share of wrong classes, or root mean square error.
        """
        mean = float(self.wrong[items].mean())
        return mean if self.classes else float(np.sqrt(mean))

    def rejection(self) -> Array:
        """The error among those that are kept, for each of ``SHARES``; the most uncertain are handed over first."""
        order = np.argsort(self.spread, kind="stable")
        kept = [max(1, round((1 - share) * len(order))) for share in SHARES]
        return np.array([self.error(order[:count]) for count in kept])


def judge(m: Matrices, labels: NDArray[Any], found: Predictions | None = None) -> Verdict:
    """Compare estimates with labels.

    Args:
        m: The estimates.
        labels: True classes (inputs,), one per pixel or position, or true values (inputs, components).
        found: Predictions, where outputs were read as classes.

    Returns:
        What is wrong, and how uncertain it was.
    """
    true = None if found is None else found.true_classes(labels)
    if found is not None and true is not None:
        wrong = (found.label != true).astype(np.float64)
        return Verdict(wrong, found.score, True, found.measure, found.unit, found.rows)
    if labels.ndim == 1 and labels.dtype.kind in "iu" and m.mean.shape[1] > 1:
        predicted = m.mean.argmax(axis=1)
        spread = m.std[np.arange(len(predicted)), predicted]
        return Verdict((predicted != labels).astype(np.float64), spread, True)
    errors = np.square(m.mean - labels.reshape(m.mean.shape))
    by_output = np.sqrt(errors.mean(axis=0)) if 1 < errors.shape[1] <= MOST_OUTPUTS else None
    return Verdict(errors.mean(axis=1), m.score, False, by_output=by_output)


def beside_labels(
    m: Matrices, data: PageData, found: Predictions | None = None, outputs: Sequence[str] = ()
) -> Section:
    """The section about true labels.

    Args:
        m: The estimates.
        data: What the page shows besides; has labels.
        found: Predictions, where outputs were read as classes.
        outputs: Names of the output components.

    Returns:
        Accuracy or error, the rejection curve, and spread against error.
    """
    assert data.labels is not None
    verdict = judge(m, data.labels, found)
    blocks: list[Any] = []
    if verdict.by_output is not None and len(outputs) == len(verdict.by_output):
        rows = [(name, short(float(error))) for name, error in zip(outputs, verdict.by_output, strict=True)]
        blocks.append(TableBlock("Errors of single outputs", ("Output", "Root mean square error"), rows))
    if verdict.wrong.any() and len(verdict.wrong) >= MIN_ITEMS:  # nothing can be told from errors that are not there
        blocks += [_rejection(verdict), _bins(verdict)]
    blocks.append(
        Text(
            f"{verdict.labels.capitalize()} do not enter the estimates. Noise in them is part of the error, not of the "
            "spread."
        )
    )
    return Section("labels", f"Beside the {verdict.labels}", blocks, _cards(verdict, len(m.mean)))


def _cards(verdict: Verdict, inputs: int) -> list[Card]:
    error, count = verdict.error(), passes(len(verdict.wrong))
    if not verdict.classes:
        over = "" if verdict.by_output is None else f", over {len(verdict.by_output)} outputs"
        card = Card(short(error), "Root mean square error", f"of the mean{over}")
        return [card, Card(count, "Inputs", "with true values")]
    several = verdict.unit != "input"
    each = f"one per {verdict.unit} of {passes(inputs)} input{'s' * (inputs != 1)}" if several else "one per input"
    return [
        Card(percent(1 - error, 3), "Accuracy", f"of the mean prediction; {_interval(verdict)}"),
        Card(count, "True labels", each),
    ]


def _interval(verdict: Verdict) -> str:
    """What chance leaves open about an accuracy, in words."""
    size = effective_size(verdict)
    if size is None:
        return f"no interval, as the {verdict.unit}s of one input are not independent"
    low, high = (percent(bound, 3) for bound in _wilson(1 - verdict.error(), size))
    whose = (
        f"with {passes(len(verdict.wrong))} labels"
        if verdict.unit == "input"
        else f"with the {verdict.unit}s of an input as one sample"
    )
    return f"{low} to {high} {whose} (95\u00a0%)"


def effective_size(verdict: Verdict) -> float | None:
    """Independent labels that would tell as much about the accuracy.

    Pixels of one image are right or wrong together. The accuracies of the inputs are independent; what their mean
    scatters is that of so many single labels. Where nothing scatters, an input counts as one.

    Args:
        verdict: What is wrong.

    Returns:
        The number; ``None`` where items belong to one input, so that nothing is known about it.
    """
    if verdict.rows is None or verdict.unit == "input":
        return float(len(verdict.wrong))
    sizes = np.bincount(verdict.rows)
    inputs = len(sizes)
    if inputs < 2:
        return None
    shares = np.bincount(verdict.rows, weights=verdict.wrong) / sizes
    error = verdict.error()
    if not 0 < error < 1:
        return float(inputs)
    widening = float(student_factor(inputs))
    variance = float(np.var(shares, ddof=1)) / inputs * widening**2
    return min(error * (1 - error) / variance, float(len(verdict.wrong))) if variance > 0 else float(inputs)


def _wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's interval of 95 % for a share of so many labels; it has a width where the share is 0 or 1, too.

    >>> [round(bound, 3) for bound in _wilson(1.0, 54)]
    [0.934, 1.0]
    """
    z2 = 1.96**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = 1.96 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _rejection(verdict: Verdict) -> Figure:
    errors, whole = verdict.rejection(), verdict.error()
    name = "error rate" if verdict.classes else "root mean square error"
    shares = (100 * SHARES).tolist()

    def draw(size: Size) -> str:
        chart = Chart(size, Axis(0.0, 90.0, "share handed over, %"), Axis.of([0.0, whole, *errors], name, zero=True))
        chart.line([0.0, 90.0], [whole, whole], "theory")
        chart.line(shares, errors.tolist(), "line")
        return chart.svg()

    third = verdict.rejection()[int(np.argmin(np.abs(SHARES - 0.3)))]
    return Figure(
        [draw(size) for size in (WIDE, NARROW)],
        f"Rejection curve: the most uncertain {verdict.unit}s are handed to somebody else, and the error among the "
        f"others falls if the uncertainty ({verdict.measure}) knows where the model is wrong.",
        f"The {name} is {short(whole)} over all {verdict.unit}s and {short(float(third))} without the 30 % most "
        "uncertain.",
        (("line", f"{name} of those kept"), ("theory", "of all, as if handed over by chance")),
    )


def _bins(verdict: Verdict) -> TableBlock:
    order = np.argsort(verdict.spread, kind="stable")
    rows = []
    for n, part in enumerate(np.array_split(order, BINS)):
        spread = verdict.spread[part]
        rows.append(
            (
                f"{n + 1} of {BINS}",
                f"{short(float(spread.min()), 4)} to {short(float(spread.max()), 4)}",
                passes(len(part)),
                percent(verdict.error(part)) if verdict.classes else short(verdict.error(part)),
            )
        )
    return TableBlock(
        f"Uncertainty against error: {verdict.unit}s in five groups, by {verdict.measure}, the smallest first",
        (
            "Group",
            verdict.measure.capitalize(),
            f"{verdict.unit.capitalize()}s",
            "Wrong" if verdict.classes else "Root mean square error",
        ),
        rows,
    )
