"""Label or abstain: settle labels with as few passes as each takes, and leave the coin tosses to a person.

Digits that come with scikit-learn. Run: python examples/label_or_abstain.py
Needs: pip install "mlmc-dropout[examples]"
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import mlmc_dropout as md

CONFIDENCE = 0.99


def trained(images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    """A small convolutional network with dropout of whole channels."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.2), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval()


@dataclass(frozen=True)
class Found:
    """Passes and state of every label, and the error of the rest by the share left to a person."""

    passes: np.ndarray
    settled: np.ndarray
    curve: dict[float, float]


def main(cap: int = 1000) -> Found:
    """Decide on the labels of images the network has not seen."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    model = trained(images[:1200], torch.tensor(digits.target[:1200]))
    result = md.estimate(model, images[1200:], outputs="logits", decision="label", confidence=CONFIDENCE, budget=cap)
    decision = result["decision"]
    right = decision.value == digits.target[1200:]
    print(f"{decision.settled.sum()} of {len(right)} labels are settled at {CONFIDENCE:.0%}")
    print(f"passes: median {np.median(result.passes):.0f}, mean {result.cost:.0f}, most {result.passes.max():.0f}")

    # What the network is sure to answer can still be wrong: abstain where it is uncertain, too.
    entropy = np.where(decision.settled, result["entropy"].value, np.inf)
    order = np.argsort(-entropy)
    print("left to a person   error of the rest")
    curve = {}
    for share in (0.0, 0.02, 0.05, 0.1, 0.2):
        kept = order[int(share * len(order)) :]
        curve[share] = float((~right[kept]).mean())
        print(f"{share:16.0%}   {curve[share]:.2%}")
    return Found(result.passes, decision.settled, curve)


if __name__ == "__main__":
    main()
