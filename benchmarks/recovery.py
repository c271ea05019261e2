"""Processes killed, stopped and orphaned, drivers killed and resumed, files corrupted: how it ends, every time.

``python benchmarks/recovery.py [--part PART] [--runs N]``; without ``--part`` all of them, which takes hours.

workers      an estimate on two workers that are killed inside a write, all killed, killed every second, or stopped
drivers      an estimate on two workers whose driver gets SIGTERM or SIGKILL; looks for processes 5 s later
kills        estimates in one process that get SIGKILL at random moments, again and again
corruptions  checkpoints and result files with random damage, and with edits that keep them readable
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from common import RESULTS, environment

from testing import corruption, killing, recovery

Rows = Iterator[dict[str, Any]]


def workers(runs: int) -> Rows:
    """``runs`` estimates for each fault of workers."""
    for fault in recovery.WORKER_FAULTS:
        for seed, method in zip(range(runs), cycle(recovery.METHODS)):
            with tempfile.TemporaryDirectory() as folder:
                yield recovery.worker_fault(fault, method, seed, Path(folder)).plain()


def drivers(runs: int) -> Rows:
    """``runs`` estimates for each signal to the driver; after the first five, drivers are forks, which start faster."""
    for seed, method in zip(range(runs), cycle(recovery.METHODS)):
        for fault in recovery.DRIVER_FAULTS:
            with tempfile.TemporaryDirectory() as folder:
                yield recovery.driver_fault(fault, method, seed, Path(folder) / "run", forked=seed > 4).plain()


def kills(runs: int) -> Rows:
    """Four times ``runs`` kills: so many of one estimate for each of four methods."""
    for seed, method in enumerate(killing.METHODS):
        with tempfile.TemporaryDirectory() as folder:
            call = [sys.executable, str(Path(killing.__file__)), folder, str(runs), str(seed), method]
            done = subprocess.run(call, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        yield {
            "fault": "SIGKILL of one process",
            "method": method,
            "ended": "same" if found["same"] else "different",
        } | found


def corruptions(runs: int) -> Rows:
    """Forty times ``runs`` random corruptions, and four times as many structural ones."""
    with tempfile.TemporaryDirectory() as folder:
        files = corruption.Files(Path(folder))
        for kind, count in (("random", 40 * runs), ("structural", 4 * runs)):
            for outcome, number in Counter(files.outcomes(kind, count)).items():
                yield {"fault": f"{kind} corruption", "file": outcome[0], "ended": outcome[1], "times": number}


PARTS: dict[str, Callable[[int], Rows]] = {
    "workers": workers,
    "drivers": drivers,
    "kills": kills,
    "corruptions": corruptions,
}


def main() -> None:
    """Run the parts, and keep every single outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--runs", type=int, default=50)
    arguments = parser.parse_args()
    for part in [arguments.part] if arguments.part else PARTS:
        rows = []
        for row in PARTS[part](arguments.runs):
            print(row, flush=True)
            rows.append(row)
            save(part, rows)
        total: Counter[tuple[str, str]] = Counter()
        for row in rows:
            total[row["fault"], row["ended"]] += row.get("times", row.get("kills", 1))
        for (fault, ended), times in total.items():
            print(f"{part}: {fault}: {ended}: {times}")


def save(part: str, rows: list[dict[str, Any]]) -> None:
    """Replace a part of ``results/recovery.json``."""
    path = RESULTS / "recovery.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    settings = {"silence": recovery.SILENCE, "limit": recovery.LIMIT}
    known[part] = {"environment": environment(), "settings": settings, "rows": rows}
    path.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
