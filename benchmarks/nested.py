"""Averages over a data set: passes to an accuracy, nested multilevel Monte Carlo against plug-in and jackknife.

Three data sets: the 797 digits of a test set (small: every input is used), a pool of 300 000 noisy digits and one of
200 000 inputs of a regression problem (large: inputs are sampled). A network is trained on each in this script.

``mlmc`` is run 50 times at each of several tolerances; its error is the root mean square over the runs against a long
reference. Plug-in and jackknife get the best number of inputs and passes T for every accuracy, any real T: their error
follows from the bias and the variances that the reference run measured, and is checked by 50 runs at one accuracy.

Run: python benchmarks/nested.py [--runs 50] [--only digits pool regression] [--metrics entropy] [--add] [--quick]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from common import RESULTS, mlp, save, table, train, write_into
from sklearn.datasets import load_digits
from torch import Tensor, nn

import mlmc_dropout as md

ACCURACIES = (0.1, 0.03, 0.01, 0.003)
REFERENCE_SEED = 10_000


@dataclass(frozen=True)
class Problem:
    """A trained network, a data set, and the metrics with the tolerances at which they are run."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    outputs: str
    tolerances: dict[str, tuple[float, ...]]
    reference: dict[str, float]


# ------------------------------------------------------------------------------------------ problems


def digits_network() -> tuple[nn.Module, Tensor, Tensor]:
    """Three hidden layers of 128, dropout 0.3; 797 test images."""
    data = load_digits()
    x, y = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    torch.manual_seed(0)
    model = mlp(64, (128, 128, 128), 10, 0.3, "relu")
    train(model, x[:1000], y[:1000], nn.functional.cross_entropy, 1500)
    return model, x[1000:], y[1000:]


def digits(quick: bool) -> Problem:
    model, x, y = digits_network()
    tight = (0.1, 0.03) if quick else ACCURACIES
    tolerances = {"entropy": tight, "mutual_information": tight, "nll": tight[:3]}
    tolerances.update({"accuracy": (0.01,), "ece": (0.2,)})
    return Problem("digits", model, x, y, "logits", tolerances, {})


def pool(quick: bool, size: int = 300_000) -> Problem:
    """Test images with noise: a large pool without which sampling over inputs would not matter."""
    model, x, y = digits_network()
    size = size // 20 if quick else size
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(x), (size,), generator=generator)
    noisy = (x[chosen] + 0.08 * torch.randn(size, 64, generator=generator)).clamp(0, 1)
    tight = (0.1, 0.03) if quick else ACCURACIES
    tolerances = {"entropy": tight, "mutual_information": tight[:3], "nll": tight[:2], "accuracy": (0.003,)}
    reference = {**dict.fromkeys(tolerances, 0.002), "entropy": 0.001, "nll": 0.006}
    return Problem("pool", model, noisy, y[chosen], "logits", tolerances, reference)


def friedman(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Friedman's first function, with noise that grows with the last input."""
    x = torch.rand(rows, 10, generator=generator)
    mean = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    noise = (0.5 + 2 * x[:, 9]) * torch.randn(rows, generator=generator)
    return x, ((mean + noise) / 5)[:, None]


def gaussian_nll(out: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (out[:, 1:] + (y - out[:, :1]) ** 2 * torch.exp(-out[:, 1:])).mean()


def regression(quick: bool) -> Problem:
    """A network with two heads, mean and logarithm of the variance."""
    generator = torch.Generator().manual_seed(0)
    x, y = friedman(2000, generator)
    torch.manual_seed(0)
    model = mlp(10, (128, 128), 2, 0.1, "relu")
    train(model, x, y, gaussian_nll, 3000)
    x, y = friedman(20_000 if quick else 200_000, generator)
    tight = (0.1, 0.03) if quick else (0.1, 0.03, 0.01)
    tolerances = {"nll": tight, "entropy": tight}
    return Problem("regression", model, x, y, "mean-log-variance", tolerances, {"nll": 0.0015, "entropy": 0.0015})


def _gaussian_entropy(expected: Any, y: Any) -> np.ndarray:
    """Of a normal distribution with the total variance of the prediction: noise, and disagreement of the passes."""
    total = expected["variance"] + expected["square"] - expected["mean"] ** 2
    return 0.5 * np.log(2 * np.pi * np.e * np.maximum(total, 1e-12))


GAUSSIAN_ENTROPY = md.Metric("entropy", _gaussian_entropy)


PROBLEMS = {"digits": digits, "pool": pool, "regression": regression}


# ------------------------------------------------------------------------------------------- curves


def metrics_of(problem: Problem, metric: str) -> tuple[str | md.Metric, ...]:
    return (GAUSSIAN_ENTROPY if (problem.name, metric) == ("regression", "entropy") else metric,)


def evaluate(problem: Problem, metric: str, **arguments: Any) -> md.Evaluation:
    chosen = metrics_of(problem, metric)
    return md.evaluate(problem.model, problem.x, problem.y, metrics=chosen, outputs=problem.outputs, **arguments)


def long_run(problem: Problem, metric: str) -> md.Evaluation:
    """The reference: of small data sets with 8192 passes at every input, of others to a small tolerance."""
    if not problem.reference:
        return evaluate(problem, metric, method="jackknife", passes=1 << 13, seed=REFERENCE_SEED)
    return evaluate(problem, metric, tolerance=problem.reference[metric], seed=REFERENCE_SEED)


@dataclass(frozen=True)
class Levels:
    """Of T = 1, 2, 4, …: bias and variances of plug-in and jackknife, from a run with many samples on every level."""

    T: np.ndarray
    bias: dict[str, np.ndarray]
    total: dict[str, np.ndarray]
    within: dict[str, np.ndarray]


def measure_levels(problem: Problem, metric: str, reference: float, top: int, samples: int) -> Levels:
    """Bias and variances of both opponents at T = 1, …, 2^top, from differences on common inputs."""
    from mlmc_dropout.evaluation.data import DataSet, Slice, blocks_of
    from mlmc_dropout.evaluation.features import FeatureMap
    from mlmc_dropout.evaluation.levels import LevelState, level_sample
    from mlmc_dropout.evaluation.metrics import select_metrics
    from mlmc_dropout.sampling.source import Source

    chosen = select_metrics(metrics_of(problem, metric), problem.outputs, True)
    features = FeatureMap(problem.outputs, chosen)
    sampler = md.DropoutSampler(problem.model)
    data = DataSet(sampler, problem.x, problem.y)
    program = sampler.prepare(data.peek())
    rows = len(problem.x)
    states = []
    for level in range(top + 1):
        share = max(samples >> level, 400) / rows
        sweeps = [Slice(level, s, min(s + 1.0, share), int(s)) for s in range(math.ceil(share))]
        state = LevelState.empty(features.components)
        for block in blocks_of(data, sweeps, REFERENCE_SEED, program.structure.width):
            source = Source(sampler, program, block.batch, REFERENCE_SEED, block.first_row)
            state = state.merge(level_sample(source, block.labels, level, block.slice.replicate, features))
        states.append(state)
    delta = np.array([state.mean[1] for state in states])
    C = np.array([state.covariance for state in states])
    W = np.array([state.covariance_within for state in states])  # of the level below
    within_f = np.append(W[1:, 0, 0], 0.5 * W[-1, 0, 0])
    both = C[:, 0, 0] + 2 * C[:, 0, 1] + C[:, 1, 1]
    within_both = np.append(W[1:, 0, 0] + 2 * W[1:, 0, 1] + W[1:, 1, 1], 0.0)
    within_both[-1] = 0.5 * within_both[-2]
    tail = np.append(np.cumsum(delta[::-1])[::-1][1:], 0.0) + delta[-1]  # of later levels; the last one as 1/T
    return Levels(
        2.0 ** np.arange(top + 1),
        {"plug-in": -tail / reference, "jackknife": (delta - tail)[1:] / reference},
        {"plug-in": C[:, 0, 0] / reference**2, "jackknife": both[1:] / reference**2},
        {"plug-in": within_f / reference**2, "jackknife": within_both[1:] / reference**2},
    )


def cheapest(levels: Levels, method: str, accuracy: float, rows: int) -> tuple[float, float, float]:
    """Passes per input of the data set, T and share of the inputs: the best for this accuracy."""
    T = levels.T if method == "plug-in" else levels.T[1:]
    fine = np.exp2(np.arange(np.log2(T[0]), np.log2(T[-1]) + 1e-9, 0.05))

    def between(values: np.ndarray) -> np.ndarray:
        return np.interp(np.log2(fine), np.log2(T), values)

    bias = between(np.abs(levels.bias[method]))
    total, within = between(levels.total[method]), between(levels.within[method])
    allowed = accuracy**2 - bias**2
    best = (math.inf, math.nan, math.nan)
    for t, limit, C, W in zip(fine, allowed, total, within, strict=True):
        if limit <= 0:
            continue
        n = C / (limit + (C - W) / rows)  # inputs without replacement
        if n > rows:
            n = max(rows, W / limit)  # all inputs, several times if need be
        best = min(best, (n * t / rows, float(t), n / rows))
    return best


def passes_to(costs: np.ndarray, errors: np.ndarray, accuracy: float) -> float:
    """Passes at an accuracy, on the line through the measured points in logarithms."""
    order = np.argsort(errors)
    x, y = np.log(errors[order]), np.log(costs[order])
    if accuracy < errors.min() * 0.8 or accuracy > errors.max() * 1.6:
        return math.nan
    slope = np.polyfit(x, y, 1)[0] if len(x) > 1 else -2.0
    wanted = math.log(accuracy)
    if wanted <= x[0]:
        return float(np.exp(y[0] + slope * (wanted - x[0])))
    if wanted >= x[-1]:
        return float(np.exp(y[-1] + slope * (wanted - x[-1])))
    return float(np.exp(np.interp(wanted, x, y)))


def slope(costs: list[np.ndarray], values: list[np.ndarray], reference: float) -> dict[str, float]:
    """Slope of log cost against log error, with a 95 % interval from resampled runs."""
    rng = np.random.default_rng(0)
    found = []
    for draw in range(400):
        picks = [np.arange(len(v)) if not draw else rng.integers(len(v), size=len(v)) for v in values]
        errors = [math.sqrt(np.mean((v[p] / reference - 1) ** 2)) for v, p in zip(values, picks, strict=True)]
        cost = [float(np.mean(c[p])) for c, p in zip(costs, picks, strict=True)]
        found.append(float(np.polyfit(np.log(errors), np.log(cost), 1)[0]))
    low, high = np.percentile(found[1:], [2.5, 97.5])
    return {"slope": found[0], "low": float(low), "high": float(high)}


def run_metric(problem: Problem, metric: str, runs: int) -> dict[str, Any]:
    """Runs of mlmc at all tolerances, the opponents' best, and what they cost at equal accuracy."""
    started = time.perf_counter()
    long = long_run(problem, metric)
    table_run = evaluate(problem, metric, method="unbiased", budget=40_000 / len(problem.x))  # has all levels
    reference, rows = long[metric].value, len(problem.x)
    row: dict[str, Any] = {
        "problem": problem.name,
        "metric": metric,
        "inputs": rows,
        "reference": reference,
        "reference_error": long[metric].error / abs(reference),
        "rates": {name: [rate.value, rate.stderr] for name, rate in table_run[metric].rates.items()},
        "points": [],
    }
    costs, values = [], []
    for tolerance in problem.tolerances[metric]:
        found = [evaluate(problem, metric, tolerance=tolerance, seed=seed) for seed in range(runs)]
        costs.append(np.array([one.cost for one in found]))
        values.append(np.array([one[metric].value for one in found]))
        error = math.sqrt(np.mean((values[-1] / reference - 1) ** 2))
        stated = math.sqrt(np.mean([(one[metric].error / reference) ** 2 for one in found]))
        inside = np.mean([abs(one[metric].value - reference) < 1.96 * one[metric].error for one in found])
        point = {"tolerance": tolerance, "cost": float(costs[-1].mean()), "rmse": error, "stated": stated}
        row["points"].append({**point, "covered": float(inside), "bias": float(values[-1].mean() / reference - 1)})
        print(problem.name, metric, row["points"][-1], f"{time.perf_counter() - started:.0f} s", flush=True)
    if len(costs) > 1:
        row["mlmc_slope"] = slope(costs, values, reference)
    if metric != "ece":
        row["opponents"] = opponents(problem, metric, reference, runs, np.array([c.mean() for c in costs]), row)
    row["seconds"] = time.perf_counter() - started
    return row


def opponents(
    problem: Problem, metric: str, reference: float, runs: int, costs: np.ndarray, row: dict[str, Any]
) -> dict[str, Any]:
    """What plug-in and jackknife cost at their best, beside mlmc."""
    rows = len(problem.x)
    levels = measure_levels(problem, metric, reference, top=10, samples=min(100_000, 40 * rows))
    errors = np.array([point["rmse"] for point in row["points"]])
    table: dict[str, Any] = {"levels": {"T": levels.T.tolist()}}
    for method in ("plug-in", "jackknife"):
        table["levels"][f"bias of {method}"] = levels.bias[method].tolist()
    at = []
    for accuracy in ACCURACIES:
        ours = passes_to(costs, errors, accuracy)
        line: dict[str, Any] = {"accuracy": accuracy, "mlmc": ours}
        for method in ("plug-in", "jackknife"):
            cost, T, share = cheapest(levels, method, accuracy, rows)
            line[method] = {"cost": cost, "T": T, "share": share, "ratio": cost / ours}
        at.append(line)
        print(problem.name, metric, line, flush=True)
    table["at"] = at
    for method in ("plug-in", "jackknife"):
        grid = np.exp(np.linspace(math.log(0.1), math.log(0.005), 9))
        cost = np.array([cheapest(levels, method, accuracy, rows)[0] for accuracy in grid])
        usable = np.isfinite(cost)
        if usable.sum() > 2:
            table[f"slope of {method}"] = float(np.polyfit(np.log(grid[usable]), np.log(cost[usable]), 1)[0])
        table[f"check of {method}"] = check(problem, metric, method, levels, reference, runs)
    return table


def check(problem: Problem, metric: str, method: str, levels: Levels, reference: float, runs: int) -> dict[str, float]:
    """Whether runs have the error that was predicted, at 10 % and with a T that is a power of 2."""
    cost, T, share = cheapest(levels, method, 0.1, len(problem.x))
    if not math.isfinite(cost):
        return {}
    passes = 1 << max(1, round(math.log2(T)))
    budget = passes * min(share, 1.0)
    found = [evaluate(problem, metric, method=method, passes=passes, budget=budget, seed=s) for s in range(runs)]
    error = math.sqrt(np.mean([(one[metric].value / reference - 1) ** 2 for one in found]))
    index = int(math.log2(passes)) - (method == "jackknife")
    n = budget / passes * len(problem.x)
    C, W = levels.total[method][index], levels.within[method][index]
    variance = C / n - (C - W) / len(problem.x)
    return {"T": passes, "predicted": math.sqrt(levels.bias[method][index] ** 2 + variance), "rmse": error}


NAMES = {"digits": "797 digits", "pool": "300 000 noisy digits", "regression": "200 000 inputs, regression"}


def write_tables(rows: list[dict[str, Any]]) -> None:
    """Tables of the page on ladders."""

    def cell(value: float) -> str:
        return "–" if not math.isfinite(value) else f"{value:.3g}"

    costs, slopes, honest = [], [], []
    for row in rows:
        name = f"{NAMES[row['problem']]}, {row['metric'].replace('_', ' ')}"
        for line in row.get("opponents", {}).get("at", ()):
            if math.isfinite(line["mlmc"]):
                ratios = [f"{line[method]['cost'] / line['mlmc']:.2g}" for method in ("plug-in", "jackknife")]
                opponents = [
                    f"{cell(line[method]['cost'])} (T = {line[method]['T']:.3g})" for method in ("plug-in", "jackknife")
                ]
                costs.append([name, f"{line['accuracy']:.1%}", cell(line["mlmc"]), *opponents, *ratios])
        if "mlmc_slope" in row:
            found = row["mlmc_slope"]
            mlmc = f"{found['slope']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
            others = [cell(row["opponents"].get(f"slope of {m}", math.nan)) for m in ("plug-in", "jackknife")]
            rates = [f"{value:.2f} ± {error:.2f}" for value, error in row["rates"].values()]
            slopes.append([name, mlmc, *others, *(text.replace("nan ± nan", "–") for text in rates)])
        honest += [
            [name, f"{p['tolerance']:.1%}", f"{p['rmse']:.2%}", f"{p['stated']:.2%}", f"{p['covered']:.0%}", p["cost"]]
            for p in row["points"]
        ]
    heads = ["data set, metric", "accuracy", "mlmc", "plug-in, best T", "jackknife, best T", "plug-in / mlmc"]
    write_into("concepts/where-a-ladder-pays.md", "costs", table([*heads, "jackknife / mlmc"], costs))
    heads = ["data set, metric", "mlmc (95 %)", "plug-in", "jackknife", "α", "β", "β without halves"]
    write_into("concepts/where-a-ladder-pays.md", "slopes", table(heads, slopes))
    heads = ["data set, metric", "tolerance", "rms error", "stated", "inside ± 1.96", "passes per input"]
    write_into("concepts/where-a-ladder-pays.md", "tolerances", table(heads, honest))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--metrics", nargs="*", help="only these")
    parser.add_argument("--tolerances", nargs="*", type=float, help="only these")
    parser.add_argument("--add", action="store_true", help="keep the rows of the file")
    parser.add_argument("--name", default="nested")
    parser.add_argument("--tables", action="store_true", help="write the tables of the page and stop")
    arguments = parser.parse_args()
    path = RESULTS / f"{arguments.name}.json"
    rows = json.loads(path.read_text())["rows"] if arguments.add or arguments.tables else []
    if arguments.tables:
        write_tables(rows)
        return
    for name in arguments.only:
        problem = PROBLEMS[name](arguments.quick)
        if arguments.tolerances:
            problem = replace(problem, tolerances=dict.fromkeys(problem.tolerances, tuple(arguments.tolerances)))
        for metric in arguments.metrics or problem.tolerances:
            rows.append(run_metric(problem, metric, arguments.runs))
            save(arguments.name, rows, runs=arguments.runs, accuracies=ACCURACIES)
    if arguments.name == "nested":
        write_tables(rows)


if __name__ == "__main__":
    main()
