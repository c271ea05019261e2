"""What goes in and what comes out: inputs as rows, outputs as one matrix per pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.errors import InputError, ModelError

__all__ = ["Batch", "Structure", "batches_of", "even_parts", "some"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Arguments of one call of the model; every tensor in them has the rows first."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: int

    @classmethod
    def of(cls, x: Any, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Batch:
        """``x``: a tensor or array, a tuple of positional inputs, or a dict of named ones.

        Arrays of floats take the model's ``dtype``; tensors keep theirs.
        """
        if isinstance(x, Mapping):
            args, kwargs = (), {str(name): _tensor(value, device, dtype) for name, value in x.items()}
        else:
            args = tuple(_tensor(value, device, dtype) for value in (x if isinstance(x, (tuple, list)) else (x,)))
            kwargs = {}
        return cls(args, kwargs, _row_count([*args, *kwargs.values()]))

    @property
    def values(self) -> tuple[Any, ...]:
        """All arguments."""
        return *self.args, *self.kwargs.values()

    @property
    def device(self) -> torch.device:
        """Where the inputs are."""
        return next(v.device for v in self.values if isinstance(v, Tensor) and v.dim())

    def map(self, change: Callable[[Tensor], Tensor], rows: int) -> Batch:
        """The batch with every tensor that has rows changed."""

        def each(value: Any) -> Any:
            return change(value) if isinstance(value, Tensor) and value.dim() else value

        return Batch(tuple(map(each, self.args)), {k: each(v) for k, v in self.kwargs.items()}, rows)

    def __getitem__(self, rows: slice) -> Batch:
        return self.map(lambda t: t[rows], len(range(*rows.indices(self.rows))))

    def check_finite(self, first_row: int = 0) -> None:
        """Refuse NaN, naming the rows."""
        for value in self.values:
            if isinstance(value, Tensor) and value.is_floating_point() and value.isnan().any():
                rows = value.reshape(len(value), -1).isnan().any(dim=1).nonzero().flatten() + first_row
                raise InputError(f"inputs contain NaN in rows {some(rows.tolist())}; remove or impute those rows")


def batches_of(x: Any, device: torch.device | None, dtype: torch.dtype | None) -> Iterator[Batch]:
    """The inputs as batches: one for a tensor, array, tuple or dict, several for an iterable of these."""
    if isinstance(x, (Tensor, np.ndarray, tuple, Mapping)):
        yield Batch.of(x, device, dtype)
        return
    if not isinstance(x, Iterable):
        raise InputError(
            f"inputs of type {type(x).__name__} are not understood; "
            "give a tensor, an array, a tuple or dict of them, or an iterable of batches"
        )
    empty = True
    for item in x:
        if isinstance(item, (int, float)):
            raise InputError("a list of numbers is ambiguous; give a tensor or array with the rows first")
        empty = False
        yield Batch.of(item, device, dtype)
    if empty:
        raise InputError("the iterable of inputs is empty; give at least one batch")


def _tensor(value: Any, device: torch.device | None, dtype: torch.dtype | None) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fiub":
            raise InputError(f"inputs of dtype {value.dtype} are not numbers; convert them first")
        value = torch.from_numpy(np.ascontiguousarray(value))
        if value.is_floating_point() and dtype is not None:
            value = value.to(dtype)
    if isinstance(value, Tensor):
        value = value.clone() if value.is_inference() else value.detach()  # gradients need an ordinary tensor
        return value if device is None else value.to(device)
    return value


def _row_count(values: list[Any]) -> int:
    sizes = {len(v) for v in values if isinstance(v, Tensor) and v.dim()}
    if not sizes:
        raise InputError("inputs have no rows; give tensors or arrays whose first axis runs over the inputs")
    if len(sizes) > 1:
        raise InputError(f"inputs disagree on the number of rows: {sorted(sizes)}; their first axes must match")
    if sizes == {0}:
        raise InputError("inputs are empty: 0 rows; give at least one")
    return sizes.pop()


def even_parts(rows: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut ``rows`` into parts of at most ``most``, of which none is a lone row where that can be: (start, stop).

    Some models squeeze the outputs of a lone row.

    >>> list(even_parts(10, 4)), list(even_parts(3, 1))
    ([(0, 3), (3, 6), (6, 10)], [(0, 3)])
    """
    count = min(-(-rows // most), max(1, rows // 2))
    edges = [part * rows // count for part in range(count + 1)]
    yield from itertools.pairwise(edges)


def some(items: list[Any], most: int = 8) -> str:
    """The first few items, for a message."""
    shown = ", ".join(map(str, items[:most]))
    return shown if len(items) <= most else f"{shown}, … ({len(items)} in all)"


@dataclass(frozen=True, slots=True)
class Structure:
    """The shape of a model's output: a tensor, or a tuple or dict of structures.

    Outputs are handled as one matrix of shape (rows, width), all leaves side by side.
    """

    kind: str  # "tensor", "tuple" or "dict"
    shape: tuple[int, ...] = ()  # of a tensor, without the rows
    keys: tuple[str, ...] = ()
    parts: tuple[Structure, ...] = ()

    @classmethod
    def of(cls, output: Any, rows: int) -> Structure:
        """The structure of ``output``, whose tensors must have ``rows`` rows first."""
        if isinstance(output, Tensor):
            if output.is_complex():
                raise ModelError("complex outputs are not supported; return real and imaginary parts as a tuple")
            if not output.dim() or len(output) != rows:
                raise ModelError(
                    f"an output of shape {tuple(output.shape)} does not have the {rows} input rows first; "
                    "use transform= to select or rearrange the outputs"
                )
            return cls("tensor", tuple(output.shape[1:]))
        if isinstance(output, Mapping):
            return cls("dict", (), tuple(map(str, output)), tuple(cls.of(v, rows) for v in output.values()))
        if isinstance(output, (tuple, list)):
            return cls("tuple", (), (), tuple(cls.of(v, rows) for v in output))
        raise ModelError(f"an output of type {type(output).__name__} is not a tensor; use transform= to select one")

    @property
    def width(self) -> int:
        """Number of components per row."""
        return int(np.prod(self.shape)) if self.kind == "tensor" else sum(part.width for part in self.parts)

    def leaves(self, output: Any) -> list[Tensor]:
        """The tensors of ``output``, in the order of :meth:`flatten`."""
        if self.kind == "tensor":
            return [output]
        values = output.values() if self.kind == "dict" else output
        return [leaf for part, value in zip(self.parts, values, strict=True) for leaf in part.leaves(value)]

    def flatten(self, output: Any) -> Tensor:
        """One matrix (rows, width)."""
        flat = [leaf.reshape(len(leaf), -1) for leaf in self.leaves(output)]
        return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)

    def unflatten(self, matrix: NDArray[Any]) -> Any:
        """The inverse of :meth:`flatten`, for arrays (..., rows, width)."""
        if self.kind == "tensor":
            return matrix.reshape(*matrix.shape[:-1], *self.shape)
        ends = np.cumsum([0, *(part.width for part in self.parts)])
        values = [part.unflatten(matrix[..., a:b]) for part, a, b in zip(self.parts, ends[:-1], ends[1:], strict=True)]
        return dict(zip(self.keys, values, strict=True)) if self.kind == "dict" else tuple(values)

    def names(self, prefix: str = "") -> list[tuple[str, tuple[int, ...]]]:
        """Leaves with their names and shapes: ``("", (3,))`` for a tensor, ``("u", (1,))`` inside a dict."""
        if self.kind == "tensor":
            return [(prefix, self.shape)]
        labels = self.keys or tuple(map(str, range(len(self.parts))))
        joint = f"{prefix}." if prefix else ""
        return [leaf for label, part in zip(labels, self.parts, strict=True) for leaf in part.names(joint + label)]

    def to_json(self) -> dict[str, Any]:
        """Plain data, the inverse of :meth:`from_json`."""
        return {
            "kind": self.kind,
            "shape": list(self.shape),
            "keys": list(self.keys),
            "parts": [p.to_json() for p in self.parts],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Structure:
        """Rebuild from :meth:`to_json`."""
        parts = tuple(map(cls.from_json, data["parts"]))
        return cls(data["kind"], tuple(data["shape"]), tuple(data["keys"]), parts)
