"""Effort per input: passes saved at a common tolerance, and coverage of every input under the stop rule.

The first part runs each case to a tolerance with equal and with adaptive effort, one after the other in one process,
and divides passes and seconds (medians over ``--repeats``). The second repeats whole runs with other seeds and counts,
input by input, how often the truth lies within 1.96 standard errors of the estimate; an input passes with 93 %, up to
chance. The truth is enumerated for the three networks made to be treacherous (``testing/treacherous.py``), and an
average of very many passes for the trained ones. A rule that stops an input at the first look below the tolerance,
after a pilot of sixteen passes, is the negative control: with results reported as ours are, it does not meet the
tolerance; with plain standard errors it does not cover. Ours with plain standard errors shows what the stopping is
worth without the allowance for masks that did not come up.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import common
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor, nn

import mlmc_dropout as md
from mlmc_dropout import pinn
from testing.oracles import exact_moments
from testing.treacherous import TREACHEROUS, inputs, naive_rule, plain_errors

LEAST_COVERAGE, SHARE = 0.93, 0.97
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Case:
    """A network, inputs, and how it is estimated."""

    name: str
    model: Any
    x: Tensor
    tolerance: float
    wanted: float = 1.0  # gain
    tight: float = 0.0  # tolerance for the default method, which needs far fewer passes
    options: dict[str, Any] = field(default_factory=dict)

    def estimate(self, **options: Any) -> md.Result:
        """A run to the tolerance."""
        return md.estimate(self.model, self.x, **{"tolerance": self.tolerance, **self.options, **options})


def digits() -> tuple[nn.Module, Tensor]:
    """A classifier, and 797 images that it has not seen."""
    torch.manual_seed(0)  # masks of the training
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images / 16).float()
    model = common.mlp(64, (128, 128), 10, 0.3, "relu")
    common.train(model, x[:1000], torch.from_numpy(labels)[:1000], nn.functional.cross_entropy, 600)
    return model, x[1000:]


def regressor(name: str) -> tuple[nn.Module, Tensor]:
    """A regressor, and all its inputs."""
    torch.manual_seed(0)  # masks of the training
    if name == "diabetes":
        data, target = load_diabetes(return_X_y=True)
        x, y = common.standardised(data), common.standardised(target[:, None])
        model = common.mlp(x.shape[1], (128, 128, 128), 1, 0.25, "relu")
    else:
        cancer = load_breast_cancer()
        x, y = common.standardised(cancer.data[:, 1:]), common.standardised(cancer.data[:, :1])
        model = common.mlp(x.shape[1], (256, 256), 1, 0.5, "relu")
    return common.train(model, x, y, nn.functional.mse_loss, 600), x


def cases() -> Iterator[Case]:
    """Ordinary data sets, with plain passes and with the default method."""
    model, x = digits()
    yield Case("digits, softmax", model, x, 0.003, 6, 0.001, {"transform": "softmax"})
    yield Case("breast cancer", *regressor("breast cancer"), 0.004, 10, 0.0002)
    yield Case("diabetes", *regressor("diabetes"), 0.004, 4, 0.001)
    network = pinn.pretrained("boundary-layer").model
    yield Case("forward PINN", network, torch.linspace(0, 1, 200)[:, None], 0.0001, 1.2, 0.00001)


def gain(case: Case, method: str, repeats: int) -> dict[str, Any]:
    """Passes and seconds of equal over adaptive effort."""
    cost: dict[str, list[float]] = {"equal": [], "adaptive": []}
    seconds: dict[str, list[float]] = {"equal": [], "adaptive": []}
    settled, bounds = None, []
    tolerance = case.tolerance if method == "pooled" else case.tight
    case.estimate(method=method, tolerance=10 * tolerance)  # what is found out about a model is not counted
    for seed in range(repeats):
        for effort in cost:
            start = time.perf_counter()
            result = case.estimate(method=method, effort=effort, seed=seed, tolerance=tolerance)
            seconds[effort].append(time.perf_counter() - start)
            cost[effort].append(result.cost)
            settled = result.passes if effort == "adaptive" else settled
            if effort == "equal":
                squares = np.square(result.mean_stderr.reshape(len(case.x), -1)).max(axis=1)
                bounds.append(float(squares.max() / squares.mean()))
    passes, time_gain = (
        statistics.median(a / b for a, b in zip(values["equal"], values["adaptive"], strict=True))
        for values in (cost, seconds)
    )
    return {
        "case": case.name,
        "method": method,
        "tolerance": tolerance,
        "equal": statistics.median(cost["equal"]),
        "adaptive": statistics.median(cost["adaptive"]),
        "gain": passes,
        "gain_seconds": time_gain,
        "wanted": case.wanted,
        "largest_over_mean": statistics.median(bounds),  # of squared standard errors: no rule gains more
        "quantiles": np.quantile(settled, [0, 0.25, 0.5, 0.75, 1]).tolist(),
    }


# -------------------------------------------------------------------------------------- coverage


def covered_cases(images: int) -> Iterator[tuple[Case, Array]]:
    """Cases and their true means."""
    for name, make in TREACHEROUS.items():
        model, x = make().eval(), inputs()
        truth = np.stack([exact_moments(model, x[row : row + 1])[0] for row in range(len(x))])
        yield Case(f"treacherous: {name}", model, x, 0.02), truth
    model, x = digits()
    x = x[:: len(x) // images][:images]
    yield from _with_truth(Case("digits, softmax", model, x, 0.01, options={"transform": "softmax"}))
    model, x = regressor("diabetes")
    yield from _with_truth(Case("diabetes", model, x[:: len(x) // images][:images], 0.01))


def _with_truth(case: Case) -> Iterator[tuple[Case, Array]]:
    reference = md.estimate(case.model, case.x, budget=400_000, method="stratified", seed=10**6, **case.options)
    yield case, reference.mean


def coverage(case: Case, truth: Array, method: str, runs: int) -> dict[str, Any]:
    """How often intervals hold the truth, input by input."""
    holds, kept, cost, met = np.zeros(truth.shape), np.zeros(truth.shape), 0.0, 0.0
    for seed in range(1, runs + 1):
        result = case.estimate(method=method, seed=seed)
        error = np.abs(result.mean - truth)
        holds += error <= 1.959964 * result.mean_stderr
        kept += error <= 1.959964 * case.tolerance
        cost += result.cost / runs
        met += (result.status is md.Status.TOLERANCE_MET) / runs
    inputs_covered, promise = (each.mean(axis=1) / runs for each in (holds, kept))
    chance = 3 * np.sqrt(LEAST_COVERAGE * (1 - LEAST_COVERAGE) / runs)
    return {
        "case": case.name,
        "method": method,
        "tolerance": case.tolerance,
        "runs": runs,
        "cost": cost,
        "met": met,
        "median": float(np.median(inputs_covered)),
        "lowest": float(inputs_covered.min()),
        "share": float(np.mean(inputs_covered >= LEAST_COVERAGE - chance)),
        "share_strict": float(np.mean(inputs_covered >= LEAST_COVERAGE)),
        "within_tolerance_lowest": float(promise.min()),
    }


@contextlib.contextmanager
def _naive_plain() -> Iterator[None]:
    with plain_errors(), naive_rule():
        yield


RULES = {"ours, plain errors": plain_errors, "naive": naive_rule, "naive, plain errors": _naive_plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--trained-runs", type=int, default=200)
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--methods", nargs="*", default=["pooled", "auto"])
    parser.add_argument("--part", choices=("gain", "coverage", "both"), default="both")
    options = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {"gain": [], "coverage": []}
    if options.part != "coverage":
        for case in cases():
            for method in options.methods:
                rows["gain"].append(gain(case, method, options.repeats))
                print(rows["gain"][-1], flush=True)
    if options.part != "gain":
        for case, truth in covered_cases(options.images):
            trained = not case.name.startswith("treacherous")
            runs = options.trained_runs if trained else options.runs
            for method in options.methods:
                share = runs if method == "pooled" else max(runs // 2, 1)
                rows["coverage"].append({"rule": "ours", **coverage(case, truth, method, share)})
                print(rows["coverage"][-1], flush=True)
            for name, rule in RULES.items():
                with rule():
                    found = coverage(case, truth, "pooled", max(runs // 10, 50))
                rows["coverage"].append({"rule": name, **found})
                print(rows["coverage"][-1], flush=True)
    if options.part == "both":
        print("written to", common.save("effort", rows, runs=options.runs, images=options.images).name)


if __name__ == "__main__":
    main()
