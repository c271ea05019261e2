"""Entropies of class probabilities.

With p̄ = E p over passes:

entropy of the mean   H(p̄) = −Σ_c p̄_c log p̄_c     total uncertainty
expected entropy      E H(p)                        of the data
mutual information    H(p̄) − E H(p)                 of the model (BALD)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

__all__ = ["entropy", "entropy_of_logs", "mutual_information"]

Array = NDArray[np.float64]


def entropy(probabilities: Array) -> Array:
    """Entropy H(p) = −Σ_c p_c log p_c in nats; classes of probability 0 count nothing.

    Args:
        probabilities: Probabilities p, classes along the last axis.

    Returns:
        The entropies, without the last axis.

    Examples:
        >>> entropy(np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])).round(4)
        array([0.6931, 0.    ])
    """
    return np.asarray(entr(probabilities).sum(axis=-1))


def entropy_of_logs(log_probabilities: Array) -> Array:
    """The same from logarithms, for saturated networks: −Σ_c e^(log p_c) log p_c.

    Args:
        log_probabilities: Logarithms of probabilities, classes along the last axis; −inf is allowed.

    Returns:
        The entropies, without the last axis.
    """
    finite = np.where(np.isneginf(log_probabilities), 0.0, log_probabilities)
    return np.asarray(-(np.exp(log_probabilities) * finite).sum(axis=-1))


def mutual_information(mean_probabilities: Array, expected_entropy: Array) -> Array:
    """Mutual information of prediction and masks, I = H(p̄) − E H(p).

    Args:
        mean_probabilities: The mean p̄ of the probabilities over passes, classes along the last axis.
        expected_entropy: The mean E H(p) of the entropies of passes.

    Returns:
        The mutual information, in nats.
    """
    return np.asarray(entropy(mean_probabilities) - expected_entropy)
