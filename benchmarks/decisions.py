"""Decisions on digits: how often they are wrong, and what they cost beside the same passes for everybody.

    python benchmarks/decisions.py [--runs 2000] [--quick]

A classifier is trained on the first thousand digits. Error rates come from many independent runs of some images, the
most uncertain among them: copies of an image in one call, which have masks of their own. The truth is a run of many
passes; images that it cannot call to four standard errors are left out. What decisions cost is measured on all 797
images of the test set: equal effort is what the last decision that is settled took, for everybody.

Raw numbers go to benchmarks/results/decisions.json, tables to docs/concepts/decisions.md.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import common
import numpy as np
import torch
from effort import digits
from numpy.typing import NDArray
from torch import Tensor, nn

import mlmc_dropout as md

Array = NDArray[np.float64]

CONFIDENCE = 0.99
CAP = 10_000
REFERENCE = 40_000
IMAGES = 30
POOL, CHOSEN, POOL_BUDGET = 24, 5, 300


def most_uncertain(model: nn.Module, x: Tensor, count: int) -> Tensor:
    """The half of ``count`` with the largest entropies, and others spread over the rest."""
    result = md.estimate(model, x, outputs="logits", quantities=("entropy",), budget=100, method="pooled")
    order = np.argsort(-result["entropy"].value)
    half = count // 2
    return x[np.concatenate([order[:half], order[half :: len(order) // half][:half]])]


def error_rates(model: nn.Module, x: Tensor, runs: int) -> list[dict[str, Any]]:
    """Labels and thresholds of single images, many times each."""
    truth = md.estimate(model, x, outputs="logits", budget=REFERENCE, method="pooled", seed=1)
    top = np.sort(truth.mean, axis=1)[:, ::-1]
    known = top[:, 0] - top[:, 1] > 4 * truth.mean_stderr.max(axis=1)
    rows = []
    for name, decision in (("label", "label"), ("above 0.5", md.Above(0.5))):
        wrong, settled, passes = [], [], []
        for image, row in enumerate(x):
            if not known[image]:
                continue
            copies = row[None].repeat(runs, 1)
            found = md.estimate(
                model, copies, outputs="logits", quantities=("mean",), decision=decision, confidence=CONFIDENCE,
                budget=500, seed=2,
            )  # fmt: skip
            right = truth["label"].value[image] if decision == "label" else truth.mean[image] > 0.5
            bad = found["decision"].settled & (found["decision"].value != right)
            wrong.append(float(bad.reshape(runs, -1).any(axis=1).mean()))
            settled.append(float(found["decision"].settled.reshape(runs, -1).all(axis=1).mean()))
            passes.append(found.cost)
        rows.append({"decision": name, "images": len(wrong), "runs": runs, "worst": max(wrong),
                     "mean": float(np.mean(wrong)), "settled": float(np.mean(settled)),
                     "passes": float(np.mean(passes))})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def pool_errors(model: nn.Module, x: Tensor, runs: int) -> dict[str, Any]:
    """The k largest of a small pool, many times."""
    truth = md.estimate(model, x, outputs="logits", quantities=("mutual_information",), budget=REFERENCE, seed=1)
    value, stderr = truth["mutual_information"].value, truth["mutual_information"].stderr
    order = np.argsort(-value)
    edge = value[order[CHOSEN - 1 : CHOSEN + 1]].mean()
    known = np.abs(value - edge) > 4 * stderr
    inside = np.isin(np.arange(len(x)), order[:CHOSEN])
    wrong, settled, passes = [], [], []
    for seed in range(runs):
        found = md.estimate(
            model, x, outputs="logits", quantities=("mean",), decision=md.TopK(CHOSEN), confidence=CONFIDENCE,
            budget=POOL_BUDGET, seed=seed + 2,
        )  # fmt: skip
        wrong.append((found["decision"].settled & (found["decision"].value != inside))[known])
        settled.append(float(found["decision"].settled.mean()))
        passes.append(found.cost)
    row = {"decision": f"top {CHOSEN} of {len(x)}", "images": int(known.sum()), "runs": runs,
           "worst": float(np.mean(wrong, axis=0).max()), "mean": float(np.mean(wrong)),
           "settled": float(np.mean(settled)), "passes": float(np.mean(passes))}  # fmt: skip
    print(row, flush=True)
    return row


def costs(model: nn.Module, x: Tensor) -> list[dict[str, Any]]:
    """Passes on the whole test set, and what equal effort would take for as many settled decisions."""
    rows = []
    for name, decision, cap in (("label", "label", CAP), ("top 50 by mutual information", md.TopK(50), 4000)):
        result = md.estimate(model, x, outputs="logits", decision=decision, confidence=CONFIDENCE, budget=cap)
        settled = result["decision"].settled
        equal = float(result.passes[settled].max())
        rows.append({"decision": name, "settled": int(settled.sum()), "inputs": len(x), "passes": result.cost,
                     "median": float(np.median(result.passes)),
                     "within 16": float((result.passes <= 16).mean()), "equal": equal,
                     "ratio": equal / result.cost})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def document(rates: list[dict[str, Any]], spent: list[dict[str, Any]]) -> None:
    """Both tables."""
    head = ("decision", "images", "runs", "wrong, mean", "wrong, worst image", "settled", "passes")
    cells = [
        (r["decision"], r["images"], r["runs"], f"{100 * r['mean']:.2g} %",
         f"{100 * r['worst']:.2g} %", f"{100 * r['settled']:.0f} %", f"{r['passes']:.0f}")
        for r in rates
    ]  # fmt: skip
    common.write_into("concepts/decisions.md", "errors", common.table(head, cells))
    head = ("decision", "settled", "passes, mean", "median", "equal effort", "times fewer")
    cells = [
        (r["decision"], f"{r['settled']} of {r['inputs']}", f"{r['passes']:.0f}", f"{r['median']:.0f}",
         f"{r['equal']:.0f}", f"{r['ratio']:.1f}")
        for r in spent
    ]  # fmt: skip
    common.write_into("concepts/decisions.md", "costs", common.table(head, cells))


def main() -> None:
    """Measure, save, write the page, and fail if a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="few runs, no files")
    parser.add_argument("--pool", action="store_true", help="the small pool only; other rows stay as they were")
    options = parser.parse_args()
    runs = 100 if options.quick else options.runs
    torch.set_num_threads(1)
    model, x = digits()
    if options.pool:
        rows = json.loads((common.RESULTS / "decisions.json").read_text())["rows"]
        spent, rates = rows["costs"], rows["errors"][:-1]
    else:
        spent = costs(model, x)
        rates = error_rates(model, most_uncertain(model, x, 6 if options.quick else IMAGES), runs)
    rates.append(pool_errors(model, most_uncertain(model, x, POOL), 5 if options.quick else runs))
    if not options.quick:
        common.save("decisions", {"errors": rates, "costs": spent}, confidence=CONFIDENCE, cap=CAP)
        document(rates, spent)
    for rate in rates:
        assert rate["mean"] <= 1 - CONFIDENCE, rate
        assert not rate["worst"] > 1 - CONFIDENCE + 3 * (CONFIDENCE * (1 - CONFIDENCE) / runs) ** 0.5, rate
    assert spent[0]["ratio"] >= 10 and spent[1]["ratio"] >= 5, spent
    print("all as promised")


if __name__ == "__main__":
    main()
