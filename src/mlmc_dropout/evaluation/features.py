"""Outputs of passes -> features -> their means over halves and quarters of the passes.

Likelihoods are kept as logarithms and averaged as such, so that saturated networks do not underflow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.errors import InputError
from mlmc_dropout.evaluation.metrics import BASIC, Metric
from mlmc_dropout.quantities.class_axis import fitting_axis, place_of_classes, warn_of_class_axis
from mlmc_dropout.quantities.outputs import CLASS_OUTPUTS, PAIR_OUTPUTS, log_probabilities, mean_and_variance
from mlmc_dropout.quantities.uncertainty import entropy_of_logs
from mlmc_dropout.sampling.outputs import Structure

__all__ = ["FeatureMap", "mean_of_parts"]

Array = NDArray[np.float64]
Features = Mapping[str, Array]

LOGARITHMS = frozenset({"log_likelihood"})  # features of which the mean of the exponentials is meant
_LOG_TAU = float(np.log(2 * np.pi))


@dataclass(frozen=True, slots=True)
class FeatureMap:
    """The features that some metrics need, and their values.

    Attributes:
        outputs: What the network returns.
        metrics: The metrics.
        class_axis: The axis of the outputs that holds the classes, rows being axis 0; ``None``: the last one.
    """

    outputs: str
    metrics: tuple[Metric, ...]
    class_axis: int | None = None

    @property
    def names(self) -> frozenset[str]:
        """Features of the library's own that are needed."""
        return frozenset(name for m in self.metrics for name in (BASIC[self.outputs] if m.uses is None else m.uses))

    @property
    def components(self) -> int:
        """Numbers per input, of all metrics."""
        return sum(metric.components for metric in self.metrics)

    def features(self, values: Array, structure: Structure, y: Any) -> dict[str, Array]:
        """Features of passes.

        Args:
            values: Outputs, (T, N, width).
            structure: Their structure.
            y: Labels of the N inputs, or ``None``.

        Returns:
            Arrays (T, N, …) by name.

        Raises:
            InputError: If the outputs are not what they were said to be, or labels do not fit them.
        """
        parts = _parts(values, structure)
        if self.class_axis is not None:
            parts = tuple(_classes_last(part, self.class_axis) for part in parts)
        names = self.names
        if self.outputs in CLASS_OUTPUTS:
            single = _single(parts, self.outputs)
            if y is not None and self.class_axis is None:
                _check_axis(single.shape[2:], np.shape(y)[1:], self.outputs)
            made = _of_classes(single, self.outputs, names, y)
        elif self.outputs in PAIR_OUTPUTS:
            made = _of_pairs(*mean_and_variance(parts, self.outputs), names, y)
        else:
            single = _single(parts, self.outputs)
            if "mean" in names and y is not None:
                _fit(single, y)
            made = {"mean": single, "square": single**2}
        for metric in self.metrics:
            if metric.features is not None:
                made.update(metric.features(_single(parts, self.outputs)))
        return made

    def look_at_axes(self, structure: Structure) -> None:
        """Say which axis is taken for the classes, if it is likely to be another.

        Args:
            structure: Structure of the outputs.

        Raises:
            InputError: If the outputs have no such axis.
        """
        leaves = structure.names()
        if len(leaves) != 1:
            return
        warn_of_class_axis(leaves[0][1], self.outputs, self.class_axis)
        if self.class_axis is not None:
            place_of_classes(self.class_axis, (1, *leaves[0][1]))

    def fitted(self, y: Any, structure: Structure) -> Any:
        """Labels with the axes of the outputs: one number per input is enough for a network with one output column.

        Args:
            y: Labels, or ``None``.
            structure: Structure of the outputs.

        Returns:
            The labels.
        """
        shape = structure.names()[0][1]
        single = shape == (1,) or (shape == (2,) and self.outputs in PAIR_OUTPUTS and len(structure.names()) == 1)
        if y is None or self.outputs in CLASS_OUTPUTS or np.ndim(y) != 1 or not single:
            return y
        return np.asarray(y)[:, None]

    def values(self, expected: Features, y: Any) -> Array:
        """The numbers of all metrics, side by side.

        Args:
            expected: Means of features, (…, N, *shape), with one leading axis.
            y: Labels, or ``None``.

        Returns:
            An array (…, N, components).

        Raises:
            InputError: If a metric of the user's own gives another shape.
        """
        lead = np.shape(next(iter(expected.values())))[:2]
        return np.concatenate([_numbers(metric, expected, y, lead) for metric in self.metrics], axis=-1)


def _numbers(metric: Metric, expected: Features, y: Any, lead: tuple[int, ...]) -> Array:
    value = np.asarray(metric.value(expected, y), dtype=np.float64)
    if metric.components == 1:
        value = value.reshape(*value.shape[:2], -1).mean(axis=-1, keepdims=True)
    if value.shape != (*lead, metric.components):
        raise InputError(
            f"the metric {metric.name!r} gives an array {value.shape} where {(*lead, metric.components)} is needed: "
            "keep the leading axes of the expectations, one number (or `components` numbers) per input"
        )
    return value


def mean_of_parts(chunks: Iterable[Features], passes: int) -> dict[str, Array]:
    """The mean over passes that come in chunks.

    Args:
        chunks: Features of chunks of passes, passes along the first axis.
        passes: Their number.

    Returns:
        Means by name, without the axis of passes.
    """
    total: dict[str, Array] = {}
    for chunk in chunks:
        for name, values in chunk.items():
            if name in LOGARITHMS:
                part = np.logaddexp.reduce(values, axis=0)
                total[name] = np.logaddexp(total[name], part) if name in total else part
            else:
                part = values.sum(axis=0)
                total[name] = total[name] + part if name in total else part
    log = np.log(passes)
    return {name: values - log if name in LOGARITHMS else values / passes for name, values in total.items()}


def halves_joined(parts: Features) -> dict[str, Array]:
    """Means of pairs of neighbours.

    Args:
        parts: Means of equally many passes each, parts along the first axis.

    Returns:
        Half as many parts.
    """
    joined: dict[str, Array] = {}
    for name, v in parts.items():
        join: Callable[[Array, Array], Array] = _log_mean if name in LOGARITHMS else _mean
        joined[name] = join(v[0::2], v[1::2])
    return joined


def stacked(parts: Sequence[Features]) -> dict[str, Array]:
    """Means of several parts along a first axis.

    Args:
        parts: Means by name, at least one.

    Returns:
        Arrays by name.
    """
    return {name: np.stack([part[name] for part in parts]) for name in parts[0]}


def _mean(a: Array, b: Array) -> Array:
    return 0.5 * (a + b)


def _log_mean(a: Array, b: Array) -> Array:
    return np.asarray(np.logaddexp(a, b) - np.log(2.0))


# --------------------------------------------------------------------------------------- of a network


def _parts(values: Array, structure: Structure) -> tuple[Array, ...]:
    """The leaves of the output, (T, N, *shape)."""
    leaves, start = [], 0
    for _, shape in structure.names():
        size = int(np.prod(shape, dtype=np.int64))
        leaves.append(values[..., start : start + size].reshape(*values.shape[:2], *shape))
        start += size
    return tuple(leaves)


def _single(parts: tuple[Array, ...], outputs: str) -> Array:
    if len(parts) != 1:
        raise InputError(
            f"outputs={outputs!r} needs a network with one output: this has {len(parts)}; choose one by "
            "transform=lambda out: out[0]"
        )
    return parts[0]


def _classes_last(values: Array, class_axis: int) -> Array:
    """Outputs of passes, (T, N, …), with the classes along the last axis."""
    return np.moveaxis(values, 1 + place_of_classes(class_axis, values.shape[1:]), -1)


def _check_axis(shape: tuple[int, ...], labels: tuple[int, ...], outputs: str) -> None:
    """Refuse labels that belong to classes along another axis than the last."""
    axis = fitting_axis(shape, labels)
    if outputs != "binary-logits" and axis is not None and axis != len(shape):
        raise InputError(
            f"an input has labels of shape {labels} and outputs of shape {shape}, whose classes are along axis {axis}: "
            f"give class_axis={axis}"
        )


def _of_classes(values: Array, outputs: str, names: frozenset[str], y: Any) -> dict[str, Array]:
    if values.ndim < 3 and outputs != "binary-logits":
        raise InputError(f"outputs={outputs!r} needs the classes along the last axis: outputs have no axis but inputs'")
    if values.ndim < 3:
        values = values[..., None]
    logs = log_probabilities(values, outputs)
    made = {}
    if y is not None:
        _check_classes(logs, y)
    if "probabilities" in names:
        made["probabilities"] = np.exp(logs)
    if "entropy" in names:
        made["entropy"] = entropy_of_logs(logs)
    if "log_likelihood" in names:
        labels = np.broadcast_to(np.asarray(y)[None, ..., None], (*logs.shape[:-1], 1))
        made["log_likelihood"] = np.take_along_axis(logs, labels, axis=-1)[..., 0]
    return made


def _check_classes(logs: Array, y: Any) -> None:
    if np.shape(y) != logs.shape[1:-1]:
        raise InputError(f"labels have the shape {np.shape(y)} where outputs need {logs.shape[1:-1]}")
    if np.asarray(y).dtype.kind == "f":
        raise InputError(
            f"labels are class numbers from 0 to {logs.shape[-1] - 1}, and these are no whole numbers; give "
            "outputs='values' if the network returns values, not classes"
        )
    low, high = int(np.min(y)), int(np.max(y))
    if low < 0 or high >= logs.shape[-1]:
        raise InputError(
            f"labels are class numbers from 0 to {logs.shape[-1] - 1}: got {low if low < 0 else high}; leave out "
            "inputs without a label, and give outputs='values' if the network returns values, not classes"
        )


def _fit(values: Array, y: Any) -> None:
    if np.shape(y) != values.shape[1:]:
        raise InputError(
            f"labels have the shape {np.shape(y)} where outputs have {values.shape[1:]}; reshape them, y[:, None] for "
            "a network with one output column"
        )


def _of_pairs(mean: Array, variance: Array, names: frozenset[str], y: Any) -> dict[str, Array]:
    made = {"mean": mean, "variance": variance, "square": mean**2}
    if y is not None:
        _fit(mean, y)
    if "log_likelihood" in names:
        density = -0.5 * (_LOG_TAU + np.log(variance) + (y - mean) ** 2 / variance)
        made["log_likelihood"] = density.reshape(*density.shape[:2], -1).sum(axis=-1)
    return {name: values for name, values in made.items() if name in names}
