"""Inputs that are alike: strata, from a few passes at every input.

Where every input gets several passes anyway, equal passes are wasteful: most inputs of a classifier are easy, and a few
carry bias and variance. A sweep of a few passes gives every input a score, the scores make strata, and each stratum has
levels of its own. The passes of the sweep are not used for anything else: inputs that looked easy by chance would bias
the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.evaluation.features import FeatureMap, mean_of_parts, stacked
from mlmc_dropout.evaluation.goal import Shares
from mlmc_dropout.evaluation.levels import LevelState, passes_of
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.sampling.streams import EVALUATION_SCORES

__all__ = ["Part", "score_sample", "stratify"]

Array = NDArray[np.float64]

_CLASSES = 6  # strata at most: scores that differ by a factor of two, the lowest ones together
_LEAST_ROWS = 24  # inputs of a stratum, at least
_HARDEST = 0.98  # quantile of the scores from which on inputs are in the hardest stratum


@dataclass(frozen=True, slots=True)
class Part:
    """A stratum on its way; without strata the whole data set is one.

    Attributes:
        states: One per level, merged block by block in a fixed order.
        shares: What the levels had used before this round.
        rows: Number of inputs; 0 while it is not known.
    """

    states: tuple[LevelState, ...] = ()
    shares: Shares = ()
    rows: int = 0

    @property
    def passes(self) -> int:
        """Passes (or designs) spent."""
        return sum(state.count * passes_of(level) for level, state in enumerate(self.states))


def score_sample(source: Source, y: Any, passes: int, features: FeatureMap) -> Array:
    """How much every input of a batch asks for: the spread of a metric over single passes, and its bias.

    Args:
        source: The inputs; the row numbers of ``source`` name their masks.
        y: Labels of the inputs, or ``None``.
        passes: Passes per input, 2 at least.
        features: What is asked.

    Returns:
        √(variance of f over single passes + (f(all) − mean of f)²), per input and component, (N, K).
    """
    values = source.passes(EVALUATION_SCORES, (0,), range(passes))[:, 0]
    made = features.features(values, source.program.structure, y)
    single = features.values(made, y)
    whole = features.values(stacked([mean_of_parts([made], passes)]), y)[0]
    return np.asarray(np.sqrt(single.var(axis=0, ddof=1) + (whole - single.mean(axis=0)) ** 2))


def stratify(scores: Array) -> NDArray[np.uint8]:
    """Strata of inputs with similar scores.

    Args:
        scores: Scores per input and component, (N, K).

    Returns:
        The stratum of each input, from 0 (the hardest) on, (N,).

    Examples:
        >>> easy, hard = np.full((60, 1), 0.1), np.full((40, 1), 1.0)
        >>> np.bincount(stratify(np.concatenate([easy, hard])))
        array([40, 60])
    """
    score = np.max(scores / np.maximum(scores.mean(axis=0), 1e-300), axis=1)
    hardest = max(float(np.quantile(score, _HARDEST)), 1e-300)
    doublings = np.log2(hardest / np.maximum(score, 1e-300))
    classes = np.clip(np.floor(doublings), 0, _CLASSES - 1).astype(np.int64)
    strata = np.zeros(len(score), dtype=np.uint8)
    label, waiting = 0, 0
    for number in range(_CLASSES):
        chosen = classes == number
        strata[chosen] = label
        waiting += int(chosen.sum())
        if waiting >= _LEAST_ROWS and (classes > number).sum() >= _LEAST_ROWS:
            label, waiting = label + 1, 0
    return strata
