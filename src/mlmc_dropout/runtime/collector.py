"""Batches of inputs, estimated one by one -> one result."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, takewhile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mlmc_dropout.errors import ModelError
from mlmc_dropout.methods.base import Estimates, LevelEstimate, Method
from mlmc_dropout.methods.worth import plain_passes
from mlmc_dropout.quantities.base import QuantityEstimate
from mlmc_dropout.quantities.questions import Observation
from mlmc_dropout.quantities.storage import FIELDS
from mlmc_dropout.result import LevelStats, Result, Status
from mlmc_dropout.result.arrays import LEVEL_ARRAYS
from mlmc_dropout.result.text import rare_passes
from mlmc_dropout.runtime.outcome import Outcome, in_words
from mlmc_dropout.runtime.run import Run
from mlmc_dropout.sampling.outputs import Structure

__all__ = ["ResultCollector", "assemble", "versions"]

_FIELDS = ("mean", "variance", "mean_stderr", "variance_stderr", "S2_mean", "S2_variance")


def versions() -> dict[str, str]:
    """What a result depends on besides its arguments."""
    from mlmc_dropout.version import __version__

    return {
        "mlmc_dropout": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": sys.platform,
    }


class ResultCollector:
    """Runs under way, and the outcomes of those that are finished, which hold on to no inputs."""

    def __init__(self) -> None:
        self.active: list[Run] = []
        self.stopped = False  # by the user
        self._finished: dict[int, Outcome] = {}
        self._base = 0  # number of the first batch
        self._first: tuple[Method, Observation, int, bool] | None = None
        self._remarks: dict[str, None] = {}  # on the model, every one once

    def open(self, run: Run) -> None:
        """A new batch of inputs.

        Args:
            run: The run of the batch.

        Raises:
            ModelError: If its outputs have another structure than those of earlier batches.
        """
        program = run.source.program
        observation = run.source.observation
        if self._first is not None and observation.main != self._first[1].main:
            raise ModelError(
                f"batch {run.index} of the inputs gives outputs {observation.main.names()}, earlier ones gave "
                f"{self._first[1].main.names()}; give batches of one kind, or select outputs with transform="
            )
        if self._first is None:
            self._base = run.index
        self.active.append(run)
        self._remarks.update(dict.fromkeys(program.notes))
        if self._first is None:
            self._first = _facts_of(run)

    def close(self, run: Run) -> None:
        """A batch is finished: keep its outcome, let go of everything else.

        Args:
            run: The run of the batch.
        """
        assert run.outcome is not None
        self.active.remove(run)
        self._finished[run.index] = run.outcome
        if run.index == self._base:  # by now its ladder has grown
            self._first = _facts_of(run)

    def outcomes(self, status: Status) -> list[Outcome]:
        """Of all batches up to the first that has nothing to tell; unfinished ones get ``status``.

        Args:
            status: What is said of unfinished batches.

        Returns:
            Outcomes in the order of the batches.
        """
        known = dict(self._finished)
        for run in self.active:
            if part := run.standing(status):
                known[run.index] = part
        return [known[index] for index in takewhile(known.__contains__, count(self._base))]

    def result(self, status: Status, notes: Sequence[str] = (), **facts: Any) -> Result | None:
        """What there is; ``None`` if there is nothing.

        Args:
            status: What is said of unfinished batches.
            notes: Further remarks.
            **facts: Further metadata.

        Returns:
            The result, or ``None``.
        """
        parts = self.outcomes(status)
        if not parts or self._first is None:
            return None
        covered = ""
        if self.stopped or any(part.status is status for part in parts):
            rows = sum(len(part.estimates.mean) for part in parts)
            covered = f"The result covers the first {rows} inputs." if len(parts) > 1 else ""
            parts[-1] = replace(parts[-1], status=status)
        method, observation, seed, shared = self._first
        remarks = [covered, *self._remarks, *notes]
        return assemble(method, parts, observation, seed, remarks, shared=shared, **facts)


def assemble(
    method: Method,
    parts: Sequence[Outcome],
    observation: Observation,
    seed: int,
    notes: Sequence[str] = (),
    *,
    shared: bool = False,
    **facts: Any,
) -> Result:
    """The result of all batches: arrays one after the other, the least fortunate status, every remark once.

    Args:
        method: The method that was run.
        parts: Outcomes of the batches in order.
        observation: What was asked of the passes.
        seed: The seed.
        notes: Further remarks.
        shared: Whether all inputs have the same masks.
        **facts: Further metadata.

    Returns:
        The result.
    """
    found = [part.estimates for part in parts]
    structure: Structure = observation.main
    arrays = {name: _joined(structure, [getattr(f, name) for f in found]) for name in _FIELDS}
    reliable = [_reliable(found, moment) for moment in ("mean", "variance")]
    passes = np.concatenate([_passes(part) for part in parts]) + observation.cost
    levels, remark = _levels(structure, [f.levels for f in found])
    remarks = [note for part in parts for note in part.estimates.notes]
    remarks.append(in_words([part.lacking for part in parts if part.lacking is not None]))
    order = list(Status)
    result = Result(
        **arrays,
        cost=_average(passes),
        passes=passes,
        plain_passes=_plain_passes(method, found, _average(passes), shared),
        levels=levels,
        status=max((part.status for part in parts), key=order.index),
        method=method.name,
        seed=seed,
        notes=(),
        metadata=_metadata(method, facts),
        structure=structure,
        mean_reliable=structure.unflatten(reliable[0]),
        variance_reliable=structure.unflatten(reliable[1]),
        quantities=_quantities(found),
    )
    said = (*remarks, remark, *notes, rare_passes(result))
    return replace(result, notes=tuple(dict.fromkeys(note for note in said if note)))


def _facts_of(run: Run) -> tuple[Method, Observation, int, bool]:
    """Method, what was asked, seed, and whether all inputs have the same masks."""
    source = run.source
    return run.method, source.observation, source.seed, source.sampler.masks == "shared"


def _plain_passes(method: Method, found: Sequence[Estimates], cost: float, shared: bool) -> tuple[float, float]:
    """Passes of plain averaging for the same errors; NaN where that is not known."""
    if method.name == "pooled":
        return cost, cost
    parts = [each.worth for each in found if each.worth is not None]
    return plain_passes(parts, shared) if len(parts) == len(found) else (math.nan, math.nan)


def _quantities(found: Sequence[Estimates]) -> dict[str, QuantityEstimate]:
    """Everything that was asked beside mean and variance, of all batches."""
    answers = [f.quantities or {} for f in found]
    return {name: _one_after_the_other([answer[name] for answer in answers]) for name in answers[0]}


def _one_after_the_other(parts: Sequence[QuantityEstimate]) -> QuantityEstimate:
    columns = ([getattr(part, name) for part in parts] for name in FIELDS)
    return QuantityEstimate(*(None if c[0] is None else _concatenated(c) for c in columns))


def _concatenated(values: Sequence[Any]) -> Any:
    """Arrays, or structures of them, one after the other."""
    if isinstance(values[0], dict):
        return {key: _concatenated([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(_concatenated(column) for column in zip(*values, strict=True))
    return np.concatenate(values)


def _reliable(found: Sequence[Estimates], moment: str) -> NDArray[np.bool_]:
    """Where the standard errors of a moment can be believed, as a matrix of all batches."""
    parts = [np.ones(f.mean.shape, dtype=bool) if f.trust is None else getattr(f.trust, moment) for f in found]
    return np.concatenate(parts)


def _passes(part: Outcome) -> NDArray[np.float64]:
    """Passes of every row of a batch."""
    return np.full(len(part.estimates.mean), float(part.estimates.cost)) if part.passes is None else part.passes


def _average(passes: NDArray[np.float64]) -> float:
    """Passes per input: as a whole number where they are equal and whole."""
    average = float(passes[0] if (passes == passes[0]).all() else passes.mean())
    return int(average) if average.is_integer() else average


def _metadata(method: Method, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {**method.describe(), **facts, "versions": versions()}


def _joined(structure: Structure, values: Sequence[Any]) -> Any:
    return None if values[0] is None else structure.unflatten(np.concatenate(values))


def _levels(structure: Structure, batches: Sequence[tuple[LevelEstimate, ...]]) -> tuple[tuple[LevelStats, ...], str]:
    """The level table of all batches; none where an adaptive ladder ended differently from batch to batch."""
    ladders = {tuple(level.fidelity for level in levels) for levels in batches}
    if len(ladders) > 1:
        return (), f"Batches ended on different ladders ({sorted(ladders)}), so there is no common table of levels."
    return tuple(_level(structure, group) for group in zip(*batches, strict=True)), ""


def _level(structure: Structure, group: Sequence[LevelEstimate]) -> LevelStats:
    arrays = {name: _joined(structure, [getattr(level, name) for level in group]) for name in LEVEL_ARRAYS}
    checks = [level.telescoping for level in group if level.telescoping is not None]
    most = max(group, key=lambda level: level.cost)
    return LevelStats(most.label, most.fidelity, most.count, most.cost, **arrays, telescoping=max(checks, default=None))
