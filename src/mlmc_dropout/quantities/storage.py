"""Estimates of quantities in files and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.quantities.base import QuantityEstimate

__all__ = ["FIELDS", "columns", "pack", "unpack"]

FIELDS = ("value", "stderr", "reliable", "confidence", "settled", "low", "high")
_PREFIX = "quantity"


def pack(quantities: Mapping[str, QuantityEstimate]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Plain data that says what lies where, and the arrays.

    Args:
        quantities: Estimates by name.

    Returns:
        Both; :func:`unpack` is the inverse.
    """
    arrays: dict[str, NDArray[Any]] = {}
    header = {
        name: {field: _packed(getattr(one, field), f"{_PREFIX}{index}.{field}", arrays) for field in FIELDS}
        for index, (name, one) in enumerate(quantities.items())
    }
    return header, arrays


def _packed(value: Any, path: str, arrays: dict[str, NDArray[Any]]) -> Any:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: _packed(part, f"{path}.{i}", arrays) for i, (key, part) in enumerate(value.items())}
    if isinstance(value, tuple):
        return [_packed(part, f"{path}.{i}", arrays) for i, part in enumerate(value)]
    arrays[path] = np.asarray(value)
    return path


def unpack(header: Any, arrays: dict[str, NDArray[Any]], rows: int) -> dict[str, QuantityEstimate]:
    """Read estimates back; their arrays are taken out of ``arrays``.

    Args:
        header: What :func:`pack` returned.
        arrays: Arrays of a file.
        rows: Number of inputs, to check them.

    Returns:
        Estimates by name.

    Raises:
        ValueError: If values are of a kind that no result has.
    """
    if not isinstance(header, dict):
        raise ValueError("quantities that are no mapping")
    return {
        str(name): QuantityEstimate(**{field: _unpacked(one.get(field), field, arrays, rows) for field in FIELDS})
        for name, one in header.items()
    }


def _unpacked(tree: Any, field: str, arrays: dict[str, NDArray[Any]], rows: int) -> Any:
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: _unpacked(part, field, arrays, rows) for key, part in tree.items()}
    if isinstance(tree, list):
        return tuple(_unpacked(part, field, arrays, rows) for part in tree)
    values = arrays.pop(str(tree))
    kinds = {"value": "fib", "reliable": "b", "settled": "b"}
    if not values.ndim or len(values) != rows or values.dtype.kind not in kinds.get(field, "f"):
        raise ValueError(f"an array {tree!r} of shape {values.shape} and dtype {values.dtype}")
    if field == "stderr" and (values < 0).any():
        raise ValueError("negative standard errors")
    return values


def columns(quantities: Mapping[str, QuantityEstimate]) -> Iterator[tuple[str, NDArray[Any]]]:
    """All arrays by a name for tables: ``entropy``, ``entropy_stderr``, ``label_confidence``.

    Args:
        quantities: Estimates by name.

    Yields:
        Names and arrays, inputs along the first axis. Where outputs have several parts, the part's name comes first.
    """
    for name, one in quantities.items():
        for field in FIELDS:
            ending = "" if field == "value" else f"_{field}"
            for part, values in _leaves(getattr(one, field)):
                yield f"{part}{name}{ending}", values


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, f"{prefix}{key}_")
    elif isinstance(value, tuple):
        for index, part in enumerate(value):
            yield from _leaves(part, f"{prefix}{index}_")
    elif value is not None:
        yield prefix, value
