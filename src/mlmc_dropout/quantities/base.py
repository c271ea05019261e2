"""What is asked about the passes of a network: features of a pass, and a function of their expectations.

A quantity is g(E φ(D)) for a feature map φ and a smooth g: the entropy of the mean prediction has φ = p and g = H.
Methods estimate E φ in independent groups of passes (``groups``); plugging that into g is biased by O(1/T), which the
grouped jackknife removes (``jackknife``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.brief import shown_briefly
from mlmc_dropout.quantities.view import View

__all__ = ["INTERVAL", "Feature", "GroupMeans", "Quantity", "QuantityEstimate", "Question"]

Array = NDArray[np.float64]

INTERVAL = 1.96  # standard errors to either side of a value, for 95 %


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity of your own: features of a pass, and a function of their expectations.

    Both functions see inputs along the first axis. Features may be several arrays in a tuple or dict, whose
    expectations ``combine`` gets in the same form; it returns one array.

    Attributes:
        name: The name it gets in results.
        features: φ: outputs of passes as an array (n, *out), as the network returns them or, where ``outputs=`` says
            that it returns classes, their probabilities -> features (n, …). It is tried with NumPy arrays first, then
            with tensors.
        combine: g: expectations of the features (n, …) -> values (n, …).

    Examples:
        >>> spread = Quantity("spread", features=lambda d: (d, d**2), combine=lambda e: e[1] - e[0] ** 2)
        >>> spread.name
        'spread'
    """

    name: str
    features: Callable[[Any], Any]
    combine: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, repr=False)
class QuantityEstimate:
    """The estimate of one quantity, inputs along the first axis.

    Attributes:
        value: The estimate, its bias of order 1/T removed.
        stderr: Its standard error, Student's factor included; ``None`` for labels.
        reliable: False where rare passes may change it more than the standard error says; ``None``: nothing is known.
        confidence: Of a label: the probability that more passes would not change it.
        settled: Of a decision: whether it is certain enough.
        low: Lower end of the 95 % interval of a quantile, which is not symmetric about its value.
        high: Its upper end.
    """

    value: Any
    stderr: Any = None
    reliable: Any = None
    confidence: Any = None
    settled: Any = None
    low: Any = None
    high: Any = None

    __repr__ = shown_briefly

    @property
    def interval(self) -> tuple[Any, Any]:
        """The ends of the 95 % interval: value ± 1.96 standard errors, or those of a quantile's own."""
        if self.low is not None:
            return self.low, self.high
        if self.stderr is None:
            raise AttributeError("a label or decision has a confidence instead of an interval")
        ends = [_each(partial(_shifted, sign * INTERVAL), self.value, self.stderr) for sign in (-1, 1)]
        return ends[0], ends[1]

    def map(self, function: Callable[[Any], Any]) -> QuantityEstimate:
        """The same with a function applied to every array.

        Args:
            function: From an array to what takes its place.

        Returns:
            The estimate of these.
        """
        values = (getattr(self, each.name) for each in fields(self))
        return QuantityEstimate(*(None if value is None else function(value) for value in values))


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature map φ.

    Attributes:
        name: Quantities that use features of one name share them.
        of: Passes, as they are read -> features, (passes, rows, *shape).
        needs_locations: Whether a few passes have to tell first where outputs lie.
        controlled: Whether the feature of an expansion may stand in for that of passes.
    """

    name: str
    of: Callable[[View], Tensor]
    needs_locations: bool = False
    controlled: bool = True


@dataclass(frozen=True, slots=True)
class GroupMeans:
    """Estimates of E φ from independent groups of passes.

    Attributes:
        counts: Passes of each group, (K,), none of them 0.
        means: By name of a feature, its means (K, rows, *shape).
        passes: Passes in all that the groups are worth, for proportions.
    """

    counts: NDArray[np.int64]
    means: Mapping[str, Array]
    passes: int


@dataclass(frozen=True, slots=True)
class Question:
    """A quantity as methods and results know it.

    Attributes:
        name: Its name in results.
        uses: The features it needs.
        answer: From groups of passes to the estimate, inputs along the first axis.
        like_outputs: Whether there is one value per output component, in the structure of the outputs.
    """

    name: str
    uses: tuple[Feature, ...]
    answer: Callable[[GroupMeans], QuantityEstimate]
    like_outputs: bool = False


def _shifted(by: float, value: Array, stderr: Array) -> Array:
    return value + by * stderr


def _each(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """A function of two arrays, for all arrays of two outputs of one structure."""
    if isinstance(a, Mapping):
        return {key: _each(function, part, b[key]) for key, part in a.items()}
    if isinstance(a, tuple):
        return tuple(_each(function, *parts) for parts in zip(a, b, strict=True))
    return function(np.asarray(a), np.asarray(b))
