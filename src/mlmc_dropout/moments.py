"""2 · Mergeable moment blocks: what is kept instead of samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mlmc_dropout.errors import InputError

__all__ = ["MomentBlock", "Moments", "PowerSums", "merge_all", "recursive_squares", "running_moments", "slices"]

Array = NDArray[np.float64]

# Arrays are worked through in slices of components that stay in the processor's caches, with hardly any memory besides
# the results. A component's bits do not depend on the slice that it is in.
_SAMPLES = 1 << 16  # numbers of a slice, where there are several per component
_COMPONENTS = 1 << 13  # the same where there is one per component
_TOGETHER = 1 << 13  # numbers of an array that is read together with others


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
        x = np.asarray(samples)
        if not len(x):
            return cls.empty(x.shape[1:])
        axes = sorted(range(1, x.ndim), key=lambda axis: -abs(x.strides[axis]))  # as they lie in memory
        laid = x.transpose(0, *axes)
        columns = laid.reshape(len(x), -1)
        at_once = max(1, _SAMPLES // len(x))
        if columns.shape[1] <= at_once:
            block = cls._of_columns(columns, order).reshape(laid.shape[1:])
        else:
            parts = slices(columns.shape[1], at_once)
            block = cls._joined(laid.shape[1:], ((part, cls._of_columns(columns[:, part], order)) for part in parts))
        if axes == sorted(axes):
            return block
        back = np.argsort(axes)
        return cls(block.count, *(np.ascontiguousarray(values.transpose(back)) for values in block._arrays()))

    @classmethod
    def several(cls, samples: Sequence[Array], order: Literal[2, 4] = 4) -> list[MomentBlock]:
        """The blocks of several arrays of one shape.

        Small arrays are read together: the calls for each would take longer than the sums.

        Args:
            samples: Arrays of samples along the first axis.
            order: As in :meth:`of`.

        Returns:
            One block per array, the same as one by one.
        """
        if samples[0].size > _TOGETHER:
            return [cls.of(values, order) for values in samples]
        joint = cls.of(np.stack(samples, axis=1), order)
        return [cls(joint.count, *(values[i] for values in joint._arrays())) for i in range(len(samples))]

    @classmethod
    def _of_columns(cls, samples: NDArray[Any], order: int) -> MomentBlock:
        """The block of samples (samples, components)."""
        # Sums run over the first axis, sample by sample: their order, hence their last bits, are then the same for
        # two components as for many. NumPy would add up those of a single one in another order.
        alone = samples.shape[1] == 1
        x = np.repeat(samples, 2, axis=1) if alone else samples
        n = len(x)
        rough = np.add.reduce(x, axis=0, dtype=np.float64) / n
        d = np.subtract(x, rough, dtype=np.float64)
        rest = np.add.reduce(d, axis=0) / n  # the rounding of the first mean
        d -= rest
        square = d * d
        sums = [rough + rest, np.add.reduce(square, axis=0)]
        if order == 4:
            d *= square
            sums.append(np.add.reduce(d, axis=0))
            square *= square
            sums.append(np.add.reduce(square, axis=0))
        return cls(n, *(values[:1] if alone else values for values in sums))

    @property
    def rows(self) -> int:
        """Length of the first axis of the components."""
        return len(self.mean)

    def room_for(self, rows: int) -> MomentBlock:
        """A block of as many samples of more rows, to be filled by :meth:`copy_to`.

        Args:
            rows: Length of the first axis of its components.

        Returns:
            The block, with arbitrary numbers.
        """
        return MomentBlock(self.count, *(np.empty((rows, *values.shape[1:])) for values in self._arrays()))

    def copy_to(self, whole: MomentBlock, rows: slice) -> None:
        """Copy the numbers to some rows of another block.

        Args:
            whole: A block made by :meth:`room_for`.
            rows: Places of these rows in it.
        """
        for target, values in zip(whole._arrays(), self._arrays(), strict=True):
            target[rows] = values

    def select(self, rows: NDArray[np.integer[Any]]) -> MomentBlock:
        """The same samples of some rows.

        Args:
            rows: Places along the first axis of the components.

        Returns:
            Their block.
        """
        return MomentBlock(self.count, *(values[rows] for values in self._arrays()))

    def features(self, columns: slice) -> MomentBlock:
        """The same samples of some components, along the last axis.

        Args:
            columns: Which.

        Returns:
            Their block.
        """
        return MomentBlock(self.count, *(values[..., columns] for values in self._arrays()))

    def merge(self, other: MomentBlock) -> MomentBlock:
        """The block of both sets of samples.

        Args:
            other: A block of the same components.

        Returns:
            The merged block; it has s_3 and s_4 if both have them.
        """
        if not self.count or not other.count:
            return self if self.count else other
        if self.mean.size <= _COMPONENTS:
            return self._merged(other)
        merged = (a._merged(b) for a, b in zip(self.parts(), other.parts(), strict=True))
        return MomentBlock._joined(self.mean.shape, zip(slices(self.mean.size, _COMPONENTS), merged, strict=True))

    def parts(self) -> Iterator[MomentBlock]:
        """The same samples, some components at a time.

        Yields:
            Blocks of few components each, numbered along all axes.
        """
        for part in slices(self.mean.size, _COMPONENTS):
            yield MomentBlock(self.count, *(values.reshape(-1)[part] for values in self._arrays()))

    def reshape(self, shape: tuple[int, ...]) -> MomentBlock:
        """The same block with its components arranged in another way.

        Args:
            shape: Shape of a sample.

        Returns:
            The block.
        """
        return MomentBlock(self.count, *(values.reshape(shape) for values in self._arrays()))

    def _arrays(self) -> list[Array]:
        return [values for values in (self.mean, self.s2, self.s3, self.s4) if values is not None]

    @classmethod
    def _joined(cls, shape: tuple[int, ...], parts: Iterable[tuple[slice, MomentBlock]]) -> MomentBlock:
        """The block whose components come in parts."""
        out: list[Array] = []
        count = 0
        for part, block in parts:
            arrays, count = block._arrays(), block.count
            out = out or [np.empty(shape) for _ in arrays]
            for whole, values in zip(out, arrays, strict=True):
                whole.reshape(-1)[part] = values
        return cls(count, *out)

    def _merged(self, other: MomentBlock) -> MomentBlock:
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


def recursive_squares(samples: ArrayLike) -> Array:
    """Squared deviations of samples from the mean of those before, each an unbiased estimate of the variance.

    With m_r the mean of the first r samples, (x_{r+1} − m_r)² r/(r+1); they add up to Σ (x − mean)². For Gaussian
    samples they are independent of each other (recursive residuals, Brown, Durbin & Evans 1975).

    Args:
        samples: Samples along the first axis.

    Returns:
        One estimate for every sample but the first.

    Examples:
        >>> float(recursive_squares([1.0, 2.0, 4.0, 9.0]).sum()), float(MomentBlock.of([1.0, 2.0, 4.0, 9.0]).s2)
        (38.0, 38.0)
    """
    x = np.asarray(samples, dtype=np.float64)
    before = np.arange(1, len(x), dtype=np.float64)[:, None]
    weight = before / (before + 1)
    columns = x.reshape(len(x), -1)
    found = np.empty((max(len(x) - 1, 0), columns.shape[1]))
    for part in slices(columns.shape[1], max(1, _SAMPLES // max(len(x), 1))):
        d, out = columns[:, part] - columns[:1, part], found[:, part]
        np.cumsum(d[:-1], axis=0, out=out)
        out /= before
        np.subtract(d[1:], out, out=out)
        out *= out
        out *= weight
    return found.reshape(len(found), *x.shape[1:])


class PowerSums:
    """Sums of powers of samples that come in chunks, too wide to be held together.

    With x₀ the first sample and S_k = Σ (x − x₀)^k, the central sums follow from m = S_1/n::

        mean = x₀ + m
        s_2  = S_2 − n m²
        s_3  = S_3 − 3 m S_2 + 2 n m³
        s_4  = S_4 − 4 m S_3 + 6 m² S_2 − 3 n m⁴

    Since x₀ is one of the samples, s_2 ≥ m² and s_4 ≥ m⁴: the terms that cancel are at most some n times as large as
    what is left. That costs two digits for the passes of a task, and is why this is not for any number of samples.
    Sums are taken sample by sample, so that their bits do not depend on the chunks.

    Attributes:
        count: Number of samples n.
        shape: Shape of a sample.
        first: x₀, with all axes as one.
        sums: S_1 to S_4, likewise.
    """

    def __init__(self) -> None:
        self.count, self.shape = 0, ()
        self.first, self.sums = np.zeros(0), [np.zeros(0)] * 4

    def add(self, chunk: NDArray[Any]) -> None:
        """Add samples.

        Args:
            chunk: Samples along the first axis, of any floating-point type.
        """
        columns = chunk.reshape(len(chunk), -1)
        if not self.count:
            self.shape, self.first = chunk.shape[1:], columns[0].astype(np.float64)
            self.sums = [np.zeros(self.first.shape) for _ in range(4)]
        self.count += len(columns)
        for part in self.parts():
            _add_powers(columns[:, part], self.first[part], *(total[part] for total in self.sums))

    def parts(self) -> Iterator[slice]:
        """Components in slices that stay in the processor's caches."""
        return slices(self.first.size, _COMPONENTS)

    def block(self) -> MomentBlock:
        """The moments; the sums are used up.

        Returns:
            The block of all samples.
        """
        for part in self.parts():
            _centre(self.count, self.first[part], *(total[part] for total in self.sums))
        return MomentBlock(self.count, *(values.reshape(self.shape) for values in (self.first, *self.sums[1:])))


def running_moments(chunks: Iterable[NDArray[Any]]) -> MomentBlock:
    """The block of samples that come in chunks, see :class:`PowerSums`.

    Args:
        chunks: Samples along the first axis, of any floating-point type; at least one sample in all.

    Returns:
        The block.

    Examples:
        >>> running_moments([np.array([[1.0], [2.0]]), np.array([[4.0], [9.0]])]).variance
        array([12.66666667])
    """
    sums = PowerSums()
    for chunk in chunks:
        sums.add(chunk)
    return sums.block()


def _add_powers(samples: NDArray[Any], first: Array, s1: Array, s2: Array, s3: Array, s4: Array) -> None:
    """Add (x − x₀)^k of samples (samples, components) to S_k."""
    d, square = np.empty_like(first), np.empty_like(first)
    for sample in samples:
        np.copyto(d, sample)
        d -= first
        s1 += d
        np.multiply(d, d, out=square)
        s2 += square
        d *= square
        s3 += d
        square *= square
        s4 += square


def _centre(n: int, first: Array, s1: Array, s2: Array, s3: Array, s4: Array) -> None:
    """Turn x₀ into the mean and S_k into s_k, in place."""
    m = s1 / n
    square = m * m
    s4 += m * (6 * m * s2 - 4 * s3 - (3 * n) * m * square)
    s3 += m * ((2 * n) * square - 3 * s2)
    s2 -= n * square
    np.maximum(s2, 0.0, out=s2)
    np.maximum(s4, 0.0, out=s4)
    first += m


def slices(size: int, most: int) -> Iterator[slice]:
    """Cut ``range(size)`` into slices of nearly equal length.

    Args:
        size: Number of components.
        most: Largest length of a slice.

    Yields:
        The slices; a single one, of length 0, if there are no components.

    Examples:
        >>> list(slices(5, 4))
        [slice(0, 2, None), slice(2, 5, None)]
    """
    count = max(1, -(-size // most))
    for part in range(count):
        yield slice(part * size // count, (part + 1) * size // count)


def merge_all(blocks: Iterable[MomentBlock]) -> MomentBlock:
    """Merge blocks from left to right; the order determines the last bits of the result.

    Args:
        blocks: The blocks, at least one.

    Returns:
        The merged block.
    """
    return reduce(MomentBlock.merge, blocks)
