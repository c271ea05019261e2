"""Coverage of every input under the stop rule that lets inputs stop one by one.

Whole runs are repeated with other seeds, and it is counted, input by input, how often the truth lies within 1.96
standard errors of the estimate. The truth is enumerated for the three networks made to be treacherous
(``testing/treacherous.py``), and an average of very many passes for the trained ones. A rule that stops an input at the
first look below the tolerance, after a pilot of sixteen passes, is the negative control: with results reported as ours
are, it does not meet the tolerance; with plain standard errors it does not cover. Ours with plain standard errors shows
what the stopping is worth without the allowance for masks that did not come up.

Long studies are cut in pieces: every call goes on with the seeds after those in ``results/effort_coverage.json``, for
about ``--seconds``, until ``--runs`` runs are there of each case. ``--table`` prints what there is.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import common
import numpy as np
from effort import Case, digits, regressor
from numpy.typing import NDArray

import mlmc_dropout as md
from testing.oracles import exact_moments
from testing.treacherous import TREACHEROUS, inputs, naive_rule, plain_errors

NAME = "effort_coverage"
LEAST_COVERAGE = 0.93
IMAGES = 40
REFERENCE = 400_000
PIECE = 100
Array = NDArray[np.float64]


@contextlib.contextmanager
def _naive_plain() -> Iterator[None]:
    with plain_errors(), naive_rule():
        yield


RULES = {
    "ours": contextlib.nullcontext,
    "ours, plain errors": plain_errors,
    "naive": naive_rule,
    "naive, plain errors": _naive_plain,
}


def cases(wanted: str) -> Iterator[tuple[Case, Array]]:
    """Cases whose names begin as wanted, and their true means."""
    if "diabetes".startswith(wanted):
        model, x = regressor("diabetes")
        yield _with_truth(Case("diabetes", model, x[:: len(x) // IMAGES][:IMAGES], 0.01))
    if "digits, softmax".startswith(wanted):
        model, x = digits()
        options = {"outputs": "logits", "quantities": ("mean", "variance")}
        yield _with_truth(Case("digits, softmax", model, x[:: len(x) // IMAGES][:IMAGES], 0.01, options=options))
    for name, make in TREACHEROUS.items():
        if f"treacherous: {name}".startswith(wanted):
            model, x = make().eval(), inputs()
            truth = np.stack([exact_moments(model, x[row : row + 1])[0] for row in range(len(x))])
            yield Case(f"treacherous: {name}", model, x, 0.02), truth


def _with_truth(case: Case) -> tuple[Case, Array]:
    known = common.load("effort_references")
    for row in known:
        if row["case"] == case.name:
            return case, np.array(row["mean"])
    reference = md.estimate(case.model, case.x, budget=REFERENCE, method="stratified", seed=10**6, **case.options)
    row = {"case": case.name, "mean": reference.mean.tolist(), "largest_stderr": float(reference.mean_stderr.max())}
    common.save("effort_references", [*known, row], images=IMAGES, passes=REFERENCE)
    return case, reference.mean


def counted(case: Case, truth: Array, method: str, seeds: range) -> dict[str, Any]:
    """How often intervals hold the truth in these runs, input by input; averages over the outputs of an input."""
    holds, kept, cost, met = np.zeros(truth.shape), np.zeros(truth.shape), 0.0, 0
    for seed in seeds:
        result = case.estimate(method=method, seed=seed)
        error = np.abs(result.mean - truth)
        holds += error <= 1.959964 * result.mean_stderr
        kept += error <= 1.959964 * case.tolerance
        cost += result.cost
        met += result.status is md.Status.TOLERANCE_MET
    return {
        "first": seeds.start,
        "runs": len(seeds),
        "cost": cost,
        "met": met,
        "holds": holds.mean(axis=1).round(4).tolist(),
        "within_tolerance": kept.mean(axis=1).round(4).tolist(),
    }


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """What all pieces of a row say together."""
    pieces = row["pieces"]
    runs = sum(piece["runs"] for piece in pieces)
    covered, within = (
        np.sum([piece[name] for piece in pieces], axis=0) / runs for name in ("holds", "within_tolerance")
    )
    return {
        "case": row["case"],
        "rule": row["rule"],
        "method": row["method"],
        "runs": runs,
        "passes": sum(piece["cost"] for piece in pieces) / runs,
        "met": sum(piece["met"] for piece in pieces) / runs,
        "median": float(np.median(covered)),
        "lowest": float(covered.min()),
        "share": float(np.mean(covered >= LEAST_COVERAGE)),
        "within_tolerance_lowest": float(within.min()),
    }


def find(rows: list[Any], case: Case, rule: str, method: str) -> dict[str, Any]:
    """The row of a case, a new one if there is none."""
    key = {"case": case.name, "rule": rule, "method": method, "tolerance": case.tolerance}
    return next((row for row in rows if all(row[name] == key[name] for name in key)), {**key, "pieces": []})


def go_on(case: Case, truth: Array, rule: str, method: str, most: int) -> bool:
    """Run one more piece; False if there are enough runs."""
    rows = common.load(NAME)
    row = find(rows, case, rule, method)
    done = sum(piece["runs"] for piece in row["pieces"])
    if done >= most:
        return False
    with RULES[rule]():
        piece = counted(case, truth, method, range(1 + done, 1 + min(done + PIECE, most)))
    rows = [*(other for other in rows if other is not row), {**row, "pieces": [*row["pieces"], piece]}]
    common.save(NAME, rows, images=IMAGES, reference=REFERENCE)
    return True


def show(rows: list[Any]) -> None:
    """Print a table of everything, and write it into the documentation."""
    columns = (
        "case",
        "rule",
        "method",
        "runs",
        "passes",
        "met",
        "median",
        "lowest",
        "share",
        "within_tolerance_lowest",
    )
    found = [summary(row) for row in sorted(rows, key=lambda row: (row["case"], list(RULES).index(row["rule"])))]
    text = common.table(columns, [[each[column] for column in columns] for each in found])
    print(text)
    common.write_into("concepts/stopping.md", "effort coverage", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", default="", help="beginning of its name; all by default")
    parser.add_argument("--rules", nargs="*", choices=tuple(RULES), default=list(RULES))
    parser.add_argument("--runs", type=int, nargs=3, default=(2000, 1000, 200), help="of pooled, auto, other rules")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        end = time.monotonic() + options.seconds
        open_ones = [
            (case, truth, rule, method)
            for case, truth in cases(options.case)
            for rule in options.rules
            for method in (("pooled", "auto") if rule == "ours" else ("pooled",))
        ]
        while open_ones and time.monotonic() < end:
            for one in list(open_ones):
                most = options.runs[2] if one[2] != "ours" else options.runs[one[3] == "auto"]
                if time.monotonic() < end and not go_on(*one, most):
                    open_ones.remove(one)
    show(common.load(NAME))


if __name__ == "__main__":
    main()
