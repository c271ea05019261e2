"""A time series with an LSTM: forecasts with a spread, and standard errors for both.

A noisy oscillation is forecast one step ahead from windows of 24 values. Dropout acts between the two LSTM
layers, inside PyTorch's own kernel, and before the output. Run: python examples/lstm_series.py
Needs: pip install mlmc-dropout
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import mlmc_dropout as md

WINDOW = 24


class Forecaster(nn.Module):
    """Two LSTM layers and a linear output."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 24, num_layers=2, dropout=0.2, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.lstm(x)[0][:, -1]))


def series(length: int = 400) -> np.ndarray:
    """Two oscillations and a little noise."""
    t = np.arange(length)
    noise = np.random.default_rng(0).normal(size=length)
    return np.sin(2 * np.pi * t / 24) + 0.4 * np.sin(2 * np.pi * t / 7) + 0.1 * noise


def main() -> dict[str, float]:
    """Train on the first part, forecast the rest."""
    values = torch.tensor(series(), dtype=torch.float32)
    windows = values.unfold(0, WINDOW, 1)[:-1, :, None]
    targets = values[WINDOW:, None]
    split = 280
    torch.manual_seed(0)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(windows[:split]), targets[:split]).backward()
        optimizer.step()
    model.eval()

    for site in md.DropoutSampler(model).sites(windows[split:]):
        print(f"dropout at {site.name!r} with p = {site.p}")
    result = md.estimate(model, windows[split:], budget=128)
    miss = np.abs(result.mean - targets[split:].numpy())
    found = {
        "root mean square error": float(np.sqrt((miss**2).mean())),
        "median spread of a pass": float(np.median(result.std)),
        "largest standard error of a forecast": float(result.mean_stderr.max()),
    }
    for name, value in found.items():
        print(f"{name}: {value:.3f}")
    return found


if __name__ == "__main__":
    main()
