"""The random numbers of training, as functions of the epoch's number.

Epoch ``e`` uses the passes ``(seed, stream, e, 0), (seed, stream, e, 1), ...``; their masks and noise
follow from these names. A resumed run therefore needs no saved generator, only its epoch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from mlmc_dropout.pinn.networks import dropout_layers
from mlmc_dropout.pinn.problem import Draw
from mlmc_dropout.sampling.masks import bernoulli, derive, pass_keys, words

__all__ = ["LAG", "TRAINING", "Drawer"]

# Streams keep the passes of the loss and those of the multiplier apart.
TRAINING, LAG = 0x747261, 0x6C6167

_NOISE = 0x6E6F69  # the tag of the noise; masks have the number of their layer


class Drawer:
    """Draws masks and noise for the dropout layers of one model.

    Args:
        model: The network; the widths and rates of its dropout layers are read off once.
        rows: Rows of a training pass.
        seed: Every draw follows from it.
        dtype: Type of the noise.
        noisy: Whether the problem uses noise.
    """

    def __init__(self, model: nn.Module, rows: int, seed: int, dtype: torch.dtype, noisy: bool) -> None:
        self.sites = _sites(model)
        self.rows, self.seed, self.dtype, self.noisy = rows, seed, dtype, noisy

    def block(self, stream: int, first: int, epochs: int, passes: int) -> list[Draw]:
        """The draws of several epochs, made at once to save calls.

        Args:
            stream: ``TRAINING`` or ``LAG``.
            first: Number of the first epoch.
            epochs: How many epochs.
            passes: Passes of each epoch.

        Returns:
            One draw per epoch: masks ``(passes, rows, units)``, noise ``(passes, rows)``.
        """
        numbers = np.arange(first, first + epochs)[:, None]
        keys = pass_keys(self.seed, stream, numbers, np.arange(passes)).reshape(-1)
        shape = (epochs, passes, self.rows)
        masks = [
            bernoulli(derive(keys, site), units, p, rows=self.rows).view(*shape, units)
            for site, (units, p) in enumerate(self.sites)
        ]
        noise = self._noise(keys).view(epochs, passes, -1)
        return [Draw(tuple(mask[epoch] for mask in masks), noise[epoch]) for epoch in range(epochs)]

    def _noise(self, keys: Tensor) -> Tensor:
        """Uniform numbers in [0, 1) from the upper 53 bits of a word each."""
        drawn = words(derive(keys, _NOISE), self.rows if self.noisy else 0)
        bits = drawn.bitwise_right_shift(11).bitwise_and_((1 << 53) - 1)
        return bits.to(torch.float64).mul_(2.0**-53).to(self.dtype)


def _sites(model: nn.Module) -> list[tuple[int, float]]:
    """Units and rate of each dropout layer: it is as wide as the linear layer before it."""
    units, sites = 0, []
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            units = layer.out_features
        elif isinstance(layer, nn.Dropout):
            sites.append((units, layer.p))
    assert len(sites) == len(dropout_layers(model))
    return sites
