"""What a network returns -> class probabilities, or means and variances."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from mlmc_dropout.errors import InputError

__all__ = [
    "CLASS_OUTPUTS",
    "PAIR_OUTPUTS",
    "OutputKind",
    "check_outputs",
    "is_number",
    "log_probabilities",
    "mean_and_variance",
]

Array = NDArray[np.float64]

OutputKind = Literal["values", "logits", "binary-logits", "probabilities", "mean-variance", "mean-log-variance"]
CLASS_OUTPUTS = ("logits", "binary-logits", "probabilities")
PAIR_OUTPUTS = ("mean-variance", "mean-log-variance")
_OFF = 1e-3  # by how much probabilities may miss 1: single precision, many classes


def check_outputs(outputs: str) -> None:
    """Refuse a word that does not say what a network returns.

    Args:
        outputs: The word.

    Raises:
        InputError: If it is unknown.
    """
    if outputs not in get_args(OutputKind):
        raise InputError(f"unknown outputs {outputs!r}; use one of {', '.join(get_args(OutputKind))}")


def is_number(value: object) -> bool:
    """Whether a value is a real number, and no truth value.

    Args:
        value: Anything.
    """
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def log_probabilities(values: Array, outputs: str) -> Array:
    """Logarithms of class probabilities, stable for saturated logits.

    Args:
        values: Outputs of passes, classes along the last axis; of "binary-logits", every entry is a logit of its own.
        outputs: "logits", "binary-logits" or "probabilities".

    Returns:
        log p, classes along the last axis: two of them for "binary-logits", the second being the positive one. A last
        axis of length 1 is replaced there.

    Raises:
        InputError: If probabilities are negative or do not sum to 1.

    Examples:
        >>> np.exp(log_probabilities(np.array([[0.0], [2.0]]), "binary-logits")).round(3)
        array([[0.5  , 0.5  ],
               [0.119, 0.881]])
    """
    if outputs == "logits":
        return np.asarray(log_softmax(values, axis=-1))
    if outputs == "binary-logits":
        if values.shape[-1] == 1:
            values = values[..., 0]
        return np.stack([-np.logaddexp(0.0, values), -np.logaddexp(0.0, -values)], axis=-1)
    _check_probabilities(values)
    with np.errstate(divide="ignore"):
        return np.log(values)


def _check_probabilities(values: Array) -> None:
    lowest, off = float(values.min()), float(np.abs(values.sum(axis=-1) - 1).max())
    if lowest < 0 or off > _OFF:
        what = f"a value of {lowest:.3g}" if lowest < 0 else f"sums over the classes that differ from 1 by {off:.3g}"
        raise InputError(
            f"outputs='probabilities', but a pass has {what}; use outputs='logits' if the network ends before its "
            "softmax, 'binary-logits' before its sigmoid"
        )


def mean_and_variance(parts: tuple[Array, ...], outputs: str) -> tuple[Array, Array]:
    """Mean and variance from a network with two heads.

    Args:
        parts: Two arrays, or a single one whose last axis holds the means, then as many (log-)variances.
        outputs: "mean-variance" or "mean-log-variance".

    Returns:
        Means and variances, of one shape.

    Raises:
        InputError: If there are not two parts of one shape, or a variance is not positive.
    """
    if len(parts) == 1:
        size = parts[0].shape[-1] if parts[0].ndim > 2 else 0
        if size < 2 or size % 2:
            raise InputError(
                f"outputs={outputs!r} needs two outputs, or one with means and variances along its last axis: "
                f"got a last axis of length {size}"
            )
        parts = parts[0][..., : size // 2], parts[0][..., size // 2 :]
    if len(parts) != 2 or parts[0].shape != parts[1].shape:
        shapes = [part.shape[2:] for part in parts]
        raise InputError(f"outputs={outputs!r} needs a mean and a variance of one shape: got {shapes}")
    mean, spread = parts
    variance = np.exp(spread) if outputs == "mean-log-variance" else spread
    if not (variance > 0).all():
        raise InputError(
            f"outputs={outputs!r}, but a pass has a variance of {variance.min():.3g}; "
            "use 'mean-log-variance' if the head gives its logarithm"
        )
    return mean, variance
