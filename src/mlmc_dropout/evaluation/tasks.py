"""Blocks of rows as tasks of the runtime: any executor that runs estimates runs evaluations, too."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.evaluation.data import Block
from mlmc_dropout.evaluation.features import FeatureMap
from mlmc_dropout.evaluation.levels import LevelState, level_sample, passes_of
from mlmc_dropout.evaluation.strata import score_sample
from mlmc_dropout.runtime.run import Run
from mlmc_dropout.runtime.transport import dumps
from mlmc_dropout.sampling.source import Source

__all__ = ["BlockTask", "Question", "as_run"]


@dataclass(frozen=True)
class Question:
    """What is asked of every block; sent to workers in place of a method.

    Attributes:
        payload: The pickled :class:`FeatureMap`; pickled by value, so that metrics may be lambdas.
        design: Passes per stratified design; 1 for independent passes.
        scoring: Passes with which inputs are sorted into strata; 0: samples of levels are asked.
    """

    payload: bytes
    design: int = 1
    scoring: int = 0

    @classmethod
    def of(cls, features: FeatureMap, design: int = 1, scoring: int = 0) -> Question:
        """Pickle what is asked.

        Args:
            features: The features and metrics.
            design: Passes per stratified design; 1 (default) for independent passes.
            scoring: Passes with which inputs are sorted into strata; 0 (default): samples of levels are asked.

        Returns:
            The question.
        """
        return cls(dumps(features), design, scoring)

    @cached_property
    def features(self) -> FeatureMap:
        """The features and metrics."""
        return cast(FeatureMap, pickle.loads(self.payload))

    def bind(self, source: Source) -> Question:
        """There is nothing to prepare.

        Args:
            source: The inputs of a block.

        Returns:
            The question itself.
        """
        return self

    def run(self, source: Source, task: BlockTask) -> LevelState | NDArray[np.float64]:
        """Run a block.

        Args:
            source: Its inputs.
            task: Its level, replicate and labels.

        Returns:
            One sample per input; or scores, if these are asked.
        """
        if self.scoring:
            return score_sample(source, task.labels, self.scoring, self.features)
        return level_sample(source, task.labels, task.level, task.replicate, self.features, self.design)

    def __repr__(self) -> str:  # workers remember by it what they have bound
        return f"Question({self.design}, {self.scoring})"


@dataclass(frozen=True, slots=True)
class BlockTask:
    """A block without its inputs.

    Attributes:
        level: The level.
        replicate: Number of the replicate.
        labels: Labels of the inputs, or ``None``.
    """

    level: int
    replicate: int
    labels: NDArray[Any] | None


class _BlockRun:
    """A block, with what executors ask of a run."""

    def __init__(self, index: int, source: Source, method: Question, task: BlockTask) -> None:
        self.index, self.source, self.method, self.bound = index, source, method, method
        self.open, self.selection = source, None  # all rows of the block
        self.tasks: list[Any] = [task]
        self.unsent = 1

    def weight(self, task: BlockTask) -> float:
        return float(passes_of(task.level) * self.source.batch.rows)


def as_run(index: int, block: Block, source: Source, question: Question) -> Run:
    """A block as executors take it.

    Args:
        index: Its number among all blocks of the evaluation.
        block: The block.
        source: Its inputs.
        question: What is asked.

    Returns:
        Something with the attributes of a run that executors use.
    """
    task = BlockTask(block.slice.level, block.slice.replicate, block.labels)
    return cast(Run, _BlockRun(index, source, question, task))
