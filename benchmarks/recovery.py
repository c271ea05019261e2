"""Processes killed, stopped and orphaned, drivers killed and resumed, files corrupted: how it ends, every time.

``python benchmarks/recovery.py [--part PART] [--only TEXT] [--runs N] [--first N]``; all parts take hours, so they can
be run piece by piece: a piece replaces its own rows of the committed file and leaves the others.

workers      an estimate on two workers that are killed inside a write, all killed, killed every second, or stopped
drivers      an estimate on two workers whose driver gets SIGTERM or SIGKILL; looks for processes 5 s later
kills        estimates in one process that get SIGKILL at random moments, again and again; a run is one of them
corruptions  checkpoints and result files with random damage (40 a run), and with edits that keep them readable (4)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import RESULTS, environment, table, write_into

from testing import corruption, killing, recovery

Rows = Iterator[dict[str, Any]]


def workers(seeds: range, only: str) -> Rows:
    """Estimates with each fault of workers."""
    for fault in recovery.WORKER_FAULTS:
        for seed in seeds if only in fault else ():
            with tempfile.TemporaryDirectory() as folder:
                yield recovery.worker_fault(fault, _method(seed), seed, Path(folder)).plain()


def drivers(seeds: range, only: str) -> Rows:
    """Estimates with each signal to the driver; after the first five, drivers are forks, which start faster."""
    for seed in seeds:
        for fault in recovery.DRIVER_FAULTS:
            if only in fault:
                with tempfile.TemporaryDirectory() as folder:
                    forked = seed > 4
                    yield recovery.driver_fault(fault, _method(seed), seed, Path(folder) / "run", forked=forked).plain()


def _method(seed: int) -> str:
    return [*recovery.METHODS][seed % len(recovery.METHODS)]


def kills(seeds: range, only: str) -> Rows:
    """As many kills as there are seeds, of one estimate for each method."""
    for seed, method in enumerate(killing.METHODS):
        if only in method:
            with tempfile.TemporaryDirectory() as folder:
                call = [sys.executable, str(Path(killing.__file__)), folder, str(len(seeds)), str(seed), method]
                done = subprocess.run(call, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout)
            ended = "same" if found["same"] else "different"
            yield {"fault": "SIGKILL of one process", "method": method, "seed": seed, "ended": ended} | found


def corruptions(seeds: range, only: str) -> Rows:
    """Forty random corruptions for each seed, and four structural ones."""
    with tempfile.TemporaryDirectory() as folder:
        files = corruption.Files(Path(folder))
        for kind, each in (("random", 40), ("structural", 4)):
            for seed in seeds if only in kind else ():
                for outcome, number in Counter(files.outcomes(kind, each, seed)).items():
                    row = {"fault": f"{kind} corruption", "seed": seed, "file": outcome[0], "ended": outcome[1]}
                    yield row | {"times": number}


PARTS: dict[str, Callable[[range, str], Rows]] = {
    "workers": workers,
    "drivers": drivers,
    "kills": kills,
    "corruptions": corruptions,
}


def main() -> None:
    """Run the parts, and keep every single outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--only", default="", help="faults, methods or kinds whose names contain this")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    arguments = parser.parse_args()
    for part in [arguments.part] if arguments.part else PARTS:
        rows: list[dict[str, Any]] = []
        for row in PARTS[part](range(arguments.first, arguments.first + arguments.runs), arguments.only):
            print(row, flush=True)
            rows.append(row)
            save(part, rows)
        total: Counter[tuple[str, str]] = Counter()
        for row in rows:
            total[row["fault"], row["ended"]] += row.get("times", row.get("kills", 1))
        for (fault, ended), times in total.items():
            print(f"{part}: {fault}: {ended}: {times}")


def save(part: str, rows: list[dict[str, Any]]) -> None:
    """Replace the rows of these runs in ``results/recovery.json``."""
    path = RESULTS / "recovery.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    new = {(row["fault"], row["seed"]) for row in rows}
    others = [row for row in known.get(part, {"rows": []})["rows"] if (row["fault"], row.get("seed")) not in new]
    settings = {"silence": recovery.SILENCE, "limit": recovery.LIMIT}
    known[part] = {"environment": environment(), "settings": settings, "rows": [*others, *rows]}
    path.write_text(json.dumps(known, indent=1) + "\n")
    publish(known)


def publish(known: dict[str, Any]) -> None:
    """The table of ``docs/concepts/long-runs.md``."""
    total: Counter[tuple[str, str]] = Counter()
    orphans: Counter[str] = Counter()
    for part in PARTS:
        for row in known.get(part, {"rows": []})["rows"]:
            ended = "resumed to the same bits" if row["ended"] == "ExecutionError" else row["ended"]
            ended = {"same": "the same bits", "refused": "refused"}.get(ended, ended)
            total[row["fault"], ended] += row.get("times", row.get("kills", 1))
            orphans[row["fault"]] += bool(row.get("orphans"))
    columns = ("fault", "ended with", "times", "runs with processes left after 5 s")
    rows = [
        (fault, ended, times, orphans[fault] if "corruption" not in fault and "one process" not in fault else "–")
        for (fault, ended), times in total.items()
    ]
    write_into("concepts/long-runs.md", "recovery", f"{table(columns, rows)}\n")


if __name__ == "__main__":
    main()
