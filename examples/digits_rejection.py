"""Digits with a rejection curve: hand the most uncertain images to a person, and see the error fall.

Digits that come with scikit-learn. Run: python examples/digits_rejection.py
Needs: pip install "mlmc-dropout[examples]"
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import mlmc_dropout as md


def trained(images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    """One hidden layer with dropout before and after it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.1), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval()


def main() -> list[tuple[float, float]]:
    """Train on two thirds, reject on the rest."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    model = trained(images[:1200], labels[:1200])

    result = md.estimate(model, images[1200:], outputs="logits", budget=256)
    label, entropy = result["label"], result["entropy"]
    wrong = label.value != digits.target[1200:]
    order = np.argsort(-entropy.value)

    curve = []
    print("rejected   error of the rest")
    for share in (0.0, 0.05, 0.1, 0.2, 0.3):
        kept = order[int(share * len(order)) :]
        curve.append((share, float(wrong[kept].mean())))
        print(f"{share:8.0%}   {curve[-1][1]:.2%}")
    print(f"entropies are known to {entropy.stderr.max():.3f} or better (one standard error)")
    print(f"{(label.confidence < 0.99).sum()} of {len(wrong)} labels are not settled: more passes could change them")
    return curve


if __name__ == "__main__":
    main()
