"""Real processes that are killed, stopped or orphaned: the bits stay the same, nothing hangs, nobody is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import BrokenExecutor

import pytest

from mlmc_dropout.runtime import processes
from mlmc_dropout.runtime.processes import Processes
from mlmc_dropout.runtime.signals import ending_by_exception
from testing import recovery

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("fault", "method"),
    [
        ("killed inside write", "pooled"),
        pytest.param("killed inside write", "mlmc", marks=SLOW),
        pytest.param("SIGSTOP", "pooled", marks=SLOW),
        pytest.param("all workers killed", "stratified", marks=SLOW),
        pytest.param("a kill every second", "pooled", marks=SLOW),
    ],
)
def test_workers_that_suffer_are_replaced_and_no_bit_changes(fault, method, tmp_path):
    outcome = recovery.worker_fault(fault, method, 0, tmp_path)
    assert outcome.faults and not outcome.orphans
    assert outcome.ended == "same", outcome


@pytest.mark.parametrize("fault", ["SIGKILL of the driver", pytest.param("SIGTERM of the driver", marks=SLOW)])
def test_a_driver_that_is_ended_leaves_no_process_and_a_checkpoint_that_leads_to_the_same_bits(fault, tmp_path):
    outcome = recovery.driver_fault(fault, "pooled", 3, tmp_path / "run", orphaned_after=20.0)
    assert outcome.ended == "same" and not outcome.orphans, outcome


@pytest.fixture
def pool():
    pool = Processes(1)
    yield pool
    pool.close(orderly=False)


def _watched(pool, future):
    while not future.done():
        pool.watch()
        time.sleep(0.05)
    return future.result()


def test_a_stopped_process_is_given_up_after_a_while(pool, monkeypatch):
    monkeypatch.setattr(processes, "SILENCE", 0.5)
    pool.submit(None, os.getpid).result()  # has started
    stopped = pool.submit(None, signal.raise_signal, signal.SIGSTOP)
    with pytest.raises(BrokenExecutor, match=r"no sign of life for 0.5 s"):
        _watched(pool, stopped)


def test_a_process_that_takes_far_longer_than_expected_is_given_up(pool, monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE", 0.2)
    assert pool.submit(10.0, time.time).result() > 0
    stuck = pool.submit(0.01, signal.pause)  # alive, and gives signs of it
    with pytest.raises(BrokenExecutor, match="far longer"):
        _watched(pool, stuck)
    assert pool.submit(None, os.getpid).result() != os.getpid()  # and replaced


def test_an_exception_of_a_call_leaves_its_process_in_use(pool):
    first = pool.submit(None, os.getpid).result()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        pool.submit(None, divmod, 1, 0).result()
    assert pool.submit(None, os.getpid).result() == first


ORPHANED = """
import os, pathlib, sys, time
from mlmc_dropout.runtime.processes import Processes

if __name__ == "__main__":
    pool = Processes(1)
    pool.scratch = pathlib.Path(sys.argv[1])
    worker = pool.submit(None, os.getpid).result()
    if sys.argv[2] == "busy":
        pool.submit(None, time.sleep, 1000)
    print(worker, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("state", ["busy", "idle"])
def test_workers_whose_driver_is_killed_end_at_once_and_remove_what_it_left(tmp_path, state):
    script, scratch = tmp_path / "script.py", tmp_path / "scratch"
    script.write_text(textwrap.dedent(ORPHANED))
    scratch.mkdir()
    (scratch / "model").write_bytes(b"large")
    with subprocess.Popen([sys.executable, script, scratch, state], stdout=subprocess.PIPE, text=True) as driver:
        worker = int(driver.stdout.readline())
        below = [*recovery.descendants(driver.pid)]
        driver.kill()
    assert worker in below and len(below) == 3  # the fork server, and one that looks after semaphores
    end = time.monotonic() + 5.0
    while left := [pid for pid in below if recovery.alive(pid)]:
        assert time.monotonic() < end, left
        time.sleep(0.02)
    assert not scratch.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_process_become_exceptions_with_their_exit_code(number):
    with pytest.raises(SystemExit) as caught, ending_by_exception():
        signal.raise_signal(number)
    assert caught.value.code == 128 + number
    assert signal.getsignal(number) is signal.SIG_DFL


def test_signals_that_the_program_handles_itself_are_left_alone():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with ending_by_exception():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


FOREIGN = """
import os, sys, pathlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import mlmc_dropout as md
from mlmc_dropout.errors import ExecutionError
from mlmc_dropout.runtime import executors
from testing.recovery import CutOff, wide

if __name__ == "__main__":
    executors.UNNOTICED = 2.0
    model, x = wide()
    pool = ProcessPoolExecutor(2, get_context("forkserver"))
    tokens = pathlib.Path(sys.argv[1])
    (tokens / "0").touch()
    try:
        md.estimate(model, x, method="pooled", budget=128 * 24, executor=pool, transform=CutOff(tokens))
    except ExecutionError as error:
        print(error, flush=True)
    for process in pool._processes.values():
        process.kill()
    os._exit(0)  # the pool cannot be shut down any more
"""


@pytest.mark.slow
def test_a_pool_of_the_standard_library_whose_worker_died_sending_is_an_error_and_no_hang(tmp_path):
    script, tokens = tmp_path / "script.py", tmp_path / "tokens"
    script.write_text(textwrap.dedent(FOREIGN))
    tokens.mkdir()
    call = [sys.executable, script, tokens]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert "has not noticed" in process.communicate(timeout=120)[0]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
