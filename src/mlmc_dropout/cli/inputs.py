"""Files of numbers -> inputs, labels and names; nothing in them is executed."""

from __future__ import annotations

import csv
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.cli.loading import PICKLE, describe, first_line, is_file, read_safetensors, read_torch_file, type_of
from mlmc_dropout.errors import InputError, MissingExtraError
from mlmc_dropout.files import check_expansion
from mlmc_dropout.report.data import class_numbers

__all__ = ["read_class_names", "read_feature_names", "read_inputs", "read_labels"]

_WHOLE = re.compile(r"\s*[+-]?\d{1,18}\s*")
_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")


def read_inputs(path: Path, dtype: str | None = None, option: str = "--inputs") -> Any:
    """Inputs from ``.npy``, ``.npz``, ``.csv``, ``.parquet``, ``.pt``/``.pth`` or ``.safetensors``.

    Files with several arrays become keyword inputs of the model by their names; a ``.npz`` written without names
    (``arr_0``, …) becomes positional inputs.

    Args:
        path: The file; its suffix says the format.
        dtype: The type to convert all numbers to; None for that of the file. Whole numbers of a table stay whole.
        option: The option that names the file, for messages.

    Returns:
        An array or tensor with the inputs first, a tuple of such, or a dict of such.

    Raises:
        InputError: If the file is missing, damaged, not numeric, or would have to be executed.
        MissingExtraError: If a parquet file is read without pyarrow.
    """
    readers: dict[str, Callable[[Path], Any]] = {
        ".npy": _npy,
        ".npz": _npz,
        ".csv": _csv,
        ".parquet": _parquet,
        ".pt": lambda p: read_torch_file(p, option.strip("-")),
        ".pth": lambda p: read_torch_file(p, option.strip("-")),
        ".safetensors": read_safetensors,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{option} {path.name!r} is of no kind that is understood; use one of {', '.join(readers)}")
    if not is_file(path):
        raise InputError(f"{option}: there is no file {str(path)!r}")
    inputs = _unwrap(reader(path))
    for name, value in _named_arrays(inputs):
        _check(value, path, name)
    return inputs if dtype is None else _converted(inputs, _dtype(dtype), path)


def read_labels(path: Path, class_names: Sequence[str] = ()) -> NDArray[Any]:
    """True classes or values, one line or entry per input.

    Args:
        path: A file as for :func:`read_inputs`; a ``.csv`` or text file may hold names of classes.
        class_names: Names of the classes, where labels are names.

    Returns:
        The labels, (inputs,) or (inputs, components).

    Raises:
        InputError: If the file does not hold one array of numbers, or names that are not those of classes.
    """
    if path.suffix.lower() in (".csv", ".txt") and is_file(path) and (words := _words(path, class_names)):
        return class_numbers(words, class_names)
    labels = read_inputs(path, option="--labels")
    if not isinstance(labels, (np.ndarray, Tensor)):
        raise InputError(f"--labels: {str(path)!r} holds several arrays; give a file with one")
    return np.asarray(labels)


def _words(path: Path, class_names: Sequence[str]) -> list[str]:
    """The only column of a file, without its head; empty if it holds numbers, or more than a column."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = [[cell.strip() for cell in row] for row in csv.reader(file) if any(map(str.strip, row))]
    except (OSError, UnicodeDecodeError, csv.Error):
        return []
    if not lines or any(len(row) != 1 for row in lines) or all(_is_number(row[0]) for row in lines[1:] or lines):
        return []
    words = [row[0] for row in lines]
    return words if words[0] in class_names or not class_names else words[1:] or words


def read_class_names(path: Path) -> tuple[str, ...]:
    """Names of classes, one per line.

    Args:
        path: A text file.

    Returns:
        The names.

    Raises:
        InputError: If there are none, or it is no text.
    """
    if not is_file(path):
        raise InputError(f"--class-names: there is no file {str(path)!r}")
    try:
        names = tuple(line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} is no UTF-8 text ({first_line(error)}); write one name per line") from None
    if not names:
        raise InputError(f"{str(path)!r} holds no class names; write one per line")
    return names


def read_feature_names(path: Path) -> tuple[str, ...]:
    """Names of the columns of a table.

    Args:
        path: A file that :func:`read_inputs` has read.

    Returns:
        The names in the head of a ``.csv`` or ``.parquet`` file; none for others.
    """
    if path.suffix.lower() == ".csv":
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = next((row for row in csv.reader(file) if any(map(str.strip, row))), [])
        return () if any(map(_is_number, first)) else tuple(first)
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet

        return tuple(parquet.read_schema(path).names)
    return ()


def _dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise InputError(f"unknown --dtype {name!r}; use one of {', '.join(_DTYPES)}")
    found: torch.dtype = getattr(torch, name)
    return found


def _converted(inputs: Any, dtype: torch.dtype, path: Path) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _converted(value, dtype, path) for name, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(_converted(value, dtype, path) for value in inputs)
    tensor = inputs if isinstance(inputs, Tensor) else torch.from_numpy(_native(inputs))
    converted = tensor.to(dtype)
    if (
        tensor.is_floating_point()
        and not dtype.is_floating_point
        and not torch.equal(converted.to(tensor.dtype), tensor)
    ):
        raise InputError(
            f"{str(path)!r} holds numbers that are not whole, which --dtype {dtype} would cut".replace("torch.", "")
        )
    return converted


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """Numbers as torch can take them: this machine's byte order, signed."""
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        return array.astype(np.int64)
    return np.array(array, dtype=array.dtype.newbyteorder("="))


def _unwrap(content: Any) -> Any:
    """A single array as itself, arrays without names as a tuple."""
    if isinstance(content, Mapping) and len(content) == 1:
        return next(iter(content.values()))
    if isinstance(content, Mapping) and content and all(name.startswith("arr_") for name in content):
        return tuple(content.values())
    return tuple(content) if isinstance(content, list) else content


def _named_arrays(inputs: Any) -> list[tuple[str, Any]]:
    if isinstance(inputs, Mapping):
        return [(f" ({name})", value) for name, value in inputs.items()]
    return [("", value) for value in (inputs if isinstance(inputs, tuple) else (inputs,))]


def _check(value: Any, path: Path, name: str) -> None:
    """Numbers with rows, all finite."""
    if not isinstance(value, (Tensor, np.ndarray)):
        raise InputError(f"{str(path)!r}{name} holds {type_of(value)}, not an array or tensor")
    if isinstance(value, np.ndarray) and value.dtype.kind not in "fiub":
        raise InputError(f"{str(path)!r}{name} has dtype {value.dtype}, which is not a number; convert it first")
    if not value.ndim or not len(value):
        raise InputError(f"{str(path)!r}{name} has shape {tuple(value.shape)}; the first axis must run over the inputs")


def _npy(path: Path) -> NDArray[Any]:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError, SyntaxError, TypeError) as error:
        raise InputError(f"{str(path)!r} was not read: {_numpy_reason(error)}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{str(path)!r} is a .npz archive; rename it")
    return array


def _npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        check_expansion(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {str(name): np.asarray(file[name]) for name in file.files}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, AttributeError, TypeError, KeyError) as e:
        raise InputError(f"{str(path)!r} was not read: {_numpy_reason(e)}") from e
    if not arrays:
        raise InputError(f"{str(path)!r} holds no arrays")
    return arrays


def _numpy_reason(error: BaseException) -> str:
    return (
        f"{PICKLE}; save plain numbers"
        if "pickle" in str(error)
        else f"it is no complete numpy file ({describe(error)})"
    )


def _csv(path: Path) -> NDArray[Any]:
    """Numbers separated by commas, with or without a line of column names; whole numbers stay whole."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = [(number, row) for number, row in enumerate(csv.reader(file), 1) if any(map(str.strip, row))]
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)!r} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except (OSError, csv.Error) as error:
        raise InputError(f"{str(path)!r} is no readable CSV file ({first_line(error)})") from error
    if lines and not any(map(_is_number, lines[0][1])):
        lines = lines[1:]
    if not lines:
        raise InputError(f"{str(path)!r} has no rows of numbers")
    width = len(lines[0][1])
    for number, row in lines:
        if len(row) != width or not all(map(_is_number, row)):
            raise InputError(f"{str(path)!r}, line {number}: expected {width} numbers, got {','.join(row)[:60]!r}")
    if all(_WHOLE.fullmatch(cell) for _, row in lines for cell in row):
        return np.array([[int(cell) for cell in row] for _, row in lines], dtype=np.int64)
    return np.array([[float(cell) for cell in row] for _, row in lines])


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _parquet(path: Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "report") from None
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} is no readable parquet file ({first_line(error)})") from error
    columns = {name: _column(table.column(name).to_numpy(), name, path) for name in table.column_names}
    if not columns:
        raise InputError(f"{str(path)!r} has no columns")
    if any(column.ndim > 1 for column in columns.values()):  # lists in cells, such as token ids: inputs by name
        return columns
    return np.column_stack(list(columns.values()))


def _column(values: NDArray[Any], name: str, path: Path) -> NDArray[Any]:
    """A column of numbers, or of lists of numbers of one length."""
    if values.dtype.kind == "O" and len(values) and isinstance(values[0], np.ndarray):
        if len({len(cell) for cell in values}) > 1:
            raise InputError(
                f"{str(path)!r}: lists of different lengths in the column {name!r}; pad them to one length"
            )
        values = np.stack(list(values))
    if values.dtype.kind not in "fiub":
        raise InputError(f"{str(path)!r}: the column {name!r} is not numeric ({values.dtype}); drop or encode it")
    return values
