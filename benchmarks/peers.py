"""The same network, inputs and passes for a plain loop, baal, torch-uncertainty and us: who is how far off?

Everybody estimates the mean of the shipped forward PINN at 200 inputs from the same number of passes, many times with
other random numbers; the error is the root mean square distance from a reference with far more passes, in units of the
spread of a pass. Contestants take turns, so that a busy machine is busy for all. Peers have to be installed.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path

import common
import numpy as np
import torch
from torch import Tensor, nn

import mlmc_dropout as md
from mlmc_dropout import pinn
from testing.outside.vision import declare_operators

INPUTS = 200
REFERENCE = 200_000  # passes of plain averaging that the reference is worth, at least
Contestant = Callable[[int], np.ndarray]  # from a seed to means, (inputs,)


def loop(model: nn.Module, x: Tensor, passes: int) -> Contestant:
    """What everybody writes."""
    model = copy.deepcopy(model).train()

    def run(seed: int) -> np.ndarray:
        torch.manual_seed(seed)
        with torch.no_grad():
            return torch.stack([model(x) for _ in range(passes)]).mean(dim=0).flatten().double().numpy()

    return run


def baal(model: nn.Module, x: Tensor, passes: int) -> Contestant:
    """Baal's wrapper, its iterations replicated in memory."""
    from baal.bayesian.dropout import MCDropoutModule
    from baal.modelwrapper import ModelWrapper, TrainingArgs

    settings = TrainingArgs(optimizer=None, batch_size=len(x), epoch=0, use_cuda=False, replicate_in_memory=True)
    wrapped = ModelWrapper(MCDropoutModule(copy.deepcopy(model)), settings)

    def run(seed: int) -> np.ndarray:
        torch.manual_seed(seed)
        drawn = wrapped.predict_on_batch(x, iterations=passes)
        return np.asarray(drawn).reshape(len(x), -1, passes).mean(axis=(1, 2), dtype=np.float64)

    return run


def torch_uncertainty(model: nn.Module, x: Tensor, passes: int) -> Contestant:
    """torch-uncertainty's wrapper with batched estimators."""
    from torch_uncertainty.methods import mc_dropout

    wrapped = mc_dropout(copy.deepcopy(model), num_estimators=passes, on_batch=True).eval()

    def run(seed: int) -> np.ndarray:
        torch.manual_seed(seed)
        with torch.no_grad():
            return wrapped(x).reshape(passes, len(x)).double().mean(dim=0).numpy()

    return run


def ours(model: nn.Module, x: Tensor, passes: int, **options: str) -> Contestant:
    """``estimate`` with a budget."""
    return lambda seed: md.estimate(model, x, budget=passes, seed=seed, **options).mean[:, 0]  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    declare_operators()  # both peers import torchvision, which may be built for another torch
    model, x = pinn.pretrained("boundary-layer").model.eval(), torch.linspace(0, 1, INPUTS)[:, None]
    reference = md.estimate(model, x, method="control-variate", budget=REFERENCE // 10, seed=987654321)
    spread = float(np.sqrt(reference.variance.mean()))
    contestants = {
        "plain loop": loop(model, x, options.passes),
        "baal": baal(model, x, options.passes),
        "torch-uncertainty": torch_uncertainty(model, x, options.passes),
        "mlmc-dropout, pooled": ours(model, x, options.passes, method="pooled"),
        "mlmc-dropout, auto": ours(model, x, options.passes),
    }
    errors: dict[str, list[float]] = {name: [] for name in contestants}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for seed in range(options.rounds + 1):
        for name, run in contestants.items():
            found: list[np.ndarray] = []
            taken = common.seconds(lambda: found.append(run(seed)))  # noqa: B023
            if seed:  # the first round warms up
                errors[name].append(float(np.square((found[0] - reference.mean[:, 0]) / spread).mean()))
                times[name].append(taken)
    slow = float(np.median(times["plain loop"]))
    rows = [
        {
            "library": name,
            "error of the mean": f"{100 * np.sqrt(np.mean(errors[name])):.2g} %",
            "time": f"{np.median(times[name]) / slow:.2g}",
            "states the error": "yes" if name.startswith("mlmc") else "no",
            "squared_errors": errors[name],
            "seconds": times[name],
        }
        for name in contestants
    ]
    columns = ("library", "error of the mean", "time", "states the error")
    text = common.table(columns, [[row[c] for c in columns] for row in rows])
    print(text)
    settings = {"passes": options.passes, "rounds": options.rounds, "inputs": INPUTS, "spread": spread}
    settings["reference stderr"] = float(reference.mean_stderr.max()) / spread
    common.save("peers", rows, **settings)
    common.write_into(str(Path("..", "README.md")), "peers", f"{text}\n")


if __name__ == "__main__":
    main()
