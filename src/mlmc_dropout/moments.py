"""2 · Mergeable moment blocks: what is kept instead of samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mlmc_dropout.errors import InputError

__all__ = ["MomentBlock", "Moments", "merge_all"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Moments:
    """Central moments of a pass.

    Attributes:
        mu2: The variance μ2.
        mu4: The fourth central moment μ4; ``None`` if it is not known.
    """

    mu2: Any
    mu4: Any = None


@dataclass(frozen=True, slots=True)
class MomentBlock:
    """Count n, mean, and central sums s_k = Σ (x − mean)^k, k = 2, 3, 4, componentwise in float64.

    Two blocks merge exactly (Chan, Golub & LeVeque 1979 for s_2; Pébay 2008 for s_3, s_4). With
    δ = mean_b − mean_a and n = n_a + n_b:

        mean = mean_a + δ n_b/n
        s_2  = s_2a + s_2b + δ² n_a n_b/n
        s_3  = s_3a + s_3b + δ³ n_a n_b (n_a − n_b)/n² + 3δ (n_a s_2b − n_b s_2a)/n
        s_4  = s_4a + s_4b + δ⁴ n_a n_b (n_a² − n_a n_b + n_b²)/n³
               + 6δ² (n_a² s_2b + n_b² s_2a)/n² + 4δ (n_a s_3b − n_b s_3a)/n

    Attributes:
        count: Number of samples n.
        mean: Their mean, one entry per component.
        s2: Σ (x − mean)².
        s3: Σ (x − mean)³, or ``None`` in a block made with ``order=2``.
        s4: Σ (x − mean)⁴, or ``None`` in a block made with ``order=2``.

    Examples:
        >>> a, b = MomentBlock.of(np.array([1.0, 2.0])), MomentBlock.of(np.array([4.0, 9.0]))
        >>> float(a.merge(b).variance), float(np.var([1, 2, 4, 9], ddof=1))
        (12.666666666666666, 12.666666666666666)
    """

    count: int
    mean: Array
    s2: Array
    s3: Array | None = None
    s4: Array | None = None

    @classmethod
    def empty(cls, shape: tuple[int, ...] = ()) -> MomentBlock:
        """The block of no samples, the identity of :meth:`merge`.

        Args:
            shape: Shape of a sample; a number by default.

        Returns:
            The empty block.
        """
        zeros = np.zeros(shape)
        return cls(0, zeros, zeros, zeros, zeros)

    @classmethod
    def of(cls, samples: ArrayLike, order: Literal[2, 4] = 4) -> MomentBlock:
        """The block of samples.

        Args:
            samples: Samples along the first axis.
            order: Highest power to sum: 2 for mean and variance only, 4 (default) for skewness and kurtosis as well.

        Returns:
            The block, whose arrays have the shape of one sample.

        Raises:
            InputError: If ``order`` is neither 2 nor 4.
        """
        if order not in (2, 4):
            raise InputError(f"order is 2 (mean and variance) or 4 (kurtosis, too): got {order!r}")
        x = np.asarray(samples, dtype=np.float64)
        if not len(x):
            return cls.empty(x.shape[1:])
        # Sums run over the last, contiguous axis: their order, hence their last bits, are then the
        # same for one component as for many.
        x = np.ascontiguousarray(np.moveaxis(x, 0, -1))
        rough = x.mean(axis=-1, keepdims=True)
        mean = rough + (x - rough).mean(axis=-1, keepdims=True)  # removes the rounding of the first mean
        d = x - mean
        square = d * d
        block = cls(x.shape[-1], mean[..., 0], square.sum(axis=-1))
        if order == 2:
            return block
        return replace(block, s3=(square * d).sum(axis=-1), s4=(square * square).sum(axis=-1))

    @classmethod
    def beside(cls, blocks: Sequence[MomentBlock]) -> MomentBlock:
        """Join blocks of different components, all with the same number of samples.

        Args:
            blocks: The blocks, at least one; their components are joined along the first axis.

        Returns:
            The joint block.
        """
        if len(blocks) == 1:
            return blocks[0]
        names = ("mean", "s2") if blocks[0].s3 is None else ("mean", "s2", "s3", "s4")
        parts = ([getattr(block, name) for block in blocks] for name in names)
        return cls(blocks[0].count, *map(np.concatenate, parts))

    def merge(self, other: MomentBlock) -> MomentBlock:
        """The block of both sets of samples.

        Args:
            other: A block of the same components.

        Returns:
            The merged block; it has s_3 and s_4 if both have them.
        """
        if not self.count or not other.count:
            return self if self.count else other
        na, nb = float(self.count), float(other.count)
        n = na + nb
        d = other.mean - self.mean
        dn = d / n
        cross = d * dn * (na * nb)
        block = MomentBlock(self.count + other.count, self.mean + dn * nb, self.s2 + other.s2 + cross)
        if self.s3 is None or other.s3 is None or self.s4 is None or other.s4 is None:
            return block
        s3 = self.s3 + other.s3 + cross * dn * (na - nb) + 3 * dn * (na * other.s2 - nb * self.s2)
        s4 = (
            self.s4
            + other.s4
            + cross * dn * dn * (na * na - na * nb + nb * nb)
            + 6 * dn * dn * (na * na * other.s2 + nb * nb * self.s2)
            + 4 * dn * (na * other.s3 - nb * self.s3)
        )
        return replace(block, s3=s3, s4=s4)

    @property
    def variance(self) -> Array:
        """The unbiased sample variance s_2/(n−1); NaN below two samples."""
        return self.s2 / (self.count - 1) if self.count > 1 else np.full_like(self.s2, np.nan)

    @property
    def variance_of_mean(self) -> Array:
        """Estimated variance of ``mean``: sample variance / n."""
        return self.variance / max(self.count, 1)

    @property
    def fourth(self) -> Array:
        """Estimate s_4/n of the fourth central moment."""
        return self._sum_of_fourth_powers() / max(self.count, 1)

    @property
    def kurtosis(self) -> Array:
        """Kurtosis n s_4/s_2²; 3 for a Gaussian, NaN where the sample does not vary."""
        s4 = self._sum_of_fourth_powers()
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.count * s4 / self.s2**2)

    @property
    def skewness(self) -> Array:
        """Skewness √n s_3/s_2^(3/2); 0 for a symmetric sample, NaN where the sample does not vary."""
        if self.s3 is None:
            raise InputError("this block was made with order=2 and has no third powers: use MomentBlock.of(samples)")
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.sqrt(self.count) * self.s3 / self.s2**1.5)

    def _sum_of_fourth_powers(self) -> Array:
        if self.s4 is None:
            raise InputError("this block was made with order=2 and has no fourth powers: use MomentBlock.of(samples)")
        return self.s4


def merge_all(blocks: Iterable[MomentBlock]) -> MomentBlock:
    """Merge blocks from left to right; the order determines the last bits of the result.

    Args:
        blocks: The blocks, at least one.

    Returns:
        The merged block.
    """
    return reduce(MomentBlock.merge, blocks)
