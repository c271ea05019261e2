"""Rounds of an evaluation: read the data set, run its blocks, merge them in order, decide what comes next."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mlmc_dropout.errors import InputError, ModelError
from mlmc_dropout.evaluation.checkpoint import Checkpoint, EvaluationProgress
from mlmc_dropout.evaluation.data import Block, DataSet, Slice, blocks_of
from mlmc_dropout.evaluation.features import FeatureMap
from mlmc_dropout.evaluation.goal import Shares, Step
from mlmc_dropout.evaluation.levels import LevelState, passes_of
from mlmc_dropout.evaluation.plan import Planner
from mlmc_dropout.evaluation.tasks import Question, as_run
from mlmc_dropout.result import Status
from mlmc_dropout.runtime.executors import TaskPool
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.sampler import DropoutSampler, Program
from mlmc_dropout.sampling.source import Source

__all__ = ["EvaluationEvent", "EvaluationRun", "reporter"]

Show = Callable[["EvaluationEvent"], Any]


@dataclass(frozen=True, slots=True)
class EvaluationEvent:
    """How far an evaluation is.

    Attributes:
        passes: Passes spent, per input.
        planned: Passes at the end of this round, per input; later rounds may come.
        levels: Levels so far.
        rows: Number of inputs.
        seconds: Since the start.
    """

    passes: float
    planned: float
    levels: int
    rows: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.passes:.3g} of {self.planned:.3g} passes per input in this round, {self.rows} inputs, "
            f"{self.levels} levels, {self.seconds:.0f} s"
        )


def reporter(progress: bool | Show) -> Show | None:
    """Who is told how an evaluation goes.

    Args:
        progress: ``True``: lines on stderr; a function is called with every event.

    Returns:
        The function, or ``None``.

    Raises:
        InputError: If it is neither.
    """
    if callable(progress):
        return progress
    if not isinstance(progress, bool):
        raise InputError(f"progress is True, False or a function of an event: got {progress!r}")
    return (lambda event: print(event, file=sys.stderr, flush=True)) if progress else None


@dataclass(slots=True)
class EvaluationRun:
    """An evaluation on its way.

    Attributes:
        sampler: The sampler of the model.
        data: The data set.
        planner: Decides what comes next.
        features: What is asked.
        seed: Seed of the run.
        pool: Who runs the blocks.
        checkpoint: Where progress is saved.
        show: Who is told of it.
        every: Seconds between two events, at least.
    """

    sampler: DropoutSampler
    data: DataSet
    planner: Planner
    features: FeatureMap
    seed: int
    pool: TaskPool
    checkpoint: Checkpoint
    show: Show | None
    every: float = 0.5
    progress: EvaluationProgress = field(default_factory=EvaluationProgress)
    _programs: dict[Any, Program] = field(default_factory=dict)
    _started: float = field(default_factory=time.monotonic)
    _shown: float = 0.0

    def finish(self) -> Step:
        """Run to the end.

        Returns:
            How it ended; after Ctrl-C, that.
        """
        try:
            return self._rounds()
        except KeyboardInterrupt:
            return Step((), Status.STOPPED)
        finally:
            self.checkpoint.note(self.progress, force=bool(self.progress.states))

    def _rounds(self) -> Step:
        saved = self.checkpoint.read()
        width = self._width()
        self.progress = saved or self._start()
        while True:
            if self.progress.slices:
                self._round(Question.of(self.features, self.progress.design), width)
            if self.data.once:
                return Step((), Status.COMPLETED)
            now = self.progress
            step = self.current_planner.after(now.states, now.shares, now.rows)
            if step.design > now.design:
                self.progress = self._with_designs(step.design)
            elif not step.slices:
                return step
            else:
                self.progress = replace(now, slices=step.slices)

    @property
    def current_planner(self) -> Planner:
        """The planner, counting in designs where passes come in designs."""
        return self.planner.in_designs(self.progress.design, self.progress.pilot, self.progress.rows)

    def passes(self) -> int:
        """Passes spent so far."""
        levels = enumerate(self.progress.states)
        return self.progress.pilot + self.progress.design * sum(s.count * passes_of(level) for level, s in levels)

    def _with_designs(self, design: int) -> EvaluationProgress:
        """Begin again with stratified designs in place of passes: the pilot has shown that there will be many."""
        now = self.progress
        planner = self.planner.in_designs(design, self.passes(), now.rows)
        return EvaluationProgress((), (), planner.first(now.rows), 0, now.rows, now.blocks, design, self.passes())

    def _start(self) -> EvaluationProgress:
        if self.data.once:
            return EvaluationProgress(slices=self.planner.for_one_reading())
        rows = self.data.count()
        return EvaluationProgress(slices=self.planner.first(rows), rows=rows)

    # --------------------------------------------------------------------------- a round

    def _round(self, question: Question, width: int) -> None:
        """Run the slices of the round; blocks may come back in any order, and are merged in theirs."""
        early: dict[int, LevelState] = {}
        base, planned = self.progress.blocks, self._planned()
        blocks = enumerate(blocks_of(self.data, self.progress.slices, self.seed, width))
        skipped = self.progress.merged
        levels: dict[int, int] = {}
        remaining: Iterator[tuple[int, Block]] = ((i, block) for i, block in blocks if i >= skipped)
        more = True
        while True:
            while more and self.pool.has_room:
                found = next(remaining, None)
                if found is None:
                    more = False
                    break
                place, block = found
                levels[place] = block.slice.level
                self.pool.submit(*self._submission(base + place, block, question))
            if self.pool.idle:
                break
            run, _, states = self.pool.collect()
            self.pool.forget(run)
            early[run.index - base] = states[0]
            while self.progress.merged in early:
                place = self.progress.merged
                merged = _with(self.progress.states, levels.pop(place), early.pop(place), self.features.components)
                self.progress = replace(self.progress, states=merged, merged=place + 1)
            self.checkpoint.note(self.progress)
            self._tell(planned)
        done = self.progress
        shares = _after(done.shares, done.slices)
        rows = done.rows or self.data.count()
        states = done.states + (LevelState.empty(self.features.components),) * (len(shares) - len(done.states))
        total = done.blocks + done.merged
        self.progress = EvaluationProgress(states, shares, (), 0, rows, total, done.design, done.pilot)
        self._tell(planned)

    def _submission(self, index: int, block: Block, question: Question) -> tuple[Any, int, tuple[Any, ...]]:
        source = Source(self.sampler, self._program(block.batch), block.batch, self.seed, block.first_row)
        run = as_run(index, block, source, question)
        return run, 0, tuple(run.tasks)

    def _width(self) -> int:
        """Look at the model once before anything is sampled."""
        return self._program(self.data.peek()).structure.width

    def _program(self, batch: Batch) -> Program:
        """The model, prepared once for every kind of input."""
        kind = tuple((name, getattr(v, "shape", [0])[1:], getattr(v, "dtype", v)) for name, v in batch.named.items())
        key = str(kind)
        if key not in self._programs:
            program = self.sampler.prepare(batch)
            if not program.rows_split:
                raise ModelError(
                    "averages are taken over random parts of the data set, and the rows of this model depend on each "
                    "other; give a model that computes each row on its own"
                )
            self._programs[key] = program
        return self._programs[key]

    # -------------------------------------------------------------------------- progress

    def _planned(self) -> float:
        """Passes per input after this round."""
        now = self.progress
        cost = sum((part.high - part.low) * passes_of(part.level) for part in now.slices)
        cost += sum(share * passes_of(level) for level, (share, _) in enumerate(now.shares))
        return cost * now.design + now.pilot / max(now.rows, 1)

    def _tell(self, planned: float) -> None:
        now = time.monotonic()
        if self.show is None or (self.progress.slices and now - self._shown < self.every):
            return
        self._shown = now
        rows = self.progress.rows
        spent = self.passes() / rows if rows else float("nan")
        self.show(EvaluationEvent(spent, planned, len(self.progress.states), rows, now - self._started))


def _with(states: tuple[LevelState, ...], level: int, state: LevelState, components: int) -> tuple[LevelState, ...]:
    """The states with one more block merged in."""
    missing = max(level + 1 - len(states), 0)
    grown = [*states, *(LevelState.empty(components) for _ in range(missing))]
    grown[level] = grown[level].merge(state)
    return tuple(grown)


def _after(shares: Shares, slices: tuple[Slice, ...]) -> Shares:
    """What the levels have used after these slices."""
    used = dict(enumerate(shares))
    for part in slices:
        used[part.level] = (part.high, part.replicate + 1)
    return tuple(used.get(level, (0.0, 0)) for level in range(max(used) + 1))
