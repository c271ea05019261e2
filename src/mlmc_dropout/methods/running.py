"""Passes too wide to be held, added up one by one: moments, and features in groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.moments import MomentBlock, running_moments
from mlmc_dropout.sampling.source import Source

__all__ = ["main_numbers", "means_of", "running"]


def running(
    source: Source, chunks: Iterable[NDArray[Any]], first: int, groups: int
) -> tuple[MomentBlock, GroupBlock | None]:
    """Moments and features of passes that come in chunks.

    Args:
        source: The passes of some rows.
        chunks: Their outputs, (passes, rows, width).
        first: Number of the first pass, which decides on its group.
        groups: Number of groups.

    Returns:
        The moments, and the groups, if features are asked. Bits do not depend on the chunks.
    """
    seen: list[GroupBlock] = []
    moments = running_moments(main_numbers(source, chunks, first, groups, seen))
    return moments, means_of(seen[0]) if seen else None


def main_numbers(
    source: Source, chunks: Iterable[NDArray[Any]], first: int, groups: int, seen: list[GroupBlock]
) -> Iterator[NDArray[Any]]:
    """What moments are taken of; features are added up on the way.

    Args:
        source: The passes of some rows.
        chunks: Their outputs, (passes, rows, width).
        first: Number of the first pass, which decides on its group.
        groups: Number of groups.
        seen: Becomes a list of the sums of features, if any are asked; see :func:`means_of`.

    Yields:
        Main numbers, (passes, rows, main width).
    """
    if source.observation.plain:
        yield from chunks
        return
    number = first
    for chunk in chunks:
        for one in np.split(chunk, len(chunk)):
            main, features = source.observe(one.astype(np.float64))
            if features is not None:
                _add(seen, features[0], number, groups)
            number += 1
            yield main


def _add(seen: list[GroupBlock], features: NDArray[np.float64], number: int, groups: int) -> None:
    """Add the features of a pass to the sums of its group, in place."""
    if not seen:
        seen.append(GroupBlock(np.zeros(groups, dtype=np.int64), np.zeros((groups, *features.shape))))
    seen[0].counts[number % groups] += 1
    seen[0].means[number % groups] += features


def means_of(sums: GroupBlock) -> GroupBlock:
    """Sums in groups, turned into means in place.

    Args:
        sums: Counts and sums.

    Returns:
        Counts and means.
    """
    means = sums.means
    means /= np.maximum(sums.counts, 1)[:, None, None]
    return GroupBlock(sums.counts, means)
