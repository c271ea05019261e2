"""The inputs of a model, cut into rows and batches."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, default_collate

from mlmc_dropout.errors import InputError, ModelWarning, level_of_caller
from mlmc_dropout.sampling.reading import (
    ROW_IDS,
    Constant,
    Path,
    Reader,
    all_scalars,
    is_array,
    is_sequence,
    label,
    nested_numbers,
    unknown,
    walk,
)
from mlmc_dropout.sampling.signature import Signature

__all__ = ["Batch", "Constant", "abbreviate", "batches_of", "check_iterable", "even_parts", "samples_together"]

SAMPLES_AT_ONCE = 256  # of a dataset, which yields them one by one


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
            x: A tensor, array, data frame or list of lists, a tuple of positional inputs, or a dict of named ones.
            device: Where tensors and arrays go; they stay where they are by default.
            dtype: The type that arrays of floats take; tensors keep theirs.

        Returns:
            The batch.

        Raises:
            InputError: If there are no rows, their numbers differ, or an input cannot be cut into rows.
        """
        reader = Reader(device, dtype)
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        numbers = nested_numbers(x)
        if isinstance(x, Mapping):
            kwargs = reader.read(_lists_as_arrays({str(name): value for name, value in x.items()}))
        elif numbers is not None:
            args = (reader.read(numbers),)
        elif is_sequence(x) or isinstance(x, Constant):
            args = reader.read((x,) if isinstance(x, Constant) else tuple(x))
        else:
            args = (reader.read(x),)
        tensors = {
            path: value
            for path, value in _leaves(args, kwargs).items()
            if isinstance(value, Tensor) and value.dim() and path not in reader.constants
        }
        if not tensors and any(isinstance(value, (str, bytes)) for value in _leaves(args, kwargs).values()):
            raise InputError("inputs are text, and a model takes numbers; encode them, as a tokenizer does")
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
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that have rows."""
        leaves = _leaves(self.args, self.kwargs).items()
        return tuple(v for path, v in leaves if isinstance(v, Tensor) and v.dim() and path not in self.constants)

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

    def cast(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Convert every tensor that has rows; constants stay as they are.

        Args:
            change: From a tensor to one of the same shape.

        Returns:
            The new batch.
        """
        return self._changed(change, lambda t: t, self.rows)

    def __getitem__(self, rows: slice) -> Batch:
        return self._changed(lambda t: t[rows], lambda t: t, len(range(*rows.indices(self.rows))))

    def take(self, rows: Tensor) -> Batch:
        """Some of the rows.

        Args:
            rows: Places of the rows, int64.

        Returns:
            A batch of copies of these rows; constants stay as they are.
        """
        return self._changed(lambda t: t[rows.to(t.device)], lambda t: t, len(rows))

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """Batches one after the other.

        Args:
            batches: Batches of one kind, at least one; constants are taken from the first.

        Returns:
            The joint batch.
        """
        rows = iter([torch.cat(tensors) for tensors in zip(*(batch.tensors for batch in batches), strict=True)])
        return batches[0]._changed(lambda t: next(rows), lambda t: t, sum(batch.rows for batch in batches))

    def describe(self) -> str:
        """Rows, types and shapes, for a message.

        Examples:
            >>> Batch.of(torch.zeros(5, 3)).describe()
            '5 rows: x[0] float32 (5, 3)'
        """
        named = [
            f"{label(path)} {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
            for path, value in _leaves(self.args, self.kwargs).items()
            if isinstance(value, Tensor)
        ]
        return f"{self.rows} row{'s' * (self.rows != 1)}: {abbreviate(named)}"

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
                raise InputError(f"the constant {label(path)} contains NaN; replace those entries")
            rows = value.reshape(len(value), -1).isnan().any(dim=1).nonzero().flatten() + first_row
            where = f"rows {abbreviate(rows.tolist())}" if len(rows) > 1 else f"row {int(rows[0])}"
            raise InputError(f"inputs contain NaN in {where}; remove or impute what is missing")

    def _changed(self, change: Callable[[Tensor], Tensor], keep: Callable[[Tensor], Tensor], rows: int) -> Batch:
        """The batch with ``change`` applied to tensors with rows and ``keep`` to the others."""

        def each(path: Path, value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return keep(value) if path in self.constants or not value.dim() else change(value)

        return Batch(walk(self.args, each), walk(self.kwargs, each), rows, self.constants)


def batches_of(
    x: Any, device: torch.device | None, dtype: torch.dtype | None, signature: Signature | None = None
) -> Iterator[Batch]:
    """The inputs as batches: one for a tensor, array, tuple or dict, several for an iterable of these.

    Args:
        x: The inputs.
        device: Where they go.
        dtype: The type that arrays of floats take.
        signature: What the model takes. Labels that a loader or a dataset yields beyond that are left out, and inputs
            that do not fit are refused; by default everything is used.

    Yields:
        The batches, in order.

    Raises:
        InputError: The inputs are of an unknown type, empty, cannot be cut into rows, or are not what the model takes.
    """
    signature = signature or Signature()
    numbers = nested_numbers(x)
    if numbers is not None or is_array(x) or isinstance(x, (tuple, Mapping, Constant)):
        yield _read(x if numbers is None else numbers, device, dtype, signature)
        return
    empty = True
    for item in _items(x):
        if isinstance(item, (Number, np.number)):
            raise InputError(
                "a list of numbers is ambiguous; give a tensor or array with the rows first: torch.tensor(x)[:, None] "
                "for inputs of one number each, torch.tensor(x)[None] for a single input"
            )
        empty = False
        yield _read(signature.without_labels(item), device, dtype, signature)
    if empty:
        raise InputError("the iterable of inputs is empty; give at least one batch")


def _read(x: Any, device: torch.device | None, dtype: torch.dtype | None, signature: Signature) -> Batch:
    batch = Batch.of(x, device, dtype)
    signature.check(batch.args, batch.kwargs)
    return batch


def samples_together(samples: Dataset[Any]) -> DataLoader[Any]:
    """Batches of a data set of samples, in order.

    Args:
        samples: The data set.

    Returns:
        The batches.

    Raises:
        InputError: If there are no samples.
    """
    if not len(samples):  # type: ignore[arg-type]
        raise InputError(f"the {type(samples).__name__} is empty: 0 samples; give at least one")
    return DataLoader(samples, batch_size=SAMPLES_AT_ONCE, collate_fn=_collated)


def _collated(samples: list[Any]) -> Any:
    try:
        return default_collate(samples)
    except TypeError as error:
        raise InputError(
            f"the samples of this data set cannot be put together ({str(error).splitlines()[0][:160]}); let it yield "
            "tensors, or give a DataLoader with a collate_fn"
        ) from error


def _items(x: Any) -> Iterator[Any]:
    """What an iterable of batches, or a dataset of samples, yields."""
    check_iterable(x)
    if isinstance(x, DataLoader):
        _warn_of_order(x)
    if not isinstance(x, Dataset) or isinstance(x, IterableDataset):
        yield from x
        return
    yield from samples_together(x)


def _warn_of_order(loader: DataLoader[Any]) -> None:
    """A loader that shuffles gives results in an order that nobody knows afterwards."""
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    if any(isinstance(sampler, RandomSampler) for sampler in samplers):
        warnings.warn(
            "the DataLoader shuffles: results are in the order in which it yields rows, another one each time; use "
            "shuffle=False to know which row is which",
            ModelWarning,
            stacklevel=level_of_caller(),
        )
    if loader.drop_last:
        warnings.warn(
            "the DataLoader has drop_last=True: rows of an incomplete last batch get no result; use drop_last=False",
            ModelWarning,
            stacklevel=level_of_caller(),
        )


# --------------------------------------------------------------------------------- reading inputs


def _lists_as_arrays(named: dict[str, Any]) -> dict[str, Any]:
    """Lists of numbers as arrays, if there is nothing else that has rows: a tokenizer's output, for example."""
    leaves: dict[Path, Any] = {}
    walk(named, leaves.__setitem__)
    if not leaves or not all(isinstance(leaf, Number) for leaf in leaves.values()):
        return named
    arrays = {name: nested_numbers(value, f"x[{name!r}]") for name, value in named.items()}
    flat = {name: np.array(v) for name, v in named.items() if is_sequence(v) and v and all_scalars(v)}
    return {name: flat.get(name, value if arrays[name] is None else arrays[name]) for name, value in named.items()}


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Path, Any]:
    """Everything in positional and named arguments, by its path."""
    leaves: dict[Path, Any] = {}
    walk(args, leaves.__setitem__)
    walk(kwargs, leaves.__setitem__)
    return leaves


def _is_dense(value: Tensor) -> bool:
    return value.layout == torch.strided and not value.is_nested


def _has_nan(value: Any) -> bool:
    if not isinstance(value, Tensor) or not _is_dense(value):
        return False
    return (value.is_floating_point() or value.is_complex()) and bool(value.isnan().any())


def _row_count(tensors: Mapping[Path, Tensor]) -> int:
    sizes = {len(value) for value in tensors.values()}
    if not sizes:
        raise InputError("inputs have no rows; give tensors or arrays whose first axis runs over the inputs")
    if len(sizes - {1}) > 1:
        shapes = [f"{label(path)} {tuple(value.shape)}" for path, value in tensors.items() if len(value) != 1]
        raise InputError(
            f"inputs disagree on the number of rows: {sorted(sizes - {1})} from the shapes {abbreviate(shapes)}; "
            "their first axes must match; wrap a tensor that belongs to all rows: md.Constant(tensor); " + ROW_IDS
        )
    rows = min(sizes - {1}, default=1)
    if not rows:
        raise InputError("inputs are empty: 0 rows; give at least one")
    if not any(value.numel() for value in tensors.values()):
        shapes = [f"{label(path)} {tuple(value.shape)}" for path, value in tensors.items()]
        raise InputError(f"inputs have rows but no values in them: {abbreviate(shapes)}; give at least one column")
    return rows


def _check_no_lists_of_rows(value: Any, rows: int, constants: frozenset[Path], path: Path = ()) -> None:
    """Refuse lists with one number or string per row: they would not be cut with the tensors."""
    if path and is_sequence(value) and len(value) == rows and (*path, 0) not in constants and all_scalars(value):
        raise InputError(
            f"{label(path)} is a {type(value).__name__} of {rows} values beside {rows} rows; make it a tensor if it "
            "has one value per row, or md.Constant(values) if it belongs to all rows"
        )
    for key, part in value.items() if isinstance(value, Mapping) else enumerate(value) if is_sequence(value) else ():
        _check_no_lists_of_rows(part, rows, constants, (*path, key))


def check_iterable(x: Any) -> None:
    """Refuse what is not an iterable of batches.

    Args:
        x: What was given as inputs.

    Raises:
        InputError: If it is something else.
    """
    if isinstance(x, IterableDataset):
        raise InputError(
            f"a {type(x).__name__} may yield samples or batches; give DataLoader(dataset, batch_size=256) if it yields "
            "samples, iter(dataset) if it yields batches"
        )
    if hasattr(x, "keys"):  # but not a mapping: for example a graph of torch_geometric
        raise unknown("x", x)
    is_dataset = isinstance(x, Dataset) and hasattr(x, "__len__")
    if not (is_dataset or isinstance(x, Iterable)) or isinstance(x, (str, bytes)):
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
