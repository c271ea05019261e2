"""What the tests of drivers, checkpoints and executors share: a small network, and equality to the last bit."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mlmc_dropout.result import Result, leaves

__all__ = ["METHODS", "Shuffled", "digest", "small"]

# every method, with the settings under which it is run
METHODS: dict[str, dict[str, Any]] = {
    "pooled": {"method": "pooled"},
    "nested": {"method": "mlmc", "ladder": (4, 8, 16)},
    "independent": {"method": "mlmc", "ladder": (2, 4, 8), "levels": "independent"},
    "adaptive": {"method": "mlmc", "ladder": "adaptive"},
    "stratified": {"method": "stratified"},
    "control-variate": {"method": "control-variate"},
    "auto": {"method": "auto"},
}


def small(rows: int = 5, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """A network with two dropout layers and two outputs, and inputs for it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hidden = (nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.25))
        model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.1), *hidden, nn.Linear(8, 2))
        return model, torch.randn(rows, 2)


def digest(result: Result) -> str:
    """A hash of everything a result says: two results with equal digests agree to the last bit."""
    known = hashlib.sha256()
    for name in ("mean", "variance", "mean_stderr", "variance_stderr", "S2_mean", "S2_variance"):
        value = getattr(result, name)
        for leaf in [] if value is None else leaves(value):
            known.update(np.ascontiguousarray(leaf).tobytes())
    levels = [(level.fidelity, level.count, level.cost) for level in result.levels]
    known.update(repr((result.cost, result.status, result.method, levels)).encode())
    return known.hexdigest()


class Shuffled(Executor):
    """Runs calls here, in a random order, when somebody waits for room to submit no more."""

    def __init__(self, seed: int, hold: int = 3) -> None:
        self.random, self.hold = random.Random(seed), hold
        self.waiting: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []
        self.num_workers = hold
        self.calls = 0

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, call, args))
        self.calls += 1
        while len(self.waiting) >= 2 * self.hold:
            self.run_one()
        return future

    def run_one(self) -> None:
        future, call, args = self.waiting.pop(self.random.randrange(len(self.waiting)))
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)
