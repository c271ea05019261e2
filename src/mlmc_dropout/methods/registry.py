"""Methods by the names users choose them by; a new method is one file and one line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlmc_dropout.errors import InputError
from mlmc_dropout.methods.auto import Auto
from mlmc_dropout.methods.base import MethodSpec
from mlmc_dropout.methods.mlmc.allocation import check_counts
from mlmc_dropout.methods.mlmc.estimator import MLMC
from mlmc_dropout.methods.mlmc.ladder import Ladder
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.stratified import Stratified

__all__ = ["METHODS", "make_method"]

METHODS = ("auto", "mlmc", "pooled", "stratified", "control-variate")
DEFAULT_LADDER = (4, 8, 16)
_OTHERS: dict[str, MethodSpec] = {
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
) -> MethodSpec:
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
