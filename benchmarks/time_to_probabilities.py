"""Seconds until every probability of 797 digits has a standard error of 0.003, everybody in one run.

The plain loop is what users write today: pass after pass, until the largest standard error over all images and classes
is below the tolerance (``time_to_accuracy.loop``). The others are ``estimate`` with the same tolerance: inputs stop one
by one. Of each setting the first call is timed, which finds out all about the model, and then further ones, of which
the median is given. The limit is what plain passes would take if their matrix products were all, at the speed of one
large product, and every image had the passes that its variance asks for, which nobody knows beforehand.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import common
import torch
from effort import digits
from time_to_accuracy import loop
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import mlmc_dropout as md

TOLERANCE = 0.003
MOMENTS: dict[str, Any] = {"outputs": "logits", "quantities": ("mean", "variance")}
SETTINGS: dict[str, dict[str, Any]] = {
    "control-variate, mean and variance only, shared masks": {
        **MOMENTS,
        "masks": "shared",
        "method": "control-variate",
    },
    "pooled, mean and variance only, shared masks": {**MOMENTS, "masks": "shared", "method": "pooled"},
    "auto, mean and variance only": MOMENTS,
    "auto, all quantities of classes": {"outputs": "logits"},
}


def ours(settings: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Seconds and passes of ``estimate``."""
    model, x = digits()  # anew: nothing is known of it
    results: list[md.Result] = []
    times = [
        common.seconds(
            lambda: results.append(md.estimate(model, x, tolerance=TOLERANCE, seed=len(results), **settings))
        )
        for _ in range(1 + rounds)
    ]
    assert all(result.status is md.Status.TOLERANCE_MET for result in results)
    return {
        "passes": statistics.median(result.cost for result in results),
        "seconds": statistics.median(times[1:]),
        "first_call": times[0],
        "all_seconds": times,
    }


def limit(model: nn.Sequential, x: Tensor) -> dict[str, Any]:
    """Passes that known variances ask for, and seconds of their matrix products after the first dropout."""
    known = md.estimate(model, x, method="pooled", budget=4000, outputs="logits", quantities=("mean", "variance"))
    passes = float(known.variance.max(axis=1).mean()) / TOLERANCE**2
    first = next(place for place, layer in enumerate(model) if isinstance(layer, nn.Dropout))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model[first:](model[:first](x))
        whole = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model[:first](x)
    operations = (whole - counter.get_total_flops()) * passes
    seconds = operations / common.product_speed(50)
    return {"setting": "limit of plain passes", "passes": passes, "seconds": seconds, "first_call": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    model, x = digits()
    rows: list[dict[str, Any]] = []
    rows.append({"setting": "plain loop"})
    spent: list[int] = []
    rows[0]["seconds"] = common.seconds(
        lambda: spent.append(loop(nn.Sequential(model, nn.Softmax(dim=1)), x, TOLERANCE))
    )
    rows[0] |= {"passes": spent[0], "first_call": rows[0]["seconds"]}
    print(rows[0], flush=True)
    for name, settings in SETTINGS.items():
        rows.append({"setting": name, **ours(settings, options.rounds)})
        print(rows[-1], flush=True)
    rows.append(limit(model, x))
    for row in rows:
        row["times_faster"] = rows[0]["seconds"] / row["seconds"]
        row["first_call_times_faster"] = rows[0]["seconds"] / row["first_call"]
    columns = ("setting", "passes", "seconds", "times_faster", "first_call_times_faster")
    text = common.table(columns, [[row[c] for c in columns] for row in rows])
    print(text)
    common.write_into("concepts/stopping.md", "time to probabilities", text)
    common.save("time_to_probabilities", rows, tolerance=TOLERANCE, images=len(x))


if __name__ == "__main__":
    main()
