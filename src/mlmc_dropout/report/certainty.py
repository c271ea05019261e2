"""Sections about quantities: how sure class predictions are, data against model, quantiles and shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.report import charts
from mlmc_dropout.report.blocks import Card, Note, Section, TableBlock, Text
from mlmc_dropout.report.decided import decisions, open_items
from mlmc_dropout.report.folder import MOST_PLACES, QUANTITIES, TABLE, Folder
from mlmc_dropout.report.formats import passes, percent, short, with_error
from mlmc_dropout.report.names import place
from mlmc_dropout.report.numbers import Matrices, average, matrix
from mlmc_dropout.report.pictures import input_name, item_name, output_names
from mlmc_dropout.report.predictions import Predictions, passes_to_settle, predictions
from mlmc_dropout.result.text import SETTLED

__all__ = ["certainty", "file_of"]

Array = NDArray[np.float64]
MOST_BARS = 5  # inputs whose classes are drawn
MOST_RANKS = 10
MOST_UNSETTLED = 20
_PARTS = ("aleatoric_variance", "epistemic_variance", "total_variance")
_OF_CLASSES = ("entropy", "expected_entropy", "mutual_information", "votes", "label")


def certainty(folder: Folder, m: Matrices) -> Iterator[Section]:
    """Everything that was asked beside mean and variance.

    Args:
        folder: The estimate with what the page shows besides.
        m: Its estimates.

    Yields:
        The sections that apply.
    """
    found = predictions(folder.result, folder.data.class_names)
    shown: tuple[str, ...] = ()
    decided = "decision" in folder.result.quantities
    if decided:
        yield decisions(folder, m, found)
    if found is not None:
        yield _classes(folder, found)
        shown = _OF_CLASSES
        if found.knows_confidence and not decided and len(found.unsettled):
            yield _unsettled(folder, found)
    elif all(name in folder.result.quantities for name in _PARTS[:2]):
        yield _data_and_model(folder)
        shown = _PARTS
    others = [name for name, one in folder.result.quantities.items() if name not in shown and one.settled is None]
    if others:
        yield _others(folder, m, others)


# ------------------------------------------------------------------------------------- classes


def _classes(folder: Folder, found: Predictions) -> Section:
    blocks: list[Any] = [Text(_in_words(found))]
    if {"expected_entropy", "mutual_information"} <= {*found.entropies}:
        blocks.append(charts.data_against_model(found, open_items(folder, found)))
    blocks += _ranking(folder, found)
    if doubtful := int((~found.reliable).sum()):
        text = (
            f"For {passes(doubtful)} of {passes(len(found.label))} predictions rare passes may change entropies more "
        )
        text += "than the standard errors say; predicted classes that are settled stay as they are."
        blocks.append(Note(text, calm=True))
    if len(found.names) > 2 and not any(found.where):  # pixels and words are many; maps show them better
        blocks += [
            charts.class_bars(found, int(item), item_name(folder, found, int(item)), _truth(folder, found, item))
            for item in found.order[:MOST_BARS]
        ]
    return Section("classes", "How sure the predictions are", blocks, _cards(found), short="Predictions")


def _in_words(found: Predictions) -> str:
    text = "Entropy is all uncertainty of a prediction, from 0 (certain) to the logarithm of the number of classes, "
    text += f"here {short(found.limit, 4)}."
    if {"expected_entropy", "mutual_information"} <= {*found.entropies}:
        text += (
            " The expected entropy of a pass is the part that lies in the data (aleatoric): more passes or more "
            "training do not remove it. The mutual information of prediction and dropout masks is the part that lies "
            "in the model (epistemic): passes disagree there, and more training data would help."
        )
    if found.exceeds_limits:
        text += (
            " Estimates are corrected for their bias and can exceed these limits by their error; such values are shown "
            "at the limit here, and as they are in the files."
        )
    return text


def _cards(found: Predictions) -> list[Card]:
    cards = []
    titles = {
        "entropy": ("Entropy", "of the mean prediction: all uncertainty"),
        "expected_entropy": ("Of the data", "expected entropy of a pass (aleatoric)"),
        "mutual_information": ("Of the model", "mutual information (epistemic)"),
    }
    for name, (title, detail) in titles.items():
        if name in found.entropies and np.isfinite(found.entropies[name][1]).any():
            value, error = (average(values) for values in found.entropies[name])
            cards.append(Card(short(value), title, f"{detail}; average, ±\u00a0{short(error, 2)} for one {found.unit}"))
    return cards


def _truth(folder: Folder, found: Predictions, item: Any) -> int | None:
    true = found.true_classes(folder.data.labels)
    return None if true is None else int(true[item])


def _ranking(folder: Folder, found: Predictions) -> list[TableBlock]:
    """The most uncertain predictions first: what they are, and what makes them uncertain."""
    items = [int(item) for item in found.order[:MOST_RANKS]]
    truth = _truth(folder, found, 0) is not None
    columns = [found.unit.capitalize(), "Predicted", *(["True label"] if truth else []), "Probability"]
    columns += ["Confidence"] if found.knows_confidence else []
    columns += ["Votes"] if found.votes is not None else []
    votes = " Votes: the share of passes that predict the same class." if found.votes is not None else ""
    files = f" All {found.unit}s are in {file_of(found)}." if folder.has_files else ""
    note = f"± is one standard error.{votes}{files}"
    rows = [_rank(folder, found, item) for item in items]
    heads = {"entropy": "Entropy", "expected_entropy": "Of the data", "mutual_information": "Of the model"}
    pairs = [(found.shown(name), error) for name, (_, error) in found.entropies.items()]
    parts = [
        [item_name(folder, found, item), *(with_error(float(v[item]), float(e[item])) for v, e in pairs)]
        for item in items
    ]
    return [
        TableBlock(
            f"The most uncertain predictions, by {found.measure}", columns, rows, note, text_columns=3 if truth else 2
        ),
        TableBlock("What makes them uncertain", [columns[0], *(heads[name] for name in found.entropies)], parts),
    ]


def file_of(found: Predictions) -> str:
    """The file with all predictions.

    Args:
        found: The predictions.

    Returns:
        Its name.
    """
    inputs = int(found.rows[-1]) + 1
    return TABLE if len(found.rows) > MOST_PLACES * inputs else QUANTITIES


def _rank(folder: Folder, found: Predictions, item: int) -> list[str]:
    truth = _truth(folder, found, item)
    p, p_stderr = found.label_p
    cells = [item_name(folder, found, item), found.name(item)]
    cells += [] if truth is None else [found.names[truth]]
    cells.append(with_error(float(p[item]), float(p_stderr[item])))
    cells += [_confidence(float(found.confidence[item]))] if found.knows_confidence else []
    return [*cells, *([percent(float(found.votes[item]))] if found.votes is not None else [])]


def _confidence(confidence: float) -> str:
    return "over 99.9\u00a0%" if confidence > 0.999 else percent(confidence, 3)


def _unsettled(folder: Folder, found: Predictions) -> Section:
    """Predicted classes that more passes may change, and how many passes that takes."""
    items, count = found.unsettled, len(found.label)
    title = "Predicted classes that are not settled"
    why = Text(
        f"{passes(len(items))} of {passes(count)} predicted classes have a confidence below {percent(SETTLED)}: the "
        "two leading classes are too close for the passes spent. Their difference in standard errors grows with the "
        "square root of the passes, which gives the passes needed, if the difference is as large as it looks."
    )
    rows = [_contest(folder, found, int(item)) for item in items[:MOST_UNSETTLED]]
    hidden = len(items) - len(rows)
    table = TableBlock(
        "The least certain first",
        (
            found.unit.capitalize(),
            "Predicted",
            "Runner-up",
            "Probability",
            "Of the runner-up",
            "Confidence",
            "Passes needed",
        ),
        rows,
        f"{hidden} more are {f'in {file_of(found)}' if folder.has_files else 'not shown'}." if hidden else "",
        text_columns=3,
    )
    return Section("unsettled", title, [why, table], short="Unsettled")


def _contest(folder: Folder, found: Predictions, item: int) -> list[str]:
    second, confidence = found.runner_up(item), float(found.confidence[item])
    p, p_stderr = found.label_p
    return [
        item_name(folder, found, item),
        found.name(item),
        found.names[second],
        with_error(float(p[item]), float(p_stderr[item])),
        with_error(float(found.p[item, second]), float(found.p_stderr[item, second])),
        _confidence(confidence),
        _needed(passes_to_settle(confidence, float(folder.result.passes[found.rows[item]]))),
    ]


def _needed(count: float) -> str:
    return f"about {passes(float(f'{count:.2g}'))}" if count < 1e7 else "over 10⁷"


# ------------------------------------------------------------------------- means and variances


def _data_and_model(folder: Folder) -> Section:
    """Networks that return a mean and a variance: which part of the total variance is whose."""
    result, names = folder.result, output_names(folder)
    found = {name: result.quantities[name] for name in _PARTS if name in result.quantities}
    values = {name: matrix(one.value) for name, one in found.items()}
    errors = {name: matrix(one.stderr) for name, one in found.items()}
    data, model = (values[name] for name in _PARTS[:2])
    total = data + model
    titles = {"aleatoric_variance": "Of the data", "epistemic_variance": "Of the model", "total_variance": "Total"}
    cards = [
        Card(short(average(values[name])), titles[name], f"variance, average; ±\u00a0{short(average(errors[name]), 2)}")
        for name in found
    ]
    share = float(np.median(model / np.where(total > 0, total, np.nan)))
    text = Text(
        "The network returns a mean and a variance. The mean of its variances is noise of the data (aleatoric); the "
        "variance of its means is doubt of the model (epistemic), which more training data would reduce. "
        f"The model's part is {percent(share)} of the total (median)."
    )
    flat = np.argsort(-total, axis=None, kind="stable")
    chart = charts.scatter_with_errors(
        [v.reshape(-1) for v in (data, model)],
        errors["epistemic_variance"].reshape(-1),
        ("variance of the data (aleatoric)", "variance of the model (epistemic)"),
        flat,
    )
    rows = []
    for index in flat[:MOST_RANKS]:
        i, j = np.unravel_index(int(index), total.shape)
        cells = [with_error(float(values[name][i, j]), float(errors[name][i, j])) for name in found]
        rows.append([input_name(folder, int(i)), *([names[j]] if len(names) > 1 else []), *cells])
    heads = ["Input", *(["Output"] if len(names) > 1 else []), *(titles[name] for name in found)]
    table = TableBlock("The most uncertain predictions: variances", heads, rows, text_columns=len(heads) - len(found))
    return Section("parts", "Uncertainty of data and model", [text, chart, table], cards, short="Data and model")


# --------------------------------------------------------------------------------- all others


def _others(folder: Folder, m: Matrices, names: list[str]) -> Section:
    """Quantiles, shares above thresholds, and quantities of the user's own: a table each shape."""
    width = m.mean.shape[1]
    asked = folder.result.quantities
    shapes: dict[int, list[str]] = {}
    for name in names:
        shapes.setdefault(matrix(asked[name].value).shape[1], []).append(name)
    blocks: list[Any] = []
    for size, group in shapes.items():
        blocks.append(_values(folder, m, group, output_names(folder) if size == width else _indices(size)))
    kinds = {name.partition("_")[0] for name in names}
    texts = {
        "quantile": "A quantile is the least value that a pass stays at or below with the given probability. Its error "
        "is the longer side of its 95 % interval, over 1.96; the interval itself is in the tables.",
        "above": "Above: the probability that a pass exceeds the threshold.",
    }
    note = " ".join(text for kind, text in texts.items() if kind in kinds)
    return Section("quantities", "Quantities", [*([Text(note)] if note else []), *blocks])


def _indices(size: int) -> list[str]:
    return [""] if size == 1 else [place((index,)) for index in range(size)]


def _values(folder: Folder, m: Matrices, group: list[str], outputs: list[str]) -> TableBlock:
    """Values of the most uncertain inputs, at their most uncertain outputs."""
    found = {name: folder.result.quantities[name] for name in group}
    values = {name: matrix(one.value) for name, one in found.items()}
    size, several = len(outputs), len(outputs) > 1
    if size == m.std.shape[1]:
        flat = np.argsort(-m.std, axis=None, kind="stable")[:MOST_RANKS]
    else:
        order = np.argsort(-m.score, kind="stable")[:MOST_RANKS]
        flat = np.array([row * size + column for row in order for column in range(size)])[:MOST_RANKS]
    rows = []
    for index in flat:
        i, j = divmod(int(index), size)
        cells = [_cell(values[name], one.stderr, i, j) for name, one in found.items()]
        rows.append([input_name(folder, i), *([outputs[j]] if several else []), *cells])
    heads = ["Input", *(["Output"] if several else []), *(_title(name) for name in group)]
    return TableBlock(
        "Largest standard deviation of a pass first, ± one standard error",
        heads,
        rows,
        f"All inputs are in {TABLE if size == m.std.shape[1] else QUANTITIES}." if folder.has_files else "",
        text_columns=len(heads) - len(found),
    )


def _cell(values: Array, stderr: Any, i: int, j: int) -> str:
    return with_error(float(values[i, j]), float(matrix(stderr)[i, j])) if stderr is not None else short(values[i, j])


def _title(name: str) -> str:
    """As people say it: ``95 % quantile``, ``above 0.3``."""
    kind, _, number = name.partition("_")
    if kind == "quantile":
        return f"{percent(float(number), 4)} quantile"
    return f"Above {number}" if kind == "above" else name.replace("_", " ").capitalize()
