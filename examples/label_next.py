"""Choose what to label next: active learning by mutual information, with passes only where the choice is open.

Digits that come with scikit-learn. Every round adds the images with the largest mutual information between prediction
and masks (BALD). `TopK` finds them by elimination; beside it, the choice that 1000 passes for every image make.

Run: python examples/label_next.py
Needs: pip install "mlmc-dropout[examples]"
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import mlmc_dropout as md

FIRST, CHOSEN, PASSES, CAP = 60, 40, 1000, 1500


@dataclass(frozen=True)
class Round:
    """One round of acquisition."""

    labelled: int
    accuracy: float
    passes: float
    shared: float | None


def trained(images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    """Two hidden layers with dropout."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 96),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(96, 96),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(96, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval()


def main(rounds: int = 4, compare: bool = True) -> list[Round]:
    """Begin with a few labels, choose more."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    test, known, pool = slice(1200, None), np.arange(FIRST), np.arange(FIRST, 1200)
    history = []
    print("labels   accuracy   passes per image   as with 1000 passes for all")
    for _ in range(rounds):
        model = trained(images[known], labels[known])
        with torch.no_grad():
            accuracy = float((model(images[test]).argmax(dim=1) == labels[test]).float().mean())
        result = md.estimate(
            model, images[pool], outputs="logits", decision=md.TopK(CHOSEN), confidence=0.9, budget=CAP
        )
        chosen = pool[result["decision"].value]
        shared = share_with_equal_effort(model, images[pool], result["decision"].value) if compare else None
        history.append(Round(len(known), accuracy, result.cost, shared))
        told = "" if shared is None else f"{shared:.0%}"
        print(f"{len(known):6d}   {accuracy:8.1%}   {result.cost:16.0f}   {told:>10}")
        known, pool = np.concatenate([known, chosen]), np.setdiff1d(pool, chosen)
    return history


def share_with_equal_effort(model: nn.Module, images: torch.Tensor, chosen: np.ndarray) -> float:
    """The share of the chosen images that equal passes for all would have chosen, too."""
    result = md.estimate(
        model, images, outputs="logits", quantities=("mutual_information",), budget=PASSES, method="pooled", seed=1
    )
    best = np.argsort(-result["mutual_information"].value)[:CHOSEN]
    return float(np.isin(np.flatnonzero(chosen), best).mean())


if __name__ == "__main__":
    main()
