"""An experiment as a value: numbers, then a judgement and figures from the numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlmc_dropout.reproduction.verdict import Judgement, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Experiment"]


@dataclass(frozen=True, slots=True)
class Experiment:
    """One figure or table of the paper.

    ``compute`` alone costs time, and its data are kept. ``judge``, ``draw`` and ``rows`` read nothing but these data.

    Attributes:
        id: H for the headline, F1 … F4 for the forward problem, I1 … I4 for the inverse one.
        title: What it shows.
        claim: What the paper says.
        surrogates: Names of its networks.
        profiles: Settings by profile, ``"quick"`` and ``"paper"``.
        compute: Makes plain data from the networks, the settings and the ``Work`` that remembers what is done.
        judge: Makes checks, quantities and tables from the data.
        draw: Makes figures by file name from the data.
        rows: Makes the CSV file from the data.
    """

    id: str
    title: str
    claim: str
    surrogates: tuple[str, ...]
    profiles: Mapping[str, Mapping[str, Any]]
    compute: Callable[..., dict[str, Any]]
    judge: Callable[[Mapping[str, Any]], Judgement]
    draw: Callable[[Mapping[str, Any]], dict[str, Figure]]
    rows: Callable[[Mapping[str, Any]], Table]
