"""6 · One file per method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlmc_dropout.allocation import check_counts
from mlmc_dropout.errors import InputError
from mlmc_dropout.estimators.auto import Auto
from mlmc_dropout.estimators.base import Chooser, Estimates, LevelEstimate, Method, Source, State, Task, merge_states
from mlmc_dropout.estimators.mlmc import MLMC
from mlmc_dropout.estimators.pooled import Pooled
from mlmc_dropout.estimators.stratified import Stratified
from mlmc_dropout.ladder import Ladder

__all__ = [
    "METHODS",
    "MLMC",
    "Auto",
    "Chooser",
    "Estimates",
    "LevelEstimate",
    "Method",
    "Pooled",
    "Source",
    "State",
    "Stratified",
    "Task",
    "make_method",
    "merge_states",
]

METHODS = ("auto", "mlmc", "pooled", "stratified", "control-variate")
DEFAULT_LADDER = (4, 8, 16)
_OTHERS: dict[str, Chooser] = {
    "auto": Auto(),
    "pooled": Pooled(),
    "stratified": Stratified(),
    "control-variate": Stratified(expansion=True),
}


def make_method(
    name: str,
    *,
    ladder: Ladder | Sequence[int] | None = None,
    counts: Sequence[int] | None = None,
    levels: Any = "nested",
    target: Any = "mean",
) -> Chooser:
    """The method called ``name``; all arguments but the name are the paper's method's."""
    if name not in METHODS:
        raise InputError(f"unknown method {name!r}; use one of {', '.join(METHODS)}")
    if levels not in ("nested", "independent"):
        raise InputError(f"unknown levels {levels!r}; use 'nested' or 'independent'")
    if target not in ("mean", "variance"):
        raise InputError(f"unknown target {target!r}; use 'mean' or 'variance'")
    if name != "mlmc":
        if ladder is not None or counts is not None:
            raise InputError(f"ladder and counts belong to method='mlmc': got method={name!r}")
        return _OTHERS[name]
    chosen = ladder if isinstance(ladder, Ladder) else Ladder(DEFAULT_LADDER if ladder is None else ladder)
    chosen.require_variances()
    return MLMC(chosen, levels, None if counts is None else check_counts(chosen, counts), target)
