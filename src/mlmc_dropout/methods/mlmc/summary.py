"""Merged replicates -> estimates and standard errors of the paper's multilevel estimators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout import theory
from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.methods.base import Estimates, LevelEstimate
from mlmc_dropout.methods.tails import Trust, trust
from mlmc_dropout.methods.worth import Worth, errors_doubted
from mlmc_dropout.moments import MomentBlock

__all__ = ["COST_MODELS", "LevelState", "Levels", "MLMCState", "Summary"]

Array = NDArray[np.float64]
Levels = Literal["nested", "independent", "uncoupled"]
COST_MODELS: dict[str, Literal["coupled", "uncoupled", "separate"]] = {
    "nested": "coupled",
    "independent": "uncoupled",
    "uncoupled": "separate",
}

_NOTES = {
    "nested": "S2_mean and S2_variance are the paper's S², which treats levels as independent; here levels share "
    "passes, and mean_stderr and variance_stderr account for it exactly.",
    "independent": "Levels are independent, so the squares of mean_stderr and variance_stderr are the paper's S².",
    "uncoupled": "Coarse and fine passes of an increment are separate: the baseline that coupling is meant to beat.",
}
_MEAN_ONLY = (
    "The ladder or its counts serve the mean only: the variance is T_0 times that of the first level's means, and "
    "standard errors follow from it by the closed forms."
)


@dataclass(frozen=True, slots=True)
class LevelState:
    """The replicates of one level.

    Attributes:
        dY: Increments of Y; Y itself at level 0.
        dV: Increments of V; V itself at level 0.
        Y: Fine means.
        V: Fine sample variances.
        features: Increments of features in groups, if any are asked.
    """

    dY: MomentBlock
    dV: MomentBlock
    Y: MomentBlock
    V: MomentBlock
    features: GroupBlock | None = None


@dataclass(frozen=True, slots=True)
class MLMCState:
    """The replicates of all levels.

    Attributes:
        levels: One state per level, ``None`` where there is no replicate yet.
    """

    levels: tuple[LevelState | None, ...]

    @property
    def present(self) -> list[LevelState]:
        """The levels that have replicates."""
        return [level for level in self.levels if level is not None]


@dataclass(frozen=True, slots=True)
class Summary:
    """The replicates of all levels, and what has to be known to read them.

    Attributes:
        states: One state per level.
        fidelities: T_0 < … < T_L.
        levels: How the levels were sampled.
        passes: Passes spent per input.
    """

    states: Sequence[LevelState]
    fidelities: tuple[int, ...]
    levels: Levels
    passes: float

    def of_both(self) -> Estimates:
        """Mean and variance: the telescoping sums, the paper's S², and standard errors of the variant that was run."""
        levels = self.states
        dY, dV = [level.dY for level in levels], [level.dV for level in levels]
        S2 = [sum(block.variance_of_mean for block in parts) for parts in (dY, dV)]
        truth = S2
        if self.levels == "nested":
            truth = [_nested_variance(levels[-1].Y, dY), _nested_variance(levels[-1].V, dV)]
        return Estimates(
            np.asarray(sum(block.mean for block in dY)),
            np.asarray(sum(block.mean for block in dV)),
            np.sqrt(truth[0]),
            np.sqrt(truth[1]),
            self.passes,
            np.asarray(S2[0]),
            np.asarray(S2[1]),
            tuple(self._level(number) for number in range(len(levels))),
            tuple(self._notes(dY)),
            # The mean of V is what estimates the variance.
            trust=Trust(trust(dY[0]).mean, trust(dV[0], are_outputs=False).mean),
            groups=self._groups(),
            worth=self._worth(np.asarray(truth[0]), np.asarray(truth[1])),
        )

    def of_the_mean(self) -> Estimates:
        """The mean, with a standard error that needs sample variances of the first level alone.

        Y is an average of passes, so that μ2 = T_0 Var Y_0 and all level variances follow from it.
        """
        levels, T, first = self.states, self.fidelities, self.states[0].dY
        counts = [level.dY.count for level in levels]
        mu2 = T[0] * first.variance
        spread = first.variance * np.sqrt(theory.variance_of_sample_variance(first.count, 1.0, _kurtosis(first)))
        v = (
            theory.level_variances_uncoupled(T, "mean", mu2)
            if self.levels == "uncoupled"
            else theory.level_variances_mean(T, mu2)
        )
        law = theory.variance_nested if self.levels == "nested" else theory.variance_independent
        return Estimates(
            np.asarray(sum(level.dY.mean for level in levels)),
            mu2,
            np.sqrt(np.maximum(law(v, counts), 0.0)),
            T[0] * spread,
            self.passes,
            None,
            None,
            tuple(self._level(number) for number in range(len(levels))),
            (_MEAN_ONLY,),
            trust=Trust(trust(first).mean, trust(first).mean),
            groups=self._groups(),
        )

    def _worth(self, mean: Array, variance: Array) -> Worth:
        """Squared errors of both beside those of plain averaging, whose moments the first level tells."""
        first, T = self.states[0], self.fidelities[0]
        mu2 = first.dV.mean
        mu4 = theory.fourth_moment(T, mu2, first.dV.variance)
        doubts = [_doubts([getattr(level, name) for level in self.states]) for name in ("dY", "dV")]
        fewest = min(level.dY.count for level in self.states)
        return Worth.of(mu2, mu4 - np.square(mu2), mean, variance, (doubts[0], doubts[1]), fewest)

    def _groups(self) -> GroupBlock | None:
        """Telescoping sums of features, group by group; so many groups that every level has replicates of each."""
        parts = [level.features for level in self.states if level.features is not None]
        if not parts:
            return None
        while len(parts[0].counts) > 1 and any((part.counts == 0).any() for part in parts):
            parts = [part.coarser() for part in parts]
        passes = round(self.passes) // len(parts[0].counts)
        return GroupBlock(np.full(len(parts[0].counts), passes), np.sum([part.means for part in parts], axis=0))

    def _level(self, number: int) -> LevelEstimate:
        level, fidelities = self.states[number], self.fidelities
        telescoping = None
        if number:
            below = self.states[number - 1]
            checks = (level.dY, level.Y, below.Y), (level.dV, level.V, below.V)
            telescoping = max(_telescoping(*check) for check in checks)
        steps = theory.cost_per_replicate(fidelities, COST_MODELS[self.levels])
        return LevelEstimate(
            f"level {number}",
            fidelities[number],
            level.dY.count,
            float(steps[number] * level.dY.count),
            level.dY.mean,
            level.dY.variance,
            level.dY.kurtosis,
            level.dV.mean,
            level.dV.variance,
            level.dV.kurtosis,
            telescoping,
        )

    def _notes(self, dY: list[MomentBlock]) -> Iterator[str]:
        yield _NOTES[self.levels]
        if dY[-1].count < 10:
            yield (
                f"The finest level has only {dY[-1].count} replicates; standard errors rest on them and are rough. "
                "Raise the budget or shorten the ladder."
            )


def _kurtosis(block: MomentBlock) -> Array:
    """Fourth moment over squared variance; that of the closure where there are too few samples to tell."""
    return np.where(np.isfinite(block.kurtosis), block.kurtosis, 3.0)


def _doubts(increments: Sequence[MomentBlock]) -> Array:
    """The relative standard error of a sum of squared errors, level by level."""
    errors2 = [block.variance_of_mean for block in increments]
    parts = [
        np.square(error2 * errors_doubted(block.kurtosis, block.count - 1))
        for error2, block in zip(errors2, increments, strict=True)
    ]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.nan_to_num(np.sqrt(sum(parts)) / sum(errors2)))


def _nested_variance(finest: MomentBlock, increments: list[MomentBlock]) -> Array:
    """Variance of the nested estimator, from the sample variances of its parts.

    Level 0 is the finest value minus the increments, which are uncorrelated with it and with each
    other (Y and V are U-statistics). Hence Var = Var Y(T_L)/M_0 + Σ v_ℓ |1/M_ℓ − 1/M_0|; the same
    as ``theory.variance_nested``, in a form that cannot become negative.
    """
    first, *rest = increments
    total = finest.variance / first.count
    for block in rest:
        total = total + block.variance * abs(1.0 / block.count - 1.0 / first.count)
    return np.asarray(total)


def _telescoping(increment: MomentBlock, fine: MomentBlock, coarse: MomentBlock) -> float:
    """Giles' consistency check |a − b + c| / (3(√Va + √Vb + √Vc)), the mean over components; below 1 is sound.

    a is the mean increment, b the mean fine value of this level, c that of the level below.
    """
    a, b, c = increment, fine, coarse
    allowed = 3 * (np.sqrt(a.variance_of_mean) + np.sqrt(b.variance_of_mean) + np.sqrt(c.variance_of_mean))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.abs(a.mean - b.mean + c.mean) / allowed
    return float(np.nanmean(ratio)) if np.isfinite(ratio).any() else 0.0
