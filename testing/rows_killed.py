"""A script: runs whose inputs stop one by one are killed again and again, on workers, and resumed to the same bits.

Arguments: folder, number of kills, seed, case ("effort", "levels" or "decision"), where ("processes" or "dask"). Each
driver is a fork of this process with two workers of its own, or a client of one Dask cluster that outlives them all. It
is killed (SIGKILL) a random moment after its first result has been merged. Prints one JSON line.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # vmap imports it on first use; here once for all forks
from torch import Tensor, nn

import mlmc_dropout as md
from mlmc_dropout.runtime.run import Run
from testing.runs import digest

LIFE = 1.5  # seconds at most from the first result to a kill
SLOWNESS = 0.25  # seconds that every chunk of passes takes longer
_MOMENTS = {"outputs": "logits", "quantities": ("mean", "variance")}
CASES: dict[str, dict[str, Any]] = {
    "effort": {"method": "pooled", "tolerance": 0.003},
    "levels": {**_MOMENTS, "method": "control-variate", "tolerance": 0.002},
    "decision": {"outputs": "logits", "decision": "label", "budget": 20_000},
}
CLUSTER = """
import sys, time
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


class Slow(nn.Module):
    """A network that takes its time."""

    def __init__(self, network: nn.Module, seconds: float) -> None:
        super().__init__()
        self.network, self.seconds = network, seconds

    def forward(self, x: Tensor) -> Tensor:
        """Outputs, later."""
        time.sleep(self.seconds)
        return self.network(x)


def make(case: str, seconds: float) -> tuple[nn.Module, Tensor]:
    """Inputs from quiet to loud, or classes that are hard to tell apart."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        outputs = 1 if case == "effort" else 3
        layers = (nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.2))
        x = torch.randn(12, 2) * torch.logspace(-1, 1, 12)[:, None]
        return Slow(nn.Sequential(*layers, nn.Linear(16, outputs)), seconds), x


def run(folder: Path, case: str, where: str, address: str, seconds: float) -> None:
    """One life of a run; what it merges is logged."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    accept = Run.accept

    def accepting(self: Run, start: int, states: Any) -> None:
        accept(self, start, states)
        os.write(log, f"{os.getpid()} {self.passes()} {self.settled}\n".encode())

    Run.accept = accepting  # type: ignore[method-assign]
    model, x = make(case, seconds)
    keep: dict[str, Any] = {"checkpoint": folder / "checkpoint", "checkpoint_interval": 0.1}
    if where == "processes":
        result = md.estimate(model, x, executor=2, **CASES[case], **keep)
    elif where == "dask":
        from distributed import Client

        with Client(address) as client:
            result = md.estimate(model, x, executor=client, **CASES[case], **keep)
    else:
        result = md.estimate(model, x, **CASES[case])
    (folder / f"digest-{where}").write_text(digest(result) + f" {len(set(result.passes.tolist()))} {result.cost}")


def forked(folder: Path, case: str, where: str, address: str, after: float | None, seconds: float) -> bool:
    """Run in a fork and kill it so long after its first merged result; whether it got to its end."""
    log = folder / "log"
    before = log.stat().st_size if log.exists() else 0
    child = os.fork()
    if not child:
        try:
            run(folder, case, where, address, seconds)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if after is None:
        return os.waitpid(child, 0)[1] == 0
    while not log.exists() or log.stat().st_size == before:
        if os.waitpid(child, os.WNOHANG)[0]:
            raise RuntimeError("the driver ended before its first result")
        time.sleep(0.01)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == 0


@contextlib.contextmanager
def cluster(where: str) -> Iterator[str]:
    """A Dask cluster in a process of its own, if one is asked for; its address."""
    if where != "dask":
        yield ""
        return
    environment = {**os.environ, "DASK_LOGGING__DISTRIBUTED": "critical"}
    call = [sys.executable, "-c", CLUSTER]
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(30)


def main(folder: Path, kills: int, seed: int, case: str, where: str) -> None:
    """Kill, resume, compare."""
    draw, done, started = random.Random(f"{case} {where} {seed}"), 0, time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    assert forked(folder, case, "here", "", None, 0.0)
    (folder / "log").unlink()
    with cluster(where) as address:
        while done < kills and not forked(folder, case, where, address, draw.uniform(0.0, LIFE), SLOWNESS):
            done += 1
        assert forked(folder, case, where, address, None, 0.0 if where == "here" else SLOWNESS)
    found, expected = ((folder / f"digest-{name}").read_text() for name in (where, "here"))
    lines = [line.split() for line in (folder / "log").read_text().splitlines()]
    lives = {pid: settled for pid, _, settled in lines}
    report = {
        "case": case,
        "where": where,
        "kills": done,
        "same": found == expected,
        "different_passes": int(expected.split()[1]),
        "settled_at_ends": [int(settled) for settled in lives.values()],
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6])
