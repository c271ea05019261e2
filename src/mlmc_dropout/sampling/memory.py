"""How much memory passes hold, and how many of them fit: the one account of memory.

:class:`MemoryWatch` counts the tensors of a pass, :func:`measure_footprint` derives from it the memory of a chunk of
passes, and :class:`Footprint` says how many rows and passes fit the limit. Masks drawn ahead and the values of a task
are added where they are made: in ``sampler`` and ``source``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Footprint", "MemoryWatch", "keep_freed_memory", "measure_footprint", "peak_memory", "return_freed_memory"]

WORKING_SET = 6 << 20  # bytes a chunk of passes should touch: beyond the caches, larger chunks are slower
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as in malloc.h
_KEPT_BLOCK = 2 * WORKING_SET  # bytes


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that T passes of n rows hold at once: n·per_row + T·(per_pass + n·per_pass_row).

    Attributes:
        per_row: Bytes per row that all passes share.
        per_pass: Bytes per pass, whatever the rows.
        per_pass_row: Bytes per pass and row.
    """

    per_row: float = 0.0
    per_pass: float = 0.0
    per_pass_row: float = 1.0

    def bytes(self, passes: int, rows: int) -> float:
        """Memory of a chunk.

        Args:
            passes: Number of passes T.
            rows: Number of rows n.

        Returns:
            The number of bytes.
        """
        return rows * self.per_row + passes * (self.per_pass + rows * self.per_pass_row)

    def rows_at_once(self, rows: int, limit: int, passes: int = 1) -> int:
        """How many rows fit into half the limit, so that there is room for more passes.

        Args:
            rows: Number of rows there are.
            limit: Memory limit in bytes.
            passes: Passes of each row that must fit; 1 by default.

        Returns:
            The number of rows, at least 1.
        """
        fit = (limit / 2 - passes * self.per_pass) / (self.per_row + passes * self.per_pass_row)
        return max(1, min(rows, int(fit)))

    def passes_at_once(self, rows: int, limit: int) -> int:
        """How many passes to run at once.

        Enough to keep the processor busy and to repay the work that they share, within the limit.

        Args:
            rows: Number of rows.
            limit: Memory limit in bytes.

        Returns:
            The number of passes, at least 1.
        """
        shared = rows * self.per_row
        size = min(limit - shared, max(WORKING_SET, shared))
        return max(1, int(size / (self.per_pass + rows * self.per_pass_row)))


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
        arguments = {_storage(a) for a in args if isinstance(a, Tensor)}
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, Tensor) and _storage(value) not in arguments:  # views are free
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


def peak_memory(run: Callable[[Callable[[], None]], Any]) -> list[int]:
    """Peak memory of a run.

    Args:
        run: What is run; it calls its argument before each mask is applied.

    Returns:
        Bytes of all tensors; and, if a mask was applied, of those made after the first.
    """
    watch = MemoryWatch()

    def on_mask() -> None:
        if len(watch.peaks) == 1:
            watch.stage()

    with torch.no_grad(), watch:
        run(on_mask)
    return watch.peaks


def measure_footprint(
    peaks: Callable[[int], tuple[float, float]], rows: int, rows_split: bool, mask_bytes: float
) -> Footprint:
    """Measure the memory of a chunk, by runs on two and on three rows if rows can be split.

    Args:
        peaks: From a number of rows to the bytes that all passes share and the bytes per pass.
        rows: Number of rows there are.
        rows_split: Whether the rows can be computed in several parts.
        mask_bytes: Bytes of masks per pass and row.

    Returns:
        The footprint.
    """
    if not rows_split or rows < 3:
        rows = min(rows, 2) if rows_split else rows
        shared, per_pass = peaks(rows)
        return Footprint(shared / rows, 0.0, per_pass / rows + mask_bytes)
    shared, of_two_rows = peaks(2)
    _, of_three_rows = peaks(3)
    per_pass_row = max(of_three_rows - of_two_rows, 0.0)
    return Footprint(shared / 2, max(of_two_rows - 2 * per_pass_row, 0.0), per_pass_row + mask_bytes)


@functools.cache
def keep_freed_memory(size: int) -> None:
    """Let glibc keep freed memory for the next chunk: getting it from the system can take as long as the passes.

    glibc keeps blocks up to the largest that was freed, if not above 32 MiB, and twice as many bytes altogether. Here
    it is given a block of ``_KEPT_BLOCK`` bytes to learn from, and goes on learning from others: limits set once and
    for all would make larger blocks slow in the whole process. It learns nothing where it has settings of its own, such
    as ``MALLOC_MMAP_THRESHOLD_``. ``MLMC_DROPOUT_KEEP_MEMORY=1`` in the environment does set limits, so that more is
    kept, and ``=0`` leaves glibc alone.

    Args:
        size: Bytes to keep with ``=1``.
    """
    wish = os.environ.get("MLMC_DROPOUT_KEEP_MEMORY", "")
    if sys.platform != "linux" or wish == "0" or not hasattr(_c_library(), "mallopt"):  # which only glibc has
        return
    library = _c_library()
    if wish == "1":
        library.mallopt(_M_MMAP_THRESHOLD, 1 << 25)
        library.mallopt(_M_TRIM_THRESHOLD, min(size, (1 << 31) - 1))
    else:
        library.free(library.malloc(_KEPT_BLOCK))


def return_freed_memory() -> None:
    """Let glibc give freed memory back to the system, of which it otherwise keeps as much as is in use."""
    trim = getattr(_c_library(), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


@functools.cache
def _c_library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes, library.free.restype = [ctypes.c_void_p], None
    return library


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _size(tensor: Tensor) -> int:
    if tensor.layout == torch.strided:
        return tensor.untyped_storage().nbytes()
    return (
        16 * tensor._nnz() if tensor.is_sparse or "sparse" in str(tensor.layout) else tensor.numel() * tensor.itemsize
    )
