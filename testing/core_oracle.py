"""A network small enough to enumerate, its exact moments by plain numpy, and z-scores.

Nothing of the library is used to compute the truth: the forward pass is written out once more, all
2^6 masks are weighted by their probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import nn

__all__ = [
    "INPUT",
    "Truth",
    "enumerate_masks",
    "limit",
    "tiny_network",
    "truth",
    "z_covariance",
    "z_mean",
    "z_variance",
]

Array = NDArray[np.float64]
INPUT = 0.7


def tiny_network(p: float = 0.3, dtype: torch.dtype = torch.float64) -> nn.Module:
    """1–3–3–2 with tanh and two dropout layers: six mask bits, not linear in them, two outputs."""
    generator = torch.Generator().manual_seed(8)
    parts = [nn.Linear(1, 3), nn.Tanh(), nn.Dropout(p), nn.Linear(3, 3), nn.Tanh(), nn.Dropout(p), nn.Linear(3, 2)]
    model = nn.Sequential(*parts)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return model.to(dtype).eval()


def enumerate_masks(model: nn.Module, p: float = 0.3, x: float = INPUT) -> tuple[Array, Array]:
    """Outputs (64, 2) and probabilities (64,) of all masks, without torch."""
    W1, b1, W2, b2, W3, b3 = (q.detach().double().numpy() for q in model.parameters())
    outputs, weights = [], []
    for bits in product((0.0, 1.0), repeat=6):
        keep = np.array(bits)
        h = np.tanh(W1 @ [x] + b1) * keep[:3] / (1 - p)
        h = np.tanh(W2 @ h + b2) * keep[3:] / (1 - p)
        outputs.append(W3 @ h + b3)
        weights.append(p ** (6 - keep.sum()) * (1 - p) ** keep.sum())
    return np.array(outputs), np.array(weights)


@dataclass(frozen=True, slots=True)
class Truth:
    """Exact central moments of a pass, per output."""

    mu: Array
    mu2: Array
    mu4: Array


def truth(model: nn.Module, p: float = 0.3, x: float = INPUT) -> Truth:
    """From the enumeration."""
    outputs, weights = enumerate_masks(model, p, x)
    mu = weights @ outputs
    return Truth(mu, weights @ (outputs - mu) ** 2, weights @ (outputs - mu) ** 4)


# ----------------------------------------------------------------------------------- z-scores


def limit(comparisons: int, error_rate: float = 1e-3) -> float:
    """|z| that ``comparisons`` true statements all stay below with probability ≥ 1 − error_rate (Bonferroni)."""
    return float(stats.norm.isf(error_rate / (2 * comparisons)))


def z_mean(runs: Array, expected: Array) -> Array:
    """(mean over runs − expected) in standard errors."""
    return (runs.mean(axis=0) - expected) / (runs.std(axis=0, ddof=1) / np.sqrt(len(runs)))


def z_covariance(a: Array, b: Array, expected: Array | float) -> Array:
    """The same for the covariance over runs: a mean of centred products."""
    products = (a - a.mean(axis=0)) * (b - b.mean(axis=0)) * len(a) / (len(a) - 1)
    return z_mean(products, np.asarray(expected))


def z_variance(runs: Array, expected: Array | float) -> Array:
    """The same for the variance over runs."""
    return z_covariance(runs, runs, expected)
