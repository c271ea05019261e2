"""Student's factor: standard errors from few samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

__all__ = ["student_factor"]

Array = NDArray[np.float64]


def student_factor(samples: ArrayLike) -> Array:
    """Student's factor, with which ± 1.96 standard errors from few samples cover 95 %.

    Args:
        samples: Samples behind the standard errors.

    Returns:
        The factor; NaN for a single sample.

    Example:
        >>> student_factor([10, 100]).round(3).tolist()
        [1.154, 1.012]
    """
    freedom = np.asarray(samples, dtype=np.float64) - 1
    return np.asarray(stdtrit(np.where(freedom > 0, freedom, np.nan), 0.975) / ndtri(0.975))
