"""What averages over the 797 digits must cost: the fewest passes of any method that averages passes at all inputs.

Per input the variance of the bias-corrected entropy is measured for T passes in stratified designs of 1, 4, 16, 64
passes. Somebody who knew all these variances beforehand would give input i passes T_i in proportion to its standard
deviation s_i per pass (Neyman), and an accuracy ε would take

    T = (mean of s_i)² / (N ε²)    passes per input,

two designs at each input at least (the jackknife needs two). Bias is left out, and so is what it costs to find s_i: a
method may need more, none needs less. With equal passes at all inputs, mean of s_i² takes the place of (mean of s_i)².
The last row of the table is a bound that no design reaches: the spread of long designs, from two passes on.

Run: python benchmarks/nested_oracle.py [--replicates 128]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from common import load, save, table, write_into
from nested import ACCURACIES, digits, metrics_of

import mlmc_dropout as md
from mlmc_dropout.evaluation.data import DataSet
from mlmc_dropout.evaluation.features import FeatureMap
from mlmc_dropout.evaluation.metrics import select_metrics
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.source import Source

PASSES = 64  # per replicate: enough for the entropy to be nearly linear in the noise that is left
DESIGNS = (1, 4, 16, 64)
STREAM = 1 << 27  # no stream of the library


def spreads(design: int, replicates: int) -> tuple[np.ndarray, float]:
    """Standard deviations per pass of the jackknifed entropy, one per input, and its average over the inputs."""
    problem = digits(False)
    features = FeatureMap(problem.outputs, select_metrics(metrics_of(problem, "entropy"), problem.outputs, True))
    sampler = md.DropoutSampler(problem.model)
    _, batch, labels = next(iter(DataSet(sampler, problem.x, problem.y).batches()))
    program = sampler.prepare(batch)
    source = Source(sampler, program, batch, 0, 0)
    found = []
    for replicate in range(replicates):
        keys = pass_keys(0, STREAM + design, replicate, np.arange(PASSES // design))
        rows = {} if design == 1 else {"design_passes": design}
        out = sampler.run(program, batch, keys, source.row_numbers, **rows)
        made = features.features(out.double().cpu().numpy(), program.structure, labels)
        whole, first, second = (
            features.values({name: v[a:b].mean(axis=0, keepdims=True) for name, v in made.items()}, labels)[0]
            for a, b in ((0, PASSES), (0, PASSES // 2), (PASSES // 2, PASSES))
        )
        found.append(2.0 * whole[:, 0] - 0.5 * (first[:, 0] + second[:, 0]))
    values = np.array(found)
    return np.sqrt(PASSES * values.var(axis=0, ddof=1)), float(values.mean())


def fewest(spread: np.ndarray, error: float, least: float) -> float:
    """Passes per input with which the average has this standard error, T_i in proportion to the spread.

    Args:
        spread: Standard deviations per pass, one per input.
        error: The standard error.
        least: Passes that every input gets at least.
    """
    N = len(spread)
    low, high = 0.0, 1e12
    for _ in range(100):
        middle = 0.5 * (low + high)
        T = np.maximum(middle * spread, least)
        low, high = (middle, high) if np.sum(spread**2 / T) / N**2 > error**2 else (low, middle)
    return float(np.maximum(high * spread, least).mean())


def write_table(rows: list[dict[str, Any]]) -> None:
    """The table of the page on ladders."""
    measured = next(r for r in load("nested") if (r["problem"], r["metric"]) == ("digits", "entropy"))["opponents"][
        "at"
    ]
    jackknife = [line["jackknife"]["cost"] for line in measured]
    heads = ["passes", *(f"{accuracy:.1%}" for accuracy in ACCURACIES)]
    lines = [["jackknife, best T", *jackknife]]
    for row in rows:
        name = "independent" if row["design"] == 1 else f"designs of {row['design']}"
        lines.append([f"{name}, equal", *row["equal"]])
        lines.append([f"{name}, Neyman", *row["neyman"]])
    lines.append(["bound", *np.min([row["bound"] for row in rows], axis=0)])
    cells = [[line[0], *(f"{value:.3g}" for value in line[1:])] for line in lines]
    write_into("concepts/where-a-ladder-pays.md", "oracle", table(heads, cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=128)
    parser.add_argument("--tables", action="store_true", help="write the table of the page and stop")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for design in () if arguments.tables else DESIGNS:
        spread, value = spreads(design, arguments.replicates)
        spread = spread / value
        N = len(spread)
        neyman = [fewest(spread, accuracy, 2.0 * design) for accuracy in ACCURACIES]
        equal = [max(float(np.mean(spread**2)) / (N * accuracy**2), 2.0 * design) for accuracy in ACCURACIES]
        bound = [fewest(spread, accuracy, 2.0) for accuracy in ACCURACIES]
        rows.append({"design": design, "value": value, "equal": equal, "neyman": neyman, "bound": bound})
        print(rows[-1], flush=True)
    if rows:
        save("nested_oracle", rows, replicates=arguments.replicates, passes=PASSES, accuracies=ACCURACIES)
    write_table(rows or load("nested_oracle"))


if __name__ == "__main__":
    main()
