"""What every method shares: tasks named before they run, states that merge, estimates at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.engine.data import Batch, even_parts, non_finite_message
from mlmc_dropout.engine.masks import pass_keys
from mlmc_dropout.engine.sampler import DropoutSampler, Program
from mlmc_dropout.errors import NonFiniteOutputError
from mlmc_dropout.estimators.tails import Trust
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.stopping import Goal

__all__ = [
    "BLOCK",
    "Chooser",
    "Estimates",
    "LevelEstimate",
    "Method",
    "Source",
    "State",
    "Task",
    "Unchanging",
    "merge_states",
    "states_beside",
]

Array = NDArray[np.float64]

BLOCK = 128  # passes a task holds in memory; fixed, so that results do not depend on chunks or workers
_COPIES = 8  # of their values while moments are taken, and of masks while they are drawn, in half the memory limit


@dataclass(frozen=True, slots=True)
class Task:
    """Some replicates of a stream: all a worker has to be told.

    Replicates ``first .. first + count`` run to fidelity ``T_depth`` and count at ``levels``. For
    methods without replicates ``first`` and ``count`` are passes.
    """

    stream: int
    first: int
    count: int
    depth: int = 0
    levels: tuple[int, ...] = (0,)


State = Mapping[str, MomentBlock]


def merge_states(a: State, b: State) -> State:
    """Both states' samples; a block missing on one side is taken from the other."""
    merged = {**b, **a}
    merged.update({name: a[name].merge(b[name]) for name in a.keys() & b.keys()})
    return merged


def states_beside(states: Iterable[State]) -> State:
    """States of the same samples of different rows, as one of all rows."""
    parts = list(states)
    return {name: MomentBlock.beside([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True, slots=True)
class LevelEstimate:
    """One level's statistics, as matrices (rows, width)."""

    label: str
    fidelity: int
    count: int
    cost: float
    mean: Array
    variance: Array
    kurtosis: Array
    mean_V: Array
    variance_V: Array
    kurtosis_V: Array
    telescoping: float | None = None
    correlation: Array | None = None
    gain: Array | None = None
    gain_V: Array | None = None


@dataclass(frozen=True, slots=True)
class Estimates:
    """What a state tells: matrices (rows, width), and remarks in words."""

    mean: Array
    variance: Array
    mean_stderr: Array
    variance_stderr: Array
    cost: float
    S2_mean: Array | None = None
    S2_variance: Array | None = None
    levels: tuple[LevelEstimate, ...] = ()
    notes: tuple[str, ...] = ()
    overhead: float = 0.0  # the part of the cost that came before the first sample
    trust: Trust | None = None  # whether standard errors can be believed; None: nothing speaks against it


class Unchanging:
    """For methods with nothing to choose and nothing to prepare."""

    __slots__ = ()

    def choose(self, source: Source, goal: Goal) -> Self:
        """Itself."""
        return self

    def bind(self, source: Source) -> Self:
        """Itself."""
        return self

    def run(self, source: Source, task: Task) -> State:
        """The state of one task, part of the rows by part."""
        return states_beside(self.run_rows(part, task) for _, part in source.parts())

    def run_rows(self, source: Source, task: Task) -> State:
        """The state of one task for rows that fit the memory limit."""
        raise NotImplementedError


class Chooser(Protocol):
    """What users ask for by name: a method, or one that decides on a method from a pilot."""

    @property
    def name(self) -> str:
        """The name users choose it by."""

    def least(self) -> int:
        """Passes of the smallest run that gives standard errors."""

    def choose(self, source: Source, goal: Goal) -> Method:
        """The method to run: itself, unless it decides."""

    def describe(self) -> dict[str, Any]:
        """The settings, as plain data."""


class Method(Chooser, Protocol):
    """An estimator: plans tasks, runs one, and reads the merged state.

    ``done`` counts what earlier tasks covered, "passes" among them; it is plain data and all the
    memory a method has.
    """

    def bind(self, source: Source) -> Method:
        """The method made ready for the inputs of ``source``.

        Whatever has to be computed once per batch of inputs is computed here, from names alone, so
        that every worker can bind for itself and finds the same. Its cost counts in ``extend``.
        """

    def extend(self, done: Mapping[str, int], budget: float) -> tuple[list[Task], dict[str, int]]:
        """Tasks that spend at most ``budget`` further passes, and ``done`` after them."""

    def run(self, source: Source, task: Task) -> State:
        """The state of one task; depends on nothing but its arguments."""

    def summarise(self, state: State, done: Mapping[str, int]) -> Estimates:
        """Estimates and standard errors of everything merged so far."""


@dataclass(frozen=True, slots=True)
class Source:
    """Passes of one batch of inputs, by name."""

    sampler: DropoutSampler
    program: Program
    batch: Batch
    seed: int
    first_row: int = 0
    chunk: int | None = None

    def passes(self, stream: int, replicates: Sequence[int] | range, indices: Sequence[int] | range) -> Array:
        """Outputs (len(indices), len(replicates), rows, width) in float64."""
        names = np.asarray(indices)[:, None], np.asarray(replicates)[None, :]
        keys = pass_keys(self.seed, stream, names[1], names[0])
        out = self.sampler.run(self.program, self.batch, keys.flatten(), self.first_row, self.chunk)
        values = out.double().cpu().numpy()
        self.check(values)
        return values.reshape(len(indices), len(replicates), *values.shape[1:])

    def parts(self, passes: int = 1) -> Iterator[tuple[slice, Source]]:
        """The rows in parts that fit the memory limit: ``passes`` passes of them, and the masks and values of a task.

        One part if rows cannot be split.
        """
        rows, limit = self.batch.rows, self.sampler.memory_limit
        if self.program.rows_split:
            of_a_task = BLOCK * (self.sampler.masks_of_a_row(self.program) + 8 * self.program.structure.width)
            rows = self.program.footprint.rows_at_once(rows, limit, passes)
            rows = min(rows, max(1, int(limit / 2 / _COPIES / of_a_task)))
        for start, stop in even_parts(self.batch.rows, rows):
            yield slice(start, stop), replace(self, batch=self.batch[start:stop], first_row=self.first_row + start)

    def design_chunks(self, keys: Tensor, passes: int) -> Iterator[list[Tensor | None]]:
        """Masks of the stratified designs named by ``keys``, in chunks that fit the memory limit."""
        rows = self.batch.rows
        whole = [self.sampler.draw(site, keys, rows, self.first_row, passes) for site in self.program.sites]
        size = self.chunk or self.program.footprint.passes_at_once(rows, self.sampler.memory_limit)
        if size > 2 * passes and not self.chunk:
            size -= size % (2 * passes)  # whole pairs: chunks of the same size can be played from a tape
        for start in range(0, len(keys) * passes, size):
            yield [None if m is None else m[start : start + size] for m in whole]

    def check(self, values: Array) -> None:
        """Refuse outputs (passes, rows, width) that are not finite."""
        finite = np.isfinite(values)
        if not finite.all():
            rows = np.flatnonzero(~finite.all(axis=(0, 2))) + self.first_row
            raise NonFiniteOutputError(non_finite_message(values, self.first_row, self.program.structure), rows)


def blocks(first: int, count: int, size: int) -> Iterable[tuple[int, int]]:
    """Cut ``first .. first + count`` at multiples of ``size``: pairs (first, count)."""
    end = first + count
    while first < end:
        stop = min(end, (first // size + 1) * size)
        yield first, stop - first
        first = stop
