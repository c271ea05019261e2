"""What users give, array by array, as tensors: numbers of any type, data frames, nested lists."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from mlmc_dropout.errors import InputError

__all__ = ["ROW_IDS", "Constant", "Path", "Reader", "all_scalars", "is_array", "is_sequence", "label", "nested_numbers"]
__all__ += ["unknown", "walk"]

Path = tuple[Any, ...]  # the keys that lead to an input: (0, 1) for x[0][1], ("mask",) for x["mask"]

_SCALARS = (Number, str, bytes, type(None), np.generic, enum.Enum, torch.dtype, torch.device, range, slice)
ROW_IDS = (
    "where rows cannot be cut (graphs, sequence-first tensors), let row ids be the input: "
    "x = torch.arange(N) with the model lambda ids: net(nodes, edge_index)[ids]"
)


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """An input that belongs to all rows: it is never cut, and the model gets it as it is.

    Attributes:
        value: A tensor, an array, a nested tuple, list or dict of them, or any other object.

    Examples:
        >>> from mlmc_dropout.sampling.inputs import Batch
        >>> Batch.of((torch.zeros(5, 3), Constant(torch.eye(3))))[:2].args[1].shape
        torch.Size([3, 3])
    """

    value: Any


class Reader:
    """Turns the user's inputs into tensors on the model's device, and records where constants are.

    Args:
        device: Where tensors go; ``None``: they stay where they are.
        dtype: The type that arrays of floats take; ``None``: they keep theirs.
    """

    def __init__(self, device: torch.device | None, dtype: torch.dtype | None) -> None:
        self.device, self.dtype = device, dtype
        self._constants: set[Path] = set()

    @property
    def constants(self) -> frozenset[Path]:
        """Where tensors or objects were marked as constants."""
        return frozenset(self._constants)

    def read(self, x: Any) -> Any:
        """Read inputs.

        Args:
            x: Arrays, in any nesting of tuples, lists and dicts.

        Returns:
            The same nesting, with tensors.

        Raises:
            InputError: If something in it is neither numbers nor a plain value.
        """
        return walk(x, self._input)

    def _input(self, path: Path, value: Any) -> Any:
        if isinstance(value, Constant):
            return walk(value.value, self._constant, path)
        value = self._tensor(path, value)
        if isinstance(value, Tensor):
            _check_tensor(label(path), value)
        elif not isinstance(value, _SCALARS):
            raise unknown(label(path), value)
        return value

    def _constant(self, path: Path, value: Any) -> Any:
        self._constants.add(path)
        return self._tensor(path, value)

    def _tensor(self, path: Path, value: Any) -> Any:
        if is_array(value) and not isinstance(value, Tensor):
            value = torch.from_numpy(_plain_array(label(path), _as_array(label(path), value)))
            if value.is_floating_point() and self.dtype is not None:
                value = value.to(self.dtype)
        if not isinstance(value, Tensor):
            return value
        if type(value).__name__ == "MaskedTensor":
            raise InputError(f"{label(path)} is a masked tensor; give its values: use .to_tensor(value)")
        if value.is_meta:
            raise InputError(f"{label(path)} is a meta tensor, which has a shape but no values; give one with values")
        value = value.clone() if value.is_inference() else value.detach()  # gradients need an ordinary tensor
        return value if self.device is None else value.to(self.device)


def is_array(value: Any) -> bool:
    """Whether a value is an array of some library: a tensor, a NumPy array, a data frame, a buffer.

    Args:
        value: Anything.

    Returns:
        Whether it is; NumPy's scalars and classes are not.
    """
    if isinstance(value, (np.generic, type)):
        return False
    return isinstance(value, (Tensor, memoryview)) or hasattr(value, "to_numpy") or hasattr(value, "__array__")


def _check_tensor(name: str, value: Tensor) -> None:
    """Refuse tensors whose rows cannot be cut."""
    if value.is_quantized:
        raise InputError(f"{name} is a quantized tensor; use .dequantize()")
    if value.layout != torch.strided or value.is_nested:
        kind = "nested tensor" if value.is_nested else f"sparse tensor ({value.layout})"
        raise InputError(
            f"{name} is a {kind}, whose rows cannot be cut; use "
            f"{'.to_padded_tensor(0.0)' if value.is_nested else '.to_dense()'}, or md.Constant(tensor) if it belongs "
            "to all rows"
        )


# ------------------------------------------------------------------------------------------ arrays


def _as_array(name: str, value: Any) -> NDArray[Any]:
    """A NumPy array of whatever can be one; a data frame by its columns, so that each may have a type of its own."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "columns") and hasattr(value, "dtypes"):
        return _frame(name, value)
    array = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    return _numbers(name, array) if array.dtype.kind == "O" else array


def _frame(name: str, frame: Any) -> NDArray[Any]:
    """The columns of a data frame side by side, in the type that NumPy gives them together."""
    columns = [np.asarray(frame.iloc[:, i] if hasattr(frame, "iloc") else frame[:, i]) for i in range(frame.shape[1])]
    if not columns:
        raise InputError(f"{name} is a data frame without columns; give one with numbers")
    converted = []
    for column, title in zip(columns, frame.columns, strict=True):
        here = f"the column {title!r} of {name}"
        if column.dtype.kind not in "fiubO":
            raise InputError(f"{here} is of type {column.dtype}, not numbers; drop or encode it: x.drop(columns=...)")
        converted.append(_numbers(here, column))
    return np.column_stack(converted)


def _numbers(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Objects as floats if all are numbers; missing ones become NaN."""
    if array.dtype.kind != "O":
        return array
    try:
        missing = [value is None or type(value).__name__ == "NAType" for value in array.ravel()]
        other = next(v for v, no in zip(array.ravel(), missing, strict=True) if not no and not isinstance(v, Number))
    except StopIteration:
        flat = [np.nan if no else float(value) for value, no in zip(array.ravel(), missing, strict=True)]
        return np.array(flat, dtype=np.float64).reshape(array.shape)
    raise InputError(f"{name} holds {_short(other)}, which is no number; drop or encode it, or use .astype(float)")


def _plain_array(name: str, value: NDArray[Any]) -> NDArray[Any]:
    """The array as torch can take it: numbers of this machine's byte order, writable."""
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value):
            raise InputError(f"{name} is a masked array; give its values: use .filled(value) or remove the masked rows")
        value = value.data
    value = _numbers(name, value)
    if value.dtype.kind == "c":
        value = np.asarray(value, dtype=np.complex64 if value.dtype.itemsize <= 8 else np.complex128, order="C")
        return value if value.flags.writeable else value.copy()
    if value.dtype.kind not in "fiub":
        raise InputError(f"inputs of dtype {value.dtype} are not numbers ({name}); convert them: use .astype(float)")
    dtype = value.dtype.newbyteorder("=")
    if dtype.kind == "f" and dtype.itemsize > 8:
        dtype = np.dtype(np.float64)
    if dtype.kind == "u" and dtype.itemsize > 1:  # torch hardly supports them
        dtype = np.dtype(np.int64)
    plain = np.asarray(value, dtype=dtype, order="C")
    return plain if plain.flags.writeable else plain.copy()


# ------------------------------------------------------------------------------------ nested lists


def nested_numbers(value: Any, name: str = "x") -> NDArray[Any] | None:
    """Lists in lists as an array, the outer one being the rows.

    Args:
        value: Anything.
        name: What it is called, for messages.

    Returns:
        The array, or ``None`` if ``value`` is no list of lists of plain values.

    Raises:
        InputError: If the inner lists have different lengths, or hold something that is no number.

    Examples:
        >>> nested_numbers([[1, 2], [3, 4.5]]).tolist(), nested_numbers([torch.zeros(2)])
        ([[1.0, 2.0], [3.0, 4.5]], None)
    """
    if not is_sequence(value) or not value or not all(is_sequence(part) and part for part in value):
        return None
    leaves: dict[Path, Any] = {}
    walk(value, leaves.__setitem__)
    if not all(isinstance(leaf, (Number, str, bytes, type(None))) for leaf in leaves.values()):
        return None
    for path, leaf in leaves.items():
        if not isinstance(leaf, Number):
            raise InputError(f"{name}{label(path)[1:]} is {_short(leaf)}, which is no number; encode or remove it")
    try:
        return np.array(value)
    except ValueError:
        lengths = sorted({len(part) for part in value})
        raise InputError(
            f"the rows of {name} have different lengths ({', '.join(map(str, lengths[:6]))}); pad them to one length"
        ) from None


def _short(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:39] + '…'} ({type(value).__name__})"


# ----------------------------------------------------------------------------------------- nesting


def is_sequence(value: Any) -> bool:
    """Whether a value is a tuple or list that holds inputs.

    Args:
        value: Anything.

    Returns:
        Whether it is; torch's packed sequences are tuples, but are not.
    """
    return isinstance(value, (tuple, list)) and not isinstance(value, PackedSequence)


def walk(value: Any, each: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """Change every leaf of nested tuples, lists and dicts.

    Args:
        value: The nesting.
        each: ``each(path, leaf)`` is put in the place of a leaf.
        path: Where the nesting stands itself.

    Returns:
        The same nesting with other leaves.
    """
    if isinstance(value, Mapping):
        return {key: walk(part, each, (*path, key)) for key, part in value.items()}
    if not is_sequence(value):
        return each(path, value)
    parts = [walk(part, each, (*path, index)) for index, part in enumerate(value)]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def label(path: Path) -> str:
    """How an input is written: ``x[0]['mask']``.

    Args:
        path: The keys that lead to it.

    Returns:
        Its name.
    """
    return "x" + "".join(f"[{key!r}]" for key in path)


def unknown(name: str, value: Any) -> InputError:
    """The error about an input whose rows are not known.

    Args:
        name: What the input is called.
        value: The input.

    Returns:
        The error, to be raised.
    """
    return InputError(
        f"{name} is of type {type(value).__name__}, whose rows are not known; give tensors or arrays with the rows "
        f"first, md.Constant(value) for what belongs to all rows; {ROW_IDS}"
    )


def all_scalars(values: Iterable[Any]) -> bool:
    """Whether there are numbers and strings only.

    Args:
        values: Any values.

    Returns:
        Whether all are plain values.
    """
    return all(isinstance(value, (Number, str, bytes, np.generic)) for value in values)
