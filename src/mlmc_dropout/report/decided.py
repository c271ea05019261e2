"""The section about decisions: how many are settled, what they took, and which are open."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlmc_dropout.report.blocks import Section, TableBlock, Text
from mlmc_dropout.report.folder import QUANTITIES, Folder
from mlmc_dropout.report.formats import passes, percent
from mlmc_dropout.report.pictures import input_name

__all__ = ["decisions"]

MOST = 20  # rows of the table


def decisions(folder: Folder, names: Sequence[str]) -> Section:
    """What was decided.

    Args:
        folder: The estimate with what the page shows besides.
        names: Names of the classes, for labels; empty for other decisions.

    Returns:
        The section.
    """
    result, decision = folder.result, folder.result["decision"]
    settled = decision.settled.reshape(len(result.passes), -1).all(axis=1)
    spent, asked = result.passes, dict(folder.info.get("asked") or {})
    confidence = f" at {percent(float(asked['confidence']), 3)} confidence" if "confidence" in asked else ""
    text = (
        f"{passes(settled.sum())} of {passes(len(settled))} inputs are settled{confidence}, with "
        f"{passes(np.median(spent))} passes in the median and {passes(spent.max())} at most."
    )
    blocks: list[Text | TableBlock] = [Text(text)]
    open_ones = np.flatnonzero(~settled)
    if len(open_ones):
        rows = [
            [input_name(folder, int(i)), _shown(decision.value[i], names), passes(spent[i])] for i in open_ones[:MOST]
        ]
        hidden = len(open_ones) - len(rows)
        note = f"{passes(hidden)} more are in {QUANTITIES}." if hidden else ""
        blocks.append(TableBlock("Not settled: too close to call", ("Input", "As it looks", "Passes"), rows, note, 2))
    return Section("decisions", "Decisions", blocks)


def _shown(value: np.ndarray, names: Sequence[str]) -> str:
    """A decision in words."""
    values = np.atleast_1d(value)
    if values.size > 1:
        return f"{int(values.sum())} of {values.size} outputs above" if values.dtype == bool else "several labels"
    if values.dtype == bool:
        return "yes" if values[0] else "no"
    return names[int(values[0])] if len(names) else str(int(values[0]))
