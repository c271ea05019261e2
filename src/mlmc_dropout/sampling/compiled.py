"""When compiled loops draw the masks, and on how many threads.

They give the same bits as the calls of torch in ``masks``, a few times faster (``benchmarks/kernels.py``). Loading
them takes a second, and compiling them some more the first time on a machine. So a process turns to them when it has
drawn enough for that to pay: then it has lost no more by waiting than by loading. ``MLMC_DROPOUT_NUMBA=1`` in the
environment loads them at once, ``=0`` never.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["as_unsigned", "in_threads", "loops"]

_WORTH = 1 << 29  # units that torch draws in about the time that loading takes
_SHARE = 1 << 18  # units that a thread is worth
_LOCK = threading.Lock()
_CUT_OFF = False  # whether a thread was loading when this process was forked, and stayed behind with it
_DRAWN = 0


def loops(units: int, device: torch.device) -> ModuleType | None:
    """The compiled loops, if they are there and their time has come.

    Args:
        units: Units that are about to be drawn.
        device: Where.

    Returns:
        The module ``compiled_loops``; ``None``: use torch.
    """
    global _DRAWN
    wish = os.environ.get("MLMC_DROPOUT_NUMBA", "")
    if device.type != "cpu" or wish == "0":
        return None
    if _DRAWN < _WORTH and wish != "1":
        _DRAWN += units  # threads may lose a count: it is a rule of thumb
        return None
    return _loaded()


@functools.cache
def _loaded() -> ModuleType | None:
    with _LOCK:
        if _CUT_OFF:  # Python's and Numba's own locks are held for good, too
            return None
        try:
            module = importlib.import_module("mlmc_dropout.sampling.compiled_loops")
            module.compile_all()  # now, because files of machine code may be damaged, or not be written
            return module
        except Exception:  # not installed, or in a state that must not stop a run: torch draws the same bits
            return None


def in_threads(loop: Callable[..., None], outer: int, inner: int, units: int, *arguments: Any) -> None:
    """Run a loop over ``outer`` × ``inner`` pieces of work, on as many threads as torch uses if that pays.

    Args:
        loop: Called as ``loop(first, last, start, stop, *arguments)``.
        outer: Pieces of the outer loop.
        inner: Pieces of the inner loop.
        units: Units that are drawn altogether.
        *arguments: Arrays for all threads.
    """
    threads = min(torch.get_num_threads(), units // _SHARE)
    if threads <= 1:
        loop(0, outer, 0, inner, *arguments)
        return
    if outer >= threads:
        cuts = [outer * share // threads for share in range(threads + 1)]
        shares = [(a, b, 0, inner) for a, b in itertools.pairwise(cuts)]
    else:
        cuts = [inner * share // threads for share in range(threads + 1)]
        shares = [(0, outer, a, b) for a, b in itertools.pairwise(cuts)]
    others = [_pool().submit(loop, *share, *arguments) for share in shares[1:]]
    loop(*shares[0], *arguments)
    for other in others:
        other.result()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="mlmc-dropout-masks")


def _after_fork() -> None:
    """Do without what the parent's other threads had: in a child there are none of them."""
    global _LOCK, _CUT_OFF
    _pool.cache_clear()
    _CUT_OFF = _CUT_OFF or _LOCK.locked()
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def as_unsigned(values: Tensor) -> NDArray[np.uint64]:
    """Numbers for compiled loops.

    Args:
        values: Int64 numbers on the CPU.

    Returns:
        The same bits, in the same memory if they are contiguous.
    """
    return values.contiguous().numpy().view(np.uint64)
