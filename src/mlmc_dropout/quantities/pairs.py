"""Networks that return a mean and a variance: what is due to the data, to the model, and both.

With m and v the mean and variance that a pass returns: E v is aleatoric, Var m epistemic, and their sum the total
variance of the prediction.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.quantities.base import Feature
from mlmc_dropout.quantities.jackknife import smooth

__all__ = ["ALEATORIC", "EPISTEMIC", "TOTAL"]

Array = NDArray[np.float64]

_MEAN = Feature("mean", lambda view: view.pair[0])
_SQUARE = Feature("square of the mean", lambda view: view.pair[0].square())
_VARIANCE = Feature("variance", lambda view: view.pair[1])


def _spread(expected: Mapping[str, Array]) -> Array:
    return expected["square of the mean"] - np.square(expected["mean"])


ALEATORIC = smooth("aleatoric_variance", (_VARIANCE,), lambda e: e["variance"])
EPISTEMIC = smooth("epistemic_variance", (_MEAN, _SQUARE), _spread)
TOTAL = smooth("total_variance", (_MEAN, _SQUARE, _VARIANCE), lambda e: e["variance"] + _spread(e))
