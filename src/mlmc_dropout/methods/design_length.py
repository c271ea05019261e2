"""How many passes a design has: few enough for standard errors, and so that units are dropped evenly."""

from __future__ import annotations

import numpy as np

from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import TRUSTED, Goal
from mlmc_dropout.surrogates.derivatives import expandable

__all__ = [
    "DESIGN",
    "MIN_PAIRS",
    "MIN_PASSES",
    "SHORT",
    "UNKNOWN_BUDGET",
    "design_length",
    "drops_evenly",
    "preparation_cost",
    "suited_length",
]

DESIGN = 20  # passes per design: pT is whole for the common rates 0.05, 0.1, 0.2, 0.25, 0.5
SHORT = 4  # of designs without a companion
TO_TOLERANCE = 10  # the same where standard errors decide: they are better with more pairs
UNKNOWN_BUDGET = 1280.0  # taken for the passes to come when only a tolerance is given
MIN_PAIRS = 4
MIN_PASSES = 4  # independent ones with a companion
_BEYOND = 0.2  # the share of a variance that is taken to be beyond designs, for their length
_BEYOND_BOTH = 0.6  # the share of what a companion leaves that designs leave, too


def suited_length(source: Source, goal: Goal, most: int, ahead: float, surrogate: bool, pass_cost: float = 1.0) -> int:
    """Passes of a design that suit a goal.

    Args:
        source: The passes of the inputs.
        goal: When to stop.
        most: The longest design.
        ahead: Passes that are spent before.
        surrogate: Whether passes have a companion.
        pass_cost: What a pass costs together with its companion, in passes.

    Returns:
        T.
    """
    length = most
    if goal.budget is not None:
        most = int(np.clip(goal.budget // 20, SHORT, most)) if goal.has_tolerance else most
        length = design_length(source, (goal.budget - ahead) / pass_cost, most, surrogate)
    if goal.has_tolerance and (goal.tolerance is None or drops_evenly(source, TO_TOLERANCE)):
        length = min(length, TO_TOLERANCE)
    return length


def drops_evenly(source: Source, passes: int) -> bool:
    """Whether a design drops every unit equally often.

    Args:
        source: The passes of the inputs.
        passes: T, the passes of a design.

    Returns:
        Whether pT is whole at every site.
    """
    return all(float(passes * site.p).is_integer() for site in source.program.active)


def preparation_cost(source: Source, samples: int = 0) -> float:
    """About what derivatives cost.

    Args:
        source: The passes of the inputs.
        samples: Random masks at which derivatives are taken, besides the mean mask.

    Returns:
        Passes.
    """
    return (1.0 + samples) * (1 + source.program.structure.width)


def design_length(source: Source, budget: float, most: int, surrogate: bool) -> int:
    """Passes of a design: few enough for standard errors, that leave little of the budget and drop units evenly.

    Args:
        source: The passes of the inputs.
        budget: Passes for designs.
        most: The longest design.
        surrogate: Whether passes have a companion.

    Returns:
        T.
    """
    lengths = range(1 if surrogate else min(SHORT, most), most + 1)
    return lengths[int(np.argmax([_worth(source, budget, T, surrogate) for T in lengths]))]


def _worth(source: Source, budget: float, T: int, surrogate: bool) -> float:
    """Passes used, over what uneven dropping leaves of the variance.

    Without a surrogate a design knows the scatter inside it to T − 1 degrees of freedom only, once its mean is fixed.
    """
    designs = int(budget // T)
    if designs < (MIN_PASSES if T == 1 else 2 * MIN_PAIRS):
        return 0.0
    beyond = _BEYOND_BOTH if surrogate else _BEYOND
    rates = {site.p for site in source.program.active if expandable(site)}
    uneven = max(((f := p * T % 1.0) * (1.0 - f) / (T * p * (1.0 - p)) for p in rates), default=0.0)
    used = designs * (T if surrogate else T - 1)
    return float(used / (beyond + (1.0 - beyond) * uneven) * min(1.0, designs / TRUSTED) ** 0.25)
