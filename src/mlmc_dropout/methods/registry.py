"""Methods by the names users choose them by; a new method is one file and one line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlmc_dropout.errors import InputError, did_you_mean
from mlmc_dropout.methods.auto import Auto
from mlmc_dropout.methods.base import MethodSpec
from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.methods.mlmc.adaptive import Adaptive
from mlmc_dropout.methods.mlmc.allocation import averaged, check_counts
from mlmc_dropout.methods.mlmc.estimator import MLMC
from mlmc_dropout.methods.mlmc.ladder import Ladder
from mlmc_dropout.methods.mlmc.summary import COST_MODELS
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.moments import Moments

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
    growth: Adaptive | None = None,
    moments: Any = None,
    mean_only: bool = False,
) -> MethodSpec:
    """The method of a name; all other arguments are settings of the paper's method.

    Args:
        name: One of ``SPECS``.
        ladder: Fidelities; ``None``: (4, 8, 16).
        counts: Replicates per level; ``None``: from the budget.
        levels: "nested", "independent" or "uncoupled".
        target: The moment the allocation is optimal for, "mean" or "variance".
        growth: When to add a level; ``None``: never.
        moments: Moments of a pass for the allocation, or "pilot"; ``None``: the closure.
        mean_only: Whether nothing but the mean is wanted: T_0 = 1, gaps of 1 and single replicates are then allowed.

    Returns:
        The method.

    Raises:
        InputError: If a name or value is not known, or a setting is not the method's.
    """
    if name not in SPECS:
        raise InputError(f"unknown method {name!r}{did_you_mean(name, SPECS)}; use one of {', '.join(SPECS)}")
    if levels not in COST_MODELS:
        raise InputError(f"unknown levels {levels!r}; use one of {', '.join(map(repr, COST_MODELS))}")
    if target not in ("mean", "variance"):
        raise InputError(f"unknown target {target!r}; use 'mean' or 'variance'")
    if name != "mlmc":
        if ladder is not None or counts is not None or moments is not None:
            raise InputError(f"ladder, counts and moments belong to method='mlmc': got method={name!r}")
        return SPECS[name]
    chosen = ladder if isinstance(ladder, Ladder) else Ladder(DEFAULT_LADDER if ladder is None else ladder)
    replicates = None if counts is None else check_counts(chosen, counts, mean_only)
    mean_only = mean_only and (min(chosen.steps) < 2 or (replicates is not None and min(replicates) < 2))
    if not mean_only:
        chosen.require_variances()
    return MLMC(chosen, levels, replicates, target, growth, _moments(moments, counts, mean_only), mean_only)


def _moments(moments: Any, counts: Any, mean_only: bool) -> Any:
    """Moments as the method keeps them, checked."""
    if moments is None:
        return None
    if counts is not None:
        raise InputError("moments= serve the allocation and counts= replace it; give one of them")
    if isinstance(moments, Moments):
        return averaged(moments)
    if moments != "pilot":
        raise InputError(f"moments are md.Moments(mu2=..., mu4=...), 'pilot' or None: got {moments!r}")
    if mean_only:
        raise InputError("the counts for the mean do not depend on moments: leave out moments='pilot'")
    return moments
