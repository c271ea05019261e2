"""The page about one estimate: the request, the findings, how far to trust them, how to run it again.

Sections that do not apply are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from mlmc_dropout.report import charts
from mlmc_dropout.report.blocks import Card, CodeBlock, Facts, Note, Page, Section, TableBlock, Text
from mlmc_dropout.report.certainty import certainty
from mlmc_dropout.report.decided import question
from mlmc_dropout.report.doubts import warnings
from mlmc_dropout.report.folder import Folder
from mlmc_dropout.report.formats import duration, passes, percent, probability, ratio, short
from mlmc_dropout.report.levels import allocation, levels
from mlmc_dropout.report.names import component_names
from mlmc_dropout.report.numbers import Comparison, Matrices, compare, matrices
from mlmc_dropout.report.outlook import what_next
from mlmc_dropout.report.pictures import input_name, item_name, output_words, pictures
from mlmc_dropout.report.predictions import Predictions, predictions
from mlmc_dropout.report.truth import beside_labels
from mlmc_dropout.result import Result
from mlmc_dropout.result.text import SETTLED, passes_in_words
from mlmc_dropout.version import __version__

__all__ = ["page"]

_METHODS = {
    "pooled": "plain Monte Carlo: the mean and variance of all passes",
    "mlmc": "multilevel over passes: coarse replicates corrected by finer ones",
    "stratified": "stratified masks: designs of passes in which every unit is dropped evenly",
    "control-variate": "a control variate: the network's expansion in its masks, whose moments are exact",
}
_IN_SHORT = {
    "pooled": "plain averaging",
    "mlmc": "multilevel Monte Carlo",
    "stratified": "stratified masks",
    "control-variate": "a control variate",
}


def page(folder: Folder) -> Page:
    """The page about an estimate.

    Args:
        folder: The estimate with its settings.

    Returns:
        All sections that apply.
    """
    result, m = folder.result, matrices(folder.result)
    rows, width = m.mean.shape
    date = str(folder.info.get("date", "")).replace("T", " ").replace("+00:00", " UTC")
    spent = f"{passes(result.cost)} passes {'on average ' * _uneven(result)}for each of {passes(rows)} inputs"
    return Page(
        str(folder.info.get("title") or "Estimate"),
        "MC dropout estimate",
        f"{result.status.value} {spent}, by {_IN_SHORT.get(result.method, result.method)}.",
        list(_sections(folder, m, rows, width)),
        f"Written by mlmc-dropout {__version__}{f' from a run of {date}' if date else ''}. This page needs no network.",
    )


def _sections(folder: Folder, m: Matrices, rows: int, width: int) -> Iterator[Section]:
    result, comparison = folder.result, compare(folder.result)
    doubts, advice = [*warnings(folder, m)], what_next(folder, m)
    yield _findings(folder, m, comparison)
    if doubts:
        yield Section("warnings", "Warnings", [Note(text) for text in doubts])
    yield advice
    if folder.info.get("comparison"):
        yield _side_by_side(folder)
    yield from certainty(folder, m)
    yield pictures(folder, m)
    if _uneven(result):
        yield _effort(folder, m)
    if folder.data.labels is not None:
        names = folder.data.class_names
        yield beside_labels(m, folder.data, predictions(result, names), component_names(result, names))
    if result.method != "pooled":
        yield _cost(comparison)
    if result.levels and result.method == "mlmc":
        yield levels(result)
        yield allocation(result)
    said = {*doubts, *(block.text for block in advice.blocks)}
    notes = [note for note in result.notes if note not in said]
    if notes:
        yield Section("notes", "Notes", [Note(text, calm=True) for text in notes])
    yield _request(folder, rows, width)
    yield _settings(folder)


def _uneven(result: Result) -> bool:
    return bool(np.ptp(result.passes) > 0)


def _effort(folder: Folder, m: Matrices) -> Section:
    """Who got how many passes, and who has not met the tolerance."""
    spent, asked = folder.result.passes, question(folder)
    easy = "one with less scatter needs fewer" if asked is None else asked.easy
    text = (
        f"Inputs got from {passes(spent.min())} to {passes(spent.max())} passes, {passes(np.median(spent))} in the "
        f"median: {easy}. With {passes(spent.max())} passes for everybody it would have "
        f"been {short(float(spent.max() / spent.mean()), 2)} times as many."
    )
    if unmet := _unmet(folder, m):
        text += f" {unmet} of {len(spent)} inputs have not met the tolerance."
    return Section("effort", "Passes of each input", [Text(text), charts.passes_of_inputs(spent)], short="Passes")


def _unmet(folder: Folder, m: Matrices) -> int:
    """Inputs with a standard error above the tolerance that was asked for."""
    asked = dict(folder.info.get("asked") or {})
    unmet = np.zeros(len(m.mean), dtype=bool)
    for name, values, stderr in (
        ("tolerance", m.mean, m.mean_stderr),
        ("tolerance_variance", m.variance, m.variance_stderr),
    ):
        if asked.get(name) is not None:
            scale = np.abs(values).max(axis=0) if asked.get("relative") else 1.0
            unmet |= (stderr > float(asked[name]) * np.where(scale > 0, scale, 1.0)).any(axis=1)
    return int(unmet.sum())


def _request(folder: Folder, rows: int, width: int) -> Section:
    result, asked = folder.result, dict(folder.info.get("asked") or {})
    items = [("Inputs", f"{passes(rows)} inputs, {passes(width)} output{'s' * (width != 1)} each")]
    chosen = "auto, which chose " if result.metadata.get("asked") == "auto" else ""
    items.append(("Method", f"{chosen}{result.method}: {_METHODS.get(result.method, 'see the documentation')}"))
    items += [
        (_setting_name(key), _setting_text(value)) for key, value in asked.items() if key not in ("method", "inputs")
    ]
    if "inputs" in asked:
        items.insert(1, ("Read from", str(asked["inputs"])))
    return Section("asked", "What was asked", [Facts(items)])


_NAMES = {
    "tolerance": "Tolerance: standard error of the mean",
    "tolerance_variance": "Tolerance: standard error of the variance",
    "quantile": "Share of outputs that must meet it",
    "labels": "True labels",
    "masks": "Masks of the inputs",
    "design": "Passes of a design",
    "gradient_masks": "Masks at which gradients were taken",
    "coarse_samples_per_pass": "Samples of the expansion per pass",
}


def _setting_name(key: str) -> str:
    return _NAMES.get(key, key.replace("_", " ").capitalize())


def _setting_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return short(value, 6)
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _findings(folder: Folder, m: Matrices, comparison: Comparison) -> Section:
    found = predictions(folder.result, folder.data.class_names)
    if found is not None:
        return _found_classes(folder, found, comparison)
    std, worst = m.std, np.unravel_index(int(np.nanargmax(m.mean_stderr)), m.mean_stderr.shape)
    where = input_name(folder, int(worst[0]))
    if m.mean.shape[1] > 1:
        where += f", {output_words(folder)[int(worst[1])]}"
    share = float(m.mean_stderr[worst] / std[worst]) if std[worst] > 0 else float("nan")
    middle = float(np.median(std))
    relative = float(np.nanmedian(m.std_stderr / np.where(std > 0, std, np.nan))) if (std > 0).any() else float("nan")
    cards = [
        Card(short(middle), "Spread of a pass", f"median standard deviation; {short(std.min())} to {short(std.max())}"),
        Card(short(float(m.mean_stderr[worst])), "Largest error of a mean", f"one standard error, at {where}"),
        Card(percent(relative), "Error of the spread", "median standard error, relative"),
    ]
    cards += [*_settled(folder, None), *_worth(folder.result, comparison)]
    text = Text(
        f"Dropout makes single predictions scatter with a standard deviation of {short(middle)} (median). "
        f"Their mean is known to within {short(float(m.mean_stderr[worst]))} or better everywhere (one standard error"
        + (f", {percent(share)} of the scatter there" if np.isfinite(share) else "")
        + "). The scatter is a property of the network; the standard errors shrink with more passes."
    )
    return Section("found", "What was found", [text], cards)


def _found_classes(folder: Folder, found: Predictions, comparison: Comparison) -> Section:
    """What matters of classes: the probability of the predicted one, how well it is known, whether it may change."""
    p, p_stderr = found.label_p
    middle, largest = float(np.median(p)), float(p_stderr[found.worst])
    where = item_name(folder, found, found.worst)
    detail = f"median; {probability(float(p.min()))} to {probability(float(p.max()))}"
    cards = [
        Card(probability(middle), "Probability of the predicted class", detail),
        Card(short(largest, 2), "Largest error of it", f"one standard error, at {where}"),
        *_settled(folder, found),
        *_worth(folder.result, comparison),
    ]
    text = Text(
        f"The probability of the predicted class is {probability(middle)} in the median, and known to within "
        f"{short(largest, 2)} or better everywhere (one standard error). How far single passes scatter is a property "
        "of the network; the standard errors shrink with more passes."
    )
    return Section("found", "What was found", [text], cards)


def _settled(folder: Folder, found: Predictions | None) -> list[Card]:
    """How many decisions, or else predicted classes, more passes would hardly change."""
    if "decision" in folder.result.quantities:
        settled = folder.result["decision"].settled
        return [Card(passes(settled.sum()), "Decisions settled", f"of {passes(settled.size)}")]
    if found is None or not found.knows_confidence:
        return []
    count = len(found.label)
    detail = f"of {passes(count)}: more passes would not change them (confidence {percent(SETTLED)})"
    return [Card(passes(count - len(found.unsettled)), "Predicted classes settled", detail)]


def _worth(result: Result, comparison: Comparison) -> list[Card]:
    if result.method == "pooled":
        return []
    if comparison.unknown:
        return [Card("–", "Worth of a pass", "not known: the passes tell too little")]
    detail = f"in passes of plain averaging; {_known_ratio(comparison.gain_variance)} for the variance"
    return [Card(_known_ratio(comparison.gain_mean), "Worth of a pass", detail)]


def _known_ratio(value: float) -> str:
    return "not known" if np.isnan(value) else ratio(value)


def _side_by_side(folder: Folder) -> Section:
    """Tables of several methods, as the terminal has shown them, but for its hyphens as minus signs."""
    tables = [
        TableBlock(
            str(table["caption"]),
            [*map(str, table["columns"])],
            [[re.sub(r"(^|\de)-(?=\d)", r"\1−", str(cell)) for cell in row] for row in table["rows"]],
            "",
        )
        for table in folder.info["comparison"]
    ]
    note = folder.info.get("comparison_note")
    said = [Text(str(note))] if note else []
    return Section("methods", "Several methods side by side", [*tables, *said], short="Methods")


def _cost(comparison: Comparison) -> Section:
    if comparison.unknown:
        text = (
            "How many passes plain averaging would need for the same errors is not known: there are too few passes, or "
            "too rare events in them, to tell."
        )
        return Section("cost", "Cost beside plain Monte Carlo", [Text(text)])
    if comparison.gain_mean < 1:
        text = (
            f"Plain averaging would reach the same error of the mean with {short(comparison.plain_mean)} passes per "
            f"input instead of {passes(comparison.cost)}, and that of the variance with "
            f"{_in_words(comparison.plain_variance)}: here this method costs more than it gives."
        )
    else:
        text = (
            f"Plain averaging would need {_in_words(comparison.plain_mean)} per input for the same error of the "
            f"mean ({_known_ratio(comparison.gain_mean)}); for the variance {_in_words(comparison.plain_variance)} "
            f"({_known_ratio(comparison.gain_variance)})."
        )
    basis = (
        "Both errors are estimated from the passes of this run, with the spread and the tails that these show. What "
        "standard errors allow for few passes or rare masks is left out on both sides."
    )
    return Section("cost", "Cost beside plain Monte Carlo", [Text(text), charts.cost_bars(comparison), Text(basis)])


def _in_words(plain: float) -> str:
    return "an unknown number of passes" if np.isnan(plain) else f"{passes_in_words(plain)} passes"


def _settings(folder: Folder) -> Section:
    result = folder.result
    blocks: list[Any] = []
    if folder.info.get("command"):
        blocks.append(CodeBlock.of_command(str(folder.info["command"]), "The command that made this run"))
    versions = dict(result.metadata.get("versions") or {})
    said = {"versions", "asked", *(folder.info.get("asked") or {})}
    settings = [
        (_setting_name(k), _setting_text(v)) for k, v in result.metadata.items() if k not in said and v not in (None, 0)
    ]
    facts = [("Seed", str(result.seed)), *settings]
    if folder.info.get("weights"):
        facts.append(("Hash of the weights", str(folder.info["weights"])))
    if folder.info.get("seconds") is not None:
        facts.append(("Time", duration(float(folder.info["seconds"]))))
    facts += [
        ("Platform" if name == "platform" else f"Version of {name}", str(value)) for name, value in versions.items()
    ]
    blocks.append(Facts(facts))
    blocks.append(
        Text("The same weights, inputs, seed and versions give the same numbers, whatever the number of workers.")
    )
    return Section("again", "Settings to run it again", blocks, short="Run it again")
