"""Estimates of some rows each, as those of all rows: inputs may have had different numbers of passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlmc_dropout.methods.base import Estimates, LevelEstimate, Rows

__all__ = ["join_estimates"]

_DIFFERENT = "Inputs ended on different ladders, so there is no common table of levels."


def join_estimates(parts: Sequence[tuple[Rows, Estimates]]) -> Estimates:
    """Estimates of all rows of a batch.

    Arrays are put together row by row. Costs and counts are averages over rows, notes are those of all parts.

    Args:
        parts: Places of some rows, and their estimates; every row is in one part.

    Returns:
        The joint estimates; those of a single part as they are.
    """
    if len(parts) == 1:
        return parts[0][1]
    order = np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable")
    shares = np.array([len(rows) for rows, _ in parts]) / len(order)
    found = [estimates for _, estimates in parts]
    levels, remark = _levels([each.levels for each in found], order, shares)
    values = {
        field.name: _joined([getattr(each, field.name) for each in found], order, shares)
        for field in dataclasses.fields(Estimates)
        if field.name not in ("levels", "notes")
    }
    notes = dict.fromkeys(note for note in (*(note for each in found for note in each.notes), remark) if note)
    return Estimates(**values, levels=levels, notes=tuple(notes))


def _joined(values: Sequence[Any], order: Rows, shares: np.ndarray[Any, Any]) -> Any:
    """The value of a field for all rows: arrays put together, numbers averaged."""
    first = values[0]
    if any(value is None for value in values):
        return None
    if isinstance(first, np.ndarray):
        return np.concatenate(values)[order]
    if isinstance(first, (int, float)):
        return first if all(value == first for value in values) else float(np.dot(shares, values))
    if isinstance(first, Mapping):
        return {name: _joined([value[name] for value in values], order, shares) for name in first}
    if isinstance(first, tuple):
        return tuple(_joined(group, order, shares) for group in zip(*values, strict=True))
    if dataclasses.is_dataclass(first):
        fields = dataclasses.fields(first)
        kind: Any = type(first)
        return kind(*(_joined([getattr(value, f.name) for value in values], order, shares) for f in fields))
    return first


def _levels(
    parts: Sequence[tuple[LevelEstimate, ...]], order: Rows, shares: np.ndarray[Any, Any]
) -> tuple[tuple[LevelEstimate, ...], str]:
    """The levels of all rows; none where rows ended on different ladders."""
    if len({tuple((level.label, level.fidelity) for level in levels) for levels in parts}) > 1:
        return (), _DIFFERENT
    return tuple(_level(group, order, shares) for group in zip(*parts, strict=True)), ""


def _level(group: Sequence[LevelEstimate], order: Rows, shares: np.ndarray[Any, Any]) -> LevelEstimate:
    joined = {
        field.name: _joined([getattr(level, field.name) for level in group], order, shares)
        for field in dataclasses.fields(LevelEstimate)
    }
    checks = [level.telescoping for level in group if level.telescoping is not None]
    joined |= {"count": round(joined["count"]), "telescoping": max(checks, default=None)}
    return LevelEstimate(**joined)
