"""Watch a forward pass: no random numbers behind our back, and how much memory it holds."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mlmc_dropout.errors import ModelError

__all__ = ["Watch"]

_GENERATORS = threading.Lock()  # threads take turns at borrowing torch's global generators


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call draws random numbers: kernels are marked if they ever do."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    if "attention" in func.name():  # dropout inside these has been taken out before they are called
        return bool(kwargs.get("dropout_p", 0.0))
    if "rrelu" in func.name():
        return bool(args[4] if len(args) > 4 else kwargs.get("training", False))
    return True


class Watch(TorchDispatchMode):
    """Sees every kernel a forward pass runs, whichever way it was called.

    Random numbers drawn anywhere are refused, with the module named by ``where``; under
    ``allow_random`` they are counted instead, and torch's generators put back as they were.

    ``peaks[k]`` is the most memory that tensors made after the k-th call of :meth:`stage` held at any
    one time, in bytes; ``peaks[0]`` counts all tensors. With masks batched by vmap, only what is made
    after the first mask grows with the number of passes.
    """

    def __init__(self, where: Callable[[], str] = lambda: "the forward pass", allow_random: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.where, self.allow_random = where, allow_random
        self.random: list[str] = []
        self._live, self.peaks = [0], [0]

    def stage(self) -> None:
        """Count the tensors made from here on apart from earlier ones."""
        self._live.append(0)
        self.peaks.append(0)

    def __torch_dispatch__(self, func: Any, classes: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _draws(func, args, kwargs):
            return self._draw(func, args, kwargs)
        out = func(*args, **kwargs)
        known = {a.untyped_storage().data_ptr() for a in args if isinstance(a, Tensor)}
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in known:  # views are free
                self._count(value)
        return out

    def _count(self, value: Tensor) -> None:
        stage, size = len(self._live) - 1, value.untyped_storage().nbytes()
        self._live[stage] += size
        weakref.finalize(value, self._release, stage, size)
        held = 0
        for k in range(stage, -1, -1):
            held += self._live[k]
            self.peaks[k] = max(self.peaks[k], held)

    def _release(self, stage: int, size: int) -> None:
        self._live[stage] -= size

    def _draw(self, func: Any, args: Any, kwargs: Any) -> Any:
        where = f"{func.name()} at {self.where()!r}"
        if not self.allow_random:
            raise ModelError(
                f"the forward pass draws random numbers with {where}, which cannot be controlled; write it with "
                "torch.nn.functional.dropout, or remove it for inference"
            )
        self.random.append(where)
        with _GENERATORS, torch.random.fork_rng():
            return func(*args, **kwargs)
