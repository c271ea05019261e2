"""How an estimate scales: workers, merging, bytes per task, and cost against inputs, outputs and passes.

    python benchmarks/scaling.py [--no-doc]

One thread per process throughout. Contestants take turns in one run, and medians are compared. Raw numbers go to
benchmarks/results/scaling.json, and the tables of docs/scaling.md are rewritten from them.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from common import mlp, save, seconds, table, write_into

import mlmc_dropout as md
from mlmc_dropout.methods.registry import make_method
from mlmc_dropout.methods.states import merge_states
from mlmc_dropout.runtime.run import Run
from mlmc_dropout.runtime.worker import Item, Reply
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal

ROUNDS = 3
WIDTH = 128


def network(outputs: int = 1) -> torch.nn.Module:
    """Three hidden layers of 128, dropout 0.1 after each."""
    return mlp(4, (WIDTH,) * 3, outputs, 0.1, "gelu")


def timed(rows: int, outputs: int, passes: int, executor: Any = None) -> float:
    """Seconds of one estimate."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 4, generator=generator)
    model = network(outputs)
    return seconds(lambda: md.estimate(model, x, method="pooled", budget=passes, executor=executor))


def speedup(rows: int = 400, passes: int = 6400) -> dict[str, float]:
    """Median seconds of the same work by this process, by one worker and by two, in turns; pools are warm."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["mlmc_dropout.runtime.worker", "torch._dynamo"])
    times: dict[str, list[float]] = {"this process": [], "1 worker": [], "2 workers": []}
    with ProcessPoolExecutor(1, context) as one, ProcessPoolExecutor(2, context) as two:
        crews = {"this process": None, "1 worker": one, "2 workers": two}
        for executor in crews.values():
            timed(rows, 1, 2048, executor)
        for _ in range(ROUNDS):
            for name, executor in crews.items():
                times[name].append(timed(rows, 1, passes, executor))
    return {name: statistics.median(values) for name, values in times.items()}


def growth(name: str, values: tuple[int, ...]) -> list[dict[str, float]]:
    """Seconds against one of inputs, outputs and passes, the others held."""
    base = {"inputs": 200, "outputs": 1, "passes": 1280}
    rows = []
    timed(*base.values())
    for value in values:
        sizes = {**base, name: value}
        rows.append({"value": value, "seconds": statistics.median(timed(*sizes.values()) for _ in range(ROUNDS))})
    return rows


def slope(rows: list[dict[str, float]]) -> float:
    """Exponent of a power law fitted to (value, seconds)."""
    return float(np.polyfit([math.log(r["value"]) for r in rows], [math.log(r["seconds"]) for r in rows], 1)[0])


def straightness(rows: list[dict[str, float]]) -> float:
    """R² of a straight line through (value, seconds)."""
    return float(np.corrcoef([r["value"] for r in rows], [r["seconds"] for r in rows])[0, 1] ** 2)


def _run(settings: dict[str, Any], rows: int) -> Run:
    sampler = md.DropoutSampler(network())
    batch = next(sampler.batches(torch.randn(rows, 4)))
    source = Source(sampler, sampler.prepare(batch), batch, 0)
    goal = Goal(budget=1000)
    return Run(0, source, make_method(**settings).choose(source, goal), goal)


def traffic(settings: dict[str, Any], rows: int = 1000) -> dict[str, float]:
    """Bytes of a task's name and of its answer, and the driver's seconds to unpickle and merge an answer."""
    run = _run(settings, rows)
    _, tasks = run.take(2)
    item = Item("0" * 32, 0, 0, 0, None, run.method, tasks[:1], ("a host", os.getpid()))
    states = [run.bound.run(run.source, task) for task in tasks]
    answer = pickle.dumps(Reply((states[1],)))
    took = []
    for _ in range(20):
        start = time.perf_counter()
        merge_states(states[0], pickle.loads(answer).states[0])
        took.append(time.perf_counter() - start)
    return {
        "name bytes": len(pickle.dumps(item)),
        "answer bytes per component": len(answer) / rows,
        "driver ns per component": statistics.median(took) / rows * 1e9,
    }


METHODS: dict[str, dict[str, Any]] = {
    "pooled": {"name": "pooled"},
    "mlmc, 3 levels": {"name": "mlmc", "ladder": (4, 8, 16)},
    "stratified": {"name": "stratified"},
    "control-variate": {"name": "control-variate"},
}


def worked(per_pass: float, moved: dict[str, float], inputs: float = 1e9, passes: float = 1024, workers: float = 1000):
    """The cost model at 10⁹ inputs with one output on 1000 workers."""
    tasks = passes / 128
    components = inputs * tasks  # answers, counted in components
    return {
        "workers' hours": inputs * passes * per_pass / workers / 3600,
        "driver's hours": components * moved["driver ns per component"] * 1e-9 / 3600,
        "GB received by the driver": components * moved["answer bytes per component"] / 1e9,
        "GB of checkpoints": inputs * moved["answer bytes per component"] / 1e9,
        "workers one driver can serve": per_pass * 128 / (moved["driver ns per component"] * 1e-9),
    }


def main(document: bool) -> None:
    """Measure, print, save, and rewrite the page."""
    torch.set_num_threads(1)
    crews = speedup()
    lines = {
        "inputs": growth("inputs", (200, 400, 800, 1600)),
        "outputs": growth("outputs", (1, 8, 64, 512)),
        "passes": growth("passes", (1280, 2560, 5120, 10_240)),
    }
    moved = {name: traffic(settings) for name, settings in METHODS.items()}
    longest = lines["passes"]
    per_pass = (longest[-1]["seconds"] - longest[0]["seconds"]) / (longest[-1]["value"] - longest[0]["value"]) / 200
    predicted = {
        r["value"]: longest[0]["seconds"] + per_pass * 200 * (r["value"] - longest[0]["value"]) for r in longest
    }
    example = worked(per_pass, moved["pooled"])
    rows = {
        "crews": crews,
        "growth": lines,
        "traffic": moved,
        "seconds per pass and input": per_pass,
        "worked": example,
    }
    save("scaling", rows, rounds=ROUNDS, hidden=[WIDTH] * 3)
    tables = {
        "workers": table(
            ("who", "seconds", "speed against one worker"), [(n, s, crews["1 worker"] / s) for n, s in crews.items()]
        ),
        "growth": table(
            ("grows with", *("",) * 4, "exponent", "R² of a straight line"),
            [
                (n, *(f"{r['value']}: {r['seconds']:.2f} s" for r in found), slope(found), straightness(found))
                for n, found in lines.items()
            ],
        ),
        "traffic": table(
            ("method", "bytes of a task's name", "bytes of its answer, per component", "driver's ns per component"),
            [(name, *found.values()) for name, found in moved.items()],
        ),
        "model": table(
            ("passes", "predicted s", "measured s"),
            [(r["value"], predicted[r["value"]], r["seconds"]) for r in longest],
        ),
        "worked": table(("10⁹ inputs, 1024 passes, 1000 workers", ""), list(example.items())),
    }
    for name, text in tables.items():
        print(f"\n{name}\n{text}")
        if document:
            write_into("scaling.md", name, text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-doc", action="store_true", help="leave docs/scaling.md as it is")
    main(document=not parser.parse_args().no_doc)
