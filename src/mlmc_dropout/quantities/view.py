"""Outputs of passes, read as what the network returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mlmc_dropout.quantities.outputs import CLASS_OUTPUTS, PAIR_OUTPUTS

__all__ = ["View"]


@dataclass(frozen=True)
class View:
    """Passes in the numbers that are carried: logits, logarithms of probabilities, means beside variances, or values.

    Attributes:
        outputs: What the network returns.
        structure: Structure of its outputs.
        carried: The numbers, (passes, rows, width).
        locations: Where quantiles are looked for: a few passes in ascending order, (passes, rows, width).
        origin: What squares of the main numbers are taken about, (rows, width); 0 by default.
    """

    outputs: str
    structure: Any
    carried: Tensor
    locations: Tensor | None = None
    origin: Tensor | None = None

    @cached_property
    def main(self) -> Tensor:
        """What mean and variance are taken of, (passes, rows, width): probabilities, means, or the values."""
        if self.outputs in CLASS_OUTPUTS:
            p = self.probabilities[..., 1] if self.is_binary else self.probabilities
            return p.reshape(*self.carried.shape[:2], -1)
        return self.pair[0].reshape(*self.carried.shape[:2], -1) if self.outputs in PAIR_OUTPUTS else self.carried

    @cached_property
    def squares(self) -> Tensor:
        """Squares of the main numbers, less the origin."""
        return self.main.square() if self.origin is None else (self.main - self.origin).square_()

    @property
    def is_binary(self) -> bool:
        """Whether every output is the logit of one probability."""
        return self.outputs == "binary-logits"

    @cached_property
    def log_probabilities(self) -> Tensor:
        """Logarithms of class probabilities, (passes, rows, …, classes); of a binary one the second is positive."""
        values = self._leaf
        if not self.is_binary:
            shifted, _, total = self._exponentials
            return shifted - total.log()
        if values.dim() > 2 and values.shape[-1] == 1:
            values = values[..., 0]
        return torch.stack([F.logsigmoid(-values), F.logsigmoid(values)], dim=-1)

    @cached_property
    def probabilities(self) -> Tensor:
        """Class probabilities, of the same shape."""
        if self.is_binary:
            return self.log_probabilities.exp()
        _, exponentials, total = self._exponentials
        return exponentials / total

    @cached_property
    def _exponentials(self) -> tuple[Tensor, Tensor, Tensor]:
        """Differences z − max z, exponentials and their sum.

        Classes are few and inputs many: in memory, classes lie before the inputs, so that all is done for many inputs
        at once. NumPy's exponentials are faster than torch's, and have the same bits wherever a number lies.
        """
        z = self._leaf.movedim(-1, 1).contiguous()
        shifted = z - z.amax(dim=1, keepdim=True)
        exponentials = torch.from_numpy(np.exp(shifted.numpy()))
        total = exponentials.sum(dim=1, keepdim=True)
        return shifted.movedim(1, -1), exponentials.movedim(1, -1), total.movedim(1, -1)

    @cached_property
    def pair(self) -> tuple[Tensor, Tensor]:
        """Means and variances, (passes, rows, …)."""
        if self.structure.kind == "tensor":  # means, then as many variances, along the last axis
            mean, spread = self._leaf.chunk(2, dim=-1)
        else:
            shape = (*self.carried.shape[:2], *self.structure.parts[0].shape)
            mean, spread = (half.reshape(shape) for half in self.carried.chunk(2, dim=-1))
        return mean, spread.exp() if self.outputs == "mean-log-variance" else spread

    @property
    def _leaf(self) -> Tensor:
        ((_, shape),) = self.structure.names()
        return self.carried.reshape(*self.carried.shape[:2], *shape)
