"""The inputs of a model, cut into rows and batches."""

from __future__ import annotations

import enum
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import Dataset

from mlmc_dropout.errors import InputError

__all__ = [
    "Batch",
    "Constant",
    "abbreviate",
    "batches_of",
    "even_parts",
    "positional_arguments",
]

Path = tuple[Any, ...]  # the keys that lead to an input: (0, 1) for x[0][1], ("mask",) for x["mask"]

_SCALARS = (Number, str, bytes, type(None), np.generic, enum.Enum, torch.dtype, torch.device, range, slice)
_ROW_IDS = (
    "where rows cannot be cut (graphs, sequence-first tensors), let row ids be the input: "
    "x = torch.arange(N) with the model lambda ids: net(nodes, edge_index)[ids]"
)


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """An input that belongs to all rows: it is never cut, and the model gets it as it is.

    Attributes:
        value: A tensor, an array, a nested tuple, list or dict of them, or any other object.

    Examples:
        >>> Batch.of((torch.zeros(5, 3), Constant(torch.eye(3))))[:2].args[1].shape
        torch.Size([3, 3])
    """

    value: Any


@dataclass(frozen=True, slots=True)
class Batch:
    """Arguments of one call of the model; tensors in them have the rows first, unless they are constants.

    Attributes:
        args: Positional arguments; tuples, lists and dicts may be nested in them.
        kwargs: Named arguments.
        rows: Number of rows.
        constants: Paths of the tensors that are not cut into rows.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: int
    constants: frozenset[Path] = frozenset()

    @classmethod
    def of(cls, x: Any, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Batch:
        """Read a batch from the inputs that a user gives.

        A tensor whose first axis has length 1, beside others with more rows, is a constant.

        Args:
            x: A tensor, array or data frame, a tuple of positional inputs, or a dict of named ones.
            device: Where tensors and arrays go; they stay where they are by default.
            dtype: The type that arrays of floats take; tensors keep theirs.

        Returns:
            The batch.

        Raises:
            InputError: If there are no rows, their numbers differ, or an input cannot be cut into rows.
        """
        reader = _Reader(device, dtype)
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        if isinstance(x, Mapping):
            kwargs = reader.read({str(name): value for name, value in x.items()})
        elif _is_sequence(x) or isinstance(x, Constant):
            args = reader.read((x,) if isinstance(x, Constant) else tuple(x))
        else:
            args = (reader.read(x),)
        tensors = {
            path: value
            for path, value in _leaves(args, kwargs).items()
            if isinstance(value, Tensor) and value.dim() and path not in reader.constants
        }
        rows = _row_count(tensors)
        _check_no_lists_of_rows(kwargs or args, rows, reader.constants)
        broadcast = {path for path, value in tensors.items() if len(value) != rows}
        return cls(args, kwargs, rows, reader.constants | broadcast)

    @property
    def named(self) -> dict[str, Any]:
        """All inputs by name, nested ones as ``"0.1"`` for ``x[0][1]``."""
        return {".".join(map(str, path)): value for path, value in _leaves(self.args, self.kwargs).items()}

    @property
    def values(self) -> tuple[Any, ...]:
        """All inputs, nested ones one by one."""
        return tuple(_leaves(self.args, self.kwargs).values())

    @property
    def device(self) -> torch.device:
        """Where the inputs are."""
        return next(v.device for v in self.values if isinstance(v, Tensor) and v.dim())

    def map(self, change: Callable[[Tensor], Tensor], rows: int) -> Batch:
        """Replace every tensor that has rows.

        Constants are cloned, so that a model may write to its inputs.

        Args:
            change: From a tensor to the one in its place.
            rows: Number of rows afterwards.

        Returns:
            The new batch.
        """
        return self._changed(change, torch.clone, rows)

    def __getitem__(self, rows: slice) -> Batch:
        return self._changed(lambda t: t[rows], lambda t: t, len(range(*rows.indices(self.rows))))

    def check_finite(self, first_row: int = 0) -> None:
        """Refuse inputs that contain NaN.

        Args:
            first_row: Number of the first row, for the message.

        Raises:
            InputError: If there are any; names the rows, or the constant.
        """
        for path, value in _leaves(self.args, self.kwargs).items():
            if not _has_nan(value):
                continue
            if path in self.constants or not value.dim():
                raise InputError(f"the constant {_label(path)} contains NaN; replace those entries")
            rows = value.reshape(len(value), -1).isnan().any(dim=1).nonzero().flatten() + first_row
            raise InputError(f"inputs contain NaN in rows {abbreviate(rows.tolist())}; remove or impute those rows")

    def _changed(self, change: Callable[[Tensor], Tensor], keep: Callable[[Tensor], Tensor], rows: int) -> Batch:
        """The batch with ``change`` applied to tensors with rows and ``keep`` to the others."""

        def each(path: Path, value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return keep(value) if path in self.constants or not value.dim() else change(value)

        return Batch(_walk(self.args, each), _walk(self.kwargs, each), rows, self.constants)


def batches_of(
    x: Any, device: torch.device | None, dtype: torch.dtype | None, arity: int | None = None
) -> Iterator[Batch]:
    """The inputs as batches: one for a tensor, array, tuple or dict, several for an iterable of these.

    Args:
        x: The inputs.
        device: Where they go.
        dtype: The type that arrays of floats take.
        arity: How many positional arguments the model takes (see :func:`positional_arguments`). What a loader
            yields beyond that is labels and is left out; by default everything is used.

    Yields:
        The batches, in order.

    Raises:
        InputError: The inputs are of an unknown type, empty, or cannot be cut into rows.
    """
    if isinstance(x, (Tensor, np.ndarray, tuple, Mapping, Constant)) or hasattr(x, "to_numpy"):
        yield Batch.of(x, device, dtype)
        return
    _check_iterable(x)
    empty = True
    for item in x:
        if isinstance(item, (Number, np.number)):
            raise InputError("a list of numbers is ambiguous; give a tensor or array with the rows first")
        empty = False
        yield Batch.of(item[:arity] if arity and _is_sequence(item) else item, device, dtype)
    if empty:
        raise InputError("the iterable of inputs is empty; give at least one batch")


def positional_arguments(model: Any) -> int | None:
    """How many positional arguments a model can take.

    Args:
        model: A module or another callable.

    Returns:
        Their number, or ``None`` if there is no limit or the signature cannot be read.

    Examples:
        >>> positional_arguments(nn.Linear(2, 1)), positional_arguments(lambda *inputs: 0)
        (1, None)
    """
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except (TypeError, ValueError):
        return None
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    return sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)


# --------------------------------------------------------------------------------- reading inputs


class _Reader:
    """Turns the user's inputs into tensors on the model's device, and records where constants are."""

    def __init__(self, device: torch.device | None, dtype: torch.dtype | None) -> None:
        self.device, self.dtype = device, dtype
        self._constants: set[Path] = set()

    @property
    def constants(self) -> frozenset[Path]:
        """Where tensors or objects were marked as constants."""
        return frozenset(self._constants)

    def read(self, x: Any) -> Any:
        """The same nesting, with tensors."""
        return _walk(x, self._input)

    def _input(self, path: Path, value: Any) -> Any:
        if isinstance(value, Constant):
            return _walk(value.value, self._constant, path)
        value = self._tensor(path, value)
        if isinstance(value, Tensor):
            if not _is_dense(value):
                raise InputError(
                    f"{_label(path)} is a sparse or nested tensor ({value.layout}), which cannot be cut into rows; use "
                    ".to_dense() or .to_padded_tensor(0.0), or md.Constant(tensor) if it belongs to all rows"
                )
        elif not isinstance(value, _SCALARS):
            raise _unknown(_label(path), value)
        return value

    def _constant(self, path: Path, value: Any) -> Any:
        self._constants.add(path)
        return self._tensor(path, value)

    def _tensor(self, path: Path, value: Any) -> Any:
        if hasattr(value, "to_numpy"):  # data frames
            value = value.to_numpy()
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(_plain_array(_label(path), value))
            if value.is_floating_point() and self.dtype is not None:
                value = value.to(self.dtype)
        if not isinstance(value, Tensor):
            return value
        value = value.clone() if value.is_inference() else value.detach()  # gradients need an ordinary tensor
        return value if self.device is None else value.to(self.device)


def _plain_array(label: str, value: NDArray[Any]) -> NDArray[Any]:
    """The array as torch can take it: numbers of this machine's byte order, writable."""
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"{label} is a masked array; give its values: use .filled(value) or remove the masked rows")
    if value.dtype.kind not in "fiub":
        raise InputError(f"inputs of dtype {value.dtype} are not numbers ({label}); convert them: use .astype(float)")
    dtype = value.dtype.newbyteorder("=")
    if dtype.kind == "f" and dtype.itemsize > 8:
        dtype = np.dtype(np.float64)
    if dtype in (np.dtype(np.uint16), np.dtype(np.uint32)):  # torch hardly supports them
        dtype = np.dtype(np.int64)
    plain = np.asarray(value, dtype=dtype, order="C")
    return plain if plain.flags.writeable else plain.copy()


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and not isinstance(value, PackedSequence)


def _walk(value: Any, each: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """The same nesting of tuples, lists and dicts with ``each(path, leaf)`` for every leaf."""
    if isinstance(value, Mapping):
        return {key: _walk(part, each, (*path, key)) for key, part in value.items()}
    if not _is_sequence(value):
        return each(path, value)
    parts = [_walk(part, each, (*path, index)) for index, part in enumerate(value)]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Path, Any]:
    """Everything in positional and named arguments, by its path."""
    leaves: dict[Path, Any] = {}
    _walk(args, leaves.__setitem__)
    _walk(kwargs, leaves.__setitem__)
    return leaves


def _is_dense(value: Tensor) -> bool:
    return value.layout == torch.strided and not value.is_nested


def _has_nan(value: Any) -> bool:
    if not isinstance(value, Tensor) or not _is_dense(value):
        return False
    return (value.is_floating_point() or value.is_complex()) and bool(value.isnan().any())


def _label(path: Path) -> str:
    return "x" + "".join(f"[{key!r}]" for key in path)


def _unknown(label: str, value: Any) -> InputError:
    return InputError(
        f"{label} is of type {type(value).__name__}, whose rows are not known; give tensors or arrays with the rows "
        f"first, md.Constant(value) for what belongs to all rows; {_ROW_IDS}"
    )


def _row_count(tensors: Mapping[Path, Tensor]) -> int:
    sizes = {len(value) for value in tensors.values()}
    if not sizes:
        raise InputError("inputs have no rows; give tensors or arrays whose first axis runs over the inputs")
    if len(sizes - {1}) > 1:
        shapes = [f"{_label(path)} {tuple(value.shape)}" for path, value in tensors.items() if len(value) != 1]
        raise InputError(
            f"inputs disagree on the number of rows: {sorted(sizes - {1})} from the shapes {abbreviate(shapes)}; "
            "their first axes must match; wrap a tensor that belongs to all rows: md.Constant(tensor); " + _ROW_IDS
        )
    rows = min(sizes - {1}, default=1)
    if not rows:
        raise InputError("inputs are empty: 0 rows; give at least one")
    return rows


def _check_no_lists_of_rows(value: Any, rows: int, constants: frozenset[Path], path: Path = ()) -> None:
    """Refuse lists with one number or string per row: they would not be cut with the tensors."""
    if path and _is_sequence(value) and len(value) == rows and (*path, 0) not in constants and _all_scalars(value):
        raise InputError(
            f"{_label(path)} is a {type(value).__name__} of {rows} values beside {rows} rows; make it a tensor if it "
            "has one value per row, or md.Constant(values) if it belongs to all rows"
        )
    for key, part in value.items() if isinstance(value, Mapping) else enumerate(value) if _is_sequence(value) else ():
        _check_no_lists_of_rows(part, rows, constants, (*path, key))


def _all_scalars(values: Iterable[Any]) -> bool:
    return all(isinstance(value, (Number, str, bytes, np.generic)) for value in values)


def _check_iterable(x: Any) -> None:
    """Refuse what is not an iterable of batches."""
    if isinstance(x, Dataset):
        raise InputError(
            f"a {type(x).__name__} is a dataset of single samples; give batches: use "
            "DataLoader(dataset, batch_size=256), or iter(dataset) if it yields batches already"
        )
    if hasattr(x, "keys"):  # but not a mapping: for example a graph of torch_geometric
        raise _unknown("x", x)
    if not isinstance(x, Iterable) or isinstance(x, (str, bytes)):
        raise InputError(
            f"inputs of type {type(x).__name__} are not understood; "
            "give a tensor, an array, a tuple or dict of them, or an iterable of batches"
        )


def even_parts(rows: int, max_rows: int) -> Iterator[tuple[int, int]]:
    """Cut rows into parts of nearly equal size, none of a single row if that can be avoided.

    Some models squeeze the outputs of a single row.

    Args:
        rows: Number of rows.
        max_rows: Largest size of a part; exceeded only where a part would have a single row.

    Yields:
        First row and end of each part.

    Examples:
        >>> list(even_parts(10, 4)), list(even_parts(3, 1))
        ([(0, 3), (3, 6), (6, 10)], [(0, 3)])
    """
    count = min(-(-rows // max_rows), max(1, rows // 2))
    edges = [part * rows // count for part in range(count + 1)]
    yield from itertools.pairwise(edges)


def abbreviate(items: list[Any], max_items: int = 8) -> str:
    """List the first few items, for a message.

    Args:
        items: The items.
        max_items: How many to show; 8 by default.

    Returns:
        The items separated by commas, with their number if some are left out.

    Examples:
        >>> abbreviate([1, 2, 3], max_items=2)
        '1, 2, … (3 in all)'
    """
    shown = ", ".join(map(str, items[:max_items]))
    return shown if len(items) <= max_items else f"{shown}, … ({len(items)} in all)"
