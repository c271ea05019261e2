"""Time per training epoch: nested autograd, one pass at a time, against this library. Same machine, same run.

    python benchmarks/training.py [--rounds 10] [--threads 2] [--out benchmarks/results/training.json]

The reference is the one the tests compare with (``tests/pinn/reference.py``), with torch's own dropout: five passes
in a loop, two nested gradients each, then Adam; the inverse problem adds twenty lag passes every 50 epochs. Ours is
the training loop as users run it, masks included, compiled and not. The contestants take turns, a block of 50 epochs
(one multiplier update) each, so that a busy machine slows all of them alike; medians over the rounds are compared.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from mlmc_dropout.pinn import BoundaryLayer, Config, SourceInference
from mlmc_dropout.pinn.draws import TRAINING
from mlmc_dropout.pinn.training import evaluator, new_drawer, new_state, step
from testing import pinn_reference as reference

EPOCHS = 50
TARGETS = {"boundary-layer": 4.0, "source-inference": 3.0}


def plain(config: Config) -> Callable[[], None]:
    """A block of epochs of the reference."""
    state = new_state(config)
    model, multiplier = state.model.train(), state.multiplier
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.linspace(0.0, 1.0, config.points)[:, None]

    def loss(passes: int) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(config.equation, BoundaryLayer):
            return reference.boundary_layer(model, x, multiplier, passes)
        return reference.source_inference(model, x, multiplier, torch.rand(passes, config.points))

    def block() -> None:
        nonlocal multiplier
        for epoch in range(EPOCHS):
            optimizer.zero_grad()
            total, constraint = loss(config.repeats)
            if epoch % config.uzawa.every == 0:
                constraint = loss(config.uzawa.lag_passes)[1] if config.uzawa.lag_passes else constraint
                multiplier = multiplier + config.uzawa.rho * constraint
            total.backward()
            optimizer.step()
            total.item()

    return block


def ours(config: Config, compiled: bool) -> Callable[[], None]:
    """A block of epochs of the library's loop."""
    state = new_state(config)
    drawer, evaluate = new_drawer(config, state.model), evaluator(config, state.model)
    if compiled:
        evaluate = torch.compile(evaluate, dynamic=False)

    def block() -> None:
        for first in range(state.epoch, state.epoch + EPOCHS, 10):
            for draw in drawer.block(TRAINING, first, 10, config.repeats):
                step(config, state, evaluate, drawer, draw)

    return block


def measure(config: Config, rounds: int) -> dict[str, list[float]]:
    """Milliseconds per epoch of every contestant in every round, after a round that is not counted."""
    contestants = {"reference": plain(config), "eager": ours(config, False), "compiled": ours(config, True)}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, block in contestants.items():
            start = time.perf_counter()
            block()
            if turn:
                times[name].append((time.perf_counter() - start) / EPOCHS * 1e3)
    return times


def report(name: str, times: dict[str, list[float]]) -> dict[str, float]:
    medians = {contestant: statistics.median(series) for contestant, series in times.items()}
    print(f"\n{name}: milliseconds per epoch, median of {len(times['reference'])} rounds")
    for contestant, median in medians.items():
        spread = f"{min(times[contestant]):.1f} to {max(times[contestant]):.1f}"
        print(f"  {contestant:10s} {median:8.2f}  ({spread})   {medians['reference'] / median:5.2f}x")
    reached = medians["reference"] / medians["compiled"]
    print(f"  target: {TARGETS[name]}x, {'reached' if reached >= TARGETS[name] else 'MISSED'}")
    return medians


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "training.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {}
    for problem in (BoundaryLayer, SourceInference):
        times = measure(replace(problem.profile("paper"), compile=False), options.rounds)
        medians = report(problem.name, times)
        results[problem.name] = {"ms_per_epoch": times, "median": medians, "target": TARGETS[problem.name]}
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    document = {"threads": options.threads, "epochs_per_round": EPOCHS, "versions": versions, "problems": results}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    ratios = {name: r["median"]["reference"] / r["median"]["compiled"] for name, r in results.items()}
    return 0 if all(ratios[name] >= TARGETS[name] for name in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
