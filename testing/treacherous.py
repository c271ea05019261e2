"""Networks made to be treacherous: masks of probability 0.01 that matter, and inputs that look settled without them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from mlmc_dropout.runtime import row_by_row as runtime
from mlmc_dropout.runtime.cohorts import Progress
from mlmc_dropout.runtime.row_by_row import Choice, RowByRow
from mlmc_dropout.stopping import goal as stopping
from mlmc_dropout.stopping.rows import Needs, row_factors

__all__ = ["TREACHEROUS", "Both", "Flip", "Gate", "Pool", "inputs", "naive_rule", "plain_errors"]

UNITS = 6
NAIVE_PILOT = 16


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Standard errors without an allowance for passes that did not come up, for stopping and in results."""
    kept, runtime.with_unseen = runtime.with_unseen, lambda found, reach: found  # type: ignore[assignment]
    try:
        yield
    finally:
        runtime.with_unseen = kept


@contextlib.contextmanager
def naive_rule() -> Iterator[None]:
    """Stop an input at the first look at which its plain standard errors are below the tolerance, after a short pilot.

    Only the stopping differs: results are reported as ever.
    """
    choices, needs_of_rows = RowByRow.choices, runtime.needs_of_rows

    def naive(self: RowByRow, progress: Progress) -> Iterator[Choice]:
        with plain_errors():
            return iter(list(choices(self, progress)))

    pilot, stopping.PILOT = stopping.PILOT, NAIVE_PILOT
    RowByRow.choices = naive  # type: ignore[method-assign]
    runtime.needs_of_rows = lambda goal, parts: [
        Needs(factors, factors, factors) for factors in (row_factors(goal, part, parts) for part in parts)
    ]
    try:
        yield
    finally:
        stopping.PILOT, runtime.needs_of_rows = pilot, needs_of_rows
        RowByRow.choices = choices  # type: ignore[method-assign]


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


class Pool(nn.Module):
    """A classifier: inputs (spread, 0) are ordinary, (spread, 1) are certain but for two units dropped together."""

    def __init__(self) -> None:
        super().__init__()
        self.noise, self.pair = nn.Dropout(0.3), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        noise = self.noise(torch.ones(len(x), UNITS)).mean(dim=1, keepdim=True) - 1.0
        rare = torch.relu(1.0 - 10.0 * self.pair(torch.ones(len(x), 2)).sum(dim=1, keepdim=True))
        margin = 4.0 * x[:, :1] * noise + 1.0 - x[:, 1:] + x[:, 1:] * (8.0 - 16.0 * rare)
        return torch.cat([margin, torch.zeros_like(margin)], dim=1)


TREACHEROUS: dict[str, Callable[[], nn.Module]] = {"both": Both, "gate": Gate, "flip": Flip}
