"""Smooth functions of means over independent groups: values without their first bias, and standard errors.

With n samples, m_k of them in group k, θ the function of all means and θ_k that without group k, h_k = n/m_k:

    θ_J = K θ − Σ (1 − m_k/n) θ_k,    Var θ_J ≈ (1/K) Σ (h_k θ − (h_k − 1) θ_k − θ_J)² / (h_k − 1)

(Busing, Meijer and van der Leeden, *Delete-m jackknife for unequal m*, Statistics and Computing 9, 1999). A bias of
a/n is removed exactly, and a linear function is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.quantities.base import Feature, GroupMeans, QuantityEstimate, Question
from mlmc_dropout.quantities.student import student_factor

__all__ = ["jackknife", "plug_in", "smooth"]

Array = NDArray[np.float64]
Combine = Callable[[Mapping[str, Array]], Array]


def plug_in(combine: Combine, groups: GroupMeans) -> Array:
    """The function of the means of all samples, biased as it is.

    Args:
        combine: g, of means with two leading axes.
        groups: Means over groups.

    Returns:
        Values, (rows, …).
    """
    return np.asarray(combine({name: _overall(groups, means)[None] for name, means in groups.means.items()})[0])


def jackknife(combine: Combine, groups: GroupMeans) -> tuple[Array, Array]:
    """The function of all means without its first bias, and its standard error.

    Args:
        combine: g, of means with two leading axes.
        groups: Means over groups.

    Returns:
        Values and standard errors with Student's factor, (rows, …); the errors are NaN for a single group.

    Examples:
        >>> samples = np.array([1.0, 2.0, 4.0, 9.0])
        >>> groups = GroupMeans(np.ones(4, dtype=np.int64), {"x": samples[:, None]}, 4)
        >>> value, stderr = jackknife(lambda e: e["x"] ** 2, groups)
        >>> bool(np.isclose(value[0], samples.mean() ** 2 - samples.var(ddof=1) / 4))
        True
    """
    counts, K = groups.counts, len(groups.counts)
    n = float(counts.sum())
    whole = plug_in(combine, groups)
    if K < 2:
        return whole, np.full(np.shape(whole), np.nan)
    without = combine({name: _leaving_out(counts, means) for name, means in groups.means.items()})
    share = (counts / n).reshape(K, *[1] * (without.ndim - 1))
    value = K * whole - ((1 - share) * without).sum(axis=0)
    h = 1 / share
    pseudo = h * whole - (h - 1) * without
    variance = (np.square(pseudo - value) / (h - 1)).mean(axis=0)
    return value, float(student_factor(K)) * np.sqrt(variance)


def smooth(name: str, uses: tuple[Feature, ...], combine: Combine, like_outputs: bool = False) -> Question:
    """A quantity that is a smooth function of means.

    Args:
        name: Its name.
        uses: The features it needs.
        combine: g, of means by name of the feature, with two leading axes.
        like_outputs: Whether there is one value per output component.

    Returns:
        The question.
    """

    def answer(groups: GroupMeans) -> QuantityEstimate:
        return QuantityEstimate(*jackknife(combine, groups))

    return Question(name, uses, answer, like_outputs)


def _overall(groups: GroupMeans, means: Array) -> Array:
    return np.tensordot(groups.counts / groups.counts.sum(), means, axes=1)


def _leaving_out(counts: NDArray[np.int64], means: Array) -> Array:
    """Means of all groups but one, for each of them."""
    weights = np.tile(counts.astype(np.float64), (len(counts), 1))
    np.fill_diagonal(weights, 0.0)
    return np.tensordot(weights / weights.sum(axis=1, keepdims=True), means, axes=1)
