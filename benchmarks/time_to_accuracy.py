"""Seconds to a given standard error of the mean, everybody in one run: the forward PINN, and two digits classifiers.

The plain loop is what users write today: ``train()``, one pass after the other, until the largest
standard error over all inputs is below the tolerance. The other contestants get the same tolerance; all inputs get the
same passes, as in the loop, except with adaptive effort, where inputs stop one by one.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import common
import numpy as np
import torch
from classifiers import cases as classifiers
from torch import Tensor, nn

import mlmc_dropout as md
from mlmc_dropout import pinn
from testing.outside.vision import declare_operators

INPUTS = 200
PEERS = ("baal", "torch_uncertainty")
ONCE = ("plain loop", "pooled", "paper's estimator", *PEERS)  # they take long


def loop(model: nn.Module, x: Tensor, tolerance: float, softmax: bool = False) -> int:
    """Pass after pass, looking at the standard error every 500 passes; returns the passes spent."""
    model.train()
    total, squares, count = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64), 0
    with torch.no_grad():
        while True:
            for _ in range(500):
                out = (model(x).softmax(dim=-1) if softmax else model(x)).double()
                total, squares, count = total + out, squares + out * out, count + 1
            variance = (squares - total * total / count) / (count - 1)
            if math.sqrt(float(variance.max()) / count) <= tolerance:
                model.eval()
                return count


def ours(
    method: str, masks: str = "independent", effort: str = "equal", **settings: Any
) -> Callable[[nn.Module, Tensor, float], float]:
    """``estimate`` to the tolerance."""

    def run(model: nn.Module, x: Tensor, tolerance: float) -> float:
        result = md.estimate(
            model, x, method=method, tolerance=tolerance, masks=masks, effort=effort, seed=1, **settings
        )
        assert float(result.mean_stderr.max()) <= tolerance
        return result.cost

    return run


def baal(model: nn.Module, x: Tensor, tolerance: float) -> int:
    """Baal's wrapper, its iterations replicated in memory, 1000 passes a call."""
    from baal.bayesian.dropout import MCDropoutModule
    from baal.modelwrapper import ModelWrapper, TrainingArgs

    settings = TrainingArgs(optimizer=None, batch_size=len(x), epoch=0, use_cuda=False, replicate_in_memory=True)
    wrapped = ModelWrapper(MCDropoutModule(model), settings)
    return _in_thousands(lambda: wrapped.predict_on_batch(x, iterations=1000), x, tolerance)


def torch_uncertainty(model: nn.Module, x: Tensor, tolerance: float) -> int:
    """torch-uncertainty's wrapper with batched estimators, 1000 passes a call."""
    from torch_uncertainty.methods import mc_dropout

    wrapped = mc_dropout(model, num_estimators=1000, on_batch=True).eval()
    with torch.no_grad():
        return _in_thousands(lambda: wrapped(x).reshape(1000, len(x)).T, x, tolerance)


def _in_thousands(call: Callable[[], Any], x: Tensor, tolerance: float) -> int:
    samples: list[np.ndarray] = []
    while True:
        samples.append(np.asarray(call()).reshape(len(x), -1))
        joined = np.concatenate(samples, axis=1)
        if math.sqrt(joined.var(axis=1, ddof=1).max() / joined.shape[1]) <= tolerance:
            return joined.shape[1]


def contestants() -> dict[str, Callable[[nn.Module, Tensor, float], float]]:
    """The plain loop first; peers only where they are installed."""
    entries: dict[str, Callable[[nn.Module, Tensor, float], float]] = {
        "plain loop": loop,
        "pooled": ours("pooled"),
        "paper's estimator": ours("mlmc"),
        "stratified": ours("stratified"),
        "auto": ours("auto"),
        "auto, shared masks": ours("auto", "shared"),
        "auto, adaptive effort": ours("auto", effort="adaptive"),
        "auto, shared masks, adaptive effort": ours("auto", "shared", "adaptive"),
    }
    for name, function in (("baal", baal), ("torch_uncertainty", torch_uncertainty)):
        if importlib.util.find_spec(name) is not None:
            entries[name] = function
        else:
            print(f"{name} is not installed: left out")
    return entries


def race(
    entries: dict[str, Callable[[nn.Module, Tensor, float], float]],
    model: nn.Module,
    x: Tensor,
    tolerance: float,
    rounds: int,
) -> list[dict[str, Any]]:
    """Passes and seconds of everybody, the loop first."""
    rows: list[dict[str, Any]] = []
    for name, contestant in entries.items():
        spent: list[float] = []
        try:
            run = functools.partial(_spend, spent, contestant, model, x, tolerance)
            times = [common.seconds(run) for _ in range(1 if name in ONCE else rounds)]
        except Exception as error:  # a peer's interface may have changed; ours must not fail
            if name not in PEERS:
                raise
            print(f"{name} could not be run: {error!r}")
            continue
        rows.append({"method": name, "passes": spent[-1], "seconds": float(np.median(times)), "all_seconds": times})
    for row in rows:
        row["times_faster"] = rows[0]["seconds"] / row["seconds"]
    return rows


def _spend(
    spent: list[float],
    contestant: Callable[[nn.Module, Tensor, float], float],
    model: nn.Module,
    x: Tensor,
    tolerance: float,
) -> None:
    spent.append(contestant(model, x, tolerance))


def of_classifiers(passes: int, rounds: int) -> dict[str, Any]:
    """The same for probabilities of two classifiers, on 24 digits."""
    found: dict[str, Any] = {}
    for case in classifiers(""):
        if case.masks != "independent" or not case.name.startswith(("MLP", "transformer")):
            continue
        pilot = md.estimate(case.model, case.x, method="pooled", budget=1000, transform="softmax")
        tolerance = math.sqrt(float(pilot.variance.max()) / passes)
        entries = {
            "plain loop": functools.partial(loop, softmax=True),
            "pooled": ours("pooled", outputs="logits"),
            "auto": ours("auto", outputs="logits"),
            "auto, adaptive effort": ours("auto", effort="adaptive", outputs="logits"),
        }
        found[case.name] = race(entries, case.model, case.x, tolerance, rounds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=100_000, help="passes the plain loop needs for the tolerance")
    parser.add_argument("--of-classifiers", type=int, default=10_000, help="the same for the classifiers")
    parser.add_argument("--rounds", type=int, default=9, help="runs of the fast contestants; the median counts")
    options = parser.parse_args()
    declare_operators()  # peers import torchvision, which may be built for another torch
    model, x = pinn.pretrained("boundary-layer").model, torch.linspace(0, 1, INPUTS)[:, None]
    pilot = md.estimate(model, x, method="pooled", budget=2000)
    tolerance = math.sqrt(float(pilot.variance.max()) / options.passes)
    rows = race(contestants(), model, x, tolerance, options.rounds)
    columns = ("method", "passes", "seconds", "times_faster")
    print(f"standard error of the mean at every one of {INPUTS} inputs at most {tolerance:.3g}")
    text = common.table(columns, [[row[c] for c in columns] for row in rows])
    others = of_classifiers(options.of_classifiers, options.rounds)
    of_others = common.table(
        ("network", *columns), [[name, *(row[c] for c in columns)] for name, many in others.items() for row in many]
    )
    print(text, of_others, sep="\n\n")
    common.write_into("passes-saved.md", "time to accuracy", f"Tolerance {tolerance:.3g}.\n\n{text}\n\n{of_others}")
    saved = {"forward PINN": rows, **others}
    print("written to", common.save("time_to_accuracy", saved, tolerance=tolerance, inputs=INPUTS).name)


if __name__ == "__main__":
    main()
