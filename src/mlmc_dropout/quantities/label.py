"""The predicted class: that of the largest mean probability, and how certain it is that more passes would agree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from mlmc_dropout.quantities.base import GroupMeans, QuantityEstimate, Question
from mlmc_dropout.quantities.classes import PROBABILITIES

__all__ = ["LABEL", "leading_difference"]

Array = NDArray[np.float64]


def leading_difference(groups: GroupMeans) -> tuple[NDArray[np.int64], Array, Array]:
    """The two leading classes, and the difference of their probabilities.

    Args:
        groups: Means of the probabilities.

    Returns:
        The classes (…, 2), leader first; the difference p̄_first − p̄_second; and its standard error.
    """
    weights = groups.counts / groups.counts.sum()
    means = groups.means["probabilities"]
    mean = np.tensordot(weights, means, axes=1)
    two = np.argsort(mean, axis=-1, kind="stable")[..., :-3:-1]
    leading = np.take_along_axis(means, np.broadcast_to(two, (len(means), *two.shape)), axis=-1)
    gaps = leading[..., 0] - leading[..., 1]
    gap = np.tensordot(weights, gaps, axes=1)
    K = len(weights)
    if K < 2:
        return two, gap, np.full(gap.shape, np.nan)
    variance = np.tensordot(weights, np.square(gaps - gap), axes=1) / (K - 1)
    return two, gap, np.sqrt(variance)


def _answer(groups: GroupMeans) -> QuantityEstimate:
    two, gap, stderr = leading_difference(groups)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(stderr > 0, gap / stderr, np.where(gap > 0, np.inf, 0.0))
    confidence = np.where(np.isnan(stderr), np.nan, stdtr(max(len(groups.counts) - 1, 1), z))
    return QuantityEstimate(two[..., 0], confidence=confidence)


LABEL = Question("label", (PROBABILITIES,), _answer)
