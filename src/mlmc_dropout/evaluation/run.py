"""Rounds of an evaluation: read the data set, run its blocks, merge them in order, decide what comes next."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.errors import CheckpointError, ModelError
from mlmc_dropout.evaluation.checking import check_progress, check_samples
from mlmc_dropout.evaluation.checkpoint import Checkpoint, EvaluationProgress
from mlmc_dropout.evaluation.data import Block, DataSet, Slice, blocks_of
from mlmc_dropout.evaluation.features import FeatureMap
from mlmc_dropout.evaluation.goal import Step
from mlmc_dropout.evaluation.levels import LevelState, passes_of
from mlmc_dropout.evaluation.plan import Planner
from mlmc_dropout.evaluation.progress import EvaluationEvent, Show
from mlmc_dropout.evaluation.strata import Part, stratify
from mlmc_dropout.evaluation.sweeps import first_sweeps
from mlmc_dropout.evaluation.tasks import Question, as_run
from mlmc_dropout.result import Status
from mlmc_dropout.runtime.executors import TaskPool
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.sampler import DropoutSampler, Program
from mlmc_dropout.sampling.source import Source

__all__ = ["EvaluationRun"]


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
            self.checkpoint.note(self.progress, force=bool(self.progress.slices or self.passes()))

    def _rounds(self) -> Step:
        saved = self.checkpoint.read()
        if saved is not None:
            rows = self.data.count()
            with _refusing(self.checkpoint):
                check_progress(saved, self.features.components, rows, self.seed)
        width = self._width()
        self.progress = saved or self._start()
        while True:
            if self.progress.slices:
                self._round(Question.of(self.features, self.progress.design, self.progress.scoring), width)
            if self.data.once:
                return Step((), Status.COMPLETED)
            if self.progress.scoring:
                self.progress = self._with_strata(self.progress)
                continue
            now = self.progress
            step = self.current_planner.after(now.parts, now.rows, now.strata is not None)
            if step.design > now.design:
                self.progress = self._begin_again(step)
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
        now = self.progress
        scored = 0 if now.scores is None else len(now.scores) * now.scoring
        return now.pilot + scored + now.design * sum(part.passes for part in now.parts)

    def _begin_again(self, step: Step) -> EvaluationProgress:
        """With stratified designs in place of passes, or strata: the pilot has shown that there will be many."""
        now, spent = self.progress, self.passes()
        planner = self.planner.in_designs(step.design, spent, now.rows)
        begun = EvaluationProgress((Part(rows=now.rows),), (), 0, now.rows, now.blocks, step.design, spent)
        if not step.sweeps:
            return replace(begun, slices=planner.first(now.rows))
        if not step.scoring:
            return self._with_strata(begun)
        sweep = Slice(step.scoring.bit_length() - 1, 0.0, 1.0, 0)
        return replace(begun, slices=(sweep,), scoring=step.scoring)

    def _with_strata(self, now: EvaluationProgress) -> EvaluationProgress:
        """Sweeps of strata that the scores of all inputs tell; of one, if there are no scores."""
        spent = now.pilot + (0 if now.scores is None else now.rows * now.scoring)
        strata = np.zeros(now.rows, dtype=np.uint8) if now.scores is None else stratify(now.scores)
        rows = np.bincount(strata).tolist()
        begun = EvaluationProgress((), (), 0, now.rows, now.blocks, now.design, spent)
        parts = tuple(Part(rows=inputs) for inputs in rows)
        return replace(begun, parts=parts, slices=first_sweeps(len(rows)), strata=strata)

    def _start(self) -> EvaluationProgress:
        if self.data.once:
            return EvaluationProgress(slices=self.planner.for_one_reading())
        rows = self.data.count()
        return EvaluationProgress((Part(rows=rows),), self.planner.first(rows), rows=rows)

    # --------------------------------------------------------------------------- a round

    def _round(self, question: Question, width: int) -> None:
        """Run the slices of the round; blocks may come back in any order, and are merged in theirs."""
        early: dict[int, LevelState | NDArray[np.float64]] = {}
        base, planned = self.progress.blocks, self._planned()
        blocks = enumerate(blocks_of(self.data, self.progress.slices, self.seed, width, self.progress.strata))
        skipped = self.progress.merged
        origin: dict[int, Slice] = {}
        remaining: Iterator[tuple[int, Block]] = ((i, block) for i, block in blocks if i >= skipped)
        more = True
        while True:
            while more and self.pool.has_room:
                found = next(remaining, None)
                if found is None:
                    more = False
                    break
                place, block = found
                origin[place] = block.slice
                self.pool.submit(*self._submission(base + place, block, question))
            if self.pool.idle:
                break
            run, _, states = self.pool.collect()
            self.pool.forget(run)
            early[run.index - base] = states[0]
            while self.progress.merged in early:
                place = self.progress.merged
                self.progress = self._merged(origin.pop(place), early.pop(place))
            self.checkpoint.note(self.progress)
            self._tell(planned)
        self.progress = self._completed()
        if not self.data.once:
            with _refusing(self.checkpoint):
                check_samples(self.progress, self.seed)
        self._tell(planned)

    def _merged(self, part: Slice, found: LevelState | NDArray[np.float64]) -> EvaluationProgress:
        """The progress with one more block."""
        now = self.progress
        if not isinstance(found, LevelState):
            scores = found if now.scores is None else np.concatenate([now.scores, found])
            return replace(now, scores=scores, merged=now.merged + 1)
        parts = list(now.parts)
        parts[part.stratum] = _with(parts[part.stratum], part.level, found, self.features.components)
        return replace(now, parts=tuple(parts), merged=now.merged + 1)

    def _completed(self) -> EvaluationProgress:
        """The progress after all blocks of a round."""
        done = self.progress
        rows = done.rows or self.data.count()
        parts = done.parts
        if not done.scoring:
            of_stratum = [[one for one in done.slices if one.stratum == number] for number in range(len(parts))]
            parts = tuple(
                _after(part, slices, part.rows or rows, self.features.components)
                for part, slices in zip(parts, of_stratum, strict=True)
            )
        return replace(done, parts=parts, slices=(), merged=0, rows=rows, blocks=done.blocks + done.merged)

    def _submission(self, index: int, block: Block, question: Question) -> tuple[Any, int, tuple[Any, ...]]:
        source = Source(self.sampler, self._program(block.batch), block.batch, self.seed, block.first_row)
        run = as_run(index, block, source, question)
        return run, 0, tuple(run.tasks)

    def _width(self) -> int:
        """Look at the model once before anything is sampled."""
        structure = self._program(self.data.peek()).structure
        self.features.look_at_axes(structure)
        return structure.width

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
        if now.scoring:
            return now.scoring + now.pilot / now.rows
        weights = [part.rows / now.rows if now.rows else 1.0 for part in now.parts]
        cost = sum((one.high - one.low) * passes_of(one.level) * weights[one.stratum] for one in now.slices)
        for part, weight in zip(now.parts, weights, strict=True):
            cost += weight * sum(share * passes_of(level) for level, (share, _) in enumerate(part.shares))
        return cost * now.design + now.pilot / max(now.rows, 1)

    def _tell(self, planned: float) -> None:
        now = time.monotonic()
        if self.show is None or (self.progress.slices and now - self._shown < self.every):
            return
        self._shown = now
        rows = self.progress.rows
        spent = self.passes() / rows if rows else float("nan")
        levels = max(len(part.states) for part in self.progress.parts)
        self.show(EvaluationEvent(spent, planned, levels, rows, now - self._started))


@contextlib.contextmanager
def _refusing(checkpoint: Checkpoint) -> Iterator[None]:
    """What does not fit has come from a file."""
    try:
        yield
    except ValueError as error:
        raise CheckpointError(
            f"{checkpoint.path} does not hold the state of this evaluation ({error}); delete it to start again"
        ) from None


def _with(part: Part, level: int, state: LevelState, components: int) -> Part:
    """The stratum with one more block merged in."""
    missing = max(level + 1 - len(part.states), 0)
    grown = [*part.states, *(LevelState.empty(components) for _ in range(missing))]
    grown[level] = grown[level].merge(state)
    return replace(part, states=tuple(grown))


def _after(part: Part, slices: Sequence[Slice], rows: int, components: int) -> Part:
    """The stratum after these slices: what its levels have used."""
    used = dict(enumerate(part.shares))
    for one in slices:
        used[one.level] = (one.high, one.replicate + 1)
    shares = tuple(used.get(level, (0.0, 0)) for level in range(max(used, default=-1) + 1))
    states = part.states + (LevelState.empty(components),) * (len(shares) - len(part.states))
    return Part(states, shares, rows)
