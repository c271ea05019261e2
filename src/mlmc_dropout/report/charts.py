"""The pictures of an estimate's page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout import theory
from mlmc_dropout.report.blocks import Figure
from mlmc_dropout.report.formats import passes, short, with_error
from mlmc_dropout.report.numbers import Comparison, Matrices, average, matrix
from mlmc_dropout.report.predictions import Predictions
from mlmc_dropout.report.svg import MOST_POINTS, NARROW, WIDE, Axis, Chart, Size, bars, bars_with_errors, is_wide
from mlmc_dropout.result import Result
from mlmc_dropout.result.text import passes_in_words

__all__ = ["bands", "class_bars", "cost_bars", "data_against_model", "histogram", "level_variances"]
__all__ += ["passes_of_inputs", "scatter_with_errors", "sorted_uncertainty"]

Array = NDArray[np.float64]
MOST_CLASSES = 4  # bars of an input; the others are put together
_SLIM = 0.25  # of the axis: single passes that fill less of it share the bins with the rest


def bands(x: Array, m: Matrices, component: int, label: str, name: str = "input") -> Figure:
    """Mean and ±1, ±2 standard deviations over one-dimensional inputs.

    Args:
        x: Inputs, (inputs,).
        m: The estimates.
        component: Index of the output component.
        label: What it is called, as in ``output 3``.
        name: What the inputs are called.

    Returns:
        The figure.
    """
    order = np.argsort(x, kind="stable")
    order = order[np.unique(np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).round().astype(int))]
    xs, mean, std = x[order], m.mean[order, component], m.std[order, component]

    def draw(size: Size) -> str:
        chart = Chart(size, Axis(xs[0], xs[-1], name), Axis.of([*(mean - 2 * std), *(mean + 2 * std)], label))
        chart.band(xs, mean - 2 * std, mean + 2 * std, "band2")
        chart.band(xs, mean - std, mean + std, "band1")
        chart.line(xs, mean, "line")
        return chart.svg()

    widest = int(np.argmax(std))
    return Figure(
        _both_sizes(draw),
        f"{label[0].upper()}{label[1:]} over the inputs: the mean of a pass, and one and two standard deviations "
        "around it. The bands show how far single passes scatter; the mean itself is known far more precisely (its "
        f"standard error is at most {short(float(m.mean_stderr[:, component].max()))}).",
        f"Mean of the {label} over inputs from {short(xs[0])} to {short(xs[-1])}: between {short(mean.min())} and "
        f"{short(mean.max())}. Standard deviation between {short(std.min())} and {short(std.max())}, largest at input "
        f"{short(xs[widest])}.",
        (("line", "mean"), ("band1", "± 1 standard deviation"), ("band2", "± 2 standard deviations")),
    )


def sorted_uncertainty(m: Matrices) -> Figure:
    """Inputs ranked by their spread, with two standard errors.

    Args:
        m: The estimates.

    Returns:
        The figure.
    """
    order = np.argsort(-m.score, kind="stable")
    picked = np.unique(np.linspace(0, len(order) - 1, min(len(order), 150)).round().astype(int))
    score = m.score[order][picked]
    rank = (picked + 1.0).tolist()
    low, high = (bound[order][picked].tolist() for bound in m.score_interval)

    def draw(size: Size) -> str:
        chart = Chart(
            size,
            Axis.of(rank, "rank of the input, largest first"),
            Axis.of([*low, *high], "standard deviation of a pass", zero=True),
        )
        chart.whiskers(rank, low, high, "whisker")
        chart.dots(rank, score.tolist(), "dot", 2.5)
        return chart.svg()

    return Figure(
        _both_sizes(draw),
        "Standard deviation of a pass for every input, largest first (root mean square over the outputs), with two "
        "standard errors of the variance either way. Where bars of neighbours overlap, their order is not settled.",
        f"Standard deviations fall from {short(score[0])} to {short(score[-1])} over {len(order)} inputs; the "
        f"median is {short(float(np.median(m.score)))}.",
        (("dot", "standard deviation"), ("line", "± 2 standard errors")),
    )


def histogram(
    values: Array, mean: float, std: float, where: str, label: str, within: tuple[float, float] = (-np.inf, np.inf)
) -> Figure:
    """Single passes of one input at one output.

    Args:
        values: Outputs, (passes,).
        mean: The estimated mean.
        std: The estimated standard deviation.
        where: Which input.
        label: What the output is called, as in ``output 3``.
        within: What outputs cannot exceed: 0 and 1 for probabilities.

    Returns:
        The figure.
    """
    first, last = float(values.min()), float(values.max())
    shown = min(first, max(mean - 2 * std, within[0])), max(last, min(mean + 2 * std, within[1]))
    slim = last - first < _SLIM * (shown[1] - shown[0])  # passes that all agree, where the estimate has met others
    bins = int(np.clip(np.sqrt(len(values)), 8, 24))
    counts, edges = np.histogram(values, bins=bins, range=shown if slim else None)
    top = float(counts.max())

    def draw(size: Size) -> str:
        low = max(min(float(edges[0]), mean - 2 * std), within[0])
        high = min(max(float(edges[-1]), mean + 2 * std), within[1])
        chart = Chart(
            Size(size.width, 0.72 * size.height, size.name),
            Axis.of([low, high], label, within=within),
            Axis.of([0.0, top], "passes", zero=True),
        )
        chart.columns(edges.tolist(), counts.tolist(), "bar")
        for at, style in ((mean, "line"), (mean - std, "theory"), (mean + std, "theory")):
            if within[0] <= at <= within[1]:
                chart.line([at, at], [0.0, top], style)
        return chart.svg()

    return Figure(
        _both_sizes(draw),
        f"{len(values)} single passes of {where}{f': {label}' if label != 'output' else ''}.",
        f"Histogram of {len(values)} single passes of {where}, {label}: from {short(float(values.min()))} to "
        f"{short(float(values.max()))}, mean {short(mean)}, standard deviation {short(std)}.",
        (("bar", "single passes"), ("line", "mean"), ("theory", "± 1 standard deviation")),
    )


def passes_of_inputs(passes: Array) -> Figure:
    """How many passes inputs have had, where these differ.

    Args:
        passes: Passes of each input, (N,).

    Returns:
        The figure.
    """
    edges = np.geomspace(passes.min(), passes.max(), int(np.clip(np.sqrt(len(passes)), 6, 20)) + 1)
    edges[0], edges[-1] = passes.min(), passes.max()
    counts, _ = np.histogram(passes, bins=edges)
    middle = float(np.median(passes))

    def draw(size: Size) -> str:
        chart = Chart(
            Size(size.width, 0.72 * size.height, size.name),
            Axis.of([float(edges[0]), float(edges[-1])], "passes", log=True),
            Axis.of([0.0, float(counts.max())], "inputs", zero=True),
        )
        chart.columns(edges.tolist(), counts.tolist(), "bar")
        chart.line([middle, middle], [0.0, float(counts.max())], "line")
        return chart.svg()

    return Figure(
        _both_sizes(draw),
        "Passes spent on inputs.",
        f"Histogram of the passes spent on {len(passes)} inputs: from {short(float(passes.min()))} to "
        f"{short(float(passes.max()))}, median {short(middle)}.",
        (("bar", "inputs"), ("line", "median")),
    )


def class_bars(found: Predictions, item: int, where: str, truth: int | None = None) -> Figure:
    """Probabilities of the leading classes of one input, with error bars.

    Args:
        found: The predictions.
        item: Which of them.
        where: What it is called.
        truth: The true class, if known.

    Returns:
        The figure.
    """
    order = np.argsort(-found.p[item], kind="stable")
    leading, rest = order[:MOST_CLASSES], order[MOST_CLASSES:]
    items = [(found.names[c], float(found.p[item, c]), float(found.p_stderr[item, c])) for c in leading]
    others = float(found.p[item, rest].sum()) if len(rest) else 0.0
    tail = f" The other {len(rest)} classes have {short(max(others, 0.0), 2)} together." if len(rest) else ""
    true = "" if truth is None else f" The true class is {found.names[truth]}."
    texts = [with_error(p, error) for _, p, error in items]
    return Figure(
        [bars_with_errors(size, items, texts) for size in (WIDE, NARROW)],
        f"{where[0].upper()}{where[1:]}: mean probabilities, with two standard errors either way.{tail}{true}",
        "; ".join(f"{name}: {text}" for (name, _, _), text in zip(items, texts, strict=True)),
    )


def data_against_model(found: Predictions, marked: NDArray[np.int64] | None = None) -> Figure:
    """Expected entropy against mutual information, an item a dot.

    Args:
        found: The predictions, with both.
        marked: Items that are not settled, if that is known.

    Returns:
        The figure.
    """
    data, model = (found.shown(name) for name in ("expected_entropy", "mutual_information"))
    error = found.entropies["mutual_information"][1]
    labels = ("expected entropy: of the data", "mutual information: of the model")
    order = np.argsort(-(data + model), kind="stable")
    return scatter_with_errors((data, model), error, labels, order, marked, found.unit)


def scatter_with_errors(
    points: Sequence[Array],
    error: Array,
    labels: tuple[str, str],
    order: NDArray[np.int64],
    marked: NDArray[np.int64] | None = None,
    unit: str = "input",
) -> Figure:
    """What is due to the data against what is due to the model.

    Args:
        points: Both, (items,) each.
        error: Standard errors of the second.
        labels: What the axes measure.
        order: Items, the most important first; if there are many, all of the first and some of the others are shown.
        marked: Items that are not settled, if that is known.
        unit: What an item is called.

    Returns:
        The figure.
    """
    x, y = points
    first, others = order[: MOST_POINTS // 2], order[MOST_POINTS // 2 :]
    step = max(1, -(-len(others) // (MOST_POINTS // 2)))
    thinned = others[::step]
    shown = np.concatenate([first, thinned])
    error = np.nan_to_num(error)
    special = np.intersect1d(shown, marked) if marked is not None else np.array([], dtype=np.int64)
    usual = np.setdiff1d(shown, special)
    low, high = y[shown] - 2 * error[shown], y[shown] + 2 * error[shown]

    def draw(size: Size) -> str:
        from_zero = x.min() < x.max() / 2
        chart = Chart(
            size, Axis.of(x[shown].tolist(), labels[0], zero=from_zero), Axis.of([*low, *high], labels[1], zero=True)
        )
        chart.whiskers(x[shown].tolist(), low.tolist(), high.tolist(), "whisker")
        for items, style in ((usual, "dot"), (special, "dot2")):
            chart.dots(x[items].tolist(), y[items].tolist(), style, 3.0)
        return chart.svg()

    article = "an" if unit[0] in "aeiou" else "a"
    key = [("dot", "settled"), ("dot2", "not settled")] if len(special) else [("dot", f"{article} {unit}")]
    thin = (
        f" Of {passes(len(x))} {unit}s, the {passes(len(first))} with the largest sum of both are shown, and every "
        f"{step}th of the others."
        if len(shown) < len(x)
        else ""
    )
    return Figure(
        _both_sizes(draw),
        f"Uncertainty of the data to the right, of the model upwards: high up, more training data would help.{thin}",
        f"{labels[0]} from {short(float(x.min()))} to {short(float(x.max()))}; {labels[1]} from "
        f"{short(float(y.min()))} to {short(float(y.max()))}.",
        [*key, ("line", "± 2 standard errors")],
    )


def level_variances(result: Result) -> Figure:
    """Measured variances of the level increments against the closed form, for mean and variance.

    Args:
        result: A result with levels.

    Returns:
        The figure.
    """
    T = [level.fidelity for level in result.levels]
    mu2 = np.maximum(matrix(result.variance).ravel(), 0.0)
    measured = [[average(level.variance) for level in result.levels], [average(lv.variance_V) for lv in result.levels]]
    expected = [
        theory.level_variances_mean(T, mu2).mean(axis=1).tolist(),
        theory.level_variances_variance(T, mu2).mean(axis=1).tolist(),
    ]

    def draw(size: Size) -> str:
        everything = [*measured[0], *measured[1], *expected[0], *expected[1]]
        chart = Chart(
            size,
            Axis.of(T, "passes per replicate T", log=True, marks=T),
            Axis.of(everything, "variance of the increment", log=True),
        )
        for values, closed_form, style in zip(measured, expected, ("dot", "dot2"), strict=True):
            chart.line(T, closed_form, "theory" if style == "dot2" else "line")
            chart.dots(T, values, style, 4.5)
        return chart.svg()

    return Figure(
        _both_sizes(draw),
        "Variance of each level's increment: dots are measured, lines follow from the closed forms with the variance "
        "of a pass measured here (Gaussian fourth moment for the second).",
        "Measured and predicted variances of the level increments: "
        + "; ".join(
            f"T = {t}: mean {short(a)} measured, {short(b)} predicted"
            for t, a, b in zip(T, measured[0], expected[0], strict=True)
        ),
        (("dot", "mean estimator"), ("dot2", "variance estimator"), ("line", "closed forms")),
    )


def cost_bars(comparison: Comparison) -> Figure:
    """Passes spent here beside those plain Monte Carlo would need.

    Args:
        comparison: Passes of both.

    Returns:
        The figure.
    """
    items = [
        ("This run", comparison.cost, f"{passes(comparison.cost)} passes"),
        ("Plain, same error of the mean", comparison.plain_mean, passes_in_words(comparison.plain_mean)),
        ("Plain, same error of the variance", comparison.plain_variance, passes_in_words(comparison.plain_variance)),
    ]
    items = [item for item in items if not math.isnan(item[1])]
    return Figure(
        [bars(size, items) for size in (WIDE, NARROW)],
        "Passes per input for the average squared standard error reached here"
        + (", on a logarithmic scale." if is_wide(items) else "."),
        "; ".join(f"{label}: {text}" for label, _, text in items),
    )


def _both_sizes(draw: Callable[[Size], str]) -> list[str]:
    return [draw(size) for size in (WIDE, NARROW)]
