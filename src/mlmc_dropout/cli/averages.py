"""Averages for the screen: one line per output, or per class where an input has many pixels or words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.report.names import class_words, component_names, is_classes, is_pair, places
from mlmc_dropout.report.numbers import matrix
from mlmc_dropout.result import Result

__all__ = ["Averages"]


@dataclass(frozen=True, slots=True)
class Averages:
    """What is averaged.

    Attributes:
        names: One per line: of the outputs, or of the classes.
        inputs: Number of inputs.
        places: Pixels or words of an input that are averaged over; 1 if there are none.
        unit: What has a standard error of its own: "input", "pixel" or "place".
    """

    names: Sequence[str]
    inputs: int
    places: int
    unit: str

    @classmethod
    def of(cls, result: Result, class_names: Sequence[str] = ()) -> Averages:
        """Over the inputs of a result, and over the places of each, where every place has all classes.

        Args:
            result: The estimate.
            class_names: Names of the classes, if known.

        Returns:
            What is averaged.
        """
        inputs = len(matrix(result.mean))
        several = places(result) if is_classes(result) and not is_pair(result) else 1
        if several == 1:
            return cls(component_names(result, class_names), inputs, 1, "input")
        unit = "pixel" if len(result.structure.names()[0][1]) == 3 else "place"
        return cls(class_words(result, class_names), inputs, several, unit)

    def __call__(self, value: Any) -> NDArray[np.float64]:
        """The averages of something that every output has.

        Args:
            value: In the structure of the outputs, inputs first.

        Returns:
            One number per line.
        """
        return np.asarray(matrix(value).reshape(-1, len(self.names)).mean(axis=0))

    @property
    def over(self) -> str:
        """What is averaged over, in words."""
        inputs = f"{self.inputs} input{'' if self.inputs == 1 else 's'}"
        return inputs if self.places == 1 else f"{inputs} and {self.places} {self.unit}s of each"

    @property
    def error_head(self) -> str:
        """The head of a column of standard errors: they belong to single inputs, not to the average."""
        return "± stderr" if self.inputs * self.places == 1 else f"± per {self.unit}"
