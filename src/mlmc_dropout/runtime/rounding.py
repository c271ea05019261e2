"""What the numbers of a model can resolve: no standard error is smaller."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from mlmc_dropout.methods.base import Estimates
from mlmc_dropout.stopping.goal import Goal
from mlmc_dropout.stopping.rows import Part, row_factors

__all__ = ["at_precision", "limited_rows", "limits"]

Array = NDArray[np.float64]

UNITS = 4.0  # of the last place: the typical error of a sum over a layer of a thousand units is two
RESOLVED = 3.0  # roundings that the spread of passes has to exceed to be seen
OFFSET = 2.0  # values above it have a size of their own; probabilities close to 1 are not a case of lost digits


@dataclass(frozen=True, slots=True)
class _Rounding:
    """Errors (rows, width) that the model's numbers have, and those of plain averaging over the same passes."""

    mean: Array
    variance: Array
    plain_mean: Array
    plain_variance: Array
    lost: NDArray[np.bool_]  # passes differ by less than their rounding: plain averaging knows nothing either

    @classmethod
    def of(cls, found: Estimates, dtype: torch.dtype | None) -> _Rounding:
        spread = np.maximum(np.nan_to_num(found.variance), 0.0)
        size = UNITS * torch.finfo(dtype or torch.float32).eps * np.sqrt(found.mean**2 + spread)
        upper = np.maximum(found.variance + 3 * np.nan_to_num(found.variance_stderr), 0.0)
        lost = upper <= (RESOLVED * size) ** 2
        passes = max(found.cost, 1.0)
        plain_mean = np.where(lost, np.inf, np.sqrt(spread / passes))
        plain_variance = np.where(lost, np.inf, spread * np.sqrt(2.0 / passes))
        return cls(size, 2 * size * np.sqrt(spread) + size**2, plain_mean, plain_variance, lost)


def at_precision(found: Estimates, dtype: torch.dtype | None) -> Estimates:
    """Estimates whose standard errors allow for the rounding of the passes and of what is known in closed form.

    A value of the model is off by about r = 4·eps·sqrt(mean² + variance), eps being that of its type. In an average of
    passes that differ by far more, this averages out with everything else; in a closed form it does not. So the
    standard error of the mean is at least r, or that of plain averaging, sqrt(variance/passes), if this is smaller; and
    that of the variance at least 2·r·sqrt(variance) + r², or variance·sqrt(2/passes). Where passes differ by less than
    ``RESOLVED`` roundings, plain averaging knows nothing either.

    Args:
        found: The estimates.
        dtype: The type of the model's parameters; ``None`` counts as float32.

    Returns:
        The same with standard errors raised where necessary, and a note where differences are lost in rounding.
    """
    off = _Rounding.of(found, dtype)
    name = str(dtype or torch.float32).removeprefix("torch.")
    note = (
        f"Some outputs differ from pass to pass by less than {name} resolves at their size, or not at all, and their "
        "variances are lost in rounding. If they should differ, use model.double()."
    )
    notable = (off.lost & (np.abs(found.mean) > OFFSET)).any()
    mean, variance = np.minimum(off.mean, off.plain_mean), np.minimum(off.variance, off.plain_variance)
    return replace(
        found,
        mean_stderr=np.maximum(found.mean_stderr, mean),
        variance_stderr=np.maximum(found.variance_stderr, variance),
        worth=None if found.worth is None else found.worth.at_least(np.square(mean), np.square(variance)),
        notes=(*found.notes, note) if notable else found.notes,
    )


def limits(found: Estimates, goal: Goal, dtype: torch.dtype | None) -> bool:
    """Whether it is rounding that keeps a tolerance from being met, so that more passes do not help.

    Args:
        found: The estimates, without allowance for rounding.
        goal: The tolerance.
        dtype: The type of the model's parameters.

    Returns:
        True if the standard errors of some components would be too large even if they came from rounding alone.
    """
    if not goal.has_tolerance:
        return False
    return 1.0 < goal.shortfall(at_precision(found, dtype)) <= goal.shortfall(_rounding_alone(found, dtype))


def limited_rows(found: Estimates, goal: Goal, dtype: torch.dtype | None) -> NDArray[np.bool_]:
    """The same input by input.

    Args:
        found: The estimates, without allowance for rounding.
        goal: The tolerance.
        dtype: The type of the model's parameters.

    Returns:
        Flags (rows,).
    """
    whole = Part(found, 1.0)
    shown, alone = (Part(each, 1.0) for each in (at_precision(found, dtype), _rounding_alone(found, dtype)))
    factors = [row_factors(goal, part, [whole]) for part in (shown, alone)]
    return np.asarray((factors[0] > 1.0) & (factors[0] <= factors[1]))


def _rounding_alone(found: Estimates, dtype: torch.dtype | None) -> Estimates:
    """Estimates whose standard errors come from rounding alone."""
    off = _Rounding.of(found, dtype)
    return replace(
        found,
        mean_stderr=np.where(off.mean < off.plain_mean, off.mean, 0.0),
        variance_stderr=np.where(off.variance < off.plain_variance, off.variance, 0.0),
    )
