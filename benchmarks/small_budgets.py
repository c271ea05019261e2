"""What ten to a hundred passes are worth: variance of plain averaging over that of ``auto``, at the same total passes.

Runs are whole ones with passes of their own, on the inputs as they are: pilot, gradients and passes are paid from the
same budget. Below 160 passes ``auto`` draws nothing before its passes, so that runs differ in these alone: the passes
of many runs are computed together and cut apart, and every run is summarised by the library. The first one is compared
with a run of the library.

The variance of an estimator is its spread over the runs; that of plain averaging follows from long reference moments.
Gains are given as medians over inputs and outputs, and of the sums over these, in which no component can hide behind
others; intervals are those of a bootstrap over runs. Coverage is that of the 95 % intervals of all components, flagged
or not; that of unflagged ones is kept beside it. Results are kept case by case, so that parts can be repeated.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import common
import efficiency
import numpy as np
import torch
from efficiency import Case

from mlmc_dropout import theory
from mlmc_dropout.methods.auto import FEW_PASSES, Auto
from mlmc_dropout.methods.base import Estimates
from mlmc_dropout.methods.designs import state_of_designs
from mlmc_dropout.methods.paired_designs import BoundDesigns
from mlmc_dropout.methods.pooled import BoundPooled, Pooled, PooledState
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal
from testing.oracles import run_method
from testing.zoo import ZOO

RESULTS = common.RESULTS / "small_budgets.json"
BUDGETS = (10, 20, 30, 50, 100)
REFERENCE = 20_000
LEAST = 0.95
EXACT = 1e6
TOGETHER = 2000  # passes that are computed at once


def zoo(names: list[str]) -> Iterator[Case]:
    """Models of the test suite."""
    for name, entry in ZOO.items():
        if not names or name in names:
            yield Case(name, *entry.make())


def reference(source: Source) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, variance and fourth moment of a pass; the first two by auto, whose many passes are worth many more."""
    found = run_method(Auto(), replace(source, seed=10**6), REFERENCE)
    plain = run_method(Pooled(), replace(source, seed=10**6), REFERENCE)
    return found.mean, found.variance, plain.levels[0].kurtosis * plain.variance**2


# ---------------------------------------------------------------------------------- many runs


def plain_runs(bound: BoundPooled, source: Source, budget: int, runs: int) -> Iterator[Estimates]:
    """Runs of plain averaging."""
    step = max(1, TOGETHER // budget)
    for first in range(0, runs, step):
        numbers = range(first * budget, min(first + step, runs) * budget)
        main, _ = source.observe(source.passes(0, range(1), numbers)[:, 0])
        for values in main.reshape(-1, budget, *main.shape[1:]):
            yield bound.summarise(PooledState(MomentBlock.of(values)), {"passes": budget})


def design_runs(bound: BoundDesigns, source: Source, budget: int, runs: int) -> Iterator[Estimates]:
    """Runs of designs, with a companion or without."""
    _, done = bound.extend({}, budget)
    designs = done["designs"]
    (part,) = bound.parts
    known = bound.known_variance if bound.has_surrogate else 0.0
    step = max(1, TOGETHER // (designs * bound.passes))
    for first in range(0, runs, step):
        numbers = np.arange(first * designs, min(first + step, runs) * designs)
        keys = pass_keys(source.seed, 0, numbers // 2, numbers % 2)
        h, s2, G, _ = bound._passes(part.of(source), keys, part)
        for run in range(len(numbers) // designs):
            own = slice(run * designs, (run + 1) * designs)
            state = state_of_designs(h[own], *(a if a is None else a[own] for a in (s2, G)), known, 0)
            yield bound.summarise(state, done)


def many_runs(source: Source, budget: int, runs: int) -> tuple[str, list[Estimates]]:
    """What auto chose, and its estimates in independent runs."""
    assert budget < FEW_PASSES
    bound = Auto().choose(source, Goal(budget=budget)).bind(source)
    one_by_one = plain_runs if isinstance(bound, BoundPooled) else design_runs
    found = list(one_by_one(bound, source, budget, runs))  # type: ignore[operator]
    whole = run_method(Auto(), source, budget)
    for name in ("mean", "variance"):  # expansions found one after the other may differ by more than rounding
        error, slack = f"{name}_stderr", 1e-6 + 0.1 * float(np.max(getattr(whole, f"{name}_stderr")))
        np.testing.assert_allclose(getattr(found[0], name), getattr(whole, name), rtol=1e-4, atol=slack)
        np.testing.assert_allclose(getattr(found[0], error), getattr(whole, error), rtol=0.5, atol=1e-5)
    assert found[0].cost == whole.cost <= budget
    return bound.method.name, found


def study(case: Case, runs: int, budgets: list[int]) -> Iterator[dict[str, Any]]:
    """Gains and coverage of auto at every budget."""
    source = efficiency.source(case, case.x, 0)
    truth, mu2, mu4 = reference(source)
    moving = mu2 > 1e-14 * np.square(truth)
    for budget in budgets:
        ran, found = many_runs(source, budget, runs)
        row: dict[str, Any] = {"case": case.name, "budget": budget, "ran": ran, "runs": runs}
        plain = {"mean": mu2 / budget, "variance": theory.variance_of_sample_variance(budget, mu2, mu4)}
        for moment, exact in (("mean", truth), ("variance", mu2)):
            values = np.stack([getattr(one, moment) for one in found])
            stderr = np.stack([getattr(one, f"{moment}_stderr") for one in found])
            trusted = np.stack([getattr(one.trust, moment) for one in found])[:, moving]
            rounding = 1e-6 * np.abs(exact) + 1e-12
            spread = values.var(axis=0, ddof=1) + rounding**2
            row[f"gain_{moment}"] = float(np.median((plain[moment] / spread)[moving]))
            row[f"sum_{moment}"] = float(plain[moment].sum() / spread.sum())
            row[f"sum_{moment}_at_most"] = _at_most(values, plain[moment].sum(), (rounding**2).sum())
            covered = (np.abs(values - exact) <= 1.959964 * stderr + rounding)[:, moving]
            row[f"covered_{moment}"] = float(covered.mean())
            row[f"least_{moment}"] = float(covered.mean(axis=0).min())
            row[f"flagged_{moment}"] = float(1 - trusted.mean())
            row[f"unflagged_{moment}"] = float(covered[trusted].mean()) if trusted.any() else None
        yield row


def _at_most(values: np.ndarray, plain: float, rounding: float) -> float:
    """The 99 % quantile of the gain of sums, over bootstrap samples of runs."""
    rng = np.random.default_rng(0)
    squares = np.square(values - values.mean(axis=0)).reshape(len(values), -1).sum(axis=1)
    means = squares[rng.integers(len(values), size=(500, len(values)))].mean(axis=1)
    return float(np.quantile(plain / (means + rounding), 0.99))


# ---------------------------------------------------------------------------------- results


def keep(fresh: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All results: fresh ones in place of older ones."""
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = {(r["case"], r["budget"]): r for r in (*kept, *fresh)}
    names = [*dict.fromkeys(r["case"] for r in rows.values() if r["case"] not in ZOO), *ZOO]
    ordered = sorted(rows.values(), key=lambda r: (names.index(r["case"]), r["budget"]))
    common.save("small_budgets", ordered, reference=REFERENCE)
    return ordered


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--cases", nargs="*", default=[], help="models of the zoo, or trained networks; all by default")
    parser.add_argument("--budgets", type=int, nargs="*", default=list(BUDGETS))
    parser.add_argument("--set", choices=("trained", "zoo", "all", "none"), default="all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cases: list[Case] = []
    if options.set in ("trained", "all"):
        cases += [c for c in efficiency.cases() if not options.cases or c.name in options.cases]
    if options.set in ("zoo", "all"):
        cases += zoo(options.cases)
    rows = keep([])
    for case in cases:
        fresh = list(study(case, options.runs, options.budgets))
        for row in fresh:
            print(*(f"{v:.3g}" if isinstance(v, float) else v for v in row.values()), sep=" | ", flush=True)
        rows = keep(fresh)
    write(rows)
    return report(rows)


def report(rows: list[dict[str, Any]]) -> int:
    """What was asked, and what was missed."""
    for budget in BUDGETS:
        own = [r for r in rows if "×" in r["case"] and r["budget"] == budget]
        if own:
            medians = [np.median([r[g] for r in own]) for g in ("gain_mean", "gain_variance")]
            print(f"median over the regressors at {budget}: {medians[0]:.3g} / {medians[1]:.3g}")
    worse = [r for r in rows if min(r["sum_mean_at_most"], r["sum_variance_at_most"]) < LEAST]
    for row in worse:
        print("gains less than", LEAST, ":", row["case"], row["budget"], row["sum_mean"], row["sum_variance"])
    missed = [(r, m) for r, m in asked(rows) if not 0.92 <= r[f"covered_{m}"] <= 0.97]
    for row, moment in missed:
        print("covers", f"{100 * row[f'covered_{moment}']:.1f} %:", row["case"], row["budget"], moment)
    return 1 if worse or missed else 0


def asked(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """Rows and moments whose intervals have something to cover: not flagged nearly always, and not exact.

    Rows of earlier versions, which are kept for their gains, do not say from how many runs they are.
    """
    pairs = ((r, m) for r in rows if "runs" in r for m in ("mean", "variance"))
    return [(r, m) for r, m in pairs if "softmax" not in r["case"] and r[f"gain_{m}"] < EXACT]


def write(rows: list[dict[str, Any]]) -> None:
    """Three tables into the documentation: the trained networks, extremes, and what was missed."""
    by = {(r["case"], r["budget"]): r for r in rows}
    trained = dict.fromkeys(r["case"] for r in rows if r["case"] not in ZOO)
    columns = ("network", *(f"{b} passes" for b in BUDGETS))
    lines = [[n, *(_gains(by.get((n, b))) for b in BUDGETS)] for n in trained]
    common.write_into("passes-saved.md", "small-budgets", common.table(columns, lines))
    extremes, missed = [], []
    for b in sorted({r["budget"] for r in rows}):
        own = [r for r in rows if r["budget"] == b]
        used = [r for r in own if r["ran"] != "pooled"]  # elsewhere auto is plain averaging, with a gain of 1
        line: list[Any] = [b, len(used), *(f"{min(r[k] for r in used):.2f}" for k in ("sum_mean", "sum_variance"))]
        for moment in ("mean", "variance"):
            shares = [r[f"covered_{moment}"] for r, m in asked(own) if m == moment]
            inside = sum(0.92 <= share <= 0.97 for share in shares)
            span = f"{100 * min(shares):.1f} – {100 * max(shares):.1f} %" if shares else "–"
            line += [f"{inside} of {len(shares)}" if shares else "–", span]
        extremes.append(line)
        for row, m in asked(own):
            share, flagged, rest = row[f"covered_{m}"], row[f"flagged_{m}"], row[f"unflagged_{m}"]
            if not 0.92 <= share <= 0.97:
                shown = "–" if rest is None else f"{100 * rest:.1f} %"
                missed.append([b, row["case"], m, row["ran"], f"{100 * share:.1f} %", f"{100 * flagged:.0f} %", shown])
    columns = (
        "passes",
        "models not pooled",
        "least gain, mean",
        "variance",
        "92 – 97 %, mean",
        "least – most",
        "92 – 97 %, variance",
        "least – most",
    )
    common.write_into("passes-saved.md", "small-budgets-extremes", common.table(columns, extremes))
    columns = ("passes", "model", "moment", "method", "covered", "flagged", "covered, unflagged")
    common.write_into("passes-saved.md", "small-budgets-missed", common.table(columns, missed))


def _gains(row: dict[str, Any] | None) -> str:
    return "–" if row is None else f"{row['gain_mean']:.3g} / {row['gain_variance']:.3g}"


if __name__ == "__main__":
    raise SystemExit(main())
