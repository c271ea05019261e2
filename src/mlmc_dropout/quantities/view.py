"""Outputs of passes, read as what the network returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
        locations: Where quantiles are looked for: centres and scales, (2, rows, width), if any are asked.
    """

    outputs: str
    structure: Any
    carried: Tensor
    locations: Tensor | None = None

    @cached_property
    def main(self) -> Tensor:
        """What mean and variance are taken of, (passes, rows, width): probabilities, means, or the values."""
        if self.outputs in CLASS_OUTPUTS:
            p = self.probabilities[..., 1] if self.is_binary else self.probabilities
            return p.reshape(*self.carried.shape[:2], -1)
        return self.pair[0].reshape(*self.carried.shape[:2], -1) if self.outputs in PAIR_OUTPUTS else self.carried

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
        """Differences z − max z, exponentials and their sum; for few classes twice as fast as torch's softmax."""
        shifted = self._leaf - self._leaf.amax(dim=-1, keepdim=True)
        exponentials = shifted.exp()
        return shifted, exponentials, exponentials.sum(dim=-1, keepdim=True)

    @cached_property
    def pair(self) -> tuple[Tensor, Tensor]:
        """Means and variances, (passes, rows, …)."""
        half = self.carried.shape[-1] // 2
        mean, spread = self.carried[..., :half], self.carried[..., half:]
        shape = self.structure.parts[0].shape if self.structure.kind != "tensor" else (half,)
        variance = spread.exp() if self.outputs == "mean-log-variance" else spread
        lead = self.carried.shape[:2]
        return mean.reshape(*lead, *shape), variance.reshape(*lead, *shape)

    @property
    def _leaf(self) -> Tensor:
        ((_, shape),) = self.structure.names()
        return self.carried.reshape(*self.carried.shape[:2], *shape)
