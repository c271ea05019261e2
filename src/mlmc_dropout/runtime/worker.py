"""What happens on a worker: receive the model once, bind the method once per batch, run tasks.

A task is a name; everything random follows from it. So a task that is run twice, or elsewhere, gives
the same bits. Worker processes compute with one thread each: there are as many of them as cores.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mlmc_dropout.errors import ExecutionError
from mlmc_dropout.methods.base import BoundMethod, Method, State, Task
from mlmc_dropout.sampling.sampler import DropoutSampler
from mlmc_dropout.sampling.source import Source

__all__ = ["DELIVERED", "Item", "Reply", "perform"]

_KEPT = 16  # batches and selections of their rows, and methods bound to them, a worker remembers

DELIVERED: dict[str, bytes] = {}  # pickled models that came some other way, by job

Payload = bytes | str | None  # pickled data, a file that holds it, or nothing: "you have it already"


@dataclass(frozen=True, slots=True)
class Item:
    """A piece of work: some tasks of one batch. ``driver`` is the process that sent it."""

    job: str
    batch: int
    first_row: int
    seed: int
    chunk: int | None
    method: Method
    tasks: tuple[Task, ...]
    driver: tuple[str, int]
    attempt: int = 0
    selection: bytes | None = None  # rows of the batch, one bit each; None: all of them


@dataclass(frozen=True, slots=True)
class Reply:
    """States of the tasks in order; or the error they ended with; or a request for data (``missing``)."""

    states: tuple[State, ...] = ()
    seconds: float = 0.0
    missing: bool = False
    error: BaseException | None = None


class _Missing(Exception):
    """The model or the inputs have not come here yet."""


class _Memory:
    """The last few things loaded, by name; safe to use from several threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[Any, Any] = OrderedDict()
        self.lock = threading.RLock()

    def get(self, name: Any, make: Callable[[], Any]) -> Any:
        with self.lock:
            if name not in self._kept:
                self._kept[name] = make()
            self._kept.move_to_end(name)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
            return self._kept[name]


_MODELS, _SOURCES, _BOUND = _Memory(2), _Memory(_KEPT), _Memory(_KEPT)


def perform(item: Item, model: Payload = None, inputs: Payload = None) -> Reply:
    """Run the tasks of an item. Errors of the model come back as values: what is raised is the machinery's.

    Args:
        item: The tasks.
        model: The pickled model, or where it is.
        inputs: The pickled inputs, or where they are.

    Returns:
        States, an error, or a request for data.
    """
    if (socket.gethostname(), os.getpid()) != item.driver and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    started = time.perf_counter()
    try:
        source, bound = _ready(item, model, inputs)
        states = tuple(bound.run(source, task) for task in item.tasks)
    except _Missing:
        return Reply(missing=True)
    except Exception as error:
        return Reply(error=_portable(error))
    return Reply(states, time.perf_counter() - started)


def _ready(item: Item, model: Payload, inputs: Payload) -> tuple[Source, BoundMethod]:
    """The passes of the item's rows and the method made ready for them, from those of the whole batch."""
    name = item.job, item.batch, repr(item.method)
    source: Source = _SOURCES.get((item.job, item.batch), lambda: _source(item, model, inputs))
    bound: BoundMethod = _BOUND.get(name, lambda: item.method.bind(source))
    if item.selection is None:
        return source, bound
    bits = np.frombuffer(item.selection, dtype=np.uint8)
    rows = np.flatnonzero(np.unpackbits(bits, count=source.batch.rows))
    some: Source = _SOURCES.get((item.job, item.batch, item.selection), lambda: source.select(rows))
    return some, _BOUND.get((*name, item.selection), lambda: bound.select(rows))


def _source(item: Item, model: Payload, inputs: Payload) -> Source:
    sampler: DropoutSampler = _MODELS.get(item.job, lambda: _load(model or DELIVERED.get(item.job)))
    batch, numbers = _load(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the driver has looked at the same model and said what there is to say
        program = sampler.prepare(batch)
    return Source(sampler, program, batch, item.seed, item.first_row, item.chunk, numbers=numbers)


def _load(payload: Payload) -> Any:
    if payload is None:
        raise _Missing
    if isinstance(payload, str):
        try:
            with open(payload, "rb") as file:
                payload = file.read()
        except OSError:
            raise _Missing from None  # no common file system
    try:
        return pickle.loads(payload)
    except Exception as error:
        raise ExecutionError(
            f"a worker could not unpickle the model or its inputs ({type(error).__name__}: {error}); "
            "define the model in a module that workers can import"
        ) from error


def _portable(error: Exception) -> Exception:
    """The error, or one with the same words if it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
