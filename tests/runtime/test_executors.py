"""Executors: whoever runs the tasks, in whatever order, and whoever dies, the bits are the same."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest
import torch

import mlmc_dropout as md
from mlmc_dropout.errors import ExecutionError, NonFiniteOutputError
from mlmc_dropout.result import Status
from mlmc_dropout.runtime import executors, worker
from mlmc_dropout.runtime.processes import Processes
from testing.runs import METHODS, Shuffled, digest, small

GOAL = {"tolerance": 0.012, "tolerance_variance": 0.02}


@pytest.mark.parametrize("name", METHODS)
def test_completion_order_and_deaths_change_no_bit(name):
    model, x = small()
    expected = digest(md.estimate(model, x, **GOAL, **METHODS[name]))
    with Shuffled(1, deaths=3) as executor:
        assert digest(md.estimate(model, x, executor=executor, **GOAL, **METHODS[name])) == expected
    assert executor.most <= 2 * executor.num_workers  # a bounded number is under way
    assert executor.out_of_order or executor.most < 2


def test_batches_are_worked_on_at_the_same_time_and_come_out_in_order():
    model, x = small(rows=20)
    batches = [x[i : i + 2] for i in range(0, 20, 2)]
    expected = md.estimate(model, batches, method="pooled", budget=130)
    with Shuffled(3) as executor:
        result = md.estimate(model, iter(batches), method="pooled", budget=130, executor=executor)
    assert executor.most > 2 and executor.out_of_order
    assert digest(result) == digest(expected)


def test_threads_are_an_executor_too():
    model, x = small()
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(3) as pool:
        result = md.estimate(model, x, method="pooled", budget=2000, executor=pool)
    assert digest(result) == digest(md.estimate(model, x, method="pooled", budget=2000))
    assert torch.get_num_threads() == threads  # only worker processes are told to use one


def test_models_that_only_cloudpickle_can_send():
    layer = torch.nn.Linear(2, 16)

    def model(x):
        return torch.nn.functional.dropout(torch.tanh(layer(x)), 0.2, True).sum(1)

    _, x = small()
    with ThreadPoolExecutor(1) as pool:
        result = md.estimate(model, x, method="pooled", budget=300, transform=lambda y: y**2, executor=pool)
    expected = md.estimate(model, x, method="pooled", budget=300, transform=lambda y: y**2)
    assert digest(result) == digest(expected)


def test_without_a_common_file_system_workers_ask_and_are_given_the_data(monkeypatch):
    model, x = small()
    asked, load = [], worker._load

    def blind(payload):
        if isinstance(payload, str):
            asked.append(payload)
            raise worker._Missing
        return load(payload)

    monkeypatch.setattr(worker, "_load", blind)
    with ThreadPoolExecutor(1) as pool:
        result = md.estimate(model, x, method="pooled", budget=3000, executor=pool)
    assert digest(result) == digest(md.estimate(model, x, method="pooled", budget=3000))
    assert 1 <= len(asked) <= 2  # two pieces are under way when the first answer comes


def test_the_model_does_not_travel_with_the_tasks():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 4000), torch.nn.Dropout(0.1), torch.nn.Linear(4000, 1))
    sizes = []

    class Weighing(ThreadPoolExecutor):
        def submit(self, call, /, *args):
            sizes.append(len(pickle.dumps(args)))
            return super().submit(call, *args)

    with Weighing(1) as pool:
        md.estimate(model, torch.randn(50, 2), method="pooled", budget=1000, executor=pool)
    assert max(sizes) < 2000 < 4 * 4000


def test_errors_of_the_model_come_home_as_they_are():
    model, x = small()
    rare = md.DropoutSampler(model).sample(x, passes=20_000, seed=7).quantile(0.9999)

    def sick(output):
        return torch.where(output > rare, torch.inf, output)

    with ThreadPoolExecutor(1) as pool, pytest.raises(NonFiniteOutputError) as caught:
        md.estimate(model, x, method="pooled", budget=100_000, transform=sick, executor=pool)
    assert 0 < len(caught.value.rows) <= 5
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value) and copy.rows.tolist() == caught.value.rows.tolist()


def test_ctrl_c_with_an_executor_returns_what_there_is(interrupt_after):
    model, x = small()
    interrupt_after(5)
    with ThreadPoolExecutor(2) as pool:
        result = md.estimate(model, x, method="pooled", budget=100_000, executor=pool)
    assert result.status is Status.STOPPED and 0 < result.cost < 100_000
    assert result.cost == result.levels[0].count


def test_small_tasks_are_bundled(monkeypatch):
    model, x = small()
    sizes = []
    perform = executors.perform

    def counting(item, *payloads):
        sizes.append(len(item.tasks))
        return perform(item, *payloads)

    monkeypatch.setattr(executors, "perform", counting)
    with ThreadPoolExecutor(1) as pool:
        result = md.estimate(model, x, method="pooled", budget=20_000, executor=pool)
    assert sum(sizes) == -(-20_000 // 128) and max(sizes) > 3
    assert digest(result) == digest(md.estimate(model, x, method="pooled", budget=20_000))


# -------------------------------------------------------------------------------- real processes


def test_processes_of_our_own_give_the_same_bits_and_one_thread_each():
    model, x = small()
    expected = digest(md.estimate(model, x, method="mlmc", **GOAL))
    results = {n: digest(md.estimate(model, x, method="mlmc", executor=n, **GOAL)) for n in (1, 2, 4)}
    assert set(results.values()) == {expected}
    pool = Processes(1)
    assert pool.submit(None, torch.get_num_threads).result() >= 1
    item = worker.Item("job", 0, 0, 0, None, None, (), ("elsewhere", 0))
    assert pool.submit(None, worker.perform, item).result().missing  # has run a piece of work now
    assert pool.submit(None, torch.get_num_threads).result() == 1
    pool.close(orderly=True)


def test_a_foreign_pool_that_breaks_is_a_clear_error_and_the_run_can_be_resumed(tmp_path):
    model, x = small(rows=50)
    path = tmp_path / "c"
    goal = {"method": "pooled", "budget": 160_000, "checkpoint": path, "checkpoint_interval": 0.0}
    context = get_context("forkserver")
    with ProcessPoolExecutor(2, context) as pool:
        pids = {pool.submit(os.getpid).result() for _ in range(4)}

        def murder(event):
            os.kill(min(pids), signal.SIGKILL)
            time.sleep(0.2)

        with pytest.raises(ExecutionError, match=r"workers are gone .* the run goes on where it was"):
            md.estimate(model, x, executor=pool, progress=murder, **goal)
    assert path.exists()
    events = []
    resumed = md.estimate(model, x, progress=events.append, **goal)
    assert digest(resumed) == digest(md.estimate(model, x, method="pooled", budget=160_000))


def test_a_model_that_kills_every_worker_is_given_up_on(monkeypatch):
    """A transform that ends its process: after a few attempts the run stops with an error."""
    model, x = small()
    monkeypatch.setattr(executors, "ATTEMPTS", 2)
    with pytest.raises(ExecutionError, match="workers are gone"):
        md.estimate(model, x, method="pooled", budget=300, transform=_Suicide(os.getpid()), executor=1)


class _Suicide:
    """Does nothing here, ends the process elsewhere."""

    def __init__(self, home: int) -> None:
        self.home = home

    def __call__(self, output):
        if os.getpid() != self.home:
            os._exit(1)
        return output


_INTERRUPTED = """
import sys
from testing.runs import small
import mlmc_dropout as md

if __name__ == "__main__":
    model, x = small(rows=50)
    begun = []

    def say(event):
        if not begun:
            begun.append(print("begun", flush=True))

    result = md.estimate(model, x, method="pooled", budget=1e7, executor=2, progress=say)
    print(result.status.name, 0 < result.cost < 1e7, result.cost == result.levels[0].count, flush=True)
"""


@pytest.mark.slow
def test_ctrl_c_at_a_terminal_reaches_workers_too_and_still_returns_what_there_is(tmp_path):
    """The signal goes to the whole process group, as a terminal sends it."""
    script = tmp_path / "script.py"
    script.write_text(_INTERRUPTED.format())
    call = [sys.executable, str(script)]
    process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout.readline() == "begun\n"
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert out.split() == ["STOPPED", "True", "True"], err
    assert "Traceback" not in err


def test_temporary_files_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model, x = small()
    with ThreadPoolExecutor(1) as pool:
        md.estimate(model, x, method="pooled", budget=300, executor=pool)
        with pytest.raises(NonFiniteOutputError):
            md.estimate(model, torch.full_like(x, 1e38) * 10, method="pooled", budget=300, executor=pool)
    assert list(tmp_path.iterdir()) == []
