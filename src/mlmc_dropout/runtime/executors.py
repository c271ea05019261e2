"""Who runs the tasks: this process, processes of our own, or any executor with ``submit``.

Tasks are names, results are moment blocks, and blocks are merged in the order of the tasks whatever
the order in which they come back. So who runs them, how many there are and who dies on the way
changes nothing in the result.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
import uuid
from asyncio import CancelledError
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, Protocol, Self

from mlmc_dropout.errors import ExecutionError, InputError
from mlmc_dropout.methods.base import State, Task
from mlmc_dropout.runtime.processes import Processes
from mlmc_dropout.runtime.run import Run
from mlmc_dropout.runtime.transport import Delivered, Files, Transport
from mlmc_dropout.runtime.worker import Item, Reply, perform

__all__ = ["Remote", "Serial", "TaskPool", "task_pool_for"]

WORTH_SENDING = 0.25  # seconds of work that are worth sending
ATTEMPTS = 8  # times a piece of work is tried when workers die over it
LOOK = 1.0  # seconds between two looks at workers that do not answer
UNNOTICED = 10.0  # seconds after which a pool should have noticed that a worker is dead

Done = tuple[Run, int, list[State]]


class TaskPool(Protocol):
    """Takes pieces of work, gives back states."""

    @property
    def has_room(self) -> bool:
        """Whether another piece may be submitted: a bounded number is under way."""

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""

    def size(self, run: Run) -> int:
        """How many of the run's next tasks make a piece worth sending.

        Args:
            run: A run.

        Returns:
            A number of tasks.
        """

    def submit(self, run: Run, start: int, tasks: tuple[Task, ...]) -> None:
        """Have the tasks run, the first of which is at place ``start`` of the run's round.

        Args:
            run: A run.
            start: Place of the first task in the run's round.
            tasks: The tasks.
        """

    def collect(self) -> Done:
        """Wait for a piece to be finished: its run, its place, its states."""

    def forget(self, run: Run) -> None:
        """The run is finished.

        Args:
            run: A finished run.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None: ...


def task_pool_for(executor: Any, sampler: Any) -> TaskPool:
    """Who runs the tasks.

    Args:
        executor: ``None``: this process; a number: so many processes of our own; an executor or a Dask client: theirs.
        sampler: The model and how it is sampled.

    Returns:
        The pool.

    Raises:
        InputError: If the executor is none of these.
    """
    if executor is None:
        return Serial()
    if isinstance(executor, int) and not isinstance(executor, bool):
        if executor < 1:
            raise InputError(f"executor as a number of processes is at least 1: got {executor}")
        return Remote(Processes(executor), sampler)
    if hasattr(executor, "get_executor"):  # a Dask client
        executor = executor.get_executor()
    if not callable(getattr(executor, "submit", None)):
        raise InputError(
            f"executor is a number of processes or has a submit method like concurrent.futures.Executor: "
            f"got {type(executor).__name__}"
        )
    return Remote(_Theirs(executor), sampler)


class Serial:
    """This process, one task at a time."""

    def __init__(self) -> None:
        self._next: tuple[Run, int, tuple[Task, ...]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        return None

    @property
    def has_room(self) -> bool:
        """One task at a time."""
        return self._next is None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self._next is None

    def size(self, run: Run) -> int:
        """One task: an interrupt, a checkpoint or a progress bar need not wait for more.

        Args:
            run: A run.

        Returns:
            A number of tasks.
        """
        return 1

    def submit(self, run: Run, start: int, tasks: tuple[Task, ...]) -> None:
        """Remember the tasks.

        Args:
            run: A run.
            start: Place of the first task in the run's round.
            tasks: The tasks.
        """
        self._next = run, start, tasks

    def collect(self) -> Done:
        """Run them."""
        assert self._next is not None
        (run, start, tasks), self._next = self._next, None
        return run, start, [run.bound.run(run.open, task) for task in tasks]

    def forget(self, run: Run) -> None:
        """Nothing to forget.

        Args:
            run: A finished run.
        """


# ------------------------------------------------------------------------------------- executors


class _Pool(Protocol):
    """Something that runs calls elsewhere."""

    workers: int
    client: Any  # of Dask, where it is that

    def submit(self, expected: float | None, *call: Any) -> Future[Reply]:
        """Have a call run that should take so many seconds, if that is known."""

    def watch(self) -> None:
        """Called about every second while a call is waited for: look after workers, as far as that is possible."""

    def revive(self) -> bool:
        """Make it usable again after a failure; whether that is possible."""

    def close(self, orderly: bool) -> None: ...


class _Theirs:
    """An executor we were given: it is neither closed nor replaced."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        client = getattr(executor, "_client", None)
        self.client = client if hasattr(client, "register_plugin") else None
        self.workers = _worker_count(executor, self.client)
        self._dead_since = math.inf

    def submit(self, expected: float | None, *call: Any) -> Future[Reply]:
        future: Future[Reply] = self._executor.submit(*call)
        return future

    def watch(self) -> None:
        """A ``ProcessPoolExecutor`` does not notice that a worker was killed while sending; its futures never end."""
        processes = getattr(self._executor, "_processes", None)
        if not isinstance(processes, dict) or all(process.is_alive() for process in tuple(processes.values())):
            self._dead_since = math.inf
            return
        self._dead_since = min(self._dead_since, time.monotonic())
        if time.monotonic() - self._dead_since > UNNOTICED:
            raise ExecutionError(
                "a worker of the executor is dead and the executor has not noticed, so that its results will never "
                "come; use executor=<number of processes> instead, and with checkpoint= the run goes on where it was"
            )

    def revive(self) -> bool:
        return self.client is None or self.client.status == "running"

    def close(self, orderly: bool) -> None:
        return None


def _worker_count(executor: Any, client: Any) -> int:
    """How many calls an executor runs at once, as far as it tells."""
    if client is not None:
        return max(1, int(sum(client.nthreads().values())))
    told = getattr(executor, "num_workers", None) or getattr(executor, "_max_workers", None)
    return int(told) if isinstance(told, int) else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class _Ticket:
    """A piece of work under way."""

    run: Run
    start: int
    item: Item
    missing: bool = False


class Remote:
    """Workers elsewhere; twice as many pieces are under way as there are workers, so that none waits for us."""

    def __init__(self, pool: _Pool, sampler: Any) -> None:
        self._pool = pool
        self._job = uuid.uuid4().hex
        self._transport: Transport = (
            Files(sampler) if pool.client is None else Delivered(sampler, pool.client, self._job)
        )
        if isinstance(pool, Processes) and isinstance(self._transport, Files):
            pool.scratch = self._transport.folder
        self._me = socket.gethostname(), os.getpid()
        self._finished: SimpleQueue[tuple[_Ticket, Future[Reply]]] = SimpleQueue()
        self._under_way: set[Future[Reply]] = set()
        self._pace = 0.0  # seconds a unit of weight takes, from the latest reply
        self._looked = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for future in self._under_way:
            future.cancel()
        try:
            self._transport.close()
        finally:
            self._pool.close(orderly=kind is None and not self._under_way)

    @property
    def has_room(self) -> bool:
        """Whether fewer than two pieces per worker are under way."""
        return len(self._under_way) < 2 * self._pool.workers

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._under_way

    def size(self, run: Run) -> int:
        """As many tasks as are worth sending, but leaving some for every worker.

        Args:
            run: A run.

        Returns:
            A number of tasks.
        """
        if not self._pace:
            return 1
        share = -(-len(run.tasks) // (2 * self._pool.workers))
        weight = run.weight(run.tasks[len(run.tasks) - run.unsent])
        return max(1, min(share, int(WORTH_SENDING / (self._pace * weight))))

    def submit(self, run: Run, start: int, tasks: tuple[Task, ...]) -> None:
        """Send the tasks' names; model and inputs only where they are missing.

        Args:
            run: A run.
            start: Place of the first task in the run's round.
            tasks: The tasks.
        """
        source = run.source
        item = Item(
            self._job,
            run.index,
            source.first_row,
            source.seed,
            source.chunk,
            run.method,
            tasks,
            self._me,
            selection=run.selection,
        )
        self._send(_Ticket(run, start, item))

    def collect(self) -> Done:
        """The next piece that is finished, whichever it is."""
        while True:
            ticket, future = self._wait()
            self._under_way.discard(future)
            try:
                reply = future.result()
            except (Exception, CancelledError) as error:
                self._again(ticket, error)
                continue
            if reply.error is not None:
                raise reply.error
            if not reply.missing:
                self._pace = reply.seconds / sum(map(ticket.run.weight, ticket.item.tasks))
                return ticket.run, ticket.start, list(reply.states)
            self._send(replace(ticket, missing=True))

    def _wait(self) -> tuple[_Ticket, Future[Reply]]:
        """What is finished next; workers are looked after in the meantime."""
        while True:
            if time.monotonic() - self._looked > LOOK:
                self._pool.watch()
                self._looked = time.monotonic()
            with contextlib.suppress(Empty):
                return self._finished.get(timeout=LOOK)

    def forget(self, run: Run) -> None:
        """The run's inputs need not be kept for workers.

        Args:
            run: A finished run.
        """
        self._transport.forget(run)

    def _send(self, ticket: _Ticket) -> None:
        try:
            payloads = self._transport.payloads(ticket.run, ticket.missing)
            weight = sum(map(ticket.run.weight, ticket.item.tasks))
            future = self._pool.submit(self._pace * weight or None, perform, ticket.item, *payloads)
        except ExecutionError:
            raise
        except Exception as error:
            self._again(ticket, error)
            return
        self._under_way.add(future)
        future.add_done_callback(lambda done: self._finished.put((ticket, done)))

    def _again(self, ticket: _Ticket, error: BaseException) -> None:
        """Its worker is gone: run it elsewhere, if there is an elsewhere."""
        attempt = ticket.item.attempt + 1
        if attempt >= ATTEMPTS or not self._pool.revive():
            raise ExecutionError(
                f"workers are gone or cannot be reached ({type(error).__name__}: {error}); "
                "start new ones and, with checkpoint=, call again: the run goes on where it was. In a script, the call "
                "belongs under  if __name__ == '__main__':  since new processes import the script"
            ) from error
        self._send(replace(ticket, item=replace(ticket.item, attempt=attempt)))
