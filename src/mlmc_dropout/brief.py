"""Values that hold large arrays, in one line: what a prompt or a notebook shows of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["brief", "shown_briefly"]

_FEW = 4  # numbers that are all shown


def brief(value: Any) -> str:
    """A value in a few words: small arrays whole, large ones by their shape and range.

    Args:
        value: A number, an array, or a tuple or dict of them.

    Returns:
        The words.

    Examples:
        >>> brief(np.array([[0.25], [0.75]])), brief(np.linspace(-1, 1, 200)[:, None])
        ('[[0.25], [0.75]]', '<200 × 1 numbers from -1 to 1>')
        >>> brief({"flags": np.arange(20) > 4})
        "{'flags': <20 flags, 15 of them true>}"
    """
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {brief(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(brief, value)) + ("," if len(value) == 1 else "") + ")"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def shown_briefly(value: Any) -> str:
    """What a dataclass says of itself: its fields in a few words, without those that are ``None``.

    Args:
        value: The dataclass.

    Returns:
        One line.
    """
    there = ((each.name, getattr(value, each.name)) for each in fields(value))
    return f"{type(value).__name__}({', '.join(f'{name}={brief(v)}' for name, v in there if v is not None)})"


def _array(values: NDArray[Any]) -> str:
    if values.size <= _FEW:
        return np.array2string(values, precision=6, separator=", ", max_line_width=10**6).replace("\n", "")
    shape = " × ".join(map(str, values.shape))
    if values.dtype == bool:
        return f"<{shape} flags, {values.sum()} of them true>"
    if not np.issubdtype(values.dtype, np.number):
        return f"<{shape} values of type {values.dtype}>"
    finite = values[np.isfinite(values)]
    if not finite.size:
        return f"<{shape} numbers, none of them finite>"
    nan = f", {values.size - finite.size} not finite" if finite.size < values.size else ""
    return f"<{shape} numbers from {finite.min():.6g} to {finite.max():.6g}{nan}>"
