"""A small classifier whose masks can be enumerated, and the exact values of its metrics."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.special import entr, softmax
from torch import nn

P, UNITS, CLASSES = 0.4, 5, 3


@dataclass(frozen=True)
class Enumerated:
    """A network with 2^5 masks: outputs of every mask at every input, and the masks' probabilities."""

    model: nn.Module
    x: torch.Tensor
    y: np.ndarray
    logits: np.ndarray  # (masks, N, classes)
    weights: np.ndarray  # (masks,)

    def exact(self) -> dict[str, float]:
        """The metrics, by formulas of their own."""
        p_all = softmax(self.logits, axis=-1)
        p = np.einsum("m,mnc->nc", self.weights, p_all)
        rows = np.arange(len(self.y))
        entropies = entr(p).sum(axis=-1)
        expected = self.weights @ entr(p_all).sum(axis=-1)
        confidence, correct = p.max(axis=-1), p.argmax(axis=-1) == self.y
        bins = np.minimum((confidence * 15).astype(int), 14)
        gaps = [abs(np.sum((correct - confidence)[bins == b])) / len(rows) for b in range(15)]
        return {
            "nll": float(-np.log(p[rows, self.y]).mean()),
            "entropy": float(entropies.mean()),
            "expected_entropy": float(expected.mean()),
            "mutual_information": float((entropies - expected).mean()),
            "brier": float(((p - np.eye(CLASSES)[self.y]) ** 2).sum(axis=-1).mean()),
            "accuracy": float(correct.mean()),
            "ece": float(sum(gaps)),
        }


def make_enumerated(rows: int, scale: float = 3.0, seed: int = 0) -> Enumerated:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, UNITS), nn.Tanh(), nn.Dropout(P), nn.Linear(UNITS, CLASSES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale / 2 * torch.randn(parameter.shape, generator=generator))
    x = torch.randn(rows, 2, generator=generator)
    with torch.no_grad():
        hidden = torch.tanh(model[0](x)).double().numpy()
    masks = np.array(list(itertools.product((0, 1), repeat=UNITS)))
    weights = np.where(masks == 1, 1 - P, P).prod(axis=1)
    W, b = (parameter.detach().double().numpy() for parameter in model[3].parameters())
    logits = (hidden[None] * masks[:, None] / (1 - P)) @ W.T + b
    y = torch.randint(CLASSES, (rows,), generator=generator).numpy()
    return Enumerated(model.eval(), x, y, logits, weights)


@pytest.fixture(scope="session")
def enumerated() -> Enumerated:
    return make_enumerated(150)
