"""What every method shares: tasks named before they run, states that merge, estimates at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.methods.tails import Trust
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal

__all__ = [
    "Estimates",
    "LevelEstimate",
    "Method",
    "MethodSpec",
    "State",
    "StatelessMethod",
    "Task",
    "merge_states",
    "states_beside",
]

Array = NDArray[np.float64]


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


class StatelessMethod:
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


class MethodSpec(Protocol):
    """What users ask for by name: a method, or one that decides on a method from a pilot."""

    @property
    def name(self) -> str:
        """The name users choose it by."""

    def min_cost(self) -> int:
        """Passes of the smallest run that gives standard errors."""

    def choose(self, source: Source, goal: Goal) -> Method:
        """The method to run: itself, unless it decides."""

    def describe(self) -> dict[str, Any]:
        """The settings, as plain data."""


class Method(MethodSpec, Protocol):
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


def blocks(first: int, count: int, size: int) -> Iterable[tuple[int, int]]:
    """Cut ``first .. first + count`` at multiples of ``size``: pairs (first, count)."""
    end = first + count
    while first < end:
        stop = min(end, (first // size + 1) * size)
        yield first, stop - first
        first = stop
