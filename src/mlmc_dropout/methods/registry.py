"""Methods by the names users choose them by; a new method is one file and one line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlmc_dropout.errors import InputError
from mlmc_dropout.methods.auto import Auto
from mlmc_dropout.methods.base import MethodSpec
from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.methods.mlmc.adaptive import Growth
from mlmc_dropout.methods.mlmc.allocation import check_counts
from mlmc_dropout.methods.mlmc.estimator import MLMC
from mlmc_dropout.methods.mlmc.ladder import Ladder
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.stratified import Stratified

__all__ = ["SPECS", "make_method"]

DEFAULT_LADDER = (4, 8, 16)

SPECS: dict[str, MethodSpec] = {
    "auto": Auto(),
    "mlmc": MLMC(Ladder(DEFAULT_LADDER)),
    "pooled": Pooled(),
    "stratified": Stratified(),
    "control-variate": ControlVariate(),
}


def make_method(
    name: str,
    *,
    ladder: Ladder | Sequence[int] | None = None,
    counts: Sequence[int] | None = None,
    levels: Any = "nested",
    target: Any = "mean",
    growth: Growth | None = None,
) -> MethodSpec:
    """The method of a name; all other arguments are settings of the paper's method.

    Args:
        name: One of ``SPECS``.
        ladder: Fidelities; ``None``: (4, 8, 16).
        counts: Replicates per level; ``None``: from the budget.
        levels: "nested" or "independent".
        target: The moment the allocation is optimal for, "mean" or "variance".
        growth: When to add a level; ``None``: never.

    Returns:
        The method.

    Raises:
        InputError: If a name or value is not known, or a setting is not the method's.
    """
    if name not in SPECS:
        raise InputError(f"unknown method {name!r}; use one of {', '.join(SPECS)}")
    if levels not in ("nested", "independent"):
        raise InputError(f"unknown levels {levels!r}; use 'nested' or 'independent'")
    if target not in ("mean", "variance"):
        raise InputError(f"unknown target {target!r}; use 'mean' or 'variance'")
    if name != "mlmc":
        if ladder is not None or counts is not None:
            raise InputError(f"ladder and counts belong to method='mlmc': got method={name!r}")
        return SPECS[name]
    chosen = ladder if isinstance(ladder, Ladder) else Ladder(DEFAULT_LADDER if ladder is None else ladder)
    chosen.require_variances()
    return MLMC(chosen, levels, None if counts is None else check_counts(chosen, counts), target, growth)
