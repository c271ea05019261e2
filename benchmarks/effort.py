"""Effort per input: passes saved at a common tolerance.

Each case is run to a tolerance with equal and with adaptive effort, one after the other in one process; passes and
seconds are divided (medians over ``--repeats``). Rows of cases that are not run again are kept.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import common
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor, nn

import mlmc_dropout as md
from mlmc_dropout import pinn


@dataclass(frozen=True, slots=True)
class Case:
    """A network, inputs, and how it is estimated."""

    name: str
    model: Any
    x: Tensor
    tolerance: float
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
    yield Case("digits, softmax", model, x, 0.003, 0.001, {"outputs": "logits", "quantities": ("mean", "variance")})
    yield Case(
        "digits, softmax, tighter", model, x, 0.002, 0.0007, {"outputs": "logits", "quantities": ("mean", "variance")}
    )
    yield Case("breast cancer", *regressor("breast cancer"), 0.004, 0.0002)
    yield Case("diabetes", *regressor("diabetes"), 0.004, 0.001)
    network = pinn.pretrained("boundary-layer").model
    yield Case("forward PINN", network, torch.linspace(0, 1, 200)[:, None], 0.0001, 0.00001)


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
        "largest_over_mean": statistics.median(bounds),  # of squared standard errors: no rule gains more
        "quantiles": np.quantile(settled, [0, 0.25, 0.5, 0.75, 1]).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=["pooled", "auto"])
    parser.add_argument("--cases", nargs="*", default=None, help="beginnings of their names")
    options = parser.parse_args()
    rows = common.load("effort")
    for case in cases():
        if options.cases is None or case.name.startswith(tuple(options.cases)):
            for method in options.methods:
                found = gain(case, method, options.repeats)
                print(found, flush=True)
                kept = [row for row in rows if (row["case"], row["method"]) != (case.name, method)]
                rows = [*kept, found]
                common.save("effort", rows, repeats=options.repeats)
    columns = (
        "case",
        "method",
        "tolerance",
        "equal",
        "adaptive",
        "gain",
        "gain_seconds",
        "largest_over_mean",
    )
    text = common.table(columns, [[row[column] for column in columns] for row in rows])
    common.write_into("concepts/stopping.md", "effort gains", text)


if __name__ == "__main__":
    main()
