"""How often intervals of averages over a data set hold the reference, in 1000 runs per row where these are cheap.

The problems and references are those of ``nested.py``; the runs have seeds of their own. Rows of the file are kept and
added to, so that a long measurement can be made in pieces; seeds that a row has had already are refused. ``--anew``
forgets what the file says of the cases that are run: after a change of the library runs before and after it do not mix.

Run: python benchmarks/nested_coverage.py [pool:entropy:0.1:1000 …] [--first-seed 20000] [--anew] [--tables]
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np
from common import load, save, table, write_into
from nested import NAMES, PROBLEMS, Problem, evaluate

CASES = (
    "pool:entropy:0.1:1000",
    "pool:entropy:0.03:1000",
    "digits:entropy:0.1:1000",
    "digits:entropy:0.03:1000",
    "digits:entropy:0.01:150",
    "digits:entropy:0.003:40",
    "regression:nll:0.1:1000",
    "digits:accuracy:0.03:1000",
)
CASE = ("problem", "metric", "tolerance")
SUMS = ("runs", "inside", "below", "above", "cost", "error", "squares", "stated", "seconds")


def measure(problem: Problem, metric: str, tolerance: float, seeds: range, reference: float) -> dict[str, Any]:
    """Sums over runs: how many intervals hold the reference or miss it, costs, errors and stated errors."""
    started = time.perf_counter()
    runs = [evaluate(problem, metric, tolerance=tolerance, seed=seed) for seed in seeds]
    values = np.array([run[metric].value for run in runs])
    low, high = np.array([run[metric].interval for run in runs]).T
    errors = values / reference - 1.0
    return {
        "problem": problem.name,
        "metric": metric,
        "tolerance": tolerance,
        "seeds": [[seeds.start, seeds.stop]],
        "runs": len(runs),
        "inside": int(np.sum((low < reference) & (reference < high))),
        "below": int(np.sum(high <= reference)),
        "above": int(np.sum(low >= reference)),
        "cost": float(np.sum([run.cost for run in runs])),
        "error": float(np.sum(errors)),
        "squares": float(np.sum(errors**2)),
        "stated": float(np.sum([(run[metric].error / reference) ** 2 for run in runs])),
        "seconds": time.perf_counter() - started,
    }


def row_of(rows: list[dict[str, Any]], *case: Any) -> dict[str, Any] | None:
    """The row of a problem, metric and tolerance, if there is one."""
    return next((row for row in rows if tuple(row[name] for name in CASE) == case), None)


def check_seeds(row: dict[str, Any] | None, seeds: range) -> None:
    """Refuse seeds that a row has had already: the same runs would count twice."""
    for start, stop in row["seeds"] if row is not None else ():
        if seeds.start < stop and start < seeds.stop:
            raise SystemExit(
                f"{seeds.start} to {seeds.stop} overlap the seeds {start} to {stop} that the row has had; "
                "give another --first-seed, or --anew"
            )


def added(rows: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows with the sums and seeds of further runs."""
    row = row_of(rows, *(new[name] for name in CASE))
    if row is None:
        return [*rows, new]
    for start, stop in new["seeds"]:
        check_seeds(row, range(start, stop))
    row.update({name: row[name] + new[name] for name in ("seeds", *SUMS)})
    return rows


def replaced(rows: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows with new runs in place of earlier ones of the same case."""
    old = row_of(rows, *(new[name] for name in CASE))
    return [*rows, new] if old is None else [new if row is old else row for row in rows]


def write_table(rows: list[dict[str, Any]]) -> None:
    """The table of the page on ladders."""
    lines = []
    for row in rows:
        n, share = row["runs"], row["inside"] / row["runs"]
        lines.append(
            [
                f"{NAMES[row['problem']]}, {row['metric'].replace('_', ' ')}",
                f"{100 * row['tolerance']:g}%",
                f"{n}",
                f"{share:.1%} ± {math.sqrt(share * (1 - share) / n):.1%}",
                f"{row['below'] / n:.1%}, {row['above'] / n:.1%}",
                f"{math.sqrt(row['squares'] / n):.2%}",
                f"{math.sqrt(row['stated'] / n):.2%}",
                f"{row['error'] / n:+.2%}",
                row["cost"] / n,
            ]
        )
    heads = ["data set, metric", "tolerance", "runs", "inside", "too low, too high", "rms error", "stated"]
    text = table([*heads, "mean error", "passes per input"], lines)
    write_into("concepts/where-a-ladder-pays.md", "coverage", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), help="problem:metric:tolerance:runs")
    parser.add_argument("--first-seed", type=int, default=20_000)
    parser.add_argument("--anew", action="store_true", help="forget earlier runs of these cases")
    parser.add_argument("--tables", action="store_true", help="write the table of the page and stop")
    arguments = parser.parse_args()
    references = {(row["problem"], row["metric"]): row["reference"] for row in load("nested")}
    rows = load("nested_coverage")
    problems: dict[str, Problem] = {}
    for text in () if arguments.tables else arguments.cases:
        name, metric, tolerance, runs = text.split(":")
        case = (name, metric, float(tolerance))
        seeds = range(arguments.first_seed, arguments.first_seed + int(runs))
        if not arguments.anew:
            check_seeds(row_of(rows, *case), seeds)
        if name not in problems:
            problems[name] = PROBLEMS[name](False)
        new = measure(problems[name], metric, float(tolerance), seeds, references[name, metric])
        rows = replaced(rows, new) if arguments.anew else added(rows, new)
        save("nested_coverage", rows)
        print(new, flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()
