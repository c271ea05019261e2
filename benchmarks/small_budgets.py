"""What ten to a hundred passes are worth: variance of plain averaging over that of ``auto``, at the same total passes.

Every run is a whole one with a seed of its own, on the inputs as they are: pilot, gradients and passes are paid from
the same budget. The variance of an estimator is its spread over the runs; that of plain averaging follows from long
reference moments. Gains are given as medians over inputs and outputs, and of the sums over these, in which no component
can hide behind others; intervals are those of a bootstrap over runs. Coverage is that of the 95 % intervals.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import common
import efficiency
import numpy as np
import torch
from efficiency import Case

from mlmc_dropout import theory
from mlmc_dropout.methods.auto import Auto
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal
from testing.oracles import run_method
from testing.zoo import ZOO

BUDGETS = (10, 20, 30, 50, 100)
REFERENCE = 20_000
LEAST = 0.95
EXACT = 1e6


def zoo() -> Iterator[Case]:
    """Every model of the test suite whose rows do not depend on each other."""
    for name, entry in ZOO.items():
        if not entry.coupled:
            yield Case(name, *entry.make())


def reference(source: Source) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, variance and fourth moment of a pass; the first two by auto, whose many passes are worth many more."""
    found = run_method(Auto(), replace(source, seed=10**6), REFERENCE)
    plain = run_method(Pooled(), replace(source, seed=10**6), REFERENCE)
    return found.mean, found.variance, plain.levels[0].kurtosis * plain.variance**2


def study(case: Case, runs: int, budgets: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Gains and coverage of auto at every budget."""
    source = efficiency.source(case, case.x, 0)
    truth, mu2, mu4 = reference(source)
    moving = mu2 > 1e-14 * np.square(truth)
    for budget in budgets:
        found = [run_method(Auto(), replace(source, seed=seed), budget) for seed in range(runs)]
        assert all(one.cost <= budget for one in found)
        chosen = Counter(Auto().choose(replace(source, seed=s), Goal(budget=budget)).name for s in range(min(runs, 10)))
        row: dict[str, Any] = {"case": case.name, "budget": budget, "ran": chosen.most_common(1)[0][0]}
        plain = {"mean": mu2 / budget, "variance": theory.variance_of_sample_variance(budget, mu2, mu4)}
        for moment, exact in (("mean", truth), ("variance", mu2)):
            values = np.stack([getattr(one, moment) for one in found])
            stderr = np.stack([getattr(one, f"{moment}_stderr") for one in found])
            rounding = 1e-6 * np.abs(exact) + 1e-12
            spread = values.var(axis=0, ddof=1) + rounding**2
            row[f"gain_{moment}"] = float(np.median((plain[moment] / spread)[moving]))
            row[f"sum_{moment}"] = float(plain[moment].sum() / spread.sum())
            row[f"sum_{moment}_at_most"] = _at_most(values, plain[moment].sum(), (rounding**2).sum())
            row[f"covered_{moment}"] = float((np.abs(values - exact) <= 1.959964 * stderr + rounding)[:, moving].mean())
        yield row


def _at_most(values: np.ndarray, plain: float, rounding: float) -> float:
    """The 99 % quantile of the gain of sums, over bootstrap samples of runs."""
    rng = np.random.default_rng(0)
    squares = np.square(values - values.mean(axis=0)).reshape(len(values), -1).sum(axis=1)
    means = squares[rng.integers(len(values), size=(500, len(values)))].mean(axis=1)
    return float(np.quantile(plain / (means + rounding), 0.99))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--budgets", type=int, nargs="*", default=BUDGETS)
    parser.add_argument("--set", choices=("trained", "zoo", "all"), default="all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cases = [] if options.set == "zoo" else list(efficiency.cases())
    cases += [] if options.set == "trained" else list(zoo())
    rows = []
    for case in cases:
        if options.only in case.name:
            for row in study(case, options.runs, tuple(options.budgets)):
                rows.append(row)
                print(*(f"{v:.3g}" if isinstance(v, float) else v for v in row.values()), sep=" | ", flush=True)
    for budget in options.budgets:
        own = [r for r in rows if "×" in r["case"] and r["budget"] == budget]
        if own:
            medians = [np.median([r[g] for r in own]) for g in ("gain_mean", "gain_variance")]
            print(f"median over the regressors at {budget}: {medians[0]:.3g} / {medians[1]:.3g}")
    worse = [r for r in rows if min(r["sum_mean_at_most"], r["sum_variance_at_most"]) < LEAST]
    for row in worse:
        print("below:", row)
    if not options.only and options.set == "all" and tuple(options.budgets) == BUDGETS:
        common.save("small_budgets", rows, runs=options.runs, reference=REFERENCE)
        write(rows)
    return 0


def write(rows: list[dict[str, Any]]) -> None:
    """Two tables into the documentation: the trained networks, and the extremes over the zoo."""
    names = dict.fromkeys(r["case"] for r in rows)
    by = {(r["case"], r["budget"]): r for r in rows}
    trained = [n for n in names if n not in ZOO]
    columns = ("network", *(f"{b} passes" for b in BUDGETS))
    cell = "{gain_mean:.3g} / {gain_variance:.3g}".format_map
    common.write_into(
        "passes-saved.md",
        "small-budgets",
        common.table(columns, [[n, *(cell(by[n, b]) for b in BUDGETS)] for n in trained]),
    )
    extremes = []
    for b in BUDGETS:
        own = [by[n, b] for n in names]
        used = [r for r in own if r["ran"] != "pooled"]  # elsewhere auto is plain averaging, with a gain of 1
        least = [f"{min(r[k] for r in used):.2f}" for k in ("sum_mean", "sum_variance")]
        # Flagged intervals promise nothing, and where nothing is left to chance there is nothing to cover.
        asked = [r for r in own if "softmax" not in r["case"] and r["gain_mean"] < EXACT]
        covered = [sorted(100 * r[k] for r in asked) for k in ("covered_mean", "covered_variance")]
        within = [f"{sum(92 <= c <= 97 for c in cs)} of {len(cs)}" for cs in covered]
        extremes.append([b, len(used), *least, *within, *(f"{c[0]:.1f} – {c[-1]:.1f} %" for c in covered)])
    columns = (
        "passes",
        "models that auto does not pool",
        "least gain there, mean",
        "variance",
        "models whose 95 % intervals cover 92 – 97 %, mean",
        "variance",
        "least and most, mean",
        "variance",
    )
    common.write_into("passes-saved.md", "small-budgets-extremes", common.table(columns, extremes))


if __name__ == "__main__":
    raise SystemExit(main())
