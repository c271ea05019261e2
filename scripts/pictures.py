"""The pictures of README and docs: ``python scripts/pictures.py [NAME …]`` writes ``docs/img/*.svg``."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import mlmc_dropout as md

OUT = Path(__file__).parent.parent / "docs" / "img"
BLUE, PALE, PALER, ORANGE, GREY = "#0b5fa5", "#9cc4e6", "#d5e6f4", "#b3470b", "#6b747d"
STYLE = {
    "svg.hashsalt": "mlmc-dropout",
    "svg.fonttype": "path",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "figure.facecolor": "white",
}


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy samples of a sine on [−3, −0.5] and [0.5, 2.5]; nothing in between and beyond."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-3, -0.5, 60), rng.uniform(0.5, 2.5, 60)])
    y = np.sin(1.5 * x) + 0.1 * rng.normal(size=x.size)
    return torch.tensor(x[:, None], dtype=torch.float32), torch.tensor(y[:, None], dtype=torch.float32)


def trained() -> nn.Module:
    """A small network with dropout, trained on :func:`data` for a few seconds."""
    torch.manual_seed(0)
    hidden = [nn.Linear(1, 64), nn.SiLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.SiLU(), nn.Dropout(0.1)]
    model = nn.Sequential(*hidden, nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, y = data()
    for _ in range(2000):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model.eval()


def bands(model: nn.Module) -> Any:
    """The picture of the README: prediction, spread, and how well both are known."""
    grid = np.linspace(-4, 4, 161)[:, None]
    result = md.estimate(model, grid, budget=500, method="auto")
    figure, axis = plt.subplots(figsize=(7.6, 3.3), layout="constrained")
    x, mean, std = grid[:, 0], result.mean[:, 0], result.std[:, 0]
    axis.fill_between(x, mean - 2 * std, mean + 2 * std, color=PALER, label="± 2 standard deviations of a pass")
    axis.fill_between(x, mean - std, mean + std, color=PALE, label="± 1")
    axis.plot(x, mean, color=BLUE, label=f"mean (standard error at most {result.mean_stderr.max():.1g})")
    seen = data()
    axis.plot(seen[0][:, 0], seen[1][:, 0], ".", color=GREY, markersize=3, label="training data")
    axis.set_xlabel("input")
    axis.legend(frameon=False, fontsize=8.5, loc="lower left")
    return figure


def passes(model: nn.Module) -> Any:
    """Passes as functions: one mask for all inputs, against a fresh mask for every input."""
    grid = torch.linspace(-4, 4, 161)[:, None]
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.0), sharey=True, layout="constrained")
    for axis, masks in zip(axes, ("shared", "independent"), strict=True):
        drawn = md.DropoutSampler(model, masks=masks).sample(grid, passes=5, seed=1)[..., 0]
        mean = md.estimate(model, grid, budget=300, masks=masks, method="auto").mean[:, 0]
        for one in drawn:
            axis.plot(grid[:, 0], one, color=PALE, linewidth=1)
        axis.plot(grid[:, 0], mean, color=BLUE, linewidth=2)
        axis.set_title(f'masks="{masks}"', fontsize=10)
        axis.set_xlabel("input")
    return figure


def coupling(model: nn.Module) -> Any:
    """A replicate at three fidelities: the coarse passes are the first of the fine."""
    figure, axis = plt.subplots(figsize=(7.6, 2.6), layout="constrained")
    for row, T in enumerate((4, 8, 16)):
        for index in range(16):
            face = "white" if index >= T else (PALE if index < T // 2 and row else BLUE)
            edge = GREY if index >= T else BLUE
            axis.add_patch(plt.Rectangle((index, -row), 0.82, 0.62, facecolor=face, edgecolor=edge, linewidth=0.8))
        axis.text(-0.4, -row + 0.31, f"level {row}, T = {T}", ha="right", va="center")
        text = "Y(4), V(4)" if not row else f"ΔY = Y({T}) − Y({T // 2}), ΔV likewise"
        axis.text(16.3, -row + 0.31, text, va="center", fontsize=9)
    axis.set(xlim=(-4, 24), ylim=(-2.3, 0.9))
    axis.axis("off")
    return figure


def allocation(model: nn.Module) -> Any:
    """S² and the true variance of nested levels over (M_1, M_2) at a fixed cost, in units of plain Monte Carlo."""
    fidelities, budget = (4, 8, 16), 1000
    v = md.theory.level_variances_mean(fidelities)
    second, third = np.meshgrid(np.linspace(5, 120, 116), np.linspace(5, 75, 71))
    first = (budget - 4 * second - 8 * third) / 4
    counts = np.stack([first, second, third])
    valid = first >= second.min()
    S2 = (v[:, None, None] / np.where(valid, counts, np.nan)).sum(axis=0) * budget
    overlap = 2 * (v[1:, None, None] / np.maximum(counts[0], counts[1:])).sum(axis=0) * budget
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.3), sharey=True, layout="constrained")
    for axis, values, title in ((axes[0], S2, "what S² reports"), (axes[1], S2 - overlap, "what is true (nested)")):
        drawn = axis.contourf(
            second, third, np.minimum(values, 20), levels=[1, 1.5, 2, 3, 4, 6, 8, 10, 15, 20], cmap="Blues"
        )
        axis.contour(
            second, third, np.minimum(values, 20), levels=[1.5, 2, 3, 4, 6, 8, 10, 15], colors="white", linewidths=0.5
        )
        best = md.theory.optimal_counts(v, [4, 4, 8], budget)
        axis.plot(best[1], best[2], "o", color=ORANGE, label="optimum of S²")
        axis.plot(budget / 16, budget / 16, "*", color=ORANGE, markersize=12, label="equal counts: plain averaging")
        axis.set(title=title, xlabel="replicates at level 1")
    axes[0].set_ylabel("replicates at level 2")
    axes[1].legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
    figure.colorbar(drawn, ax=axes, label="times plain Monte Carlo")
    return figure


def standard_error(model: nn.Module) -> Any:
    """The spread stays, the standard error shrinks."""
    x = torch.tensor([[3.5]])
    costs = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    found = [md.estimate(model, x, method="pooled", budget=c, seed=c) for c in costs]
    mean, std, error = (np.array([float(getattr(r, n)[0, 0]) for r in found]) for n in ("mean", "std", "mean_stderr"))
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.0), layout="constrained")
    axes[0].fill_between(costs, mean - std, mean + std, color=PALER, label="mean ± standard deviation of a pass")
    axes[0].errorbar(costs, mean, 2 * error, fmt="o", color=BLUE, capsize=3, label="mean ± 2 standard errors")
    axes[1].loglog(costs, std, "s-", color=PALE, label="standard deviation of a pass")
    axes[1].loglog(costs, error, "o-", color=BLUE, label="standard error of the mean")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xlabel("passes")
        axis.legend(frameon=False, fontsize=8.5, loc="upper right" if axis is axes[0] else "lower left")
    axes[0].set_ylim(top=float((mean + std).max() + 0.3))
    return figure


METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("multilevel, independent levels", {"method": "mlmc", "levels": "independent"}),
    ("multilevel, nested levels", {"method": "mlmc"}),
    ("plain averaging", {"method": "pooled"}),
    ("stratified masks", {"method": "stratified"}),
    ("control variate", {"method": "control-variate"}),
)


def gains(model: nn.Module, budget: int = 1000) -> list[tuple[str, float, float]]:
    """Variance of plain averaging over that of each method, per pass spent: averages over inputs."""
    grid = np.linspace(-4, 4, 41)[:, None]
    plain = md.estimate(model, grid, method="pooled", budget=20_000, seed=7)
    mu2 = plain.variance
    reference = [mu2.mean(), 20_000 * np.square(plain.variance_stderr).mean()]
    found = []
    for name, options in METHODS:
        result = md.estimate(model, grid, budget=budget, seed=1, **options)
        reached = [np.square(e).mean() for e in (result.mean_stderr, result.variance_stderr)]
        found.append((name, *(r / (result.cost * got) for r, got in zip(reference, reached, strict=True))))
    return found


def what_wins(model: nn.Module) -> Any:
    """Bars of :func:`gains` on a logarithmic axis around 1."""
    rows = gains(model)
    widest = math.log10(max(max(row[1:]) for row in rows))
    ticks = range(-1, math.floor(widest) + 1)
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 2.8), sharey=True, layout="constrained")
    for axis, column, title in ((axes[0], 1, "mean"), (axes[1], 2, "variance")):
        values = [row[column] for row in rows]
        axis.barh(
            [row[0] for row in rows],
            [math.log10(v) for v in values],
            color=[ORANGE if v < 0.9 else BLUE for v in values],
        )
        for place, value in enumerate(values):
            axis.text(
                max(math.log10(value), 0) + 0.06,
                place,
                f"{value:.0f}×" if value >= 10 else f"{value:.2g}×",
                va="center",
                fontsize=9,
            )
        axis.axvline(0, color=GREY, linewidth=1)
        axis.set(
            title=title, xlim=(-1.2, widest + 0.7), xticks=ticks, xticklabels=[f"{10.0**tick:g}" for tick in ticks]
        )
    figure.supxlabel("worth of a pass, in passes of plain averaging", fontsize=10)
    return figure


BOXES = {  # folder or file: (left, bottom, what it does, colour)
    "estimate.py": (0.0, 3.0, "arguments", GREY),
    "sampling/": (3.4, 3.0, "sites found and proved:\na Source of passes", BLUE),
    "surrogates/": (6.8, 3.0, "companions of the network\nwith known moments", BLUE),
    "methods/": (10.2, 3.0, "choose, bind:\na BoundMethod", ORANGE),
    "runtime/run.py": (10.2, 1.5, "extend: tasks of a round", GREY),
    "runtime/executors.py": (6.8, 1.5, "run: states, in workers", GREY),
    "runtime/run.py ": (3.4, 1.5, "merge in order, summarise", GREY),
    "stopping/": (0.0, 1.5, "met? how many more?", ORANGE),
    "runtime/collector.py": (0.0, 0.0, "all batches, one result", GREY),
    "result/": (3.4, 0.0, "estimates, standard errors", BLUE),
    "report/, cli/": (6.8, 0.0, "pages, files, tables", GREY),
    "runtime/checkpoint.py": (10.2, 0.0, "the merged state, on disk", GREY),
}
ARROWS = (  # from, to, label
    ("estimate.py", "sampling/", ""),
    ("sampling/", "surrogates/", ""),
    ("surrogates/", "methods/", ""),
    ("methods/", "runtime/run.py", ""),
    ("runtime/run.py", "runtime/executors.py", ""),
    ("runtime/executors.py", "runtime/run.py ", ""),
    ("runtime/run.py ", "stopping/", ""),
    ("stopping/", "runtime/collector.py", "enough"),
    ("runtime/collector.py", "result/", ""),
    ("result/", "report/, cli/", ""),
)


def architecture(model: nn.Module) -> Any:
    """The way of one call of ``estimate`` through the folders."""
    figure, axis = plt.subplots(figsize=(9.6, 3.9), layout="constrained")
    width, height = 2.7, 0.95
    for name, (left, bottom, does, colour) in BOXES.items():
        axis.add_patch(plt.Rectangle((left, bottom), width, height, facecolor="white", edgecolor=colour, linewidth=1.4))
        axis.text(left + 0.12, bottom + height - 0.14, name.strip(), va="top", weight="bold", fontsize=9, color=colour)
        axis.text(left + 0.12, bottom + 0.12, does, va="bottom", fontsize=8.5, linespacing=1.15)
    style = {"arrowstyle": "-|>", "color": "black", "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    for start, end, label in ARROWS:
        (a, b, *_), (c, d, *_) = BOXES[start], BOXES[end]
        if b == d:
            tail, head = (a + width * (c > a), b + height / 2), (c + width * (c < a), d + height / 2)
        else:
            tail, head = (a + width / 2, b), (c + width / 2, d + height)
        axis.annotate("", head, tail, arrowprops=style)
        axis.text(head[0] + 0.1, (tail[1] + head[1]) / 2, label, va="center", fontsize=8.5)
    loop = {**style, "connectionstyle": "arc,angleA=90,angleB=90,armA=14,armB=14,rad=5"}
    axis.annotate("", (11.9, 2.45), (1.0, 2.45), arrowprops=loop)
    axis.text(6.4, 2.74, "not enough: the next round", ha="center", va="bottom", fontsize=8.5)
    saved = {**style, "arrowstyle": "<|-|>", "linestyle": ":"}
    saved["connectionstyle"] = "arc,angleA=-90,angleB=90,armA=18.2,armB=18.2,rad=5"
    axis.annotate("", (11.55, 0.95), (4.75, 1.5), arrowprops=saved)
    axis.set(xlim=(-0.1, 13.0), ylim=(-0.1, 4.05))
    axis.axis("off")
    return figure


def where_a_ladder_pays(model: nn.Module) -> Any:
    """Passes per input against accuracy, from the numbers of ``benchmarks/nested.py``."""
    rows = json.loads((OUT.parents[1] / "benchmarks" / "results" / "nested.json").read_text())["rows"]
    titles = {"pool": "pool of 300 000 images", "digits": "test set of 797 images"}
    figure, axes = plt.subplots(1, 2, figsize=(8.2, 3.4), layout="constrained", sharex=True)
    for axis, (problem, title) in zip(axes, titles.items(), strict=True):
        row = next((r for r in rows if r["problem"] == problem and r["metric"] == "entropy"), None)
        if row is None:  # not measured again yet
            continue
        lines = row["opponents"]["at"]
        for method, colour, style in (("plug-in", GREY, "s:"), ("jackknife", ORANGE, "^--")):
            points = [(line["accuracy"], line[method]["cost"]) for line in lines if np.isfinite(line[method]["cost"])]
            axis.loglog(*zip(*points, strict=True), style, color=colour, label=f"{method}, best T")
        ours = [(point["rmse"], point["cost"]) for point in row["points"]]
        axis.loglog(*zip(*ours, strict=True), "o-", color=BLUE, label="multilevel")
        axis.set(title=title, xlabel="relative error of the mean entropy")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.1%}" if value < 0.01 else f"{value:.0%}")
    axes[0].set(ylabel="passes per input")
    axes[0].invert_xaxis()
    axes[1].legend(frameon=False)
    return figure


def small_budgets(model: nn.Module) -> Any:
    """What a pass is worth from 10 to 100 passes on, a line per regressor: from ``benchmarks/small_budgets.py``."""
    path = Path(__file__).parent.parent / "benchmarks" / "results" / "small_budgets.json"
    rows = [r for r in json.loads(path.read_text(encoding="utf-8"))["rows"] if "×" in r["case"] or "PINN" in r["case"]]
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.2), sharey=True, layout="constrained")
    for axis, moment in ((axes[0], "mean"), (axes[1], "variance")):
        for name in dict.fromkeys(row["case"] for row in rows):
            own = [(row["budget"], row[f"gain_{moment}"]) for row in rows if row["case"] == name]
            axis.plot(*zip(*own, strict=True), marker="o", markersize=3, linewidth=1.2, label=name)
        budgets = sorted({row["budget"] for row in rows})
        axis.axhline(1, color=GREY, linewidth=1)
        axis.set(title=moment, xlabel="passes", xscale="log", yscale="log", xticks=budgets, xticklabels=budgets)
        axis.minorticks_off()
    axes[0].set(ylabel="worth of a pass,\nin passes of plain averaging")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=6, frameon=False)
    return figure


def digits() -> tuple[nn.Module, torch.Tensor]:
    """A small classifier of the digits of scikit-learn, and the images it was not trained on."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.data / 16, dtype=torch.float32)
    labels = torch.tensor(found.target)
    torch.manual_seed(0)
    hidden = [nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3)]
    model = nn.Sequential(*hidden, nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[:1200]), labels[:1200]).backward()
        optimizer.step()
    return model.eval(), images[1200:]


def quantities(model: nn.Module) -> Any:
    """Mutual information of digits against passes: plugged in, and without its first bias."""
    network, images = digits()
    name, seeds = "mutual_information", range(12)
    exact = md.estimate(network, images, outputs="logits", budget=20_000, method="pooled", seed=99)[name].value
    one = int(np.argmax(exact))
    counts = (4, 8, 16, 32, 64, 128)
    sampler = md.DropoutSampler(network, transform="softmax")
    plugged, corrected, bars = [], [], []
    for T in counts:
        drawn = [sampler.sample(images, passes=T, seed=seed).double() for seed in seeds]
        plugged.append([_plug_in(p) for p in drawn])
        found = [md.estimate(network, images, outputs="logits", budget=T, method="pooled", seed=s)[name] for s in seeds]
        corrected.append([estimate.value for estimate in found])
        bars.append([estimate.stderr[one] for estimate in found])
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.1), layout="constrained")
    for values, style, label in ((plugged, "s-", "plugged in"), (corrected, "o-", "corrected")):
        colour = ORANGE if values is plugged else BLUE
        axes[0].plot(counts, np.mean(values, axis=(1, 2)), style, color=colour, label=label)
    axes[0].axhline(exact.mean(), color=GREY, linestyle="--", label="exact (20 000 passes)")
    axes[0].set(title="average over 597 digits", ylabel="mutual information, nats")
    first, errors = [run[0][one] for run in corrected], [run[0] for run in bars]
    axes[1].errorbar(counts, first, 2 * np.array(errors), fmt="o", color=BLUE, capsize=3)
    axes[1].plot(counts, [run[0][one] for run in plugged], "s", color=ORANGE)
    axes[1].axhline(exact[one], color=GREY, linestyle="--")
    axes[1].set(title="the digit with most, ± 2 standard errors")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, [str(T) for T in counts])
        axis.set_xlabel("passes")
        axis.title.set_fontsize(10)
    axes[0].set_ylim(0, 1.12 * exact.mean())
    axes[1].set_ylim(bottom=0)
    axes[0].legend(frameon=False, fontsize=8.5, loc="lower right")
    return figure


def _plug_in(p: torch.Tensor) -> np.ndarray:
    """Entropy of the mean less the mean entropy, of passes (passes, inputs, classes)."""
    return (torch.special.entr(p.mean(dim=0)).sum(-1) - torch.special.entr(p).sum(-1).mean(dim=0)).numpy()


def example(name: str) -> Any:
    """A module of the folder of examples."""
    spec = importlib.util.spec_from_file_location(name, OUT.parents[1] / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def label_or_abstain(model: nn.Module) -> Any:
    """Passes until a label is settled, and what is gained by leaving some to a person."""
    found = example("label_or_abstain").main()
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 2.9), layout="constrained")
    edges = np.geomspace(12, 1100, 19)
    settled = found.settled
    left.hist([found.passes[settled], found.passes[~settled]], bins=edges, stacked=True, color=[BLUE, ORANGE],
              label=["label settled", "not settled"])  # fmt: skip
    left.set(xscale="log", yscale="log", xlabel="passes", ylabel="images")
    left.legend(frameon=False, fontsize=8.5)
    shares, errors = zip(*found.curve.items(), strict=True)
    right.plot([100 * share for share in shares], [100 * error for error in errors], "o-", color=BLUE)
    right.set(xlabel="left to a person, %", ylabel="error of the rest, %", ylim=(0, None))
    return figure


def label_next(model: nn.Module) -> Any:
    """Accuracy against labels, and passes beside those of equal effort."""
    history = example("label_next").main()
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 2.9), layout="constrained")
    labels = [round.labelled for round in history]
    left.plot(labels, [100 * round.accuracy for round in history], "o-", color=BLUE)
    left.set(xlabel="labels", ylabel="accuracy, %", xticks=labels)
    places = np.arange(len(history))
    right.bar(places - 0.2, [round.passes for round in history], 0.4, color=BLUE, label="by elimination")
    right.bar(places + 0.2, [1000] * len(history), 0.4, color=PALE, label="the same for all")
    for place, round in zip(places, history, strict=True):
        right.annotate(f"{round.shared:.0%} alike", (place, 1010), ha="center", fontsize=8, color=GREY)
    right.set(xlabel="labels", ylabel="passes per image", xticks=places, xticklabels=labels, ylim=(0, 1350))
    right.legend(frameon=False, fontsize=8.5, ncols=2, loc="upper center")
    return figure


PICTURES: dict[str, Callable[[nn.Module], Any]] = {
    "bands": bands,
    "passes": passes,
    "coupling": coupling,
    "allocation": allocation,
    "standard-error": standard_error,
    "what-wins": what_wins,
    "architecture": architecture,
    "where-a-ladder-pays": where_a_ladder_pays,
    "small-budgets": small_budgets,
    "quantities": quantities,
    "label-or-abstain": label_or_abstain,
    "label-next": label_next,
}


def main(names: Sequence[str] = (), out: Path = OUT) -> None:
    """Draw everything, or the pictures named."""
    out.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        model = trained()
        for name in names or PICTURES:
            figure = PICTURES[name](model)
            figure.savefig(out / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)
            print(out / f"{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
