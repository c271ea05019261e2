"""The protocol between a run and the methods: tasks named before they run, states that merge, estimates at the end.

A run (``runtime``) knows nothing of a method but what is written here. Users choose a :class:`MethodSpec` by name; it
chooses a :class:`Method` for the inputs and the goal, which is plain data and can be sent to workers; and each process
binds that to its inputs, whatever has to be computed for them, and has a :class:`BoundMethod`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.methods.states import Block
from mlmc_dropout.methods.tails import Trust
from mlmc_dropout.methods.worth import Worth
from mlmc_dropout.quantities.base import QuantityEstimate
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal
from mlmc_dropout.stopping.rows import Needs

__all__ = [
    "BoundMethod",
    "Estimates",
    "LevelEstimate",
    "Method",
    "MethodSpec",
    "NoRefinement",
    "OneKindOfPasses",
    "OneStage",
    "Rows",
    "State",
    "Task",
    "blocks",
]

Array = NDArray[np.float64]
Rows = NDArray[np.integer[Any]]

State = Any  # of the method's own type: a frozen value of moment blocks (see ``states``)


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
    groups: GroupBlock | None = None  # means of features over groups of passes, where more is asked than two moments
    quantities: Mapping[str, QuantityEstimate] | None = None  # what these groups tell
    mean_samples: float | None = None  # behind the standard errors of the mean, if more than behind the others
    shown: Array | None = None  # the share of a surrogate's known variance that the passes have shown
    freedom: Array | None = None  # degrees of freedom of the standard errors of the mean, where the method knows them
    variance_freedom: float | None = None  # the same of the variance
    widening: tuple[Array, Array] | None = None  # factors in both standard errors for tails that few samples show
    worth: Worth | None = None  # squared errors beside those of plain averaging; None: the method does not tell


class MethodSpec(Protocol):
    """What users ask for by name: a method, or one that decides on a method from a pilot."""

    @property
    def name(self) -> str:
        """The name users choose it by."""

    @property
    def fixed_counts(self) -> bool:
        """Whether the user has fixed all passes, so that no tolerance can be asked for."""

    def min_cost(self) -> int:
        """Passes of the smallest run that gives standard errors."""

    def choose(self, source: Source, goal: Goal) -> Method:
        """The method to run: itself, unless it decides.

        Args:
            source: The passes of the first batch of inputs.
            goal: When to stop.

        Returns:
            The method.

        Raises:
            ModelError: If the model does not allow it.
        """

    def describe(self) -> dict[str, Any]:
        """The settings, as plain data."""


class Method(MethodSpec, Protocol):
    """A method with all its settings: plain data, the same on every worker."""

    @property
    def grows(self) -> bool:
        """Whether it begins with a pilot and may be refined by what that shows."""

    def at_stage(self, stage: Any) -> Method:
        """The method as it was when a run was saved.

        Args:
            stage: What :attr:`BoundMethod.stage` was then.

        Returns:
            The method at that stage.
        """

    def bind(self, source: Source) -> BoundMethod:
        """Make the method ready for some inputs.

        Whatever has to be computed once per batch of inputs is computed here, from names alone, so that every worker
        can bind for itself and finds the same. Its cost counts in :meth:`BoundMethod.extend`.

        Args:
            source: The passes of the inputs.

        Returns:
            The method, ready to run.
        """


class BoundMethod(Protocol):
    """A method made ready for a batch of inputs: plans tasks, runs them, and reads the merged state.

    ``done`` counts what earlier tasks covered, "passes" among them. It is plain data and all the memory a method has
    besides its state.
    """

    @property
    def method(self) -> Method:
        """The method it was made from."""

    @property
    def stage(self) -> Any:
        """How far the method has been refined, as plain data; ``None`` where nothing is."""

    def min_cost(self) -> int:
        """Passes of the smallest run that gives standard errors, preparation included."""

    def extend(self, done: Mapping[str, int], budget: float) -> tuple[list[Task], dict[str, int]]:
        """Plan further tasks.

        Args:
            done: What earlier tasks covered.
            budget: Passes per input that may be spent.

        Returns:
            Tasks that spend at most the budget, and ``done`` after them.
        """

    def whole(self, done: Mapping[str, int], budget: float) -> float:
        """What a round may cost that is followed by others, so that none of its passes is lost on standard errors.

        Args:
            done: What earlier tasks covered.
            budget: Passes per input that are wanted.

        Returns:
            As many passes or a few more.
        """

    def steer(
        self, state: State, done: Mapping[str, int], wanted: float, needs: Needs
    ) -> tuple[Mapping[str, int], float]:
        """Where the next round of inputs that stop one by one goes, by what they need.

        Args:
            state: What is known of these inputs.
            done: What earlier tasks covered.
            wanted: Passes per input for which the stop rule asks.
            needs: How many times as many passes each of them needs, and for what.

        Returns:
            ``done`` with what :meth:`extend` has to know, and what the round may cost.
        """

    def weight(self, task: Task) -> float:
        """Passes a task takes, up to a factor common to all tasks.

        Args:
            task: A task of :meth:`extend`.
        """

    def run(self, source: Source, task: Task) -> State:
        """Run one task; depends on nothing but its arguments.

        Args:
            source: The passes of the inputs.
            task: A task of :meth:`extend`.

        Returns:
            The state of its samples.
        """

    def has_estimates(self, state: State) -> bool:
        """Whether :meth:`summarise` can read a state: some parts may have no samples yet.

        Args:
            state: A merged state, or ``None``.
        """

    def samples(self, state: State) -> float:
        """Samples behind the standard errors.

        Args:
            state: A merged state.
        """

    def summarise(self, state: State, done: Mapping[str, int]) -> Estimates:
        """Estimates and standard errors of everything merged so far.

        Args:
            state: A merged state that has estimates.
            done: What the tasks behind it covered.

        Returns:
            The estimates.
        """

    def read_state(self, blocks: Mapping[str, Block]) -> State:
        """A state from its saved blocks.

        Args:
            blocks: Blocks by path, as ``states.to_blocks`` gives them.

        Returns:
            The state.

        Raises:
            KeyError: If blocks are missing.
        """

    def select(self, rows: Rows) -> BoundMethod:
        """The method made ready for some of the rows, from what was computed for all of them.

        Args:
            rows: Places of the rows in the batch, in ascending order.

        Returns:
            The method for these rows; itself, if it holds nothing that belongs to rows.
        """

    def refined(self, estimates: Estimates) -> tuple[Method, float] | None:
        """The next stage of a method that grows.

        Args:
            estimates: What is known so far.

        Returns:
            The refined method and the passes its pilot takes; ``None`` if nothing is to be gained.
        """


class OneStage:
    """For methods that choose their passes themselves and stay as they are."""

    __slots__ = ()

    @property
    def fixed_counts(self) -> bool:
        """Never."""
        return False

    @property
    def grows(self) -> bool:
        """Never."""
        return False

    def at_stage(self, stage: Any) -> Self:
        """There is one stage only.

        Args:
            stage: ``None``.

        Returns:
            Itself.
        """
        return self


class OneKindOfPasses:
    """For bound methods whose rounds are told by a number of passes alone."""

    __slots__ = ()

    def whole(self, done: Mapping[str, int], budget: float) -> float:
        """Any number will do.

        Args:
            done: What earlier tasks covered.
            budget: Passes per input that are wanted.

        Returns:
            The same.
        """
        return budget

    def steer(
        self, state: State, done: Mapping[str, int], wanted: float, needs: Needs
    ) -> tuple[Mapping[str, int], float]:
        """As many passes as are asked for: there is one kind of them.

        Args:
            state: What is known of these inputs.
            done: What earlier tasks covered.
            wanted: Passes per input for which the stop rule asks.
            needs: How many times as many passes each of them needs, and for what.

        Returns:
            The same, and what the round may cost.
        """
        return done, self.whole(done, wanted)


class NoRefinement(OneKindOfPasses):
    """For bound methods that stay as they are for all rows, with tasks that weigh as much as they have samples."""

    __slots__ = ()

    @property
    def stage(self) -> None:
        """None."""
        return None

    def weight(self, task: Task) -> float:
        """Its number of samples.

        Args:
            task: A task.
        """
        return float(task.count)

    def select(self, rows: Rows) -> Self:
        """Nothing belongs to rows.

        Args:
            rows: Places of the rows in the batch.

        Returns:
            Itself.
        """
        return self

    def refined(self, estimates: Estimates) -> None:
        """Nothing to refine.

        Args:
            estimates: What is known so far.
        """
        return None


def blocks(first: int, count: int, size: int) -> Iterable[tuple[int, int]]:
    """Cut ``first .. first + count`` at multiples of ``size``: pairs (first, count).

    Args:
        first: The first sample.
        count: How many.
        size: Samples of a full block.

    Returns:
        Pairs (first, count).
    """
    end = first + count
    while first < end:
        stop = min(end, (first // size + 1) * size)
        yield first, stop - first
        first = stop
