"""Level samples and what is kept of them.

Level ℓ runs T_ℓ = 2^ℓ passes at an input (or designs of stratified passes, which then stand for passes). With f(T) the
metric of the mean over T passes, a sample gives

    f = f(all),   Δ = f(all) − ½ (f(first half) + f(second half))

The halves are independent samples of the level below, so their differences give the variance *within* an input there:
what is left of the variance of a level when every input has been used. Everything is kept as sums of powers and
products, which merge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.evaluation.features import FeatureMap, halves_joined, mean_of_parts, stacked
from mlmc_dropout.evaluation.unsettled import PARTS, unsettled_squares
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.sampling.streams import EVALUATION

__all__ = ["LevelState", "level_sample", "passes_of"]

Array = NDArray[np.float64]

_LEVELS = 32  # streams of one kind of passes
_FLOATS = 1 << 21  # outputs of passes held at once, unless a single pass of the rows has more


@dataclass(frozen=True, slots=True)
class LevelState:
    """Samples of a level: per sample K numbers f, Δ, f − f(first half), and the mean of Δ of the halves.

    Attributes:
        block: Moments of the 4 K numbers (f, Δ, plain, Δ of the halves).
        cross: Σ (z − z̄)(z − z̄)ᵀ for z = (f, Δ), shape (2 K, 2 K).
        within: Σ ½ d dᵀ for the difference d of z between the two halves: within an input, one level below.
        paired: Σ (Δ − Δ̄)(Δ of the halves − its mean), (K,).
        unsettled: Σ of mean squares by which f may jump, by the noise of its passes, (K,); 0 for smooth metrics.
    """

    block: MomentBlock
    cross: Array
    within: Array
    paired: Array
    unsettled: Array

    @classmethod
    def empty(cls, components: int) -> LevelState:
        """No samples.

        Args:
            components: The number K.

        Returns:
            The identity of :meth:`merge`.
        """
        zeros = np.zeros((2 * components, 2 * components))
        return cls(MomentBlock.empty((4 * components,)), zeros, zeros, np.zeros(components), np.zeros(components))

    @classmethod
    def of(
        cls, f: Array, delta: Array, plain: Array, below: Array, half: Array, unsettled: Array | None = None
    ) -> LevelState:
        """The state of samples.

        Args:
            f: Values f, (N, K).
            delta: Differences Δ, (N, K).
            plain: Plain differences, (N, K).
            below: Means of Δ over the two halves, (N, K).
            half: Differences d between the halves, (N, 2 K).
            unsettled: Mean squares by which f may jump, (N, K); ``None``: none.

        Returns:
            The state.
        """
        block = MomentBlock.of(np.concatenate([f, delta, plain, below], axis=1))
        K = f.shape[1]
        deviation = np.concatenate([f, delta], axis=1) - block.mean[: 2 * K]
        paired = np.sum(deviation[:, K:] * (below - block.mean[3 * K :]), axis=0)
        jumps = np.zeros(K) if unsettled is None else unsettled.sum(axis=0)
        return cls(block, deviation.T @ deviation, 0.5 * half.T @ half, paired, jumps)

    def merge(self, other: LevelState) -> LevelState:
        """The state of both sets of samples.

        Args:
            other: Samples of the same level.

        Returns:
            The merged state.
        """
        if not self.count or not other.count:
            return self if self.count else other
        size, K = len(self.cross), self.components
        shift = other.block.mean - self.block.mean
        weight = self.count * other.count / (self.count + other.count)
        cross = self.cross + other.cross + weight * np.outer(shift[:size], shift[:size])
        paired = self.paired + other.paired + weight * shift[K:size] * shift[3 * K :]
        unsettled = self.unsettled + other.unsettled
        return LevelState(self.block.merge(other.block), cross, self.within + other.within, paired, unsettled)

    def pair(self, component: int) -> tuple[Array, Array]:
        """Mean and covariance of Δ and of Δ of the halves.

        Args:
            component: Number of the component.

        Returns:
            Arrays (2,) and (2, 2).
        """
        K = self.components
        places = [K + component, 3 * K + component]
        mixed = float(self.paired[component]) / max(self.count - 1, 1)
        variances = self.block.variance[places]
        return self.block.mean[places], np.array([[variances[0], mixed], [mixed, variances[1]]])

    @property
    def count(self) -> int:
        """Number of samples."""
        return self.block.count

    @property
    def components(self) -> int:
        """The number K."""
        return len(self.cross) // 2

    @property
    def mean(self) -> Array:
        """Means of f and Δ, (2 K,)."""
        return self.block.mean[: len(self.cross)]

    @property
    def covariance(self) -> Array:
        """Covariance of (f, Δ) over inputs and passes, (2 K, 2 K); NaN below two samples."""
        return self.cross / (self.count - 1) if self.count > 1 else np.full_like(self.cross, np.nan)

    @property
    def covariance_within(self) -> Array:
        """Covariance of (f, Δ) of the level below, over passes at one input, (2 K, 2 K)."""
        return self.within / max(self.count, 1)

    def arrays(self) -> dict[str, Array]:
        """As arrays, the inverse of :meth:`from_arrays`."""
        block = self.block
        assert block.s3 is not None and block.s4 is not None
        moments = np.stack([block.mean, block.s2, block.s3, block.s4])
        return {
            "count": np.array(block.count),
            "moments": moments,
            "cross": self.cross,
            "within": self.within,
            "paired": self.paired,
            "unsettled": self.unsettled,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> LevelState:
        """Read a state from its arrays.

        Args:
            arrays: What :meth:`arrays` gave.

        Returns:
            The state.

        Raises:
            ValueError: If the count is no whole number.
        """
        if arrays["count"].shape or arrays["count"].dtype.kind not in "iu":
            raise ValueError(f"a count of {arrays['count']!r}")
        block = MomentBlock(int(arrays["count"]), *arrays["moments"])
        return cls(block, arrays["cross"], arrays["within"], arrays["paired"], arrays["unsettled"])


def passes_of(level: int) -> int:
    """Passes (or designs) per input.

    Args:
        level: The level ℓ.

    Returns:
        T_ℓ = 2^ℓ.
    """
    return 1 << level


def level_sample(
    source: Source, y: Any, level: int, replicate: int, features: FeatureMap, design: int = 1
) -> LevelState:
    """Run a level at the inputs of a batch.

    Args:
        source: The inputs; the row numbers of ``source`` name their masks.
        y: Labels of the inputs, or ``None``.
        level: The level ℓ.
        replicate: Number of the replicate, which names the masks, too.
        features: What is asked.
        design: Passes per stratified design; 1 (default) for independent passes.

    Returns:
        One sample per input.

    Raises:
        NonFiniteOutputError: If an output is NaN or infinite.
        InputError: If outputs or labels are not what they were said to be.
    """
    y = features.fitted(y, source.program.structure)
    means = _means_of_parts(source, y, level, replicate, features, design)
    quarters = None if level < 2 else halves_joined(means) if level > 2 else means
    halves = halves_joined(quarters) if quarters is not None else means if level == 1 else None
    whole = means if halves is None else halves_joined(halves)
    f = features.values(whole, y)[0]
    nothing = np.zeros_like(f)
    if halves is None:
        return LevelState.of(f, nothing, nothing, nothing, np.concatenate([nothing, nothing], axis=1))
    f_half = features.values(halves, y)
    delta = f - 0.5 * (f_half[0] + f_half[1])
    below = between = jumps = nothing
    if quarters is not None:
        f_quarter = features.values(quarters, y)
        delta_half = f_half - 0.5 * (f_quarter[0::2] + f_quarter[1::2])
        jumps = unsettled_squares(features, means, whole, y)
        below, between = 0.5 * (delta_half[0] + delta_half[1]), delta_half[0] - delta_half[1]
    half = np.concatenate([f_half[0] - f_half[1], between], axis=1)
    return LevelState.of(f, delta, f - f_half[0], below, half, jumps)


def _means_of_parts(
    source: Source, y: Any, level: int, replicate: int, features: FeatureMap, design: int
) -> dict[str, NDArray[np.float64]]:
    """Means of features over eighths of the passes (quarters, halves, or the single pass, on the lowest levels)."""
    passes, rows = passes_of(level), source.batch.rows
    parts = min(PARTS, passes)
    each = passes // parts
    at_once = max(1, _FLOATS // (rows * design * source.program.structure.width))

    def run(start: int, stop: int) -> dict[str, Array]:
        values = _outputs(source, level, replicate, range(start, stop), design)
        return features.features(values, source.program.structure, y)

    if passes <= at_once:
        made, size = run(0, passes), each * design
        cut = ({name: v[p * size : (p + 1) * size] for name, v in made.items()} for p in range(parts))
        return stacked([mean_of_parts([part], size) for part in cut])
    size = min(each, at_once)
    starts = (range(p * each, (p + 1) * each, size) for p in range(parts))
    return stacked([mean_of_parts((run(s, min(s + size, r.stop)) for s in r), each * design) for r in starts])


def _outputs(source: Source, level: int, replicate: int, indices: range, design: int) -> Array:
    """Outputs of passes, (passes, N, width); of designs all passes one after another."""
    if design == 1:
        return source.passes(EVALUATION + level, (replicate,), indices)[:, 0]
    keys = pass_keys(source.seed, EVALUATION + _LEVELS + level, replicate, np.asarray(indices))
    out = source.sampler.run(source.program, source.batch, keys, source.row_numbers, design_passes=design)
    values = out.double().cpu().numpy()
    source.check(values)
    return values
