"""3 · A replicate -> its estimates at every fidelity, coarse passes being the first of the fine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Prefix", "prefix_estimates"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first ``T`` passes of some replicates: Y(T) and the sum of squares (T−1)·V(T)."""

    T: int
    Y: Array
    sum_of_squares: Array

    @property
    def V(self) -> Array:
        """The unbiased sample variance of these passes; 0 for a single one, of which there is none."""
        return self.sum_of_squares / max(self.T - 1, 1)

    def extend(self, passes: Array) -> Prefix:
        """Append further passes: the pooled identity of Chan, Golub & LeVeque (eq:mlmc:variance_update).

        Args:
            passes: Further passes (count, replicates, rows, width).

        Returns:
            The prefix with these passes.
        """
        new = len(passes)
        x = np.ascontiguousarray(np.moveaxis(passes, 0, -1))  # sums over a contiguous axis: see MomentBlock.of
        mean = x.mean(axis=-1)
        sum_of_squares = np.square(x - mean[..., None]).sum(axis=-1)
        if not self.T:
            return Prefix(new, mean, sum_of_squares)
        T = self.T + new
        gap = mean - self.Y
        return Prefix(
            T, self.Y + gap * (new / T), self.sum_of_squares + sum_of_squares + np.square(gap) * (self.T * new / T)
        )


def prefix_estimates(chunks: Iterable[Array], fidelities: Sequence[int]) -> list[Prefix]:
    """The prefixes of length ``fidelities`` of a stream of passes, each pass used once and let go.

    ``chunks`` are arrays (passes, ...), cut so that every fidelity falls on a boundary.

    Args:
        chunks: Passes in order, in chunks that end at every fidelity.
        fidelities: T_0 < … < T_L.

    Returns:
        Y and V at each fidelity.

    Example:
        >>> passes = np.array([[1.0], [2.0], [4.0], [9.0]])
        >>> coarse, fine = prefix_estimates([passes[:2], passes[2:]], (2, 4))
        >>> bool(np.isclose(fine.V, np.var(passes, ddof=1)).all())
        True
    """
    prefix, found, wanted = Prefix(0, np.zeros(()), np.zeros(())), [], set(fidelities)
    for chunk in chunks:
        prefix = prefix.extend(chunk)
        if prefix.T in wanted:
            found.append(prefix)
    return found
