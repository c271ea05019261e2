"""What metrics that jump may still change by: inputs close to a jump, by the noise that parts of their passes show.

Two halves of the passes can agree on a class though more passes would change it, and then they tell no noise at all.
So the mean m over all passes is moved by up to a few standard errors of itself, to see whether the metric jumps.
With P parts q of the passes and standard normal numbers ε, the mean moved by

    ± r Σ_i ε_i (q_i − m) / sqrt(P (P − 1))

has r² times the estimated covariance of the mean.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.evaluation.features import LOGARITHMS, FeatureMap, Features

__all__ = ["PARTS", "unsettled_squares"]

Array = NDArray[np.float64]

PARTS = 8  # of the passes, at most
_MOVES = {0.7: 0.45, 1.5: 0.2, 2.5: 0.05, 4.5: 0.005}  # sizes r and weights: wider tails than a normal law, Σ w r² ≈ 1
_DIRECTIONS = 3  # per size
_NORMAL = np.random.Generator(np.random.PCG64(0)).standard_normal((len(_MOVES), _DIRECTIONS, PARTS))


def unsettled_squares(features: FeatureMap, parts: Features, whole: Features, y: object) -> Array:
    """Mean square of what the numbers of kinked metrics change by when the mean over passes moves by its own noise.

    Args:
        features: What is asked.
        parts: Means of features over equal parts of the passes, two at least, along the first axis.
        whole: Means over all passes, with a first axis of length 1.
        y: Labels, or ``None``.

    Returns:
        One number per input and component, (N, K); 0 for smooth metrics.
    """
    columns = np.repeat([m.kinks for m in features.metrics], [m.components for m in features.metrics])
    rows = next(iter(whole.values())).shape[1]
    squares = np.zeros((rows, len(columns)))
    if not columns.any():
        return squares
    kinked = FeatureMap(features.outputs, tuple(m for m in features.metrics if m.kinks), features.class_axis)
    f = kinked.values(whole, y)[0]
    total = np.zeros_like(f)
    for (size, weight), normal in zip(_MOVES.items(), _NORMAL, strict=True):
        for numbers in normal:
            step = _step(parts, numbers)
            for r in (size, -size):
                moved = {name: v + r * step[name] if name in step else v for name, v in whole.items()}
                total += weight / (2 * _DIRECTIONS) * (kinked.values(moved, y)[0] - f) ** 2
    squares[:, columns] = total
    return squares


def _step(parts: Features, numbers: Array) -> dict[str, Array]:
    """One standard error of the means in a direction that parts of the passes tell; logarithms stay."""
    P = len(next(iter(parts.values())))
    weights = (numbers[:P] - numbers[:P].mean()) / np.sqrt(P * (P - 1))  # less their mean: the same for q as for q − m
    return {name: np.tensordot(weights, v, axes=1) for name, v in parts.items() if name not in LOGARITHMS}
