"""How much memory a forward pass holds."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["MemoryWatch"]


class MemoryWatch(TorchDispatchMode):
    """Counts the memory of the tensors that a forward pass makes.

    With masks batched by vmap, only what is made after the first mask grows with the number of passes.

    Attributes:
        peaks: ``peaks[k]`` is the most memory that tensors made after the k-th call of :meth:`stage` held at any one
            time, in bytes; ``peaks[0]`` counts all tensors.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live, self.peaks = [0], [0]

    def stage(self) -> None:
        """Count the tensors made from here on apart from earlier ones."""
        self._live.append(0)
        self.peaks.append(0)

    def __torch_dispatch__(self, func: Any, classes: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {_memory(a) for a in args if isinstance(a, Tensor)}
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, Tensor) and _memory(value) not in known:  # views are free
                self._count(value)
        return out

    def _count(self, value: Tensor) -> None:
        stage, size = len(self._live) - 1, _size(value)
        self._live[stage] += size
        weakref.finalize(value, self._release, stage, size)
        held = 0
        for k in range(stage, -1, -1):
            held += self._live[k]
            self.peaks[k] = max(self.peaks[k], held)

    def _release(self, stage: int, size: int) -> None:
        self._live[stage] -= size


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _size(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes() if tensor.layout == torch.strided else 16 * tensor._nnz()
