"""Classifiers: variance of plain averaging over ours at equal total cost, for everything that is asked of classes.

Networks are trained here, on the digits that come with scikit-learn. Of 24 inputs 12 are the most uncertain; entropies
and mutual information are judged on those. Our estimators are run several times with seeds of their own, and their
variances seen directly; those of plain averaging follow from a long run of passes, by the delta method where a quantity
is no mean. Derivatives, pilots and samples of the coarse level are paid from the budget, by their operations. The gain
in time compares processor seconds of whole runs. `auto` takes the coarse level only where it pays in time, too.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import common
import numpy as np
import torch
from scipy.special import entr
from sklearn.datasets import load_digits
from torch import Tensor, nn

import mlmc_dropout as md
from testing.zoo import ZOO

BUDGET = 1000
INPUTS = 24
NOTHING = 1e-9  # variances that nobody notices
QUANTITIES = ("mean", "variance", "entropy", "mutual_information", "expected_entropy", "votes")
OF_UNCERTAIN = ("entropy", "mutual_information", "expected_entropy")
SHOWN = ("network", "method", "mean", "variance", "entropy", "mutual_information", "votes")
COLUMNS = (*SHOWN[:5], "mutual inf.", "votes", "in time: mean", "variance")


class Block(nn.Module):
    """A residual block that drops channels."""

    def __init__(self, channels: int, p: float) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.drop = nn.Dropout2d(p)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(self.drop(torch.relu(self.first(x)))))


def conv_net(blocks: int, channels: int, p: float) -> nn.Module:
    stem = (nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, channels, 3, padding=1), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    return nn.Sequential(*stem, *(Block(channels, p) for _ in range(blocks)), *head)


class Transformer(nn.Module):
    """Eight tokens, one per line of pixels."""

    def __init__(self, layers: int, p: float, width: int = 64) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(8, width), nn.Parameter(0.1 * torch.randn(8, width))
        layer = nn.TransformerEncoderLayer(width, 4, width, p, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x.unflatten(1, (8, 8))) + self.place).mean(dim=1))


@dataclass(frozen=True, slots=True)
class Case:
    """A classifier and some inputs, the most uncertain ones first."""

    name: str
    model: nn.Module
    x: Tensor
    masks: str = "independent"
    uncertain: int = INPUTS // 2


def networks() -> Iterator[tuple[str, nn.Module, int]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield "MLP 3×128, p = 0.3", common.mlp(64, (128, 128, 128), 10, 0.3, "relu"), 600
        yield "conv net, 4 blocks, Dropout2d 0.1", conv_net(4, 48, 0.1), 300
        yield "conv net, 8 blocks, Dropout2d 0.2", conv_net(8, 36, 0.2), 300
        yield "transformer, 4 layers, p = 0.1", Transformer(4, 0.1), 500


def cases(only: str) -> Iterator[Case]:
    """The trained networks on digits they have not seen."""
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels / 16).float(), torch.from_numpy(labels)
    for name, model, steps in networks():
        if only not in name:
            continue
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            common.train(model, x[:1000], y[:1000], nn.functional.cross_entropy, steps)
        chosen = uncertain_first(model, x[1000:])
        yield Case(name, model, chosen)
        if "MLP" in name:
            yield Case(name, model, chosen, "shared")


def uncertain_first(model: nn.Module, x: Tensor) -> Tensor:
    """The most uncertain inputs, then others that are spread over the rest."""
    passes = md.DropoutSampler(model, transform="softmax").sample(x, passes=20, seed=99)
    order = entr(passes.mean(dim=0).numpy()).sum(axis=-1).argsort()[::-1].copy()
    half = INPUTS // 2
    rest = order[half:][:: (len(order) - half) // half][:half]
    return x[np.concatenate([order[:half], rest])]


def plain_variances(case: Case, passes: int) -> dict[str, np.ndarray]:
    """Variances of plain averaging with one pass, from a long run; those with n passes are n times smaller."""
    sampler = md.DropoutSampler(case.model, transform="softmax")
    p = sampler.sample(case.x, passes=passes, seed=12345).double().numpy()
    centre, entropies = p.mean(axis=0), entr(p).sum(axis=-1)
    slope = -np.log(np.maximum(centre, 1e-300)) - 1.0
    total = (slope * p).sum(axis=-1)
    classes = p.shape[-1]
    votes = np.eye(classes)[p.argmax(axis=-1)]
    scores = {
        "mean": p,
        "variance": np.square(p - centre),
        "entropy": total,
        "mutual_information": total - entropies,
        "expected_entropy": entropies,
        "votes": votes,
    }
    return {name: values.var(axis=0, ddof=1) for name, values in scores.items()}


def runs_of(case: Case, method: str, runs: int, first: int = 0) -> tuple[list[md.Result], float]:
    """Results of independent runs, and processor seconds of the fastest; other programs do not count."""
    results, fastest = [], np.inf
    for seed in range(first, first + runs):
        start = time.process_time()
        results.append(
            md.estimate(case.model, case.x, outputs="logits", method=method, masks=case.masks, budget=BUDGET, seed=seed)
        )
        fastest = min(fastest, time.process_time() - start)
    return results, fastest


def gains(case: Case, results: list[md.Result], plain: dict[str, np.ndarray]) -> dict[str, float]:
    """Of every quantity, the variance of plain averaging at the same cost over that of the runs."""
    cost = np.mean([result.cost for result in results])
    found = {}
    for name in QUANTITIES:
        rows = slice(case.uncertain if name in OF_UNCERTAIN else None)
        ours = np.var([result[name].value[rows] for result in results], axis=0, ddof=1).sum()
        known = plain[name][rows].sum() < NOTHING  # nothing is left to chance: votes that never change
        found[name] = math.inf if known else float(plain[name][rows].sum() / cost / ours)
    return found


def study(case: Case, runs: int, passes: int) -> Iterator[dict[str, Any]]:
    """Gains of both methods."""
    plain = plain_variances(case, passes)
    _, seconds_plain = runs_of(case, "pooled", 4)
    for method in ("auto", "control-variate"):
        results, seconds = runs_of(case, method, runs)
        found = gains(case, results, plain)
        if all(result.method == "pooled" for result in results):  # the same passes less those of a pilot
            found = dict.fromkeys(QUANTITIES, results[0].levels[0].count / results[0].cost)
        in_time = {f"{name} in seconds": found[name] * seconds_plain / seconds for name in QUANTITIES}
        yield {
            "network": case.name,
            "masks": case.masks,
            "method": method if results[0].method == method else f"{method} ({results[0].method})",
            "ran": results[0].method,
            "share of runs with the coarse level": float(np.mean([r.method == "control-variate" for r in results])),
            "cost": float(np.mean([result.cost for result in results])),
            "seconds": seconds,
            "seconds of pooled": seconds_plain,
            "notes": list(results[0].notes),
            **found,
            **in_time,
        }


def zoo(runs: int, passes: int, seeds: int = 0) -> Iterator[dict[str, Any]]:
    """Whether auto ever loses, on the models of the zoo whose outputs can be read as classes."""
    for entry in ZOO.values():
        model, x = entry.make()
        if not isinstance(x, Tensor) or entry.coupled:
            continue
        try:
            first = md.estimate(model, x, outputs="logits", budget=BUDGET)
        except md.MLMCDropoutError:
            continue  # no classes
        row = {"network": entry.name, "masks": "independent", "method": "auto", "ran": first.method}
        if first.method == "pooled":  # the same passes less those of the pilot
            samples = first.levels[0].count
            yield row | dict.fromkeys(QUANTITIES, samples / first.cost)
            continue
        case = Case(entry.name, model, x, uncertain=len(x))
        results, _ = runs_of(case, "auto", runs, seeds)
        yield row | gains(case, results, plain_variances(case, passes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--passes", type=int, default=3000, help="of the long run")
    parser.add_argument("--only", default="", help="part of the name of a network; the others as they were written")
    parser.add_argument("--zoo", action="store_true", help="the models of the zoo alone; the rest as it was written")
    parser.add_argument("--seeds", type=int, default=0, help="first seed of the zoo's runs")
    options = parser.parse_args()
    warnings.simplefilter("ignore", md.FallbackWarning)
    torch.set_num_threads(1)
    start, rows = time.perf_counter(), written()
    if not options.zoo:
        rows = [row for row in rows if "cost" not in row or options.only not in row["network"]]
        for case in cases(options.only):
            for row in study(case, options.runs, options.passes):
                rows.append(row | {"runs": options.runs})
                print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
                print(f"{time.perf_counter() - start:.0f} s", flush=True)
    if options.zoo or not options.only:
        of_zoo = list(zoo(options.runs, 4 * options.passes, options.seeds))
        rows = [row for row in rows if "cost" in row] + of_zoo
    names = list(dict.fromkeys(name for name, _, _ in networks()))
    rows.sort(key=lambda row: ("cost" not in row, names.index(row["network"]) if "cost" in row else 0))
    path = common.save("classifiers", [*map(_without_infinity, rows)], budget=BUDGET, passes=options.passes)
    common.write_into("passes-saved.md", "classifiers", text_of(rows))
    print(text_of(rows))
    print(f"written to {path.name} after {time.perf_counter() - start:.0f} s")


def written() -> list[dict[str, Any]]:
    """What an earlier run wrote, infinities included."""
    path = common.RESULTS / "classifiers.json"
    found = json.loads(path.read_text())["rows"] if path.exists() else []
    return [{key: math.inf if value is None else value for key, value in row.items()} for row in found]


def _without_infinity(row: dict[str, Any]) -> dict[str, Any]:
    return {key: None if value == math.inf else value for key, value in row.items()}  # files know no infinity


def text_of(rows: list[dict[str, Any]]) -> str:
    """The table of the networks, and a sentence about the zoo."""
    studied, of_zoo = ([row for row in rows if ("cost" in row) is one] for one in (True, False))
    named = [row | {"network": row["network"] + ", shared masks" * (row["masks"] == "shared")} for row in studied]
    cells = [[*(row[c] for c in SHOWN), row["mean in seconds"], row["variance in seconds"]] for row in named]
    least = min(of_zoo, key=lambda row: min(row[name] for name in QUANTITIES))
    chosen = sum(row["ran"] != "pooled" for row in of_zoo)
    return f"{common.table(COLUMNS, cells)}\n\n" + (
        f"Read as classes, {len(of_zoo)} models of the zoo: `auto` took the coarse level for {chosen} of them; the "
        f"least gain of any quantity was {min(least[name] for name in QUANTITIES):.3g} ({least['network']})."
    )


if __name__ == "__main__":
    main()
