"""Quantities of small networks from every mask there is, by formulas written out once more in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import entr, expit, softmax
from torch import nn

__all__ = ["INPUT", "exact_quantile", "exact_quantities", "small_net"]

Array = NDArray[np.float64]

INPUT = torch.tensor([[0.8, -0.5]], dtype=torch.float64)


def small_net(
    width: int,
    units: Sequence[int] = (5, 4),
    rates: Sequence[float] = (0.3, 0.15),
    tail: Sequence[nn.Module] = (),
    seed: int = 3,
) -> nn.Sequential:
    """Two hidden layers with dropout after each, in double precision: 2^Σ units masks."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    before = 2
    for wide, p in zip(units, rates, strict=True):
        layers += [nn.Linear(before, wide), nn.Tanh(), nn.Dropout(p)]
        before = wide
    model = nn.Sequential(*layers, nn.Linear(before, width), *tail).double()
    for parameter in model.parameters():
        bound = parameter.shape[1] ** -0.5 if parameter.dim() > 1 else 1.0
        parameter.data = 1.5 * bound * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model.eval()


def exact_quantities(passes: Array, weights: Array, outputs: str, threshold: float = 0.3) -> dict[str, Array]:
    """Every quantity of passes (masks, width) with given probabilities, as the network returns them."""
    if outputs in ("mean-variance", "mean-log-variance"):
        mean, spread = np.split(passes, 2, axis=1)
        return _of_pairs(mean, np.exp(spread) if "log" in outputs else spread, weights)
    if outputs == "values":
        return _moments(passes, weights, threshold)
    if outputs == "binary-logits":
        p = expit(passes)
        both = np.stack([1 - p, p], axis=-1)
        found = _of_classes(both, weights)
        return _moments(p, weights, threshold) | found | {"votes": found["votes"][..., 1]}
    p = softmax(passes, axis=-1) if outputs == "logits" else passes
    return _moments(p, weights, threshold) | _of_classes(p, weights)


def _moments(values: Array, weights: Array, threshold: float) -> dict[str, Array]:
    mean = weights @ values
    variance = weights @ (values - mean) ** 2
    above = weights @ (values > threshold)
    return {"mean": mean, "variance": variance, "std": np.sqrt(variance), f"above_{threshold:g}": above}


def _of_classes(p: Array, weights: Array) -> dict[str, Array]:
    """Of probabilities (masks, …, classes)."""
    mean = np.tensordot(weights, p, axes=1)
    total, expected = entr(mean).sum(axis=-1), np.tensordot(weights, entr(p).sum(axis=-1), axes=1)
    votes = np.tensordot(weights, np.eye(p.shape[-1])[p.argmax(axis=-1)], axes=1)
    found = {"entropy": total, "expected_entropy": expected, "mutual_information": total - expected}
    return found | {"votes": votes, "label": mean.argmax(axis=-1)}


def _of_pairs(mean: Array, variance: Array, weights: Array) -> dict[str, Array]:
    centre, aleatoric = weights @ mean, weights @ variance
    epistemic = weights @ (mean - centre) ** 2
    found = {"mean": centre, "variance": epistemic, "std": np.sqrt(epistemic), "aleatoric_variance": aleatoric}
    return found | {"epistemic_variance": epistemic, "total_variance": aleatoric + epistemic}


def exact_quantile(values: Array, weights: Array, level: float) -> Array:
    """The least value of each component that a pass stays at or below with at least the given probability."""
    order = np.argsort(values, axis=0)
    shares = np.cumsum(weights[order], axis=0)
    first = (shares < level).sum(axis=0)
    return np.take_along_axis(values, np.take_along_axis(order, first[None], axis=0), axis=0)[0]
