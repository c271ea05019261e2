"""Class predictions as page and terminal show them: which class, how sure that is, and why it is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, ndtri

from mlmc_dropout.report.names import class_words, is_classes, is_pair, place, place_words, places
from mlmc_dropout.report.numbers import matrix
from mlmc_dropout.result import Result
from mlmc_dropout.result.text import SETTLED

__all__ = ["Predictions", "passes_to_settle", "predictions"]

Array = NDArray[np.float64]
_ENTROPIES = ("entropy", "expected_entropy", "mutual_information")


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Predictions of classes, one item per input, or per pixel, word or output where an input has several.

    Attributes:
        names: Names of the classes.
        rows: The input that an item belongs to, (items,).
        where: Where in the input, for terminals, as in ``at 12,7``; empty if an input has one item.
        place: The same for pages, as in ``row 12, column 7``.
        unit: What an item is: "input", "pixel", "position" or "output".
        p: Mean probabilities, (items, classes).
        p_stderr: Their standard errors.
        label: The predicted class, (items,).
        confidence: The probability that more passes would not change it; NaN where it was not asked for.
        entropies: Values and standard errors of those that were asked for, by name, (items,) each.
        votes: Share of passes that vote for the predicted class, if asked for.
        reliable: False where rare passes may change the numbers more than their standard errors say.
    """

    names: Sequence[str]
    rows: NDArray[np.int64]
    where: Sequence[str]
    place: Sequence[str]
    unit: str
    p: Array
    p_stderr: Array
    label: NDArray[np.int64]
    confidence: Array
    entropies: Mapping[str, tuple[Array, Array]]
    votes: Array | None
    reliable: NDArray[np.bool_]

    @property
    def measure(self) -> str:
        """What tells how uncertain a prediction is: the entropy, or the mutual information if only that was asked."""
        return "entropy" if "entropy" in self.entropies else "mutual information"

    @property
    def limit(self) -> float:
        """The largest entropy that so many classes can have."""
        return math.log(len(self.names))

    @property
    def exceeds_limits(self) -> bool:
        """Whether an entropy lies below 0 or above the limit: without their bias, estimates can, by their errors."""
        return any(bool(((value < 0) | (value > self.limit)).any()) for value, _ in self.entropies.values())

    def shown(self, name: str) -> Array:
        """An entropy as it is shown: within the limits that it cannot really exceed.

        Args:
            name: Which, as in ``entropies``.

        Returns:
            The values, (items,).
        """
        return np.clip(self.entropies[name][0], 0.0, self.limit)

    @property
    def score(self) -> Array:
        """The values of the measure, as they are shown."""
        return self.shown(self.measure.replace(" ", "_"))

    @property
    def order(self) -> NDArray[np.int64]:
        """Items, most uncertain first."""
        return np.argsort(-self.entropies[self.measure.replace(" ", "_")][0], kind="stable")

    @property
    def label_p(self) -> tuple[Array, Array]:
        """Probabilities of the predicted classes, and their standard errors."""
        index = self.label[:, None]
        return tuple(np.take_along_axis(values, index, axis=1)[:, 0] for values in (self.p, self.p_stderr))  # type: ignore[return-value]

    @property
    def worst(self) -> int:
        """The item whose predicted class has the probability with the largest standard error."""
        return int(np.nanargmax(self.label_p[1]))

    @property
    def unsettled(self) -> NDArray[np.int64]:
        """Items whose predicted class more passes may change, the least certain first."""
        open_ones = np.flatnonzero(self.confidence < SETTLED)
        return open_ones[np.argsort(self.confidence[open_ones], kind="stable")]

    @property
    def knows_confidence(self) -> bool:
        """Whether it is known how certain predicted classes are."""
        return bool(np.isfinite(self.confidence).any())

    def name(self, item: int) -> str:
        """What the predicted class of an item is called.

        Args:
            item: The item.
        """
        return self.names[int(self.label[item])]

    def true_classes(self, labels: NDArray[Any] | None) -> NDArray[np.int64] | None:
        """The true classes of the items.

        Args:
            labels: True labels of any kind, or None.

        Returns:
            Their numbers, (items,); ``None`` if the labels are no classes, one for each item.
        """
        if labels is None or labels.dtype.kind not in "iu" or labels.size != len(self.label):
            return None
        return labels.reshape(-1)

    def runner_up(self, item: int) -> int:
        """The class of the second largest probability.

        Args:
            item: The item.
        """
        return int(np.argsort(-self.p[item], kind="stable")[1])


def predictions(result: Result, class_names: Sequence[str] = ()) -> Predictions | None:
    """The predictions of a result.

    Args:
        result: The estimate.
        class_names: Names of the classes, if known.

    Returns:
        The predictions; ``None`` where outputs are no classes.
    """
    if not is_classes(result):
        return None
    count, several = len(matrix(result.mean)), places(result)
    p, p_stderr = _classes(result)
    asked = result.quantities.get("label")
    label = p.argmax(axis=1) if asked is None else asked.value.reshape(-1)
    confidence = np.full(len(p), np.nan) if asked is None else asked.confidence.reshape(-1)
    entropies = {
        name: (one.value.reshape(-1), one.stderr.reshape(-1))
        for name in _ENTROPIES
        if (one := result.quantities.get(name)) is not None
    }
    flags = [
        one.reliable.reshape(-1)
        for name, one in result.quantities.items()
        if name != "label" and _is_of_items(one.reliable, len(p))
    ]
    if not {"entropy", "mutual_information"} & {*entropies}:
        entropies["entropy"] = np.asarray(entr(np.clip(p, 0, 1)).sum(axis=1)), np.full(len(p), np.nan)
    return Predictions(
        class_words(result, class_names),
        np.repeat(np.arange(count), several),
        _where(result, class_names, lambda index: f"at {place(index)}") * count,
        _where(result, class_names, place_words) * count,
        _unit(result, class_names),
        p,
        p_stderr,
        label.astype(np.int64),
        confidence,
        entropies,
        _votes(result, label),
        np.logical_and.reduce(flags) if flags else np.ones(len(p), dtype=bool),
    )


def passes_to_settle(confidence: float, spent: float) -> float:
    """About how many passes would settle a predicted class: z grows with the square root of the passes.

    Args:
        confidence: The confidence so far.
        spent: The passes so far.

    Returns:
        The passes in all; infinite for two classes that are equal so far.

    Examples:
        >>> round(passes_to_settle(0.9, 100)), passes_to_settle(0.5, 100)
        (330, inf)
    """
    z = float(ndtri(confidence))
    return spent * float(ndtri(SETTLED) / z) ** 2 if z > 0 else float("inf")


def _is_of_items(flags: object, count: int) -> bool:
    return isinstance(flags, np.ndarray) and flags.size == count


def _classes(result: Result) -> tuple[Array, Array]:
    """Probabilities of all classes and their standard errors, (items, classes)."""
    mean, stderr = matrix(result.mean), matrix(result.mean_stderr)
    if is_pair(result):
        one = mean.reshape(-1)
        return np.stack([1 - one, one], axis=1), np.stack([stderr.reshape(-1)] * 2, axis=1)
    classes = result.structure.names()[0][1][-1]
    return mean.reshape(-1, classes), stderr.reshape(-1, classes)


def _votes(result: Result, label: NDArray[np.int64]) -> Array | None:
    asked = result.quantities.get("votes")
    if asked is None:
        return None
    votes = matrix(asked.value)
    if is_pair(result):
        return np.where(label == 1, votes.reshape(-1), 1 - votes.reshape(-1))
    return np.asarray(_of_label(result, votes, label))


def _of_label(result: Result, values: NDArray[Any], label: NDArray[np.int64]) -> NDArray[Any]:
    """What belongs to the predicted class, (items,), of something that all components have."""
    if is_pair(result):
        return values.reshape(-1)
    return np.take_along_axis(values.reshape(len(label), -1), label[:, None], axis=1)[:, 0]


def _shape(result: Result) -> tuple[int, ...]:
    """How the items of an input are arranged."""
    shape = result.structure.names()[0][1]
    return shape if is_pair(result) else shape[:-1]


def _are_named(result: Result, class_names: Sequence[str]) -> bool:
    """Whether the items of an input have names of their own."""
    return is_pair(result) and len(class_names) == result.structure.width


def _where(result: Result, class_names: Sequence[str], words: Callable[[tuple[int, ...]], str]) -> list[str]:
    """Where in an input its items are."""
    if places(result) == 1:
        return [""]
    if _are_named(result, class_names):
        return list(class_names)
    return [words(index) for index in np.ndindex(_shape(result))]


def _unit(result: Result, class_names: Sequence[str]) -> str:
    """What an item of an input is called."""
    if places(result) == 1:
        return "input"
    if _are_named(result, class_names):
        return "output"
    return "pixel" if len(_shape(result)) == 2 else "position"
