"""Exact moments of small models, and many independent runs of a method at once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from mlmc_dropout.methods.base import BoundMethod, Estimates, MethodSpec
from mlmc_dropout.methods.states import merge_states
from mlmc_dropout.sampling.sampler import DropoutSampler
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal

__all__ = ["enumerated", "exact_moments", "one_row_many_times", "run_method", "source_of", "state_of", "z_limit"]


def source_of(model: Any, x: Any, seed: int = 0, **options: Any) -> Source:
    """Passes of ``model`` on ``x``, by name."""
    sampler = DropoutSampler(model, **options)
    batch = next(sampler.batches(x))
    return Source(sampler, sampler.prepare(batch), batch, seed)


def run_method(method: MethodSpec, source: Source, budget: float) -> Estimates:
    """A whole run, without the driver."""
    bound = method.choose(source, Goal(budget=budget)).bind(source)
    return bound.summarise(*state_of(bound, source, budget))


def state_of(bound: BoundMethod, source: Source, budget: float) -> tuple[Any, Mapping[str, int]]:
    """The state of a whole run, and what was done."""
    tasks, done = bound.extend({}, budget)
    state: Any = None
    for task in tasks:
        state = merge_states(state, bound.run(source, task))
    return state, done


def one_row_many_times(x: Tensor, times: int) -> Tensor:
    """The first row repeated: with independent masks every copy is an independent run of the estimator."""
    return x[:1].repeat(times, *(1,) * (x.dim() - 1))


def enumerated(model: Any, x: Tensor, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Outputs (masks, width) of the first row under every mask there is, and the masks' probabilities (masks,)."""
    source = source_of(model, x[:1], **options)
    active = source.program.active
    bits = np.array(list(itertools.product((0, 1), repeat=sum(site.units for site in active))), dtype=np.uint8)
    weights, masks, start = np.ones(len(bits)), [], 0
    for site in source.program.sites:
        if not site.active:
            masks.append(None)
            continue
        own = bits[:, start : start + site.units]
        weights = weights * np.where(own == 1, 1 - site.p, site.p).prod(axis=1)
        masks.append(torch.from_numpy(own).reshape(len(bits), *site.shape))
        start += site.units
    return source.sampler.run_masks(source.program, source.batch, masks).double().numpy()[:, 0], weights


def exact_moments(model: Any, x: Tensor, **options: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """μ, μ2 and μ4 of a pass of the first row, from every mask there is, weighted by its probability."""
    out, weights = enumerated(model, x, **options)
    mean = weights @ out
    return mean, weights @ (out - mean) ** 2, weights @ (out - mean) ** 4


def z_limit(comparisons: int, error_rate: float = 1e-3) -> float:
    """|z| that all of ``comparisons`` true statements stay below with probability 1 − error_rate."""
    return float(stats.norm.isf(error_rate / (2 * comparisons)))
