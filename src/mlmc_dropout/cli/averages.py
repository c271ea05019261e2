"""Averages for the screen: one line per output, or per class where an input has many pixels or words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.report.folder import TABLE
from mlmc_dropout.report.maps import image_channels
from mlmc_dropout.report.names import class_words, component_names, is_classes, is_pair
from mlmc_dropout.report.numbers import matrix
from mlmc_dropout.result import Result

__all__ = ["Averages"]

MOST_LINES = 20  # of a table


def _is_flat(result: Result) -> bool:
    """Whether an input has rows and columns of classes."""
    return len(result.structure.names()[0][1]) == 3


@dataclass(frozen=True, slots=True)
class Averages:
    """What is averaged.

    Attributes:
        names: One per line: of the outputs, of the classes, or of the channels of images.
        groups: The line that a component belongs to, (components,).
        inputs: Number of inputs.
        unit: What has a standard error of its own: "input", "pixel" or "position".
    """

    names: Sequence[str]
    groups: NDArray[np.int64]
    inputs: int
    unit: str

    @classmethod
    def of(cls, result: Result, class_names: Sequence[str] = ()) -> Averages:
        """Over the inputs of a result, and over the pixels or positions of each, where all have the same classes.

        Args:
            result: The estimate.
            class_names: Names of the classes, if known.

        Returns:
            What is averaged.
        """
        inputs, width = matrix(result.mean).shape
        channels = image_channels(result)
        if is_classes(result) and not is_pair(result):
            words = class_words(result, class_names)
            unit = "input" if len(words) == width else "pixel" if _is_flat(result) else "position"
            return cls(words, np.arange(width) % len(words), inputs, unit)
        if channels is None or len(class_names) == width:
            return cls(component_names(result, class_names), np.arange(width), inputs, "input")
        count = int(channels.max()) + 1
        names = class_names if len(class_names) == count else [f"channel {i}" for i in range(count)]
        if count == 1:
            names = class_words(result, class_names)[1:] if is_pair(result) else ["all pixels"]
        return cls(names, channels, inputs, "pixel")

    def __call__(self, value: Any) -> NDArray[np.float64]:
        """The averages of something that every output has.

        Args:
            value: In the structure of the outputs, inputs first.

        Returns:
            One number per line.
        """
        of_components = matrix(value).mean(axis=0)
        return np.bincount(self.groups, weights=of_components) / np.bincount(self.groups)

    @property
    def places(self) -> int:
        """Pixels or positions of an input that are averaged over; 1 if there are none."""
        return len(self.groups) // len(self.names)

    def lines(self, *columns: Sequence[str]) -> list[tuple[str, ...]]:
        """Rows of a table, not too many.

        Args:
            *columns: One cell per line each.

        Returns:
            Name and cells of each line; what is left out is counted, and where it is to be found.
        """
        shown = [*zip(self.names, *columns, strict=True)]
        if len(shown) <= MOST_LINES:
            return shown
        more = f"… {len(shown) - MOST_LINES} more in {TABLE}"
        return [*shown[:MOST_LINES], (more, *[""] * len(columns))]

    @property
    def over(self) -> str:
        """What is averaged over, in words."""
        inputs = f"{self.inputs} input{'' if self.inputs == 1 else 's'}"
        return inputs if self.places == 1 else f"{inputs} and {self.places} {self.unit}s of each"

    @property
    def error_head(self) -> str:
        """The head of a column of standard errors: they belong to single inputs, not to the average."""
        return "± stderr" if self.inputs * self.places == 1 else f"± per {self.unit}"
