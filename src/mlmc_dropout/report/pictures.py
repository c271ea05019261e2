"""The section with pictures: bands over one number, maps over two, images as images, ranks for everything else."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlmc_dropout.report import charts
from mlmc_dropout.report.blocks import Section, TableBlock, Text
from mlmc_dropout.report.folder import Folder
from mlmc_dropout.report.formats import short, with_error
from mlmc_dropout.report.maps import image_maps, surfaces
from mlmc_dropout.report.names import class_words, component_names, is_classes, is_pair
from mlmc_dropout.report.numbers import Matrices
from mlmc_dropout.report.passes import telling_rows
from mlmc_dropout.report.predictions import Predictions, predictions

__all__ = ["input_name", "item_name", "output_names", "output_words", "pictures"]

NO_BREAK = "\u00a0"
MOST_BANDS = 4
MOST_SURFACES = 2
MOST_RANKS = 10
MOST_FEATURES = 4  # shown beside the number of an input


def pictures(folder: Folder, m: Matrices) -> Section:
    """Everything that can be drawn of an estimate.

    Args:
        folder: The estimate with what the page shows besides.
        m: Its estimates.

    Returns:
        The section.
    """
    x, names = folder.data.x, output_words(folder)
    dimension = 0 if x is None or len(x) < 2 else x.shape[1]
    found = predictions(folder.result, folder.data.class_names)
    rows = telling_rows(folder.result)
    classes = folder.data.class_names if found is None else found.names
    images = image_maps(folder.result, rows, classes, found, folder.data.labels)
    blocks: list[Any] = []
    if images:
        title, blocks = "Images", [*images]
    elif x is not None and dimension == 1:
        feature = _feature_names(folder)[0] if folder.data.feature_names else "input"
        bands = [charts.bands(x[:, 0], m, i, label, feature) for i, label in enumerate(names[:MOST_BANDS])]
        title, blocks = "Prediction and spread", [*bands, *_rest(names, MOST_BANDS)]
    elif x is not None and dimension == 2 and len(np.unique(x, axis=0)) > 3:
        shown = [
            figure
            for i, label in enumerate(names[:MOST_SURFACES])
            for figure in surfaces(x, m.mean[:, i], m.std[:, i], label, _feature_names(folder))
        ]
        title, blocks = "Maps of mean and spread", [*shown, *_rest(names, MOST_SURFACES)]
    else:
        title, blocks = "Uncertainty, sorted", []
    if not images and dimension != 1:
        blocks += [charts.sorted_uncertainty(m)] if len(m.score) > 1 else []
        blocks += [] if is_classes(folder.result) else [_ranking(folder, m)]  # classes have a table of their own
    return Section("bands", title, [*blocks, *_histograms(folder, m)], short="Pictures")


def output_names(folder: Folder) -> list[str]:
    """Names of the output components: those of the classes, if they are known.

    Args:
        folder: The estimate with what the page shows besides.

    Returns:
        One name per component.
    """
    return component_names(folder.result, folder.data.class_names)


def output_words(folder: Folder) -> list[str]:
    """What the output components are, for sentences and axes.

    Args:
        folder: The estimate with what the page shows besides.

    Returns:
        As in ``output 3``, ``output`` where there is one only, or ``probability of draw``.
    """
    result, names = folder.result, output_names(folder)
    if is_pair(result):
        one = class_words(result, folder.data.class_names)[1]
        return [f"probability of {one}" if len(names) == 1 else f"probability, output {name}" for name in names]
    if is_classes(result):
        return [f"probability of {name}" for name in names]
    return ["output"] if names == ["0"] else [f"output {name}" for name in names]


def input_name(folder: Folder, row: int) -> str:
    """What an input is called: its number, and its values if they are few.

    Args:
        folder: The estimate with what the page shows besides.
        row: Its number.

    Returns:
        As in ``input 16 (age 41, dose 0.2)``.
    """
    x = folder.data.x
    if x is None or (x.shape[1] > MOST_FEATURES and not folder.data.feature_names):
        return f"input {row}"
    shown = [f"{name} {short(float(v))}" for name, v in zip(_feature_names(folder), x[row], strict=True)]
    more = f", … ({len(shown)} in all)" if len(shown) > MOST_FEATURES else ""
    return f"input {row} ({', '.join(shown[:MOST_FEATURES])}{more})"


def item_name(folder: Folder, found: Predictions, item: int) -> str:
    """What an item of predictions is called: its input, and where in it.

    Args:
        folder: The estimate with what the page shows besides.
        found: Its predictions.
        item: Its number.

    Returns:
        As in ``input 3, row 8, column 8``.
    """
    where = f", {found.place[item]}" if found.place[item] else ""
    return f"{input_name(folder, int(found.rows[item])).replace(' ', NO_BREAK, 1)}{where}"


def _feature_names(folder: Folder) -> list[str]:
    x = folder.data.x
    assert x is not None
    return list(folder.data.feature_names) or ([f"x{i + 1}" for i in range(x.shape[1])] if x.shape[1] > 1 else ["x"])


def _rest(names: list[str], shown: int) -> list[Text]:
    return [Text(f"{len(names) - shown} further outputs are in result.csv.")] if len(names) > shown else []


def _ranking(folder: Folder, m: Matrices) -> TableBlock:
    """The inputs with the largest standard deviation, at the component that has it."""
    names, labels = output_names(folder), folder.data.labels
    classes = labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu" and len(names) > 1
    rows = []
    for i in np.argsort(-m.score, kind="stable")[:MOST_RANKS]:
        j = int(np.argmax(m.std[i]))
        cells = [
            input_name(folder, int(i)),
            *([names[j]] if len(names) > 1 else []),
            with_error(float(m.mean[i, j]), float(m.mean_stderr[i, j])),
            with_error(float(m.std[i, j]), float(m.std_stderr[i, j])),
        ]
        if classes and labels is not None:
            cells[1:1] = [names[int(labels[i])], names[int(np.argmax(m.mean[i]))]]
        rows.append(tuple(cells))
    columns = ["Input", *(["Output"] if len(names) > 1 else []), "Mean ± standard error"]
    columns.append("Standard deviation ± standard error")
    if classes:
        columns[1:1] = ["True label", "Predicted"]
    caption = "The inputs with the largest standard deviation" + (", at the output that has it" * (len(names) > 1))
    return TableBlock(caption, columns, rows, text_columns=len(columns) - 2)


def _histograms(folder: Folder, m: Matrices) -> list[Any]:
    """Single passes of a few inputs, at their most uncertain component."""
    passes = folder.data.passes
    if passes is None or passes.shape[2] != m.mean.shape[1]:
        return []
    names, blocks = output_words(folder), []
    within = (0.0, 1.0) if is_classes(folder.result) else (-np.inf, np.inf)
    for index, row in sorted(enumerate(folder.data.pass_rows), key=lambda pair: -m.score[pair[1]]):
        j = int(np.argmax(m.std[row]))
        where = f"{input_name(folder, row)}, {_standing(m, row)}"
        mean, std = float(m.mean[row, j]), float(m.std[row, j])
        if std > 0:
            blocks.append(charts.histogram(passes[:, index, j], mean, std, where, names[j], within))
    drawn = Text("These passes were drawn for the pictures and are not part of the estimate.")
    return [*blocks, drawn] if blocks else []


def _standing(m: Matrices, row: int) -> str:
    """How an input stands among the others by its standard deviation, which entropy need not follow."""
    rank, last = int((m.score > m.score[row]).sum()), len(m.score) - 1
    which = "the largest" if rank == 0 else "the smallest" if rank == last else "a median"
    over = " over all outputs" if m.mean.shape[1] > 1 else ""
    return f"the one with {which} standard deviation of a pass{over}"
