"""Networks made to be treacherous: masks of probability 0.01 that matter, and inputs that look settled without them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["TREACHEROUS", "Both", "Flip", "Gate", "inputs"]

UNITS = 6


def inputs(rows: int = 20) -> Tensor:
    """Inputs from quiet to loud."""
    return torch.logspace(-1.0, 0.0, rows)[:, None]


class _Base(nn.Module):
    """A little noise that everybody sees."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = nn.Dropout(0.3)

    def base(self, x: Tensor) -> Tensor:
        return x * self.noise(torch.ones(len(x), UNITS)).mean(dim=1, keepdim=True)


class Both(_Base):
    """A regressor that jumps when two units are dropped together: probability 0.1²."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        rare = torch.relu(1.0 - 10.0 * self.pair(torch.ones(len(x), 2)).sum(dim=1, keepdim=True))
        return self.base(x) + 2.0 * rare


class Gate(_Base):
    """A regressor with one unit of rate 0.01, whose absence opens a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Dropout(0.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) - torch.relu(1.0 - self.gate(torch.ones(len(x), 1)))


class Flip(_Base):
    """A saturated softmax that turns over when two units are dropped together."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        rare = torch.relu(1.0 - 10.0 * self.pair(torch.ones(len(x), 2)).sum(dim=1, keepdim=True))
        margin = 8.0 + self.base(x) - 16.0 * rare
        return torch.cat([margin, torch.zeros_like(margin)], dim=1).softmax(dim=1)


TREACHEROUS: dict[str, Callable[[], nn.Module]] = {"both": Both, "gate": Gate, "flip": Flip}
