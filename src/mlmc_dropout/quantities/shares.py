"""Shares of passes: votes for classes, and passes above a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mlmc_dropout.errors import InputError
from mlmc_dropout.quantities.base import Feature, GroupMeans, QuantityEstimate, Question
from mlmc_dropout.quantities.jackknife import jackknife
from mlmc_dropout.quantities.outputs import is_number
from mlmc_dropout.quantities.view import View

__all__ = ["VOTES", "Above"]

_LEAST_LEFT = 0.25  # of the standard error of plain averaging


@dataclass(frozen=True, slots=True)
class Above:
    """As a quantity, the probability that a pass exceeds a threshold; as a decision, whether the mean does.

    Attributes:
        threshold: The threshold c.

    Examples:
        >>> Above(0.3).name
        'above_0.3'
    """

    threshold: float

    def __post_init__(self) -> None:
        if not is_number(self.threshold) or not math.isfinite(self.threshold):
            raise InputError(f"a threshold is a finite number: got Above({self.threshold!r})")

    @property
    def name(self) -> str:
        """Its name in results."""
        return f"above_{self.threshold:g}"

    def question(self, outputs: str = "values") -> Question:
        """The probability P(D > c), one for every output component.

        Args:
            outputs: What the network returns.

        Returns:
            The question.
        """
        feature = Feature(self.name, lambda view: (view.main > self.threshold).to(view.main.dtype))
        return _share(self.name, feature)


def _share(name: str, feature: Feature) -> Question:
    def answer(groups: GroupMeans) -> QuantityEstimate:
        value, stderr = jackknife(lambda e: e[feature.name], groups)
        # Passes that all agree leave a doubt: of n of them, as if two more on either side had been seen. Less, where
        # the method leaves less to chance than plain averaging does.
        n, inside = groups.passes, np.clip(value, 0.0, 1.0)
        plain = np.sqrt(inside * (1 - inside) / n)
        left = np.clip(np.divide(stderr, plain, out=np.ones_like(plain), where=plain > 0), _LEAST_LEFT, 1.0)
        return QuantityEstimate(value, np.hypot(stderr, left * math.sqrt(2.0) / (n + 4)))

    return Question(name, (feature,), answer, like_outputs=True)


def _votes(view: View) -> Tensor:
    probabilities = view.probabilities
    votes = torch.zeros_like(probabilities).scatter_(-1, probabilities.argmax(dim=-1, keepdim=True), 1.0)
    return (votes[..., 1] if view.is_binary else votes).reshape(*view.carried.shape[:2], -1)


VOTES = _share("votes", Feature("votes", _votes))
