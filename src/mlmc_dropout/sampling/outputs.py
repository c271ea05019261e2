"""The outputs of a pass as one matrix, whatever structure the model returns them in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.errors import InputError, ModelError
from mlmc_dropout.sampling.inputs import abbreviate

__all__ = ["Structure", "Transform", "as_transform", "composed", "non_finite_message"]

Transform = Callable[[Any], Any] | Literal["softmax", "sigmoid"]


def as_transform(transform: Transform | None) -> Callable[[Any], Any] | None:
    """The function that is applied to the output of each pass.

    Args:
        transform: A function, ``"softmax"`` (over the last axis), ``"sigmoid"``, or ``None``.

    Returns:
        The function, or ``None``.

    Raises:
        InputError: If it is something else.

    Examples:
        >>> as_transform("softmax")(torch.zeros(1, 4))
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    if isinstance(transform, str):
        if transform not in _TRANSFORMS:
            raise InputError(f"unknown transform {transform!r}; use {' or '.join(_TRANSFORMS)}, or give a function")
        return _TRANSFORMS[transform]
    if isinstance(transform, type):
        raise InputError(
            f"transform is the class {transform.__name__}; give an instance, as in torch.nn.Softmax(dim=-1)"
        )
    if transform is not None and not callable(transform):
        raise InputError(f"transform is a function of the model's output, or softmax or sigmoid: got {transform!r}")
    return transform


def composed(first: Callable[[Any], Any] | None, then: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """One function after the other.

    Args:
        first: Applied first; ``None`` changes nothing.
        then: Applied to what it returns; ``None`` changes nothing.

    Returns:
        The function, or ``None``.
    """
    if first is None or then is None:
        return first or then
    return _Composed(first, then)


@dataclass(frozen=True, slots=True)
class _Composed:
    """A function that worker processes can be sent, if its parts can."""

    first: Callable[[Any], Any]
    then: Callable[[Any], Any]

    def __call__(self, output: Any) -> Any:
        return self.then(self.first(output))


def _softmax(output: Tensor) -> Tensor:  # named functions: worker processes look them up
    return torch.softmax(output, dim=-1)


_TRANSFORMS: dict[str, Callable[[Any], Any]] = {"softmax": _softmax, "sigmoid": torch.sigmoid}


@dataclass(frozen=True, slots=True)
class Structure:
    """The shape of a model's output: a tensor, or a tuple or dict of structures.

    Outputs are handled as one matrix of shape (rows, width), all leaves side by side. Inside tuples, mappings and
    dataclasses, what has no rows is left out: None, numbers, strings, 0-dim tensors such as losses, caches.

    Attributes:
        kind: ``"tensor"``, ``"tuple"`` or ``"dict"``.
        shape: Of a tensor, without the rows.
        keys: Of the parts. Empty for a tuple of which nothing was left out.
        parts: The structures inside a tuple or dict.
    """

    kind: str
    shape: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()
    parts: tuple[Structure, ...] = ()

    @classmethod
    def of(cls, output: Any, rows: int, name: str = "") -> Structure:
        """The structure of an output.

        Args:
            output: A tensor, or a tuple, list, mapping or dataclass with tensors inside.
            rows: The length that the first axis of its tensors must have.
            name: Where the output was found, for messages.

        Returns:
            The structure.

        Raises:
            ModelError: A tensor without the rows first, complex numbers, or no tensor at all.
        """
        if isinstance(output, Tensor):
            _check_output(output, rows, name)
            return cls("tensor", tuple(output.shape[1:]))
        items = _items(output)
        if items is None:
            raise ModelError(
                f"an output of type {type(output).__name__} is not a tensor{_at(name)}; let the model return tensors, "
                "or use transform= to select one"
            )
        kept = [(key, cls.of(value, rows, _joint(name, key))) for key, value in items.items() if _has_rows(value)]
        if not kept:
            raise ModelError(
                f"an output of type {type(output).__name__} holds no tensor with rows{_at(name)}: it has "
                f"{abbreviate([*items]) or 'nothing'}; use transform= to return a tensor"
            )
        keys, parts = zip(*kept, strict=True)
        if not isinstance(output, (tuple, list)):
            return cls("dict", (), keys, parts)
        return cls("tuple", (), () if keys == _numbers(len(output)) else keys, parts)

    @staticmethod
    def skipped(output: Any, name: str = "") -> tuple[str, ...]:
        """What :meth:`of` leaves out, for a note to the user; ``None`` and empty containers are not listed.

        Args:
            output: What the model returned.
            name: Where it was found, for messages.

        Returns:
            Names, as in :meth:`names`.

        Examples:
            >>> Structure.skipped({"loss": torch.tensor(0.5), "logits": torch.zeros(3, 2), "cache": None})
            ('loss',)
        """
        items = None if isinstance(output, Tensor) else _items(output)
        if items is None:
            return () if _has_rows(output) or output is None else (name,)
        if not _has_rows(output):
            return (name,) if any(Structure.skipped(value, "_") for value in items.values()) else ()
        return tuple(label for key, value in items.items() for label in Structure.skipped(value, _joint(name, key)))

    @property
    def width(self) -> int:
        """Number of components per row."""
        return int(np.prod(self.shape)) if self.kind == "tensor" else sum(part.width for part in self.parts)

    @property
    def _labels(self) -> tuple[str, ...]:
        return self.keys or _numbers(len(self.parts))

    def leaves(self, output: Any) -> list[Tensor]:
        """The tensors of an output, in the order of :meth:`flatten`.

        Args:
            output: An output of this structure.

        Returns:
            The tensors, each with the rows first.

        Raises:
            ModelError: If ``output`` lacks a part that the structure has.
        """
        if self.kind == "tensor":
            return [output if output.layout == torch.strided else output.to_dense()]
        items = _items(output) or {}
        if missing := [label for label in self._labels if label not in items]:
            raise ModelError(
                f"the output lacks {abbreviate(missing)}, which earlier passes had; use transform= to return the same "
                "always"
            )
        return [
            leaf for label, part in zip(self._labels, self.parts, strict=True) for leaf in part.leaves(items[label])
        ]

    def flatten(self, output: Any) -> Tensor:
        """Flatten an output to one matrix.

        Args:
            output: An output of this structure.

        Returns:
            The matrix (rows, width); booleans become 0 and 1, and leaves of different types take a common type.
        """
        flat = [_number(leaf).reshape(len(leaf), -1) for leaf in self.leaves(output)]
        return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)

    def unflatten(self, matrix: NDArray[Any]) -> Any:
        """The inverse of :meth:`flatten`.

        Args:
            matrix: An array (..., rows, width).

        Returns:
            An array, or a tuple or dict of arrays, each (..., rows, *shape).
        """
        if self.kind == "tensor":
            return matrix.reshape(*matrix.shape[:-1], *self.shape)
        ends = np.cumsum([0, *(part.width for part in self.parts)])
        values = [part.unflatten(matrix[..., a:b]) for part, a, b in zip(self.parts, ends[:-1], ends[1:], strict=True)]
        return dict(zip(self.keys, values, strict=True)) if self.kind == "dict" else tuple(values)

    def names(self, prefix: str = "") -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the leaves.

        Args:
            prefix: Put before every name, with a dot.

        Returns:
            Pairs of name and shape: ``("", (3,))`` for a tensor, ``("u", (1,))`` inside a dict.
        """
        if self.kind == "tensor":
            return [(prefix, self.shape)]
        pairs = zip(self._labels, self.parts, strict=True)
        return [leaf for label, part in pairs for leaf in part.names(_joint(prefix, label))]

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
        """Rebuild a structure.

        Args:
            data: What :meth:`to_json` returned.

        Returns:
            The structure.
        """
        parts = tuple(map(cls.from_json, data["parts"]))
        return cls(data["kind"], tuple(data["shape"]), tuple(data["keys"]), parts)


def non_finite_message(
    values: NDArray[Any], first_row: int | NDArray[np.int64] = 0, structure: Structure | None = None
) -> str:
    """The message about outputs that are not finite.

    Args:
        values: Outputs (passes, rows, width), some of them NaN or infinite.
        first_row: Number of the first row, 0 by default; or the numbers of all rows.
        structure: Structure of the output, to name its components; they are numbered without it.

    Returns:
        Rows, components and a remedy.

    Examples:
        >>> non_finite_message(np.array([[[0.0, -np.inf]]]))
        'passes gave infinite outputs (-inf) for input rows 0 in output components 1; ...'
    """
    bad = ~np.isfinite(values)
    places = np.flatnonzero(bad.any(axis=(0, 2)))
    rows = abbreviate((first_row[places] if isinstance(first_row, np.ndarray) else places + first_row).tolist())
    columns = np.flatnonzero(bad.any(axis=(0, 1)))
    where = abbreviate([_component(structure, int(column)) for column in columns])
    if np.isnan(values).any():
        return (
            f"passes gave NaN or infinite outputs for input rows {rows} in output components {where}; "
            "remove those rows, or check the model on them"
        )
    signs = " and ".join(f"{value:g}" for value in np.unique(values[bad]))
    return (
        f"passes gave infinite outputs ({signs}) for input rows {rows} in output components {where}; their moments do "
        "not exist: use transform= with a softmax or a clamp, e.g. transform=lambda out: out.clamp(min=-1e4, max=1e4)"
    )


def _component(structure: Structure | None, column: int) -> str:
    """The name of a column of the output matrix: ``logits[2]``."""
    for name, shape in [] if structure is None else structure.names():
        width = int(np.prod(shape))
        if column < width:
            index = ", ".join(str(int(i)) for i in np.unravel_index(column, shape)) if shape else ""
            return f"{name or 'output'}[{index}]" if shape else name or "output"
        column -= width
    return str(column)


def _items(output: Any) -> dict[str, Any] | None:
    """The parts of a container by name, ``None`` for anything else."""
    if isinstance(output, Mapping):
        return {str(key): value for key, value in output.items()}
    if isinstance(output, (tuple, list)):
        return dict(zip(getattr(output, "_fields", _numbers(len(output))), output, strict=True))
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    return None


def _has_rows(value: Any) -> bool:
    """Whether there is something in an output that could have rows."""
    if isinstance(value, Tensor):
        return value.is_nested or (value.dim() > 0 and value.shape[1:].numel() > 0)
    items = _items(value)
    return isinstance(value, np.ndarray) if items is None else any(map(_has_rows, items.values()))


def _check_output(output: Tensor, rows: int, name: str) -> None:
    if output.is_meta:
        raise ModelError(f"an output is a meta tensor, which has no values{_at(name)}; load the model's weights first")
    if output.is_complex():
        raise ModelError(f"complex outputs are not supported{_at(name)}; return real and imaginary parts as a tuple")
    if output.is_nested:
        raise ModelError(f"nested output tensors are not supported{_at(name)}; use transform= with .to_padded_tensor()")
    if output.dim() and not output.shape[1:].numel():
        raise ModelError(f"an output of shape {tuple(output.shape)} has no components{_at(name)}; check transform=")
    if not output.dim() or len(output) != rows:
        single = "; rows are the first axis of x: use x[None] for one input, torch.stack(x) for a list of inputs"
        raise ModelError(
            f"an output of shape {tuple(output.shape)} does not have the {rows} input rows first{_at(name)}; "
            f"use transform= to select or rearrange the outputs{single if output.dim() == 1 else ''}"
        )


def _number(leaf: Tensor) -> Tensor:
    return leaf.float() if leaf.dtype == torch.bool else leaf


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _joint(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def _at(name: str) -> str:
    return f" (at {name!r})" if name else ""
