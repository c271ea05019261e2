"""The arrays of a result: their names, and what the structure of a model's outputs makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ARRAYS", "LEVEL_ARRAYS", "as_matrix", "leaves", "map_leaves"]

ARRAYS = (
    "mean",
    "variance",
    "mean_stderr",
    "variance_stderr",
    "S2_mean",
    "S2_variance",
    "mean_reliable",
    "variance_reliable",
)
LEVEL_ARRAYS = (
    "mean",
    "variance",
    "kurtosis",
    "mean_V",
    "variance_V",
    "kurtosis_V",
    "correlation",
    "gain",
    "gain_V",
)


def leaves(value: Any) -> list[NDArray[Any]]:
    """The arrays of a structured output, in order.

    Args:
        value: An array, or a tuple or mapping with arrays inside.

    Returns:
        The arrays.
    """
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, tuple) else [value]


def map_leaves(function: Callable[[NDArray[Any]], Any], value: Any) -> Any:
    """Apply a function to each array of a structured output.

    Args:
        function: From an array to what takes its place.
        value: An array, or a tuple or mapping with arrays inside.

    Returns:
        The same structure, with the function's results.
    """
    if isinstance(value, Mapping):
        return {key: map_leaves(function, part) for key, part in value.items()}
    return tuple(map_leaves(function, part) for part in value) if isinstance(value, tuple) else function(value)


def as_matrix(value: Any) -> NDArray[Any]:
    """The arrays of a structured output side by side.

    Args:
        value: An array, or a tuple or mapping with arrays inside.

    Returns:
        The matrix (rows, width).
    """
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves(value)], axis=1)
