"""Peak memory and time of estimates whose outputs are wide or whose rows are many, beside a plain loop.

    python benchmarks/wide_outputs.py [--quick] [--case NAME] [--repeats N] [--no-save]

Every case runs in processes of its own, on one thread. The peak is the high-water mark of the process (VmHWM) less what
it was with everything imported, an estimate of a tiny net made, and model and inputs in memory. It has to stay within
twice ``memory_limit`` plus the arrays of the result. The loop is MC dropout as it is written where passes do not fit
into memory: in training mode, pass by pass, with mean and M2 updated in the model's type (the time ours is compared
with), and in float64, as ours are; it has no standard errors. Times are those of the first call, preparation included.
Raw numbers go to benchmarks/results/wide_outputs.json, a table to docs/concepts/computing.md; with ``--case`` those of
the other cases stay.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, save, seconds, table, write_into
from torch import Tensor, nn

import mlmc_dropout as md

MIB = 1 << 20
METHODS = ("pooled", "stratified", "auto")
LOOPS = {"loop float32": torch.float32, "loop float64": torch.float64}


@dataclass(frozen=True, slots=True)
class Case:
    """A model and its inputs, the memory limit in MiB, and the number of passes."""

    make: Callable[[], tuple[nn.Module, Tensor]]
    limit: int
    passes: int


def segmentation(side: int) -> Callable[[], tuple[nn.Module, Tensor]]:
    """A small convolutional net that gives eight classes to every pixel of an image."""

    def make() -> tuple[nn.Module, Tensor]:
        def conv(inputs: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, 16, 3, padding=1), nn.ReLU(), nn.Dropout(0.1)]

        return nn.Sequential(*conv(3), *conv(16), nn.Conv2d(16, 8, 1)), torch.randn(1, 3, side, side)

    return make


def decoder(outputs: int) -> Callable[[], tuple[nn.Module, Tensor]]:
    """Two rows of very many outputs."""

    def make() -> tuple[nn.Module, Tensor]:
        layers = [nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.2)]
        return nn.Sequential(*layers, nn.Linear(16, outputs)), torch.randn(2, 8)

    return make


def regressor(rows: int) -> Callable[[], tuple[nn.Module, Tensor]]:
    """Very many rows of a small net."""

    def make() -> tuple[nn.Module, Tensor]:
        layers = [nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1)]
        return nn.Sequential(*layers, nn.Linear(16, 1)), torch.randn(rows, 4)

    return make


FULL = {
    "image 256 x 256 x 8": Case(segmentation(256), 128, 256),
    "2 rows of 1e6 outputs": Case(decoder(1_000_000), 512, 256),
    "1e6 rows": Case(regressor(1_000_000), 512, 64),
}
QUICK = {
    "image 128 x 128 x 8": Case(segmentation(128), 32, 128),
    "2 rows of 2e5 outputs": Case(decoder(200_000), 96, 128),
    "1e5 rows": Case(regressor(100_000), 64, 128),
}


def high_water() -> float:
    """The most memory that this process ever held, in MiB."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


def loop(model: nn.Module, x: Tensor, passes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Mean and variance, pass by pass."""
    model.train()
    with torch.no_grad():
        mean = torch.zeros_like(model(x), dtype=dtype)
        m2 = torch.zeros_like(mean)
        for n in range(1, passes + 1):
            out = model(x).to(dtype)
            delta = out - mean
            mean += delta / n
            m2 += delta * (out - mean)
    return mean, m2 / (passes - 1)


def arrays_of(result: md.Result) -> dict[int, int]:
    """Bytes of the arrays of a result, by address."""
    found: dict[int, int] = {}
    for owner in (result, *result.levels):
        for name in owner.__dataclass_fields__:
            value = getattr(owner, name)
            if isinstance(value, np.ndarray):
                found[value.__array_interface__["data"][0]] = value.nbytes
    return found


def measure(case: Case, how: str) -> dict[str, Any]:
    """In this process: MiB above the start, MiB of results, and seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tiny, few = segmentation(8)()
    md.estimate(tiny.eval(), few, method=how if how in METHODS else "pooled", budget=100)  # imports what is needed
    model, x = case.make()
    before, limit, results = high_water(), case.limit * MIB, 0.0
    if how in LOOPS:
        time = seconds(lambda: loop(model, x, case.passes, LOOPS[how]))
        return {"peak": high_water() - before, "seconds": time}
    kept: list[md.Result] = []
    model.eval()
    time = seconds(
        lambda: kept.append(md.estimate(model, x, method=how, budget=case.passes, memory_limit=limit))  # type: ignore[arg-type]
    )
    results = sum(arrays_of(kept[0]).values()) / MIB
    return {"peak": high_water() - before, "results": results, "seconds": time, "chosen": kept[0].method}


def in_a_process(name: str, how: str) -> dict[str, Any]:
    """The same in a fresh process."""
    command = [sys.executable, __file__, "--case", name, "--how", how]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def study(cases: dict[str, Case], repeats: int) -> list[dict[str, Any]]:
    """All cases: the best time of some repetitions in turns, the largest peak."""
    rows = []
    for name, case in cases.items():
        runs: dict[str, list[dict[str, Any]]] = {how: [] for how in (*LOOPS, *METHODS)}
        for _ in range(repeats):
            for how, found in runs.items():
                found.append(in_a_process(name, how))
        times = {how: min(run["seconds"] for run in found) for how, found in runs.items()}
        for how in METHODS:
            peak, results = max(run["peak"] for run in runs[how]), runs[how][0]["results"]
            row = {"case": name, "method": how, "chosen": runs[how][0]["chosen"], "passes": case.passes}
            row |= {"limit": case.limit, "results": results, "peak": peak, "allowed": 2 * case.limit + results}
            row |= {"seconds": times[how]} | {loop: times[loop] for loop in LOOPS}
            row |= {"peak of the loop": max(run["peak"] for run in runs["loop float32"])}
            row["of the loop"] = times[how] / times["loop float32"]
            row["holds"] = bool(peak <= row["allowed"] and row["of the loop"] <= 1.2)
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    """Run and print; write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller cases, one repetition, nothing saved")
    parser.add_argument("--case", help="this case only")
    parser.add_argument("--how", help="measure a method or a loop in this process and print the numbers")
    parser.add_argument("--repeats", type=int, default=1, help="the best time of so many runs counts")
    parser.add_argument("--no-save", action="store_true")
    options = parser.parse_args()
    if options.how:
        print(json.dumps(measure((FULL | QUICK)[options.case], options.how)))
        return
    cases = QUICK if options.quick else FULL
    if options.case:
        cases = {options.case: (FULL | QUICK)[options.case]}
    repeats = 1 if options.quick else options.repeats
    rows = study(cases, repeats)
    columns = ("case", "method", "chosen", "peak", "allowed", "seconds", *LOOPS, "of the loop", "holds")
    print(table(columns, [[row[c] for c in columns] for row in rows]))
    if not (options.no_save or options.quick):
        rows = [*_others(rows), *rows]
        save("wide_outputs", rows, threads=1, repeats=repeats)
        publish(rows)


def publish(rows: list[dict[str, Any]]) -> None:
    """The table of ``docs/concepts/computing.md``."""
    columns = ("outputs", "method", "limit", "results", "peak", "time")
    cells = [
        (
            row["case"],
            row["method"],
            row["limit"],
            round(row["results"]),
            round(row["peak"]),
            f"{row['of the loop']:.2f}",
        )
        for row in rows
    ]
    write_into("concepts/computing.md", "wide", f"{table(columns, cells)}\n")


def _others(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cases in the file that were not run this time."""
    path = RESULTS / "wide_outputs.json"
    known: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    return [row for row in known if row["case"] not in {row["case"] for row in rows}]


if __name__ == "__main__":
    main()
