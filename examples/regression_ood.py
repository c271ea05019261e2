"""Regression with inputs unlike the training data: does the spread notice, and is it known well enough to tell?

Diabetes data that come with scikit-learn. The network is trained on patients of low and middling body-mass
index; those of the highest are kept out. Run: python examples/regression_ood.py
Needs: pip install "mlmc-dropout[examples]"
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn

import mlmc_dropout as md

BMI = 2  # its column


def trained(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """Two hidden layers with dropout, trained for some seconds."""
    torch.manual_seed(0)
    hidden = [nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1)]
    model = nn.Sequential(*hidden, nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-3)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model.eval()


def main() -> dict[str, float]:
    """Train, estimate, compare the spread inside and outside."""
    data = load_diabetes()
    x = torch.tensor(data.data / data.data.std(axis=0), dtype=torch.float32)
    y = torch.tensor((data.target - data.target.mean()) / data.target.std(), dtype=torch.float32)[:, None]
    inside = data.data[:, BMI] < np.quantile(data.data[:, BMI], 0.85)
    model = trained(x[inside], y[inside])

    far = x[~inside].clone()
    far[:, BMI] *= 2  # further out than any patient
    results = {"trained on": md.estimate(model, x[inside], budget=400)}
    results |= {"kept out": md.estimate(model, x[~inside], budget=400), "far out": md.estimate(model, far, budget=400)}

    found = {}
    for name, result in results.items():
        spread = float(np.median(result.std))
        known = float(np.median(result.variance_stderr / (2 * result.std)))
        print(f"{name:11} {len(result.mean):4} inputs   median spread of a pass {spread:.3f} ± {known:.3f}")
        found[name] = spread
    return found


if __name__ == "__main__":
    main()
