"""Carried states: frozen values made of blocks, which merge, lie side by side and can be saved.

A state is a frozen dataclass whose fields are blocks of moments or of groups, further such dataclasses, tuples of them,
or ``None`` for what has no samples yet. All that is done with states is defined here, once, field by field.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.moments import MomentBlock

__all__ = [
    "Block",
    "all_blocks",
    "from_blocks",
    "merge_next",
    "merge_states",
    "select_rows",
    "states_beside",
    "to_blocks",
]

S = TypeVar("S")

Block = MomentBlock | GroupBlock
_BLOCKS = (MomentBlock, GroupBlock)
_LARGE = 1 << 16  # components from which the memory of a state counts


def merge_states(a: S | None, b: S | None) -> S:
    """The state of both sets of samples.

    Args:
        a: A state; ``None`` has no samples.
        b: A state of the same type. The order fixes the last bits of the result.

    Returns:
        The merged state.
    """
    if a is None or b is None:
        return a if b is None else b  # type: ignore[return-value]
    if isinstance(a, _BLOCKS):
        return a.merge(b)  # type: ignore[arg-type, return-value]
    if isinstance(a, tuple):
        return tuple(merge_states(x, y) for x, y in zip_longest(a, b))  # type: ignore[return-value, call-overload]
    values = ((getattr(a, name), getattr(b, name)) for name in _names(a))
    return type(a)(*(merge_states(x, y) for x, y in values))


def merge_next(state: S | None, waiting: list[S]) -> S:
    """Merge the first of some waiting states and give it up, block by block where there are very many components.

    Beside two states, only a block is then held, and not a third state.

    Args:
        state: A state; ``None`` has no samples.
        waiting: States of the same type; the first is removed.

    Returns:
        The same as :func:`merge_states`.
    """
    if state is None or _components(state) < _LARGE:
        return merge_states(state, waiting.pop(0))
    mine, theirs = to_blocks(state), to_blocks(waiting.pop(0))
    names = dict.fromkeys([*mine, *theirs])
    merged: dict[str, Any] = {name: merge_states(mine.get(name), theirs.pop(name, None)) for name in names}
    return from_blocks(type(state), merged)


def _names(state: Any) -> tuple[str, ...]:
    """Names of the fields of a state."""
    kind: Any = type(state)
    return tuple(_field_types(kind))


def _components(state: Any) -> int:
    """Components of the first block of a state."""
    if isinstance(state, MomentBlock):
        return int(state.mean.size)
    if isinstance(state, GroupBlock):
        return int(state.means.size)
    parts = state if isinstance(state, tuple) else (getattr(state, name) for name in _names(state))
    return next((_components(part) for part in parts if part is not None), 0)


def states_beside(states: Iterable[S], rows: int) -> S:
    """States of the same samples of different rows, as one of all rows.

    Each is copied to its place and given up before the next is made: many small arrays would leave memory in pieces
    that are too small for the large ones.

    Args:
        states: States of one type with equally many samples, rows in order.
        rows: Rows of all of them together.

    Returns:
        The state of all rows.
    """
    whole: dict[str, Block] = {}
    kind, start = None, 0
    for state in states:
        blocks = to_blocks(state)
        size = next(iter(blocks.values())).rows
        if size == rows:
            return state
        if kind is None:
            kind, whole = type(state), {name: block.room_for(rows) for name, block in blocks.items()}
        for name, block in blocks.items():
            block.copy_to(whole[name], slice(start, start + size))  # type: ignore[arg-type]
        start += size
    assert kind is not None and start == rows
    return from_blocks(kind, whole)


def select_rows(state: S, rows: NDArray[np.integer[Any]]) -> S:
    """The state of the same samples of some rows.

    Args:
        state: A state, or ``None``.
        rows: Places of the rows.

    Returns:
        Their state.
    """
    if state is None:
        return state
    if hasattr(state, "select"):  # a block, of whatever kind
        return state.select(rows)  # type: ignore[no-any-return]
    if isinstance(state, tuple):
        return tuple(select_rows(value, rows) for value in state)  # type: ignore[return-value]
    values = (getattr(state, name) for name in _names(state))
    return type(state)(*(select_rows(value, rows) for value in values))


def to_blocks(state: Any, prefix: str = "") -> dict[str, Block]:
    """All blocks of a state by the path of their fields, such as ``even.own.v``.

    Args:
        state: A state, or ``None``.
        prefix: The path that leads to it.

    Returns:
        The blocks; what has no samples is left out.
    """
    if state is None:
        return {}
    if isinstance(state, _BLOCKS):
        return {prefix: state}
    if isinstance(state, tuple):
        parts: Iterable[tuple[str, Any]] = ((str(i), value) for i, value in enumerate(state))
    else:
        parts = ((name, getattr(state, name)) for name in _names(state))
    blocks: dict[str, Block] = {}
    for name, value in parts:
        blocks |= to_blocks(value, f"{prefix}.{name}" if prefix else name)
    return blocks


def all_blocks(state: Any) -> list[Block]:
    """All blocks of a state.

    Args:
        state: A state, or ``None``.

    Returns:
        Its blocks in the order of its fields.
    """
    return list(to_blocks(state).values())


def from_blocks(kind: type[S], blocks: Mapping[str, Block]) -> S:
    """The inverse of :func:`to_blocks`.

    Args:
        kind: The type of the state.
        blocks: Its blocks by path.

    Returns:
        The state.

    Raises:
        KeyError: If a block is missing that such a state always has.
    """
    state = _read(kind, blocks, "")
    if state is None:
        raise KeyError(f"no blocks of a {kind.__name__}")
    return state  # type: ignore[no-any-return]


def _read(kind: Any, blocks: Mapping[str, Block], prefix: str) -> Any:
    """The value of a field, by its type; ``None`` if it has no blocks."""
    if kind in _BLOCKS:
        return blocks.get(prefix)
    if not any(name == prefix or name.startswith(f"{prefix}." if prefix else "") for name in blocks):
        return None
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (kind,) = (option for option in typing.get_args(kind) if option is not type(None))
        return _read(kind, blocks, prefix)
    if typing.get_origin(kind) is tuple:
        depth = len(prefix.split(".")) if prefix else 0
        size = 1 + max(int(name.split(".")[depth]) for name in blocks if name.startswith(f"{prefix}."))
        return tuple(_read(typing.get_args(kind)[0], blocks, f"{prefix}.{i}") for i in range(size))
    values = {n: _read(k, blocks, f"{prefix}.{n}" if prefix else n) for n, k in _field_types(kind).items()}
    missing = [n for n, k in _field_types(kind).items() if values[n] is None and not _optional(k)]
    if missing:
        raise KeyError(f"blocks of {missing} are missing in {prefix or kind.__name__}")
    return kind(**values)


@functools.cache
def _field_types(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _optional(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)
