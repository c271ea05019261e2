"""Runs on real worker processes that are killed, stopped or orphaned, and compared with runs that were not.

``worker_fault`` runs an estimate here, with two worker processes, and does something to them. ``driver_fault`` runs one
in a process of its own, does something to that, looks for processes left behind, and lets the run go on from its
checkpoint. Both say how it ended: "same" (to the last bit), "different", "hang", or the name of a typed error after
which the checkpoint has led to the same bits.

As a script (``python -m testing.recovery FOLDER METHOD``) it is the process of ``driver_fault``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.errors import MLMCDropoutError
from mlmc_dropout.runtime import processes
from testing.runs import digest

__all__ = ["DRIVER_FAULTS", "WORKER_FAULTS", "Outcome", "alive", "descendants", "driver_fault", "worker_fault"]

SILENCE = 10.0  # instead of a minute: seconds after which a silent worker is given up
LIMIT = 180.0  # seconds from which a run is said to hang; undisturbed it takes a few, on a busy machine up to a minute
METHODS = {"pooled": 128 * 12, "stratified": 1000, "mlmc": 1000}  # with budgets that take a few seconds


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a disturbed run ended."""

    fault: str
    method: str
    seed: int
    faults: int  # signals sent, or writes cut off
    ended: str
    seconds: float
    orphans: int = 0
    note: str = ""

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def wide(rows: int = 8) -> tuple[nn.Module, torch.Tensor]:
    """A network whose results are large: a state is a megabyte, far more than a pipe holds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = (nn.Linear(2, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1))
        return nn.Sequential(*layers, nn.Linear(16, 4096)), torch.randn(rows, 2)


def run(method: str, **arguments: Any) -> str:
    """The digest of an estimate."""
    model, x = wide()
    return digest(md.estimate(model, x, method=method, budget=METHODS[method], **arguments))


@functools.cache
def expected(method: str) -> str:
    """The digest of an undisturbed estimate in this process."""
    return run(method)


# ------------------------------------------------------------------------------------- processes


def descendants(pid: int) -> dict[int, str]:
    """Processes below a process, and their command lines; those that have ended and wait for their parent are not."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            name, rest = int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()
            if rest[0] != "Z":
                parents.setdefault(int(rest[1]), []).append(name)
    found, waiting = {}, [pid]
    while waiting:
        for child in parents.get(waiting.pop(), []):
            with contextlib.suppress(OSError):
                found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
                waiting.append(child)
    return found


def workers(pid: int) -> list[int]:
    """Worker processes of a driver: the forks of its fork server."""
    servers = [child for child, command in descendants(pid).items() if "forkserver" in command]
    return [child for server in servers for child in descendants(server)] if servers else []


def fork_server(pid: int) -> list[int]:
    """The fork server of a driver."""
    forks = set(workers(pid))
    return [child for child, command in descendants(pid).items() if "forkserver" in command and child not in forks]


def alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _send(pids: list[int], number: int) -> int:
    sent = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            sent += 1
    return sent


# --------------------------------------------------------------------------------- faults of workers


class CutOff:
    """A transform that changes nothing, but has its worker die in the middle of sending a large message.

    Each file in ``folder`` stands for one death; who removes it dies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, os.getpid()

    def __call__(self, output: Any) -> Any:
        if os.getpid() != self.home and not hasattr(Connection, "uncut"):
            Connection.uncut = Connection._send  # type: ignore[attr-defined]
            Connection._send = self._cut  # type: ignore[attr-defined, method-assign]
        return output

    @property
    def _cut(self) -> Callable[..., None]:
        folder = self.folder

        def send(connection: Connection, data: Any, *rest: Any) -> None:
            if len(data) > 1 << 17:
                for token in folder.iterdir():
                    with contextlib.suppress(FileNotFoundError):
                        token.unlink()
                        os.write(connection.fileno(), bytes(data)[: len(data) // 2])
                        os.kill(os.getpid(), signal.SIGKILL)
            connection.uncut(data, *rest)  # type: ignore[attr-defined]

        return send


Disturb = Callable[[random.Random, threading.Event], Iterator[int]]


def _workers_later(draw: random.Random, over: threading.Event) -> list[int]:
    """The workers, some moments after the first of them is there."""
    while not workers(os.getpid()) and not over.wait(0.01):
        pass
    over.wait(draw.uniform(0.0, 1.5))
    return workers(os.getpid())


def _kill_all(draw: random.Random, over: threading.Event) -> Iterator[int]:
    """All workers at once, at a random moment; every other time the fork server with them."""
    yield _send(_workers_later(draw, over), signal.SIGKILL)
    if draw.random() < 0.5:
        yield _send(fork_server(os.getpid()), signal.SIGKILL)


def _kill_every_second(draw: random.Random, over: threading.Event) -> Iterator[int]:
    """A random worker, every second."""
    while not over.wait(1.0):
        found = workers(os.getpid())
        yield _send(draw.sample(found, min(len(found), 1)), signal.SIGKILL)


def _stop(draw: random.Random, over: threading.Event) -> Iterator[int]:
    """One or both workers are stopped at a random moment and never go on."""
    found = _workers_later(draw, over)
    yield _send(draw.sample(found, min(len(found), draw.choice([1, 2]))), signal.SIGSTOP)


def _nothing(draw: random.Random, over: threading.Event) -> Iterator[int]:
    """The workers do it themselves (:class:`CutOff`)."""
    return iter(())


WORKER_FAULTS: dict[str, Disturb] = {
    "killed inside write": _nothing,
    "all workers killed": _kill_all,
    "a kill every second": _kill_every_second,
    "SIGSTOP": _stop,
}


def worker_fault(fault: str, method: str, seed: int, folder: Path) -> Outcome:
    """An estimate on two worker processes that suffer a fault."""
    expected(method)
    draw, over, sent = random.Random(f"{fault} {seed}"), threading.Event(), [0]
    tokens = folder / "tokens"
    tokens.mkdir(parents=True)
    deaths = draw.randint(1, 4) if fault == "killed inside write" else 0
    for number in range(deaths):
        (tokens / str(number)).touch()

    def disturb() -> None:
        for count in WORKER_FAULTS[fault](draw, over):
            sent[0] += count

    thread = threading.Thread(target=disturb)
    keep = {"checkpoint": folder / "c", "checkpoint_interval": 0.5, "transform": CutOff(tokens)}
    note, before_end, failed = "", [""], None
    with _short_silence(), _time_limit(LIMIT, before_end):
        started = time.monotonic()
        thread.start()
        try:
            ended = _compared(method, run(method, executor=2, **keep))
        except TimeoutError:
            ended, note = "hang", f"{descendants(os.getpid())} {before_end[0]}"
        except MLMCDropoutError as error:
            failed, note = type(error).__name__, str(error)
        finally:
            seconds = time.monotonic() - started
            over.set()
    thread.join()
    if failed is not None:
        ended = _resumed(method, failed, **keep)
    sent[0] += deaths - len(list(tokens.iterdir()))
    return Outcome(fault, method, seed, sent[0], ended, seconds, _left_behind(), note)


def _compared(method: str, found: str) -> str:
    return "same" if found == expected(method) else "different"


def _resumed(method: str, error: str, **keep: Any) -> str:
    """After a typed error the checkpoint has to lead to the same bits."""
    again = _compared(method, run(method, **keep))
    return error if again == "same" else f"{error}, then {again}"


def _left_behind(seconds: float = 5.0) -> int:
    """Worker processes that are still there after a while."""
    end = time.monotonic() + seconds
    while (left := len(workers(os.getpid()))) and time.monotonic() < end:
        time.sleep(0.05)
    return left


@contextlib.contextmanager
def _short_silence() -> Iterator[None]:
    before = processes.SILENCE, processes.BEAT
    processes.SILENCE, processes.BEAT = SILENCE, 0.5
    try:
        yield
    finally:
        processes.SILENCE, processes.BEAT = before


@contextlib.contextmanager
def _time_limit(seconds: float, before_end: list[str]) -> Iterator[None]:
    """Raise ``TimeoutError`` after so long; ``before_end`` tells what all threads were doing."""

    def late(*_: Any) -> None:
        stacks = [traceback.extract_stack(frame)[-4:] for frame in sys._current_frames().values()]
        before_end[0] = " | ".join(" < ".join(f"{f.name}:{f.lineno}" for f in stack) for stack in stacks)
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --------------------------------------------------------------------------------- faults of drivers


DRIVER_FAULTS = {"SIGTERM of the driver": signal.SIGTERM, "SIGKILL of the driver": signal.SIGKILL}


class _Forked:
    """A driver that is a fork of this process, which saves its imports."""

    def __init__(self, folder: Path, method: str) -> None:
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                main(folder, method)
                code = 0
            except SystemExit as stop:
                code = int(stop.code or 0)
            finally:
                os._exit(code)

    def __enter__(self) -> _Forked:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def wait(self) -> int:
        """Its exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _fresh(folder: Path, method: str) -> subprocess.Popen[bytes]:
    """A driver with an interpreter of its own, which has imported everything and is about to run."""
    call = [sys.executable, "-m", "testing.recovery", str(folder), method]
    driver = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert driver.stdout is not None
    driver.stdout.readline()
    return driver


def driver_fault(
    fault: str, method: str, seed: int, folder: Path, orphaned_after: float = 5.0, forked: bool = False
) -> Outcome:
    """A driver with two workers in a process of its own, signalled at a random moment, and resumed here."""
    draw = random.Random(f"{fault} {seed}")
    folder.mkdir(parents=True)
    started = time.monotonic()
    with _Forked(folder, method) if forked else _fresh(folder, method) as driver:
        time.sleep(draw.uniform(0.0, 6.0))
        below = descendants(driver.pid)
        sent = _send([driver.pid], DRIVER_FAULTS[fault])
        moment = time.monotonic()
        while any(map(alive, [driver.pid, *below])) and time.monotonic() < moment + LIMIT:
            time.sleep(0.02)
            if not alive(driver.pid) and time.monotonic() > moment + orphaned_after:
                break
        ended_by_itself = (folder / "digest").exists()
        left = [pid for pid in below if alive(pid)]
        hangs = alive(driver.pid)
        _send([driver.pid, *left], signal.SIGKILL)
        code = driver.wait()
    if hangs:
        ended = "hang"
    elif code not in (-DRIVER_FAULTS[fault], 128 + DRIVER_FAULTS[fault], *((0,) if ended_by_itself else ())):
        ended = f"exit code {code}"
    else:
        ended = _compared(method, run(method, checkpoint=folder / "c"))
    if ended == "same" and list(folder.glob("*.part")):
        ended = "same, but files are left behind"
    note = "; ".join(f"{Path(below[pid].split()[0]).name} … {below[pid][-20:]}" for pid in left)
    return Outcome(fault, method, seed, sent, ended, time.monotonic() - started, len(left), note)


def main(folder: Path, method: str) -> None:
    """The driver: an estimate with checkpoints on two workers."""
    print("begun", flush=True)
    found = run(method, executor=2, checkpoint=folder / "c", checkpoint_interval=0.2)
    (folder / "digest").write_text(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
