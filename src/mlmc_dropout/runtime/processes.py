"""Processes of our own, each looked after by a thread, and replaced when it dies, stops or gets stuck.

Every process has a pipe of its own. When it is killed while it sends, our side of that pipe comes to an end. In one
pipe for all, as the pool of the standard library has it, the rest of the message would be waited for for ever, because
the others hold the pipe open.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mlmc_dropout.runtime.orphans import DRIVER, end_with_parent

__all__ = ["Processes"]

BEAT = 2.0  # seconds between two signs of life
SILENCE = 60.0  # seconds without one after which a process is taken for stopped
PATIENCE = 600.0  # seconds that a call may take beyond what is expected of it,
OVERRUN = 20.0  # and how many times as long
GOODBYE = b""  # the driver's last word; a pipe that ends without it means that the driver is gone
PAUSE = 0.5  # seconds until the next try when no process can be started: the fork server, too, may have been killed

_PRELOAD = ["mlmc_dropout.runtime.orphans", "mlmc_dropout.runtime.worker", "torch._dynamo"]  # the last for vmap


class _Process:
    """A process that runs one call at a time; :meth:`run` belongs to one thread."""

    def __init__(self, context: Any, scratch: Path | None) -> None:
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, BEAT, scratch))
        try:
            self._process.start()
        finally:
            theirs.close()  # so that the pipe ends with the process
        self._heard = time.monotonic()
        self._limit = math.inf
        self._reason = "it died"

    def run(self, call: tuple[Any, ...], seconds: float) -> Any:
        """The call's value; its exception; or ``BrokenExecutor`` if the process does not survive it."""
        self._heard = time.monotonic()
        self._limit = self._heard + seconds
        try:
            self._pipe.send_bytes(pickle.dumps(call))
            while (answer := pickle.loads(self._pipe.recv_bytes())) is None:
                self._heard = time.monotonic()
        except (EOFError, OSError):
            self.kill()
            raise BrokenExecutor(f"a worker process is gone: {self._reason}") from None
        value, error = answer
        if error is not None:
            raise error
        return value

    def check(self) -> None:
        """End it if it has been silent, or busy, for too long; :meth:`run` then finds it gone."""
        now = time.monotonic()
        if now - self._heard > SILENCE:
            self._reason = f"it gave no sign of life for {SILENCE:g} s"
        elif now > self._limit:
            self._reason = "it took far longer than other workers did"
        else:
            return
        self.kill()

    def kill(self) -> None:
        """End it now, also one that is stopped."""
        self._process.kill()

    def leave(self) -> None:
        """Have it end by itself."""
        with contextlib.suppress(OSError):  # it is gone already
            self._pipe.send_bytes(GOODBYE)

    def join(self, seconds: float) -> None:
        """Wait for its end, and bring it about if need be."""
        self._process.join(seconds)
        self._process.kill()
        self._process.join()


class Processes:
    """A number of processes that run calls.

    They are not forked from this process: torch's threads do not survive a fork. Where the system has it, a server that
    has imported the library, and done nothing else, is forked instead.

    Args:
        workers: How many.

    Attributes:
        scratch: A folder of ours that they remove when the driver is gone and cannot do it.
    """

    client = None

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.scratch: Path | None = None
        self._context: Any = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
        if self._context.get_start_method() == "forkserver":
            from multiprocessing import forkserver  # not on every system

            self._context.set_forkserver_preload(_PRELOAD)
            os.environ[DRIVER] = str(os.getpid())
            forkserver.ensure_running()  # here: it ends with the thread that started it (``orphans``)
            os.environ.pop(DRIVER, None)
        self._threads = ThreadPoolExecutor(workers, "mlmc-dropout")
        self._idle: SimpleQueue[_Process | None] = SimpleQueue()
        self._busy: set[_Process] = set()
        self._open = True
        for _ in range(workers):
            self._idle.put(None)

    def submit(self, expected: float | None, *call: Any) -> Future[Any]:
        """Have a call run.

        Args:
            expected: Seconds it should take; ``None`` if nobody knows.
            *call: A function and its arguments.

        Returns:
            Its future; ``BrokenExecutor`` if the process ended over it.
        """
        return self._threads.submit(self._run, call, math.inf if expected is None else PATIENCE + OVERRUN * expected)

    def _run(self, call: tuple[Any, ...], seconds: float) -> Any:
        process, usable = self._idle.get(), True
        try:
            process = process or self._start()
            self._busy.add(process)
            if not self._open:
                process.kill()
            return process.run(call, seconds)
        except BrokenExecutor:
            usable = False
            raise
        finally:
            if process is not None:
                self._busy.discard(process)
            self._idle.put(process if usable else None)

    def _start(self) -> _Process:
        try:
            return _Process(self._context, self.scratch)
        except (OSError, EOFError) as error:
            time.sleep(PAUSE)
            raise BrokenExecutor(f"no worker process can be started ({error})") from error

    def watch(self) -> None:
        """End processes that are stopped or stuck; to be called every now and then."""
        for process in tuple(self._busy):
            process.check()

    def revive(self) -> bool:
        """Always: the next call starts a new process."""
        return True

    def close(self, orderly: bool) -> None:
        """End all processes.

        Args:
            orderly: Nothing is under way, and they may end by themselves.
        """
        self._open = False
        for process in tuple(self._busy):
            process.kill()
        idle = [process for process in self._take_idle() if process is not None]
        for process in idle:
            process.leave() if orderly else process.kill()
        self._threads.shutdown(wait=orderly, cancel_futures=True)
        for process in idle if orderly else ():
            process.join(5.0)

    def _take_idle(self) -> list[_Process | None]:
        return [self._idle.get() for _ in range(self._idle.qsize())]


# ---------------------------------------------------------------------------------- in the process


def _serve(pipe: Connection, beat: float, scratch: Path | None) -> None:
    """Run calls until the driver says goodbye or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal comes here, too; stopping is the driver's
    lock = threading.Lock()

    def say(answer: tuple[Any, BaseException | None] | None) -> None:
        data = pickle.dumps(answer)
        with lock:
            pipe.send_bytes(data)

    end_with_parent(False)  # from here on it is the driver that matters, not the server
    threading.Thread(target=_keep_alive, args=(say, beat, scratch), daemon=True).start()
    try:
        while (data := pipe.recv_bytes()) != GOODBYE:
            try:
                function, *arguments = pickle.loads(data)
                answer: tuple[Any, Exception | None] = function(*arguments), None
            except Exception as error:
                answer = None, RuntimeError(f"{type(error).__name__}: {error}")
            say(answer)
    except (EOFError, OSError):
        _clear(scratch)


def _clear(scratch: Path | None) -> None:
    """Remove what a driver that is gone has left."""
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def _keep_alive(say: Callable[[None], None], every: float, scratch: Path | None) -> None:
    """Give signs of life to the driver, and end with it, whatever this process is doing."""
    driver = parent_process()
    assert driver is not None
    with contextlib.suppress(OSError):
        while not wait([driver.sentinel], timeout=every):
            say(None)
    _clear(scratch)
    os._exit(1)
