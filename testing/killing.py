"""A script: a run with checkpoints is killed again and again, resumed each time, and compared with one that was not.

Arguments: folder, number of kills, seed, method (pooled unless given; "effort" is pooled with inputs that stop one by
one). The library is imported once; every run is a
fork of this process, which has computed nothing itself. Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch._dynamo  # vmap imports it on first use; here once for all forks

import mlmc_dropout as md
from mlmc_dropout.runtime.run import Run
from testing.runs import digest, small

INTERVAL = 0.1
TRIAL = 50_000  # passes from which the speed is seen
LIFE = 0.8  # seconds at most until a kill
METHODS = ("pooled", "stratified", "control-variate", "mlmc", "effort")


def run(folder: Path, method: str, checkpoint: bool, budget: int) -> None:
    """One run; what it merges is logged with the time, and its result's digest written at the end."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    accept = Run.accept

    def accepting(self: Run, start: int, states: object) -> None:
        before = self.passes()
        accept(self, start, states)  # type: ignore[arg-type]
        os.write(log, f"{os.getpid()} {time.monotonic()} {before} {self.passes()}\n".encode())

    Run.accept = accepting  # type: ignore[method-assign]
    model, x = small(rows=20)
    keep = {"checkpoint": folder / "checkpoint", "checkpoint_interval": INTERVAL} if checkpoint else {}
    if method == "effort":
        x = x * torch.arange(1, 21)[:, None] / 10
        result = md.estimate(model, x, method="pooled", effort="adaptive", budget=budget, **keep)
    else:
        result = md.estimate(model, x, method=method, budget=budget, **keep)
    (folder / f"digest-{checkpoint}").write_text(digest(result))


def forked(folder: Path, method: str, checkpoint: bool, budget: int, seconds: float | None = None) -> bool:
    """Run in a fork and kill it after so many seconds; whether it got to its end."""
    child = os.fork()
    if not child:
        try:
            run(folder, method, checkpoint, budget)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == 0


def main(folder: Path, kills: int, seed: int, method: str = "pooled") -> None:
    """Kill, resume, compare; report how much work was repeated."""
    draw = random.Random(seed)
    started = time.monotonic()
    assert forked(folder, method, False, TRIAL)
    budget = int(TRIAL / (time.monotonic() - started) * LIFE * kills)  # longer than all lives together
    assert forked(folder, method, False, budget)
    (folder / "log").unlink()
    done = 0
    while done < kills and not forked(folder, method, True, budget, draw.uniform(0.05, LIFE)):
        done += 1
    assert forked(folder, method, True, budget)
    lives: dict[str, list[list[float]]] = {}
    for line in (folder / "log").read_text().splitlines():
        pid, *numbers = line.split()
        lives.setdefault(pid, []).append([float(n) for n in numbers])
    repeated, longest = [], 0.0
    for earlier, later in pairwise(lives.values()):
        again = [moment for moment, before, _ in earlier if before >= later[0][1]]
        repeated.append(earlier[-1][0] - again[0] if again else 0.0)
    for life in lives.values():
        longest = max([longest, *(b[0] - a[0] for a, b in pairwise(life))])
    same = (folder / "digest-True").read_text() == (folder / "digest-False").read_text()
    print(json.dumps({"kills": done, "same": same, "repeated": max(repeated, default=0.0), "longest_gap": longest}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
