"""The page about one estimate: the request, the findings, how far to trust them, how to run it again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mlmc_dropout import theory
from mlmc_dropout.report import charts
from mlmc_dropout.report.blocks import Card, CodeBlock, Facts, Note, Page, Section, TableBlock, Text
from mlmc_dropout.report.folder import Folder, component_labels
from mlmc_dropout.report.formats import duration, percent, ratio, short
from mlmc_dropout.report.numbers import Comparison, Matrices, average, compare, matrices, matrix
from mlmc_dropout.result import Result, Status, unreliable, variance_rates
from mlmc_dropout.version import __version__

__all__ = ["page"]

MOST_BANDS = 4
_COST_NOTES = {
    "coupled": "Optima for the coupled cost: nested levels share passes, and a level is charged only its new ones.",
    "uncoupled": "Optima for the uncoupled cost: independent levels share none, and a level is charged all its passes.",
}
_S2_NOTES = {
    "nested": "S² adds variances as if levels were independent. Nested levels share passes, so S² overstates.",
    "independent": "S² adds the levels' variances. Independent levels share no passes, so this is the squared error.",
}
_METHODS = {
    "pooled": "plain Monte Carlo: the mean and variance of all passes",
    "mlmc": "multilevel over passes: coarse replicates corrected by finer ones",
    "stratified": "stratified masks: designs of passes in which every unit is dropped evenly",
    "control-variate": "a control variate: the network's expansion in its masks, whose moments are exact",
}
_UNFINISHED = (Status.BUDGET_EXHAUSTED, Status.STOPPED, Status.FAILED)


def page(folder: Folder) -> Page:
    """The page about an estimate.

    Args:
        folder: The estimate with its settings.

    Returns:
        All sections.
    """
    result, m, comparison = folder.result, matrices(folder.result), compare(folder.result)
    rows, width = m.mean.shape
    sections = [
        _request(folder, rows, width),
        _findings(m, comparison),
        _picture(folder, m),
        _levels(result),
        _allocation(result, comparison),
        _cost(result, comparison),
        _warnings(folder, m),
        _settings(folder),
    ]
    date = folder.info.get("date", "")
    return Page(
        str(folder.info.get("title") or "Estimate"),
        "MC dropout estimate",
        f"{result.status.value} {short(result.cost)} passes for each of {short(rows)} inputs, by {result.method}.",
        sections,
        f"Written by mlmc-dropout {__version__}{f' from a run of {date}' if date else ''}. This page needs no network.",
    )


def _request(folder: Folder, rows: int, width: int) -> Section:
    result, asked = folder.result, dict(folder.info.get("asked") or {})
    items = [("Inputs", f"{short(rows)} inputs, {short(width)} output component{'s' * (width != 1)} each")]
    items.append(("Method", f"{result.method}: {_METHODS.get(result.method, 'see the documentation')}"))
    items += [
        (_setting_name(key), _setting_text(value)) for key, value in asked.items() if key not in ("method", "inputs")
    ]
    if "inputs" in asked:
        items.insert(1, ("Read from", str(asked["inputs"])))
    return Section("asked", "What was asked", [Facts(items)])


def _setting_name(key: str) -> str:
    special = {"tolerance": "Standard error of the mean", "tolerance_variance": "Standard error of the variance"}
    return special.get(key, key.replace("_", " ").capitalize())


def _setting_text(value: Any) -> str:
    if isinstance(value, float):
        return short(value, 6)
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _findings(m: Matrices, comparison: Comparison) -> Section:
    std, worst = m.std, np.unravel_index(int(np.nanargmax(m.mean_stderr)), m.mean_stderr.shape)
    share = float(m.mean_stderr[worst] / std[worst]) if std[worst] > 0 else float("nan")
    middle = float(np.median(std))
    relative = float(np.nanmedian(m.std_stderr / np.where(std > 0, std, np.nan))) if (std > 0).any() else float("nan")
    cards = [
        Card(short(middle), "Spread of a pass", f"median standard deviation; {short(std.min())} to {short(std.max())}"),
        Card(short(float(m.mean_stderr[worst])), "Largest error of a mean", f"one standard error, input {worst[0]}"),
        Card(percent(relative), "Error of the spread", "median standard error, relative"),
        Card(
            ratio(comparison.gain_mean),
            "Worth of a pass",
            f"in passes of plain averaging; {ratio(comparison.gain_variance)} for the variance",
        ),
    ]
    text = Text(
        f"Dropout makes single predictions scatter with a standard deviation of {short(middle)} (median). "
        f"Their mean is known to within {short(float(m.mean_stderr[worst]))} or better everywhere (one standard error"
        + (f", {percent(share)} of the scatter there" if np.isfinite(share) else "")
        + "). The scatter is a property of the network; the standard errors shrink with more passes."
    )
    return Section("found", "What was found", [text], cards)


def _picture(folder: Folder, m: Matrices) -> Section:
    labels = component_labels(folder.result)
    if folder.x is not None:
        blocks: list[Any] = [charts.bands(folder.x, m, i, label) for i, label in enumerate(labels[:MOST_BANDS])]
        if len(labels) > MOST_BANDS:
            blocks.append(Text(f"{len(labels) - MOST_BANDS} further outputs are in result.csv."))
        return Section("bands", "Prediction and spread", blocks)
    blocks = [charts.sorted_uncertainty(m), _ranking(m, labels)] if len(m.score) > 1 else [_ranking(m, labels)]
    return Section("bands", "Uncertainty, sorted", blocks)


def _ranking(m: Matrices, labels: list[str], most: int = 10) -> TableBlock:
    """The most uncertain inputs, at their most uncertain component."""
    rows = []
    for i in np.argsort(-m.score, kind="stable")[:most]:
        j = int(np.argmax(m.std[i]))
        rows.append(
            (
                f"input {i}",
                labels[j],
                f"{short(m.mean[i, j], 4)} ± {short(m.mean_stderr[i, j], 2)}",
                f"{short(m.std[i, j])} ± {short(m.std_stderr[i, j], 2)}",
            )
        )
    return TableBlock(
        "The most uncertain inputs, at their most uncertain output",
        ("Input", "Output", "Mean ± standard error", "Standard deviation ± standard error"),
        rows,
        text_columns=2,
    )


def _levels(result: Result) -> Section:
    columns = (
        "Level",
        "T",
        "Count",
        "Passes",
        "Mean ΔY",
        "Var ΔY",
        "Kurtosis",
        "Mean ΔV",
        "Var ΔV",
        "Kurtosis",
        "Check",
    )
    rows = [
        (
            level.label,
            short(level.fidelity),
            short(level.count),
            short(level.cost, 4),
            *(short(average(getattr(level, n))) for n in ("mean", "variance", "kurtosis", "mean_V", "variance_V")),
            short(average(level.kurtosis_V)),
            "–" if level.telescoping is None else short(level.telescoping, 2),
        )
        for level in result.levels
    ]
    note = "Averages over inputs and outputs. Check: Giles' telescoping test, sound below 1."
    blocks: list[Any] = (
        [TableBlock("What each level contributed", columns, rows, note)]
        if rows
        else [Text("This method keeps no levels.")]
    )
    if len(rows) > 2:
        rates = variance_rates(result.levels)
        blocks.append(
            Text(
                "Correction variances fall with the fidelity T to the power "
                f"{short(-rates[0])} (mean) and {short(-rates[1])} (variance); theory says −1 for both on long ladders."
            )
        )
    return Section("levels", "Levels", blocks)


def _allocation(result: Result, comparison: Comparison) -> Section:
    if result.method != "mlmc" or not result.levels:
        text = (
            "Plain averaging has one kind of pass, so there is nothing to allocate. Its error follows the closed forms "
            "exactly: variance of a pass over the number of passes."
            if result.method == "pooled"
            else "This method has no ladder of pass counts to allocate. By theory, plain averaging of as many passes "
            "has the variance of a pass over their number as squared error; this run's is that divided by "
            f"{short(comparison.gain_mean)} for the mean, and plain averaging's divided by "
            f"{short(comparison.gain_variance)} for the variance."
        )
        return Section("allocation", "Allocation against theory", [Text(text)])
    T, counts = [lv.fidelity for lv in result.levels], [lv.count for lv in result.levels]
    cost_model = "coupled" if _is_nested(result) else "uncoupled"
    cost = theory.cost_per_replicate(T, cost_model)
    budget = float(cost @ np.asarray(counts))
    v, w = theory.level_variances_mean(T), theory.level_variances_variance(T)
    best = [theory.optimal_counts(values, cost, budget) for values in (v, w)]
    rows = [
        (f"level {i}", short(T[i]), short(counts[i]), short(best[0][i], 4), short(best[1][i], 4)) for i in range(len(T))
    ]
    table = TableBlock(
        "Replicates used, and the optimum of S² at the same charged cost",
        ("Level", "T", "Used", "Optimum for the mean", "Optimum for the variance"),
        rows,
        _COST_NOTES[cost_model],
    )
    blocks = [table, charts.level_variances(result), _reported_variances(result)]
    return Section("allocation", "Allocation against theory", blocks)


def _is_nested(result: Result) -> bool:
    """Whether levels share passes (Algorithm 1), rather than being drawn independently."""
    return result.metadata.get("levels") != "independent"


def _reported_variances(result: Result) -> TableBlock:
    """S² beside the squared standard errors."""
    squares = [average(np.square(matrix(stderr))) for stderr in (result.mean_stderr, result.variance_stderr)]
    return TableBlock(
        "What the multilevel formula reports, and what is true",
        ("Estimator", "S²", "Squared standard error", "Ratio"),
        [
            (name, short(average(S2)), short(square), short(average(S2) / square) if square else "–")
            for name, S2, square in (("mean", result.S2_mean, squares[0]), ("variance", result.S2_variance, squares[1]))
        ],
        _S2_NOTES["nested" if _is_nested(result) else "independent"],
    )


def _cost(result: Result, comparison: Comparison) -> Section:
    if result.method == "pooled":
        text = "This run is plain Monte Carlo and costs what it costs. Other methods may need fewer passes."
    elif comparison.gain_mean >= 1:
        text = (
            f"Plain averaging would need {short(comparison.plain_mean)} passes per input for the same error of the "
            f"mean, {short(comparison.gain_mean, 2)} times as many; for the variance "
            f"{short(comparison.plain_variance)}, {short(comparison.gain_variance, 2)} times as many."
        )
    else:
        text = (
            f"Plain averaging would reach the same error of the mean with {short(comparison.plain_mean)} passes per "
            f"input instead of {short(comparison.cost)}, and that of the variance with "
            f"{short(comparison.plain_variance)}: here this method costs more than it gives."
        )
    basis = "Estimated from this run's own variance of a pass; for the variance, passes are taken as Gaussian."
    return Section("cost", "Cost beside plain Monte Carlo", [Text(text), charts.cost_bars(comparison), Text(basis)])


def _warnings(folder: Folder, m: Matrices) -> Section:
    result = folder.result
    doubts = list(_doubts(result, m))
    warnings = [Note(result.status.value)] if result.status in _UNFINISHED else []
    warnings += [Note(text) for text in (*folder.info.get("warnings", ()), *doubts)]
    if not warnings:
        warnings = [Note("Nothing to warn of: standard errors rest on enough passes and no check failed.", calm=True)]
    remarks = [Note(note, calm=True) for note in result.notes if note not in doubts]
    return Section("warnings", "Warnings", [*warnings, *remarks])


def _doubts(result: Result, m: Matrices) -> Iterator[str]:
    """Reasons not to rely on the standard errors."""
    negative = int((m.variance < 0).sum())
    if negative:
        yield f"{negative} variance estimates are negative: noise exceeds the variance there. Spend more passes."
    positive = m.variance > 0
    rough = float((m.variance_stderr[positive] > 0.25 * m.variance[positive]).mean()) if positive.any() else 0.0
    if rough > 0.1:
        yield (
            f"For {percent(rough)} of the outputs the variance is known to no better than a quarter of "
            "itself. Spend more passes."
        )
    if doubtful := unreliable(matrix(result.mean_reliable), matrix(result.variance_reliable)):
        yield doubtful
    heavy = max((average(level.kurtosis) for level in result.levels), default=3.0)
    if heavy > 10:
        yield f"Passes have heavy tails (kurtosis {short(heavy)}; 3 is Gaussian): standard errors are rough."
    broken = [level.label for level in result.levels if level.telescoping is not None and level.telescoping >= 1]
    if broken:
        yield f"The telescoping check fails at {', '.join(broken)}: coarse and fine estimates do not fit together."


def _settings(folder: Folder) -> Section:
    result = folder.result
    blocks: list[Any] = []
    if folder.info.get("command"):
        blocks.append(CodeBlock(str(folder.info["command"]), "The command that made this run"))
    versions = dict(result.metadata.get("versions") or {})
    settings = [
        (_setting_name(k), _setting_text(v)) for k, v in result.metadata.items() if k != "versions" and v is not None
    ]
    facts = [("Seed", str(result.seed)), *settings]
    if folder.info.get("seconds") is not None:
        facts.append(("Time", duration(float(folder.info["seconds"]))))
    facts += [(f"Version of {name}", str(value)) for name, value in versions.items()]
    blocks.append(Facts(facts))
    blocks.append(Text("The same versions, seed and inputs give the same numbers, whatever the number of workers."))
    return Section("again", "Settings to run it again", blocks)
