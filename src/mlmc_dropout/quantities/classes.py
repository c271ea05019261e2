"""Uncertainty of class predictions: entropies and mutual information.

With p the probabilities of a pass and p̄ = E p: H(p̄) is all uncertainty, E H(p) that of the data, and their difference,
the mutual information of prediction and masks (BALD), that of the model.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.quantities.base import Feature
from mlmc_dropout.quantities.jackknife import smooth
from mlmc_dropout.quantities.uncertainty import entropy
from mlmc_dropout.quantities.view import View

__all__ = ["ENTROPY", "EXPECTED_ENTROPY", "MUTUAL_INFORMATION", "PROBABILITIES"]

Array = NDArray[np.float64]


def _entropy_of_passes(view: View) -> Tensor:
    """−Σ p log p, from logarithms: a saturated network has p = 1 in single precision long before log p is 0."""
    return -(view.probabilities * view.log_probabilities.clamp(min=-1e30)).sum(dim=-1)


PROBABILITIES = Feature("probabilities", lambda view: view.probabilities)
PASS_ENTROPY = Feature("entropy of a pass", _entropy_of_passes)


def _entropy_of_mean(expected: Mapping[str, Array]) -> Array:
    return entropy(np.maximum(expected["probabilities"], 0.0))  # control variates can leave them slightly negative


ENTROPY = smooth("entropy", (PROBABILITIES,), _entropy_of_mean)
EXPECTED_ENTROPY = smooth("expected_entropy", (PASS_ENTROPY,), lambda e: e["entropy of a pass"])
MUTUAL_INFORMATION = smooth(
    "mutual_information", (PROBABILITIES, PASS_ENTROPY), lambda e: _entropy_of_mean(e) - e["entropy of a pass"]
)
