"""Models from outside packages: sites against random kernels, z-scores, speed, and variance at equal cost.

    python benchmarks/outside.py [--only 'bert*' timm_vit] [--quick] [--workers 2] [--merge] [--no-doc]

Every entry of testing/outside/models.py is looked at in two ways. First, one after the other: random kernels of a
train-mode pass and the sites found, how passes run, z-scores of both moments of pooled passes against the plain
train-mode loop, and the time of a whole pooled ``estimate`` and of that loop. Then, several at once: the variance of
the estimates of ``stratified`` and ``auto`` over that of plain averaging at the same cost, summed over components. It
is the variance over runs with different seeds, times the cost reported, over the budget. The variance of plain
averaging follows from second and fourth moments of many passes.

Raw numbers go to benchmarks/results/outside.json, tables to docs/outside-models.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any

import common
import numpy as np
import torch

import mlmc_dropout as md
from mlmc_dropout.methods.registry import make_method
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.source import Source
from testing.oracles import run_method, source_of
from testing.outside.checks import agreement, honest_passes, matrix, random_kernels, rows
from testing.outside.models import ENTRIES, Case, Entry

BUDGETS = (30, 100, 300, 1000)
TIMED = (30, 100, 1000)
METHODS = ("stratified", "auto")
ALLOWED = 1.1  # variance at equal cost over that of plain averaging
MOMENTS = ("mean", "variance")


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is computed."""

    passes: int = 2000  # for z-scores
    rounds: int = 5  # of timing, up to 100 passes; a third of it above
    seeds: int = 80  # runs of a method at a budget of up to 100; fewer above
    moments: int = 20_000  # passes from which the variance of plain averaging is computed
    methods: tuple[str, ...] = METHODS
    budgets: tuple[int, ...] = BUDGETS

    def seeds_at(self, budget: int) -> int:
        """Runs at a budget: large budgets are dear, and vary less in what ``auto`` decides."""
        return max(8, self.seeds if budget <= 100 else self.seeds * 6 // 10)


QUICK = Effort(passes=300, rounds=2, seeds=12, moments=2000)


# -------------------------------------------------------------------------------- right and fast


def examine(entry: Entry, effort: Effort) -> dict[str, Any]:
    """Sites, mode, z-scores and times of one entry; or what it was refused with."""
    case = entry.make()
    found: dict[str, Any] = {"kernels": len(random_kernels(case)), "idle": entry.idle}
    sampler = md.DropoutSampler(case.model, transform=case.transform)
    try:
        batch = next(sampler.batches(case.x))
        program = sampler.prepare(batch)
        found |= {"sites": sum(site.active for site in program.sites), "mode": program.mode}
        ours = matrix(sampler.sample(case.x, effort.passes, 1), rows(case.x), first=1)
    except Exception as error:  # the table says which entries fail, and how
        return found | {"error": f"{type(error).__name__}: {error}", "typed": isinstance(error, md.MLMCDropoutError)}
    found["z"] = asdict(agreement(ours, honest_passes(entry.make(), effort.passes, 1)))
    found["seconds"] = {str(passes): _times(case, passes, effort.rounds) for passes in TIMED}
    return found


def _times(case: Case, passes: int, rounds: int) -> dict[str, float]:
    """Medians of contestants that take turns: a whole estimate, its passes alone, and the loop."""
    sampler = md.DropoutSampler(case.model, transform=case.transform)
    batch = next(sampler.batches(case.x))
    program, keys = sampler.prepare(batch), pass_keys(0, 0, 0, range(passes))
    runs: dict[str, Callable[[], Any]] = {
        "estimate": lambda: md.estimate(
            case.model, case.x, method="pooled", budget=passes, transform=case.transform, seed=1
        ),
        "passes": lambda: sampler.run(program, batch, keys),
        "loop": lambda: honest_passes(case, passes),
    }
    rounds = rounds if passes <= 100 else max(1, rounds // 3)
    taken = [{name: common.seconds(run) for name, run in runs.items()} for _ in range(rounds + (passes <= 100))]
    return {name: statistics.median(one[name] for one in taken[-rounds:]) for name in runs}


# ------------------------------------------------------------------------- variance at equal cost


def efficiency(entry: Entry, effort: Effort) -> dict[str, dict[str, Any]]:
    """Method -> budget -> ratios of variances to those of plain averaging at the same cost, with their errors."""
    case = entry.make()
    source = source_of(case.model, case.x, transform=case.transform)
    plain = _plain(source, effort.moments)
    found: dict[str, Any] = {}
    for name in effort.methods:
        found[name] = {}
        for budget in effort.budgets:
            if budget >= make_method(name).min_cost():
                found[name][str(budget)] = _ratios(name, source, budget, effort.seeds_at(budget), plain)
    return found


def _plain(source: Source, passes: int) -> np.ndarray:
    """Sums over components of σ², μ4 and σ⁴ for twenty batches of passes: (20, 3)."""
    size, out = max(passes // 20, 50), []
    for replicate in range(20):
        values = source.passes(77, [replicate], range(size))[:, 0]
        centred = values - values.mean(0)
        second = np.square(centred).sum(0) / (size - 1)
        out.append((second.sum(), (centred**4).mean(0).sum(), np.square(second).sum()))
    return np.array(out)


def _plain_variances(plain: np.ndarray, budget: float) -> tuple[float, float]:
    """Variances of the mean and of the unbiased variance of ``budget`` passes, summed over components."""
    second, fourth, squared = plain.mean(0)
    return second / budget, (fourth - squared * (budget - 3) / (budget - 1)) / budget


def _ratios(name: str, source: Source, budget: int, seeds: int, plain: np.ndarray) -> dict[str, Any]:
    """Ratios for both moments with standard errors, the average cost, and how many runs there were."""
    runs = [run_method(make_method(name), replace(source, seed=1000 + seed), budget) for seed in range(seeds)]
    cost = statistics.mean(run.cost for run in runs)
    found: dict[str, Any] = {"cost": cost, "runs": seeds}
    for place, moment in enumerate(MOMENTS):
        values = np.stack([getattr(run, moment).ravel() for run in runs])
        spread, error = _spread(values)
        base = _plain_variances(plain, budget)[place]
        base_errors = [_plain_variances(np.delete(plain, i, 0), budget)[place] for i in range(len(plain))]
        base_error = _jackknife_error(np.array(base_errors)) / base
        ratio = spread / base * cost / budget
        found[moment] = {"ratio": ratio, "error": ratio * math.hypot(error / max(spread, 1e-300), base_error)}
    return found


def again(name: str, method: str, budget: int, runs: int = 800) -> dict[str, Any]:
    """A cell that came out above the limit, measured with other seeds, and plain averaging with as many runs."""
    case = ENTRIES[name].make()
    source = source_of(case.model, case.x, transform=case.transform)
    spreads = {}
    for contestant in ("pooled", method):
        results = [run_method(make_method(contestant), replace(source, seed=50_000 + k), budget) for k in range(runs)]
        cost = statistics.mean(result.cost for result in results)
        values = {moment: np.stack([getattr(r, moment).ravel() for r in results]) for moment in MOMENTS}
        spreads[contestant] = cost, {moment: _spread(values[moment]) for moment in MOMENTS}
    (_, plain), (cost, own) = spreads["pooled"], spreads[method]
    found: dict[str, Any] = {"cost": cost, "runs": runs, "again": True}
    for moment in MOMENTS:
        (base, base_error), (spread, error) = plain[moment], own[moment]
        ratio = spread / base * cost / budget
        found[moment] = {"ratio": ratio, "error": ratio * math.hypot(error / max(spread, 1e-300), base_error / base)}
    return found


def _measure_again(results: dict[str, Any]) -> None:
    """One cell of seven hundred is three standard errors off by chance: those above the limit get a second look."""
    for name, one in results.items():
        for method, cells in one.get("efficiency", {}).items():
            for budget, cell in cells.items() if isinstance(cells, dict) else ():
                if not cell.get("again") and any(cell[m]["ratio"] - 2 * cell[m]["error"] > ALLOWED for m in MOMENTS):
                    cells[budget] = again(name, method, int(budget))
                    print(f"{name}, {method}, {budget}, again: {cells[budget]}", flush=True)


def _spread(values: np.ndarray) -> tuple[float, float]:
    """The variance over runs (runs, components), summed over components, and its jackknife error over runs."""
    n = len(values)
    square = np.square(values - values.mean(0)).sum(1)
    total = square.sum() / (n - 1)
    without = (square.sum() - square * n / (n - 1)) / (n - 2)  # exactly what leaving one run out gives
    return float(total), _jackknife_error(without)


def _jackknife_error(without: np.ndarray) -> float:
    n = len(without)
    return float(np.sqrt((n - 1) / n * np.square(without - without.mean()).sum()))


# ------------------------------------------------------------------------------------ running


def _efficiency_job(name: str, effort: Effort) -> tuple[str, dict[str, Any], float]:
    """One entry in a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    try:
        found: dict[str, Any] = efficiency(ENTRIES[name], effort)
    except Exception as error:  # as above
        found = {"error": f"{type(error).__name__}: {error}"}
    return name, found, time.perf_counter() - start


def _efficiencies(names: list[str], effort: Effort, workers: int) -> Iterator[tuple[str, dict[str, Any], float]]:
    if workers <= 1:
        yield from (_efficiency_job(name, effort) for name in names)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_efficiency_job, name, effort) for name in names]):
            yield done.result()


def run(names: list[str], effort: Effort, workers: int, results: dict[str, Any]) -> None:
    """Fill ``results``, saved after every entry."""
    whole = (effort.methods, effort.budgets) == (METHODS, BUDGETS)
    for name in names if whole else ():  # some cells are measured again: the rest stays
        start = time.perf_counter()
        results[name] = examine(ENTRIES[name], effort)
        common.save("outside", results, **asdict(effort))
        print(f"{name:28s} {time.perf_counter() - start:6.1f} s  {_short(results[name])}", flush=True)
    able = [name for name in names if "error" not in results[name]]
    for name, found, seconds in _efficiencies(able, effort, workers):
        if whole or "error" in found:
            results[name]["efficiency"] = found
        else:
            for method, cells in found.items():
                results[name]["efficiency"][method] |= cells
        common.save("outside", results, **asdict(effort))
        print(f"{name:28s} {seconds:6.1f} s  {_short_efficiency(found)}", flush=True)


def _short(found: dict[str, Any]) -> str:
    if "error" in found:
        return found["error"][:150]
    z, times = found["z"], found["seconds"]
    speed = " ".join(f"{one['loop'] / one['estimate']:.2f}×" for one in times.values())
    sites = f"{found['sites']}/{found['kernels']} {found['mode']}"
    return f"{sites}  z {z['mean_rms']:.2f} {z['variance_rms']:.2f}  {speed}"


def _short_efficiency(found: dict[str, Any]) -> str:
    if "error" in found:
        return found["error"][:150]
    return "  ".join(
        f"{name} " + " ".join(_cell(one) for one in budgets.values()) for name, budgets in found.items() if budgets
    )


# --------------------------------------------------------------------------------- the tables


def _cell(one: dict[str, Any]) -> str:
    return " / ".join(f"{one[moment]['ratio']:.2g}" for moment in MOMENTS)


def tables(results: dict[str, Any]) -> str:
    """Markdown, from the raw numbers alone."""
    return "\n\n".join([*_right_and_fast(results), *_at_equal_cost(results)])


def _right_and_fast(results: dict[str, Any]) -> Iterator[str]:
    lines = []
    for name, one in results.items():
        if "error" in one:
            lines.append([f"`{name}`", f"– / {one['kernels']}", "refused", *["–"] * 5])
            continue
        z = one["z"]
        faster = [f"{t['loop'] / t['estimate']:.2g} ({t['loop'] / t['passes']:.2g})" for t in one["seconds"].values()]
        scores = [f"{z[f'{moment}_rms']:.2f} ({z[f'{moment}_max']:.1f})" for moment in MOMENTS]
        lines.append([f"`{name}`", f"{one['sites']} / {one['kernels'] - one['idle']}", one["mode"], *scores, *faster])
    head = ("model", "sites / kernels", "passes run", "z of the mean", "z of the variance")
    yield common.table((*head, *(f"faster, {passes} passes" for passes in TIMED)), lines)
    refused = [f"- `{name}`: {_first_line(one['error'])}" for name, one in results.items() if "error" in one]
    if refused:
        yield "Refused:"
        yield "\n".join(refused)


def _first_line(message: str, most: int = 300) -> str:
    line = message.splitlines()[0].replace("|", "\\|").replace("<", "&lt;")
    return line if len(line) <= most else line[:most] + " …"


def _at_equal_cost(results: dict[str, Any]) -> Iterator[str]:
    measured = {n: r["efficiency"] for n, r in results.items() if "error" not in r.get("efficiency", {"error": ""})}
    if not measured:
        return
    cells = [
        (name, method, budget, one[moment])
        for name, methods in measured.items()
        for method, budgets in methods.items()
        for budget, one in budgets.items()
        for moment in MOMENTS
    ]
    above = [cell for cell in cells if cell[3]["ratio"] > ALLOWED]
    clearly = [cell for cell in above if cell[3]["ratio"] - 2 * cell[3]["error"] > ALLOWED]
    errors = [cell[3]["error"] / cell[3]["ratio"] for cell in cells if cell[3]["ratio"] > 1e-6]
    worst = max(cells, key=lambda cell: cell[3]["ratio"])
    largest = worst[3]
    yield (
        f"Variance at equal cost over that of `pooled`, mean / variance, summed over components. A ratio is known to "
        f"{statistics.median(errors):.0%} (median of its standard error). "
        f"Above {ALLOWED}: {len(above)} of {len(cells)}, by more than two standard errors: {len(clearly)}. "
        f"The largest is {largest['ratio']:.2f} ± {largest['error']:.2f} (`{worst[0]}`, {worst[1]}, budget {worst[2]})."
    )
    lines = [
        [f"`{name}`", *(_cell(methods[m][str(b)]) if str(b) in methods[m] else "–" for m in METHODS for b in BUDGETS)]
        for name, methods in measured.items()
    ]
    yield common.table(("model", *(f"{method}, {budget}" for method in METHODS for budget in BUDGETS)), lines)


def wrong(results: dict[str, Any]) -> list[str]:
    """What is not as promised."""
    found = []
    for name, one in results.items():
        if "error" in one:
            if not (ENTRIES[name].refused and one["typed"]):
                found.append(f"{name}: {one['error'][:200]}")
            continue
        if one["sites"] != one["kernels"] - one["idle"]:
            found.append(f"{name}: {one['sites']} sites for {one['kernels']} random kernels")
        if max(one["z"]["mean_rms"], one["z"]["variance_rms"]) > 1.5:
            found.append(f"{name}: rms z {one['z']['mean_rms']:.2f} and {one['z']['variance_rms']:.2f}")
        found += [f"{name}: {line}" for line in _dear(one.get("efficiency", {}))]
    return found


def _dear(methods: dict[str, Any]) -> Iterator[str]:
    if "error" in methods:
        yield methods["error"][:200]
        return
    for method, budgets in methods.items():
        for budget, one in budgets.items():
            for moment in MOMENTS:
                ratio, error = one[moment]["ratio"], one[moment]["error"]
                if ratio - 2 * error > ALLOWED:
                    yield f"{method} at {budget}, {moment}: {ratio:.2f} ± {error:.2f} of the variance of pooled"


def selected(patterns: list[str]) -> list[str]:
    """Names that match one of the patterns, and whose packages are there."""
    names = [name for name in ENTRIES if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    absent = sorted({ENTRIES[name].missing for name in names} - {""})
    if absent:
        print("left out: " + "; ".join(absent))
    return [name for name in names if not ENTRIES[name].missing]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["*"], help="names or patterns of entries")
    parser.add_argument("--quick", action="store_true", help="little effort, to see that it runs")
    parser.add_argument("--seeds", type=int, default=None, help="runs of a method at small budgets")
    parser.add_argument("--workers", type=int, default=2, help="processes for the second part")
    parser.add_argument("--methods", nargs="*", default=METHODS, help="measure only these again, with --merge")
    parser.add_argument(
        "--budgets", nargs="*", type=int, default=BUDGETS, help="measure only these again, with --merge"
    )
    parser.add_argument("--merge", action="store_true", help="keep the results of entries that are not run now")
    parser.add_argument("--no-doc", action="store_true", help="leave docs/outside-models.md alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    effort = QUICK if options.quick else Effort()
    effort = replace(effort, seeds=options.seeds) if options.seeds else effort
    effort = replace(effort, methods=tuple(options.methods), budgets=tuple(options.budgets))
    path = common.RESULTS / "outside.json"
    results = json.loads(path.read_text())["rows"] if options.merge and path.exists() else {}
    run(selected(options.only), effort, options.workers, results)
    results = {name: results[name] for name in ENTRIES if name in results}
    _measure_again(results)
    common.save("outside", results, **asdict(effort))
    if not options.no_doc:
        common.write_into("outside-models.md", "generated by benchmarks/outside.py", tables(results))
    problems = wrong(results)
    print("\n".join(["not as promised:", *problems]) if problems else "all as promised")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
