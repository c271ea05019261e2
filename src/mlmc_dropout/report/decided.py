"""The section about decisions: the question, the answers, and which are open and why."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.report.blocks import Section, TableBlock, Text
from mlmc_dropout.report.folder import QUANTITIES, TABLE, Folder
from mlmc_dropout.report.formats import passes, percent, short, with_error
from mlmc_dropout.report.names import is_classes
from mlmc_dropout.report.numbers import Matrices, matrix
from mlmc_dropout.report.pictures import input_name, item_name, output_names
from mlmc_dropout.report.predictions import Predictions
from mlmc_dropout.result import Result
from mlmc_dropout.stopping.decisions import TopK

__all__ = ["Question", "decisions", "open_items", "question", "settled_inputs"]

MOST = 20  # rows of a table
CLEAR = 3.0  # standard errors from which on it is not chance that keeps a decision open, but how few passes there are


@dataclass(frozen=True, slots=True)
class Question:
    """What was to be decided.

    Attributes:
        kind: "label", "above", "top", or "choice" where the result does not say which of the two latter.
        threshold: Of "above".
        k: Of "top": how many inputs.
        by: Of "top": name of the quantity.
        probabilities: Whether outputs are probabilities of classes.
    """

    kind: str
    threshold: float = float("nan")
    k: int = 0
    by: str = ""
    probabilities: bool = False

    @property
    def measure(self) -> str:
        """What is compared, in words."""
        if self.kind == "top":
            return self.by.replace("_", " ")
        return "mean probability" if self.probabilities else "mean"

    def in_words(self, rows: int) -> str:
        """The question.

        Args:
            rows: Number of inputs.

        Returns:
            A sentence.
        """
        return {
            "label": "Which class has the largest mean probability?",
            "above": f"Is the {self.measure} above {short(self.threshold)}?",
            "top": f"Which {passes(self.k)} of the {passes(rows)} inputs have the largest {self.measure}?",
        }.get(self.kind, "Yes or no, for each input.")

    @property
    def easy(self) -> str:
        """Which inputs need few passes."""
        return {
            "label": "one whose leading class is far ahead needs fewer",
            "above": f"one whose {self.measure} is far from {short(self.threshold)} needs fewer",
            "top": f"one whose {self.measure} is far from the edge of the {passes(self.k)} largest needs fewer",
        }.get(self.kind, "one that is far from the edge needs fewer")


def question(folder: Folder) -> Question | None:
    """What was to be decided.

    Args:
        folder: The estimate with its settings.

    Returns:
        The question; ``None`` where there was none.
    """
    decision = folder.result.quantities.get("decision")
    if decision is None:
        return None
    of_classes = is_classes(folder.result)
    if decision.value.dtype != bool:
        return Question("label", probabilities=of_classes)
    kind, _, rest = str(folder.result.metadata.get("decision", "")).partition(":")
    with contextlib.suppress(ValueError):  # of a file that somebody has edited
        if kind == "above":
            return Question("above", threshold=float(rest), probabilities=of_classes)
        if kind == "top":
            count, _, by = rest.partition(":")
            return Question("top", k=int(count), by=by or str(TopK(1).by), probabilities=of_classes)
    return Question("choice", probabilities=of_classes)


def settled_inputs(result: Result) -> NDArray[np.bool_]:
    """Inputs whose decisions are all settled.

    Args:
        result: A result with decisions.

    Returns:
        Flags, (inputs,).
    """
    settled = result["decision"].settled
    return np.asarray(settled.reshape(len(settled), -1).all(axis=1))


def open_items(folder: Folder, found: Predictions) -> NDArray[np.int64]:
    """Predictions that are not settled: by their decisions, if there are such, or else by their confidence.

    Args:
        folder: The estimate.
        found: Its predictions.

    Returns:
        Their numbers.
    """
    decision = folder.result.quantities.get("decision")
    if decision is None:
        return found.unsettled
    if decision.settled.size == len(found.label):
        return np.flatnonzero(~decision.settled.reshape(-1))
    return np.flatnonzero(~settled_inputs(folder.result)[found.rows])


def decisions(folder: Folder, m: Matrices, found: Predictions | None) -> Section:
    """What was decided.

    Args:
        folder: The estimate with what the page shows besides; has decisions.
        m: Its estimates.
        found: Its predictions, where outputs are classes.

    Returns:
        The section.
    """
    asked, spent = question(folder), folder.result.passes
    assert asked is not None
    settled = settled_inputs(folder.result)
    blocks: list[Text | TableBlock] = [
        Text(f"The question: {asked.in_words(len(spent))}"),
        Text(
            f"{_how_many(folder)}{_confidence(folder)}. Inputs got {passes(np.median(spent))} passes in the median and "
            f"{passes(spent.max())} at most."
        ),
        _answers(folder, m, found, asked),
    ]
    if not settled.all():
        blocks.append(_open_ones(folder, m, found, asked))
    return Section("decisions", "Decisions", blocks)


def _how_many(folder: Folder) -> str:
    """How many decisions are open, as the terminal counts them."""
    settled = folder.result["decision"].settled
    count = int((~settled).sum())
    if not count:
        return f"All {passes(settled.size)} decisions are settled"
    return f"{passes(count)} of {passes(settled.size)} decisions {'is' if count == 1 else 'are'} open"


def _confidence(folder: Folder) -> str:
    asked = dict(folder.info.get("asked") or {})
    return f" at {percent(float(asked['confidence']), 3)} confidence" if "confidence" in asked else ""


# ------------------------------------------------------------------------------------- answers


def _answers(folder: Folder, m: Matrices, found: Predictions | None, asked: Question) -> TableBlock:
    if asked.kind == "label" and found is not None:
        return _classes(folder, found)
    if asked.kind == "top":
        return _chosen(folder, m, asked)
    if folder.result["decision"].value[0].size > 1:
        return _outputs(folder, asked)
    decision = folder.result["decision"]
    value, settled = decision.value.reshape(-1), decision.settled.reshape(-1)
    rows = [
        [text, passes((value == answer).sum()), passes((~settled & (value == answer)).sum())]
        for text, answer in (("yes", True), ("no", False))
    ]
    return TableBlock("The answers", ("Answer", "Inputs", "Of these open"), rows, f"Each input is in {QUANTITIES}.")


def _classes(folder: Folder, found: Predictions) -> TableBlock:
    """How many items each class has."""
    value, settled = (a.reshape(-1) for a in (folder.result["decision"].value, folder.result["decision"].settled))
    counts = np.bincount(value, minlength=len(found.names))
    opened = np.bincount(value[~settled], minlength=len(found.names))
    shown = np.sort(np.argsort(-counts, kind="stable")[:MOST])
    rows = [[found.names[c], passes(counts[c]), passes(opened[c])] for c in shown]
    rest = len(found.names) - len(shown)
    note = f"{rest} further classes have {passes(counts.sum() - counts[shown].sum())} {found.unit}s." if rest else ""
    return TableBlock("The answers", ("Predicted class", f"{found.unit.capitalize()}s", "Of these open"), rows, note)


def _chosen(folder: Folder, m: Matrices, asked: Question) -> TableBlock:
    """The inputs with the largest values, the largest first."""
    decision, values = folder.result["decision"], _compared(folder, m, asked)
    rows = np.flatnonzero(decision.value)
    if values is not None:
        rows = rows[np.argsort(-values[0][rows], kind="stable")]
    lines = [
        [
            input_name(folder, int(i)),
            *([] if values is None else [with_error(float(values[0][i]), float(values[1][i]))]),
            "yes" if decision.settled[i] else "not yet",
            passes(folder.result.passes[i]),
        ]
        for i in rows[:MOST]
    ]
    heads = ["Input", *([] if values is None else [asked.measure.capitalize()]), "Settled", "Passes"]
    note = f"{passes(len(rows) - MOST)} more are in {QUANTITIES}." if len(rows) > MOST else ""
    return TableBlock(f"The answer: the {passes(len(rows))} inputs chosen", heads, lines, note)


def _outputs(folder: Folder, asked: Question) -> TableBlock:
    """Yes and no for every output."""
    value, settled = (
        matrix(a).astype(bool) for a in (folder.result["decision"].value, folder.result["decision"].settled)
    )
    names = output_names(folder)
    rows = [
        [name, passes(value[:, j].sum()), passes((~value[:, j]).sum()), passes((~settled[:, j]).sum())]
        for j, name in enumerate(names[:MOST])
    ]
    note = f"{passes(len(names) - MOST)} further outputs are in {TABLE}." if len(names) > MOST else ""
    head = "Class" if asked.probabilities else "Output"
    return TableBlock(f"The answers: inputs for each {head.lower()}", (head, "Yes", "No", "Of these open"), rows, note)


def _compared(folder: Folder, m: Matrices, asked: Question) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Values and standard errors of what inputs are ranked by, (rows,); None if the result does not have it."""
    if asked.by in ("mean", "variance"):
        pair = (getattr(m, asked.by), getattr(m, f"{asked.by}_stderr"))
    elif asked.by in folder.result.quantities:
        one = folder.result[asked.by]
        pair = matrix(one.value), matrix(one.stderr)
    else:
        return None
    return (pair[0][:, 0], pair[1][:, 0]) if pair[0].shape[1] == 1 else None


# ---------------------------------------------------------------------------------- open ones


def _open_ones(folder: Folder, m: Matrices, found: Predictions | None, asked: Question) -> TableBlock:
    lines = [*_reasons(folder, m, found, asked)]
    rows, hidden = lines[:MOST], len(lines) - MOST
    unit = found.unit if found is not None and asked.kind == "label" else "input"
    value = [] if asked.kind == "label" else [asked.measure.capitalize()]
    heads = [unit.capitalize(), "As it looks", *value, "Why it is open", "Passes"]
    note = f"{passes(hidden)} more are in {QUANTITIES if unit == 'input' else TABLE}." if hidden > 0 else ""
    return TableBlock("Not settled", heads, rows, note, text_columns=len(heads) - 1)


def _reasons(folder: Folder, m: Matrices, found: Predictions | None, asked: Question) -> Iterator[list[str]]:
    """Open decisions, and what keeps them open."""
    decision, spent = folder.result["decision"], folder.result.passes
    if asked.kind == "label" and found is not None:
        for item in np.flatnonzero(~decision.settled.reshape(-1)):
            row = int(found.rows[item])
            yield [
                item_name(folder, found, int(item)),
                found.name(int(item)),
                _contest(found, int(item)),
                passes(spent[row]),
            ]
        return
    value, settled = (matrix(a).astype(bool) for a in (decision.value, decision.settled))
    compared = _compared(folder, m, asked) if asked.kind == "top" else None
    edge = asked.threshold if compared is None else _edge(compared[0], asked.k)
    for row, column in np.argwhere(~settled):
        name = input_name(folder, int(row))
        if value.shape[1] > 1:
            name += f", {output_names(folder)[column]}"
        pair = (m.mean, m.mean_stderr) if compared is None else tuple(a[:, None] for a in compared)
        now, error = (float(a[row, column]) for a in pair)
        answer = "yes" if value[row, column] else "no"
        yield [name, answer, with_error(now, error), _reason(now, error, edge), passes(spent[row])]


def _contest(found: Predictions, item: int) -> str:
    """The two leading classes."""
    second = found.runner_up(item)
    pairs = ((c, float(found.p[item, c]), float(found.p_stderr[item, c])) for c in (int(found.label[item]), second))
    return "too close: " + " against ".join(f"{found.names[c]} {with_error(p, error)}" for c, p, error in pairs)


def _reason(value: float, error: float, edge: float) -> str:
    """How far a value is from where the answer changes."""
    if not np.isfinite(edge):
        return "too close, or too few passes"
    distance = abs(value - edge) / error if error > 0 else float("inf")
    if distance > CLEAR:
        return "too few passes: rare masks could still change it"
    return f"too close: {short(distance, 2)} standard errors from {short(edge)}"


def _edge(values: NDArray[np.float64], k: int) -> float:
    """Between the smallest that is chosen and the largest that is not."""
    largest = np.sort(values)[::-1]
    return float(largest[k - 1 : k + 1].mean()) if k < len(largest) else float("nan")
