"""Which axis of an output holds the classes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from mlmc_dropout.errors import InputError, ModelWarning, level_of_caller

__all__ = ["ClassesLast", "check_class_axis", "fitting_axis", "place_of_classes", "warn_of_class_axis"]

WITH_CLASSES = ("logits", "probabilities")


def check_class_axis(class_axis: Any, outputs: str) -> int | None:
    """Refuse what is no axis of classes.

    Args:
        class_axis: The axis, rows being axis 0; ``None``: the last one.
        outputs: What the network returns.

    Returns:
        The axis.

    Raises:
        InputError: If it is no axis behind the rows, or the outputs have no axis of classes.
    """
    if class_axis is None:
        return None
    if isinstance(class_axis, bool) or not isinstance(class_axis, (int, np.integer)) or class_axis == 0:
        raise InputError(
            f"class_axis is the axis of the output that holds the classes, 1 for images (N, C, H, W), -1 for the last "
            f"one; axis 0 are the inputs: got {class_axis!r}"
        )
    if outputs not in WITH_CLASSES:
        raise InputError(f"class_axis= belongs to outputs='logits' or 'probabilities': got outputs={outputs!r}")
    return int(class_axis)


@dataclass(frozen=True, slots=True)
class ClassesLast:
    """Moves the classes of an output to its last axis.

    Attributes:
        axis: Where they are, rows being axis 0.
        then: Applied afterwards.
    """

    axis: int
    then: Callable[[Tensor], Tensor]

    def __call__(self, output: Tensor) -> Tensor:
        """The output with its classes last.

        Args:
            output: Of shape (rows, …), the classes on axis ``axis``.

        Returns:
            The same numbers, of shape (rows, …, classes).

        Raises:
            InputError: If the output has no such axis.
        """
        return self.then(output.movedim(place_of_classes(self.axis, tuple(output.shape)), -1))


def place_of_classes(class_axis: int, shape: tuple[int, ...]) -> int:
    """The axis of the classes, counted from the front.

    Args:
        class_axis: The axis, rows being axis 0; negative: counted from the end.
        shape: Of the output of some rows, (rows, …).

    Returns:
        The axis, from 1 on.

    Raises:
        InputError: If the output has no such axis.

    Examples:
        >>> place_of_classes(-1, (8, 3, 16, 16)), place_of_classes(1, (8, 3, 16, 16))
        (3, 1)
    """
    axis = class_axis if class_axis > 0 else len(shape) + class_axis
    if not 0 < axis < len(shape):
        raise InputError(
            f"class_axis={class_axis}, but the output has the shape {shape}; its axes behind the inputs are 1 to "
            f"{len(shape) - 1}"
        )
    return axis


def fitting_axis(shape: tuple[int, ...], labels: tuple[int, ...] = (), classes: int = 0) -> int | None:
    """The one axis that can hold the classes, by what is known of them.

    Args:
        shape: Of the output of one input.
        labels: Shape of the labels of one input; empty: unknown.
        classes: Number of classes; 0: unknown.

    Returns:
        The axis, rows being axis 0; ``None`` if nothing is known, or none or several axes fit.

    Examples:
        >>> fitting_axis((3, 16, 16), labels=(16, 16)), fitting_axis((3, 16, 16), classes=3), fitting_axis((3, 16, 16))
        (1, 1, None)
    """
    if len(shape) < 2 or not (labels or classes):
        return None
    fits = [
        axis
        for axis, size in enumerate(shape, 1)
        if (not labels or shape[: axis - 1] + shape[axis:] == labels) and (not classes or size == classes)
    ]
    return fits[0] if len(fits) == 1 else None


def warn_of_class_axis(shape: tuple[int, ...], outputs: str, class_axis: int | None) -> None:
    """Say which axis was taken for the classes, where it is likely to be another.

    Networks of images have classes first, before height and width. A softmax over the width gives numbers like any
    other.

    Args:
        shape: Of the output of one input.
        outputs: What the network returns.
        class_axis: The axis that was given, if any.
    """
    if class_axis is not None or outputs not in WITH_CLASSES or len(shape) < 3 or shape[0] >= shape[-1]:
        return
    warnings.warn(
        f"outputs={outputs!r} takes classes along the last axis, of {shape[-1]} entries, and an input has outputs of "
        f"shape {shape}; if its {shape[0]} classes are along the first axis, as in networks of images, give "
        "class_axis=1, otherwise class_axis=-1",
        ModelWarning,
        stacklevel=level_of_caller(),
    )
