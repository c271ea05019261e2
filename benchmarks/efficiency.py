"""How many passes a method saves: variance of plain Monte Carlo over variance of ours, at equal total cost.

Every run is a whole one, with a seed of its own, on the inputs as they are: the variance of an estimator is
seen directly and not taken from its own standard errors. All methods get the same budget; gradients and pilots are paid
from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import common
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor, nn

from mlmc_dropout import Ladder, pinn
from mlmc_dropout.methods.auto import Auto
from mlmc_dropout.methods.base import MethodSpec
from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.methods.mlmc.estimator import MLMC
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.sampling.sampler import DropoutSampler
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal
from testing.oracles import run_method

BUDGET = 1000
METHODS: dict[str, MethodSpec] = {
    "pooled": Pooled(),
    "paper (nested levels)": MLMC(Ladder((4, 8, 16))),
    "paper (independent levels)": MLMC(Ladder((4, 8, 16)), "independent"),
    "stratified": Stratified(),
    "control-variate": ControlVariate(),
    "auto": Auto(),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A trained network and some inputs."""

    name: str
    model: nn.Module
    x: Tensor
    transform: Any = None


def regressors() -> Iterator[Case]:
    """Six regressors on data that comes with scikit-learn."""
    x, y = load_diabetes(return_X_y=True)
    cancer = load_breast_cancer()
    sets = {
        "diabetes": (common.standardised(x), common.standardised(y[:, None])),
        "breast cancer": (common.standardised(cancer.data[:, 1:]), common.standardised(cancer.data[:, :1])),
    }
    for data, widths, activation, p in (
        ("diabetes", (64, 64), "relu", 0.1),
        ("diabetes", (128, 128, 128), "relu", 0.25),
        ("breast cancer", (256, 256), "relu", 0.5),
        ("breast cancer", (128, 128, 128), "gelu", 0.1),
        ("diabetes", (64, 64, 64), "tanh", 0.2),
        ("breast cancer", (256, 256, 256), "tanh", 0.05),
    ):
        x, y = sets[data]
        model = common.mlp(x.shape[1], widths, 1, p, activation)
        name = f"{activation} {len(widths)}×{widths[0]}, p = {p}, {data}"
        yield Case(name, common.train(model, x, y, nn.functional.mse_loss, 600), x[::35][:12])


def cases() -> Iterator[Case]:
    """The two benchmarks of the paper, six regressors, and a classifier."""
    inside = torch.linspace(0, 1, 14)[1:-1, None]
    yield Case("forward PINN", pinn.pretrained("boundary-layer").model, inside)
    yield Case("inverse PINN", pinn.pretrained("source-inference").model, inside)
    yield from regressors()
    digits, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(digits / 16).float()
    model = common.mlp(64, (128, 128), 10, 0.3, "relu")
    common.train(model, x, torch.from_numpy(labels), nn.functional.cross_entropy, 600)
    yield Case("digits classifier, softmax", model, x[::150][:12], lambda out: out.softmax(-1))


def source(case: Case, x: Tensor, seed: int) -> Source:
    """Passes of the case's network on ``x``."""
    sampler = DropoutSampler(case.model, transform=case.transform)
    batch = next(sampler.batches(x))
    return Source(sampler, sampler.prepare(batch), batch, seed)


def study(case: Case, runs: int) -> Iterator[dict[str, Any]]:
    """Gains of every method on one case, per output leaf (medians over inputs and components)."""
    passes = source(case, case.x, 0)
    plain: list[np.ndarray] = []
    for label, method in METHODS.items():
        found = [run_method(method, replace(passes, seed=seed), BUDGET) for seed in range(runs)]
        ran = method.choose(passes, Goal(budget=BUDGET)).name
        variances = [np.var([getattr(one, m) for one in found], axis=0, ddof=1) for m in ("mean", "variance")]
        plain = plain or variances
        start = 0
        for leaf, shape in passes.program.structure.names():
            width = int(np.prod(shape))
            own = slice(start, start + width)
            start += width
            gains = [float(np.median(p[:, own] / v[:, own])) for p, v in zip(plain, variances, strict=True)]
            yield {
                "case": case.name + (f", {leaf}" if leaf else ""),
                "method": label,
                "ran": ran,
                "cost": max(one.cost for one in found),
                "gain_mean": gains[0],
                "gain_variance": gains[1],
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    rows = [row for case in cases() for row in study(case, runs)]
    columns = ("case", "method", "ran", "cost", "gain_mean", "gain_variance")
    text = common.table(columns, [[row[c] for c in columns] for row in rows if row["method"] != "pooled"])
    print(text)
    common.write_into("passes-saved.md", "efficiency", text)
    trained = [r for r in rows if r["method"] == "auto" and "×" in r["case"]]
    for gain in ("gain_mean", "gain_variance"):
        print(f"median over the six regressors, auto, {gain}: {np.median([r[gain] for r in trained]):.3g}")
    print("written to", common.save("efficiency", rows, budget=BUDGET, runs=runs).name)


if __name__ == "__main__":
    main()
