"""An experiment as a value: numbers, then a judgement and figures from the numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlmc_dropout.reproduction.surrogates import Surrogate
from mlmc_dropout.reproduction.verdict import Judgement, Table
from mlmc_dropout.reproduction.work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Experiment"]


@dataclass(frozen=True, slots=True)
class Experiment:
    """One figure or table of the paper.

    ``compute`` makes plain data from the surrogate and a profile's settings; it alone costs time, and
    its data are kept. ``judge``, ``draw`` and ``rows`` (the CSV file) read nothing but these data.
    """

    id: str
    title: str
    claim: str
    surrogate: str
    profiles: Mapping[str, Mapping[str, Any]]
    compute: Callable[[Surrogate, Mapping[str, Any], Work], dict[str, Any]]
    judge: Callable[[Mapping[str, Any]], Judgement]
    draw: Callable[[Mapping[str, Any]], dict[str, Figure]]
    rows: Callable[[Mapping[str, Any]], Table]
