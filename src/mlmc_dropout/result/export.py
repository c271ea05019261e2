"""A result as a data set or a table of other libraries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.errors import MissingExtraError
from mlmc_dropout.quantities.storage import FIELDS, columns
from mlmc_dropout.result.arrays import ARRAYS, as_matrix, leaves
from mlmc_dropout.sampling.outputs import Structure

if TYPE_CHECKING:
    from mlmc_dropout.result.value import Result

__all__ = ["to_dataframe", "to_xarray"]


def to_xarray(result: Result) -> Any:
    """Convert to an ``xarray.Dataset``, as :meth:`Result.to_xarray` says.

    Args:
        result: The result.

    Returns:
        The dataset.

    Raises:
        MissingExtraError: If xarray is not installed.
    """
    try:
        import xarray
    except ImportError:
        raise MissingExtraError("xarray", "report") from None
    variables = {}
    for estimate in ARRAYS:
        if getattr(result, estimate) is None:
            continue
        for (leaf, shape), values in zip(result.structure.names(), leaves(getattr(result, estimate)), strict=True):
            prefix = f"{leaf}_" if leaf else ""
            dims = ("input", *(f"{prefix}out{axis}" for axis in range(len(shape))))
            variables[prefix + estimate] = (dims, values)
    for name, values in columns(result.quantities):
        axes = (f"{name}_axis{axis}" for axis in range(1, values.ndim))
        variables[name] = (("input", *_class_axes(result.structure, values, axes)), values)
    variables["passes"] = (("input",), result.passes)
    rows = len(leaves(result.mean)[0])
    attrs = {"method": result.method, "seed": result.seed, "cost": result.cost, "status": result.status.value}
    attrs["metadata"] = json.dumps(dict(result.metadata))
    return xarray.Dataset(variables, coords={"input": np.arange(rows)}, attrs=attrs)


def to_dataframe(result: Result) -> Any:
    """Convert to a ``pandas.DataFrame``, as :meth:`Result.to_dataframe` says.

    Args:
        result: The result.

    Returns:
        The data frame.

    Raises:
        MissingExtraError: If pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("pandas", "report") from None
    table: dict[str, list[Any]] = {"input": [], "output": []}
    names = [name for name in ARRAYS if getattr(result, name) is not None]
    rows = len(leaves(result.mean)[0])
    labels = [
        f"{leaf}{list(index) if index else ''}" or "0"
        for leaf, shape in result.structure.names()
        for index in np.ndindex(shape)
    ]
    table["input"] = np.repeat(np.arange(rows), len(labels)).tolist()
    table["output"] = labels * rows
    table["passes"] = np.repeat(result.passes, len(labels)).tolist()
    for name in names:
        table[name] = as_matrix(getattr(result, name)).ravel().tolist()
    for name, matrix in _quantity_columns(result, len(labels)):
        table[name] = np.repeat(matrix, len(labels) // matrix.shape[1], axis=1).ravel().tolist()
    return pandas.DataFrame(table)


def _quantity_columns(result: Result, width: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """Quantities as matrices with as many columns as outputs, pixels, or one; several columns for anything else."""
    pixels = result.structure.shape[:-1] if result.structure.kind == "tensor" else ()
    for name, one in result.quantities.items():
        for part in FIELDS:
            if (value := getattr(one, part)) is None:
                continue
            label = name if part == "value" else f"{name}_{part}"
            matrix = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves(value)], axis=1)
            fits = np.shape(value)[1:] == pixels and len(pixels) > 0 if isinstance(value, np.ndarray) else False
            if matrix.shape[1] in (1, width) or fits:
                yield label, matrix
            else:
                yield from ((f"{label}[{index}]", column[:, None]) for index, column in enumerate(matrix.T))


def _class_axes(structure: Structure, values: NDArray[Any], names: Iterable[str]) -> tuple[str, ...]:
    """Names of the axes of a quantity after the first: those of the outputs where they agree."""
    shape = structure.shape if structure.kind == "tensor" else ()
    return tuple(
        f"out{axis}" if shape[: values.ndim - 1] == values.shape[1:] else name for axis, name in enumerate(names)
    )
