"""What the tests of drivers, checkpoints and executors share: a small network, and equality to the last bit."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mlmc_dropout.quantities.storage import columns
from mlmc_dropout.result import Result
from mlmc_dropout.result.arrays import leaves

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
    for name, values in columns(result.quantities):
        known.update(name.encode() + np.ascontiguousarray(values).tobytes())
    levels = [(level.fidelity, level.count, level.cost) for level in result.levels]
    known.update(repr((result.cost, result.passes.tolist(), result.status, result.method, levels)).encode())
    return known.hexdigest()


class Shuffled(Executor):
    """Runs calls in a thread, in random order but never in the given one; some are lost: their workers "die"."""

    def __init__(self, seed: int, workers: int = 3, deaths: int = 0) -> None:
        self.random, self.num_workers, self.deaths = random.Random(seed), workers, deaths
        self.waiting: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []
        self.most = self.order = 0
        self.out_of_order = False
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._changed:
            self.waiting.append((future, call, args))
            self.most = max(self.most, len(self.waiting))
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.waiting or not self._open)
                if not self._open:
                    return
            time.sleep(0.002)  # let some gather
            with self._changed:
                place = self.random.randrange(1, len(self.waiting)) if len(self.waiting) > 1 else 0
                future, call, args = self.waiting.pop(place)
                self.out_of_order |= place > 0
            if self.deaths and self.random.random() < 0.3:
                self.deaths -= 1
                future.set_exception(BrokenExecutor("a worker died"))
            else:
                future.set_result(call(*args))
