"""Means of features over groups of samples: what quantities that are no moments are made of.

Every sample belongs to one of K groups, by its number, whatever task it came with. The groups are independent of each
other and have the same law, so that a smooth function of all means gets its bias and its standard error from leaving
out one group after the other (``quantities.jackknife``), in memory that does not grow with the samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["GROUPS", "GroupBlock"]

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

GROUPS = 32
GROUPS_OF_WIDE = 8  # where there are so many features that their means are felt in memory


@dataclass(frozen=True, slots=True)
class GroupBlock:
    """The number of samples in each of K groups, and the means of their features.

    Blocks merge group by group: with n = n_a + n_b, the mean is mean_a + (mean_b − mean_a) n_b/n.

    Attributes:
        counts: Samples of each group, (K,).
        means: Means of the features of each group, (K, rows, features); 0 where a group has no sample.

    Examples:
        >>> a = GroupBlock.of(np.array([[[1.0]], [[2.0]], [[4.0]]]), first=0, groups=2)
        >>> a.counts.tolist(), a.means.ravel().tolist(), a.mean.round(3).tolist()
        ([2, 1], [2.5, 2.0], [[2.333]])
    """

    counts: Counts
    means: Array

    @classmethod
    def of(cls, samples: Array, first: int, groups: int = GROUPS) -> GroupBlock:
        """The block of consecutive samples.

        Args:
            samples: Features of samples, (samples, rows, features).
            first: Number of the first sample; sample i is in group i mod K.
            groups: K.

        Returns:
            The block.
        """
        counts = np.zeros(groups, dtype=np.int64)
        means = np.zeros((groups, *samples.shape[1:]))
        rounds, rest = divmod(len(samples), groups)
        whole = samples[: rounds * groups].reshape(rounds, groups, *samples.shape[1:])
        sums = np.add.reduce(whole, axis=0) if rounds else np.zeros_like(means)
        for offset in range(min(groups, len(samples))):
            group = (first + offset) % groups
            counts[group] = rounds + (offset < rest)
            total = sums[offset] + samples[rounds * groups + offset] if offset < rest else sums[offset]
            np.divide(total, counts[group], out=means[group])
        return cls(counts, means)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.means.shape[1])

    def room_for(self, rows: int) -> GroupBlock:
        """A block of as many samples of more rows, to be filled by :meth:`copy_to`.

        Args:
            rows: Number of its rows.

        Returns:
            The block, with arbitrary numbers.
        """
        return GroupBlock(self.counts, np.empty((len(self.means), rows, *self.means.shape[2:])))

    def copy_to(self, whole: GroupBlock, rows: slice) -> None:
        """Copy the numbers to some rows of another block.

        Args:
            whole: A block made by :meth:`room_for`.
            rows: Places of these rows in it.
        """
        whole.means[:, rows] = self.means

    @property
    def count(self) -> int:
        """Samples in all."""
        return int(self.counts.sum())

    @property
    def mean(self) -> Array:
        """The mean over all samples, (rows, features)."""
        return np.asarray(np.tensordot(self.counts / max(self.count, 1), self.means, axes=1))

    @property
    def filled(self) -> GroupBlock:
        """The groups that have samples."""
        present = self.counts > 0
        return self if present.all() else GroupBlock(self.counts[present], self.means[present])

    def merge(self, other: GroupBlock) -> GroupBlock:
        """The block of both sets of samples.

        Args:
            other: A block of the same features and as many groups.

        Returns:
            The merged block.
        """
        counts = self.counts + other.counts
        share = other.counts / np.maximum(counts, 1)
        return GroupBlock(counts, self.means + (other.means - self.means) * share[:, None, None])

    def select(self, rows: NDArray[np.int64]) -> GroupBlock:
        """The same samples of some rows.

        Args:
            rows: Numbers of the rows.

        Returns:
            The block.
        """
        return GroupBlock(self.counts, self.means[:, rows])

    def coarser(self) -> GroupBlock:
        """The same samples in half as many groups."""
        half = len(self.counts) // 2
        return GroupBlock(self.counts[:half], self.means[:half]).merge(
            GroupBlock(self.counts[half:], self.means[half:])
        )

    def features(self, columns: slice) -> GroupBlock:
        """Some of the features.

        Args:
            columns: Which.

        Returns:
            The block.
        """
        return GroupBlock(self.counts, self.means[..., columns])
