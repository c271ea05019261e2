"""Whether intervals that are not flagged cover, for probabilities close to 0 and 1: digits, softmax, 500 passes.

A classifier is trained on the first thousand digits. Runs with other seeds estimate the mean and variance of the
probabilities of further ones; the truth is a run of very many passes. Of the 95 % intervals whose component is not
flagged (``mean_reliable``, ``variance_reliable``) at least 90 % have to hold the truth: all together, in every bin of
the probability and, but for chance, for every component that is left unflagged in most runs. Intervals of all
components, flagged or not, are the negative control. The limits of the guard were set with the first of ``NETWORKS``;
two others, with half as many images and runs, are reported beside it.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass, replace
from typing import Any

import common
import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor, nn

from mlmc_dropout.methods.auto import Auto
from mlmc_dropout.methods.base import MethodSpec
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.sampling.sampler import DropoutSampler
from mlmc_dropout.sampling.source import Source
from testing.oracles import run_method

PASSES = 500
REFERENCE = 200_000
RUNS = 200
IMAGES = 120
EDGES = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0)
LEAST = 0.9  # coverage asked for
NETWORKS: dict[str, tuple[tuple[int, ...], float, str, int, int]] = {  # widths, rate, activation, seed, steps
    "relu": ((128, 128), 0.3, "relu", 0, 600),
    "gelu": ((64, 64, 64), 0.2, "gelu", 5, 400),
    "tanh": ((48, 48), 0.5, "tanh", 9, 300),
}
METHODS: dict[str, MethodSpec] = {"pooled": Pooled(), "stratified": Stratified(), "auto": Auto()}
Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Covered:
    """Which intervals hold the truth and which are not flagged: (runs, components) each."""

    moment: str
    holds: Flags
    reliable: Flags

    @property
    def coverage(self) -> float:
        """Of the intervals that are not flagged."""
        return float(self.holds[self.reliable].mean()) if self.reliable.any() else float("nan")

    def of(self, components: Flags) -> Covered:
        """The same for some components."""
        return Covered(self.moment, self.holds[:, components], self.reliable[:, components])

    def failing(self, error_rate: float = 1e-3) -> int:
        """Components unflagged in most runs that cover less than asked, by more than chance explains."""
        count = self.reliable.sum(axis=0)
        often = count > len(self.holds) / 2
        hits = (self.holds & self.reliable).sum(axis=0)
        chance = stats.binom.cdf(hits[often], count[often], LEAST)
        return int((chance < error_rate / max(often.sum(), 1)).sum())


def classifier(network: str) -> tuple[nn.Module, Tensor]:
    """A trained network and digits that it has not seen."""
    widths, p, activation, seed, steps = NETWORKS[network]
    data, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(data / 16).float()
    model = common.mlp(64, widths, 10, p, activation, seed)
    common.train(model, x[:1000], torch.from_numpy(labels)[:1000], nn.functional.cross_entropy, steps, seed)
    return model, x[1000:]


def source_of(images: int, network: str = "relu") -> Source:
    """Passes of some digits' probabilities."""
    model, x = classifier(network)
    sampler = DropoutSampler(model, transform=lambda out: out.softmax(-1))
    batch = next(sampler.batches(x[:: len(x) // images][:images]))
    return Source(sampler, sampler.prepare(batch), batch, 0)


def study(
    source: Source, method: MethodSpec, truth: tuple[Array, Array], runs: int, passes: int = PASSES
) -> list[Covered]:
    """Both moments of many runs."""
    holds: list[list[Flags]] = [[], []]
    reliable: list[list[Flags]] = [[], []]
    for seed in range(1, runs + 1):
        found = run_method(method, replace(source, seed=seed), passes)
        assert found.trust is not None
        moments = (found.mean, found.mean_stderr), (found.variance, found.variance_stderr)
        for i, (values, stderr) in enumerate(moments):
            holds[i].append((np.abs(values - truth[i]) <= 1.959964 * stderr).ravel())
            reliable[i].append((found.trust.mean, found.trust.variance)[i].ravel())
    names = ("mean", "variance")
    return [Covered(name, np.stack(holds[i]), np.stack(reliable[i])) for i, name in enumerate(names)]


def reference(source: Source, passes: int) -> tuple[Array, Array]:
    """Mean and variance of the probabilities."""
    found = run_method(Pooled(), replace(source, seed=0), passes)
    return found.mean, found.variance


def rows_of(method: str, covered: Covered, probability: Array) -> list[dict[str, Any]]:
    """A row per bin of the probability, and one for all."""
    rows = []
    bins = [(a, b, (probability >= a) & ((probability < b) | (b == 1.0))) for a, b in itertools.pairwise(EDGES)]
    for low, high, inside in [*bins, (0.0, 1.0, np.ones_like(probability, dtype=bool))]:
        own = covered.of(inside)
        if own.holds.size:
            rows.append(
                {
                    "method": method,
                    "moment": covered.moment,
                    "from": low,
                    "to": high,
                    "components": int(inside.sum()),
                    "flagged": float(1 - own.reliable.mean()),
                    "unflagged": int(own.reliable.sum()),
                    "covered": own.coverage,
                    "unguarded": float(own.holds.mean()),
                    "failing": own.failing(),
                }
            )
    return rows


def missed(row: dict[str, Any]) -> bool:
    """Whether a row breaks the promise."""
    return bool(row["covered"] < LEAST or row["failing"])


def rows_for(network: str, passes: int, images: int, runs: int, methods: dict[str, MethodSpec]) -> list[dict[str, Any]]:
    """The rows of one classifier."""
    source = source_of(images, network)
    truth = reference(source, REFERENCE)
    return [
        {"network": network, "passes": passes, **row}
        for name, method in methods.items()
        for covered in study(source, method, truth, runs, passes)
        for row in rows_of(name, covered, truth[0].ravel())
    ]


def details(rows: list[dict[str, Any]]) -> str:
    """A line per bin, method and moment."""
    columns = ("probability", "method", "moment", "components", "flagged", "covered, not flagged", "covered, all")
    lines = [
        [f"{r['from']:g} – {r['to']:g}", r["method"], r["moment"], r["components"], f"{100 * r['flagged']:.1f} %",
         f"{100 * r['covered']:.1f} %" if np.isfinite(r["covered"]) else "–", f"{100 * r['unguarded']:.1f} %"]
        for r in sorted(rows, key=lambda r: (is_total(r), r["from"]))
    ]  # fmt: skip
    return common.table(columns, lines)


def overview(rows: list[dict[str, Any]]) -> str:
    """A line per network, passes, method and moment, with the worst bin of at least a hundred intervals."""
    lines = []
    for total in filter(is_total, rows):
        key = ("network", "passes", "method", "moment")
        bins = [r for r in rows if all(r[k] == total[k] for k in key) and r["unflagged"] >= 100 and not is_total(r)]
        worst = min((r["covered"] for r in bins), default=float("nan"))
        shares = (f"{100 * share:.1f} %" for share in (total["flagged"], total["covered"], worst, total["unguarded"]))
        lines.append([*(total[k] for k in key), *shares])
    columns = ("network", "passes", "method", "moment", "flagged", "covered, not flagged", "worst bin", "covered, all")
    return common.table(columns, lines)


def is_total(row: dict[str, Any]) -> bool:
    """Whether a row is about all probabilities."""
    return bool(row["to"] - row["from"] == 1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--images", type=int, default=IMAGES)
    options = parser.parse_args()
    rows = rows_for("relu", PASSES, options.images, options.runs, METHODS)
    some = {name: METHODS[name] for name in ("pooled", "auto")}
    size = options.images // 2, options.runs // 2
    others = [row for network in ("gelu", "tanh") for n in (200, PASSES) for row in rows_for(network, n, *size, some)]
    for marker, text in (("saturation", details(rows)), ("others", overview(others))):
        print(text)
        common.write_into("flagged-intervals.md", marker, text)
    known = [{k: v if v == v else None for k, v in row.items()} for row in rows + others]  # no NaN in JSON
    common.save("saturation", known, reference=REFERENCE, runs=options.runs, images=options.images)
    broken = [row for row in rows if missed(row)]
    for row in broken:
        print("missed:", row)
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
