"""8 · Pilot, plan, sample, stop: the one place where estimates are run."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from mlmc_dropout.allocation import check_counts
from mlmc_dropout.data import Structure
from mlmc_dropout.errors import AllocationError, InputError, NonFiniteOutputError
from mlmc_dropout.estimators import MLMC, Estimates, Method, Pooled, Source, State, merge_states
from mlmc_dropout.ladder import Ladder
from mlmc_dropout.result import LevelStats, Result, Status
from mlmc_dropout.sampler import DEFAULT_MEMORY_LIMIT, DropoutSampler
from mlmc_dropout.stopping import Goal

__all__ = ["estimate"]

METHODS = ("mlmc", "pooled")
DEFAULT_LADDER = (4, 8, 16)


def estimate(
    model: Callable[..., Any],
    x: Any,
    *,
    method: str = "pooled",
    ladder: Ladder | Sequence[int] | None = None,
    counts: Sequence[int] | None = None,
    levels: Literal["nested", "independent"] = "nested",
    target: Literal["mean", "variance"] = "mean",
    budget: float | None = None,
    tolerance: float | None = None,
    tolerance_variance: float | None = None,
    relative: bool = False,
    quantile: float = 1.0,
    transform: Callable[[Any], Any] | None = None,
    masks: Literal["independent", "shared"] = "independent",
    seed: int = 0,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    rates: float | Mapping[str, float] | None = None,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
    chunk: int | None = None,
) -> Result:
    """Mean and variance of a dropout network's predictions, with standard errors of both.

    ``model`` is any ``nn.Module`` or callable of tensors that uses torch's dropout; it is left as
    found. ``x`` is a tensor or array with the inputs along its first axis, a tuple or dict of them,
    or an iterable of batches. Stop at ``budget`` passes per input, at a ``tolerance`` for the standard
    error of the mean (``tolerance_variance`` for that of the variance), or at whichever comes first.

    ``method="pooled"`` is plain MC dropout. ``method="mlmc"`` is the paper's, on a ``ladder`` with
    explicit ``counts`` or the optimal ones for ``target``; ``levels`` are nested (Algorithm 1) or
    independent. The other arguments are those of :class:`DropoutSampler`; ``chunk`` fixes the number
    of passes computed at once, which changes the speed and nothing else.

    >>> model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1),
    ...                             torch.nn.Linear(16, 1))
    >>> result = estimate(model, torch.zeros(5, 1), method="mlmc", ladder=(4, 8, 16), budget=1000)
    >>> result.mean.shape, result.cost, result.status.name
    ((5, 1), 1000, 'COMPLETED')
    """
    plan = _method(method, ladder, counts, levels, target)
    if counts is not None and budget is None and tolerance is None and tolerance_variance is None:
        budget = plan.least()
    goal = Goal(budget, tolerance, tolerance_variance, relative, quantile)
    _check_affordable(plan, goal)
    sampler = DropoutSampler(
        model, masks, include=include, exclude=exclude, rates=rates, transform=transform, memory_limit=memory_limit
    )
    parts: list[_Outcome] = []
    row = 0
    for batch in sampler.batches(x):
        batch.check_finite(row)
        program = sampler.prepare(batch)
        source = Source(sampler, program, batch, _seed(seed), row, chunk)
        try:
            parts.append(_run(plan, goal, source))
        except NonFiniteOutputError as error:
            if error.partial is not None:
                error.partial = _result(plan, [*parts, error.partial], program.structure, seed)
            raise
        if parts[-1].status is Status.STOPPED:
            break
        row += batch.rows
    return _result(plan, parts, program.structure, seed)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One batch of inputs, estimated."""

    estimates: Estimates
    status: Status
    note: str = ""


def _run(plan: Method, goal: Goal, source: Source) -> _Outcome:
    """Spend, look, and spend more until the goal is reached."""
    plan = plan.choose(source, goal).bind(source)
    state: State = {}
    done: dict[str, int] = {}
    before: _Outcome | None = None
    spend = goal.first(plan.least())
    try:
        while True:
            tasks, after = plan.extend(done, spend)
            for task in tasks:
                state = merge_states(state, plan.run(source, task))
            done = after
            found = plan.summarise(state, done)
            before = _Outcome(found, *_verdict(goal, found, stuck=not tasks))
            if before.status is not Status.FAILED:
                return before
            spend = goal.more(found)
    except KeyboardInterrupt:
        if before is None:
            raise
        return replace(before, status=Status.STOPPED)
    except NonFiniteOutputError as error:
        error.partial = before
        raise


def _verdict(goal: Goal, found: Estimates, stuck: bool) -> tuple[Status, str]:
    """Whether to stop (any status but FAILED), and a remark on how far the run got."""
    if not goal.has_tolerance:
        return Status.COMPLETED, ""
    short = goal.shortfall(found)
    if short <= 1:
        return Status.TOLERANCE_MET, ""
    if stuck or goal.more(found) < 1:
        return (
            Status.BUDGET_EXHAUSTED,
            f"The largest standard error is {short**0.5:.3g} times the tolerance; "
            f"meeting it would take about {found.cost * short:.3g} passes per input.",
        )
    return Status.FAILED, ""


def _method(name: str, ladder: Any, counts: Any, levels: Any, target: Any) -> Method:
    if name not in METHODS:
        raise InputError(f"unknown method {name!r}; use one of {', '.join(METHODS)}")
    if levels not in ("nested", "independent"):
        raise InputError(f"unknown levels {levels!r}; use 'nested' or 'independent'")
    if target not in ("mean", "variance"):
        raise InputError(f"unknown target {target!r}; use 'mean' or 'variance'")
    if name != "mlmc":
        if ladder is not None or counts is not None:
            raise InputError(f"ladder and counts belong to method='mlmc': got method={name!r}")
        return Pooled()
    chosen = ladder if isinstance(ladder, Ladder) else Ladder(DEFAULT_LADDER if ladder is None else ladder)
    chosen.require_variances()
    return MLMC(chosen, levels, None if counts is None else check_counts(chosen, counts), target)


def _check_affordable(plan: Method, goal: Goal) -> None:
    """Refuse a budget below the smallest run, and counts that contradict the stop rule."""
    least = plan.least()
    if goal.budget is not None and goal.budget < least:
        raise AllocationError(
            f"a budget of {goal.budget:g} passes is too small for method={plan.name!r} with {plan.describe()}: "
            f"the cheapest feasible plan costs {least} passes per input"
        )
    if plan.describe().get("counts") is not None and goal.has_tolerance:
        raise InputError("counts= fixes the passes and tolerance= asks for as many as needed; give one of them")


def _seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed is a non-negative integer: got {seed!r}")
    return int(seed)


def _versions() -> dict[str, Any]:
    from mlmc_dropout import __version__

    return {
        "mlmc_dropout": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": sys.platform,
    }


_LEVEL_FIELDS = ("mean", "variance", "kurtosis", "mean_V", "variance_V", "kurtosis_V")


def _result(plan: Method, parts: Sequence[_Outcome], structure: Structure, seed: int) -> Result:
    """Put the batches together."""
    found = [part.estimates for part in parts]

    def joined(values: Sequence[Any]) -> Any:
        return None if values[0] is None else structure.unflatten(np.concatenate(values))

    levels = []
    for group in zip(*(f.levels for f in found), strict=True):
        arrays = {name: joined([getattr(level, name) for level in group]) for name in _LEVEL_FIELDS}
        checks = [level.telescoping for level in group if level.telescoping is not None]
        levels.append(
            LevelStats(
                group[0].label,
                group[0].fidelity,
                group[0].count,
                group[0].cost,
                **arrays,
                telescoping=max(checks, default=None),
            )
        )
    order = list(Status)
    return Result(
        joined([f.mean for f in found]),
        joined([f.variance for f in found]),
        joined([f.mean_stderr for f in found]),
        joined([f.variance_stderr for f in found]),
        joined([f.S2_mean for f in found]),
        joined([f.S2_variance for f in found]),
        max(f.cost for f in found),
        tuple(levels),
        max((part.status for part in parts), key=order.index),
        plan.name,
        seed,
        tuple(dict.fromkeys([note for p in parts for note in (*p.estimates.notes, p.note) if note])),
        {**plan.describe(), "versions": _versions()},
        structure,
    )
