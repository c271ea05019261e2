"""A real Dask cluster with worker processes: the same bits, also when workers die; a clear error if all is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import mlmc_dropout as md
from mlmc_dropout.errors import ExecutionError
from testing.runs import METHODS, digest, small

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.filterwarnings("ignore")  # the cluster's own: ports, slow event loops, closing sockets

QUIET = {
    "distributed.worker.daemon": True,
    "distributed.comm.timeouts.connect": "5s",
    "distributed.admin.log-format": "%(message)s",
    "logging.distributed": "critical",
    "distributed.scheduler.allowed-failures": 10,
}


@pytest.fixture(scope="module")
def cluster():
    with (
        dask.config.set(QUIET),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as local,
    ):
        yield local


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as connected:
        yield connected


@pytest.mark.parametrize("name", ["pooled", "nested", "control-variate"])
def test_the_same_bits_as_in_one_process(name, client):
    model, x = small()
    goal = {"tolerance": 0.012, **METHODS[name]}
    expected = digest(md.estimate(model, [x, x + 1], **goal))
    assert digest(md.estimate(model, [x, x + 1], executor=client.get_executor(), **goal)) == expected
    assert digest(md.estimate(model, [x, x + 1], executor=client, **goal)) == expected


@pytest.mark.slow
def test_a_worker_killed_in_mid_run_changes_no_bit(client):
    model, x = small(rows=50)
    expected = digest(md.estimate(model, x, method="pooled", budget=60_000))
    victims = []

    def murder(event):
        if not victims:
            victims.append(next(iter(client.run(os.getpid).values())))
            os.kill(victims[0], signal.SIGKILL)

    result = md.estimate(model, x, method="pooled", budget=60_000, executor=client, progress=murder)
    assert victims and victims[0] not in client.run(os.getpid).values()
    assert digest(result) == expected


@contextlib.contextmanager
def _separate_scheduler():
    """A scheduler and a worker in processes of their own, so that the scheduler can be killed."""
    environment = {**os.environ, "DASK_LOGGING__DISTRIBUTED": "critical"}
    start = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"]
    folder = os.environ.get("TMPDIR", "/tmp")
    path = os.path.join(folder, f"scheduler-{os.getpid()}-{time.monotonic_ns()}.json")
    processes = [subprocess.Popen([*start, "--scheduler-file", path], env=environment, stderr=subprocess.DEVNULL)]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-dashboard", "--nthreads", "1", "--no-nanny"]
    processes.append(subprocess.Popen([*worker, "--scheduler-file", path], env=environment, stderr=subprocess.DEVNULL))
    try:
        yield path, processes[0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        with contextlib.suppress(OSError):
            os.unlink(path)


@pytest.mark.slow
def test_without_a_scheduler_the_error_is_clear_and_the_checkpoint_resumable(tmp_path):
    model, x = small(rows=50)
    goal = {"method": "pooled", "budget": 60_000, "checkpoint": tmp_path / "c", "checkpoint_interval": 0.0}
    with dask.config.set(QUIET), _separate_scheduler() as (path, scheduler):
        client = distributed.Client(scheduler_file=path, timeout="60s")
        client.wait_for_workers(1, timeout=120)

        def murder(event):
            scheduler.kill()

        started = time.monotonic()
        with pytest.raises(ExecutionError, match="workers are gone or cannot be reached"):
            md.estimate(model, x, executor=client, progress=murder, **goal)
        assert time.monotonic() - started < 90
        with contextlib.suppress(Exception):
            client.close(timeout=1)
    events = []
    resumed = md.estimate(model, x, progress=events.append, **goal)
    assert digest(resumed) == digest(md.estimate(model, x, method="pooled", budget=60_000))


NETWORK = """
import torch
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(1, 8), nn.Dropout(0.2), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.drop(torch.tanh(self.first(x))))


def make():
    torch.manual_seed(0)
    return Network()
"""


def _command(folder, *arguments) -> dict:
    """What ``mlmc-dropout`` says with --json, in a process of its own."""
    start = [sys.executable, "-c", "import sys; from mlmc_dropout.cli import main; sys.exit(main())"]
    command = [*start, *map(str, arguments), "--json", "--no-page"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pooled", "auto"])
def test_the_command_line_computes_on_a_live_scheduler(method, tmp_path, monkeypatch):
    """A class of the user's own file, which the workers, started elsewhere, have never seen."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "net.py").write_text(NETWORK, encoding="utf-8")
    np.save(tmp_path / "x.npy", np.linspace(0, 1, 7)[:, None])
    asked = ("estimate", "--model", "net.py:make", "--inputs", "x.npy", "--tolerance", 0.01, "--method", method)
    serial = _command(tmp_path, *asked, "--out", "serial")
    with dask.config.set(QUIET), _separate_scheduler() as (path, _):
        with distributed.Client(scheduler_file=path, timeout="60s") as client:
            client.wait_for_workers(1, timeout=120)
        with open(path) as file:
            address = json.load(file)["address"]
        shared = _command(tmp_path, *asked, "--out", "shared", "--scheduler", address)
    assert serial["status"] == shared["status"] == "TOLERANCE_MET"
    one, other = (md.load_result(tmp_path / name / "result.npz") for name in ("serial", "shared"))
    assert digest(one) == digest(other)
