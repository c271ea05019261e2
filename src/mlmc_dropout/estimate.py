"""The one call that users make: everything else is behind it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch  # noqa: F401  (for the doctest)

from mlmc_dropout.errors import AllocationError, InputError
from mlmc_dropout.methods.base import Method, MethodSpec
from mlmc_dropout.methods.mlmc.adaptive import Growth
from mlmc_dropout.methods.mlmc.ladder import Ladder
from mlmc_dropout.methods.registry import make_method
from mlmc_dropout.result import Result, Status
from mlmc_dropout.runtime.checkpoint import CheckpointStore
from mlmc_dropout.runtime.executors import task_pool_for
from mlmc_dropout.runtime.progress import Event, reporter_for
from mlmc_dropout.runtime.run import Run
from mlmc_dropout.runtime.scheduler import run_all
from mlmc_dropout.sampling.sampler import DEFAULT_MEMORY_LIMIT, DropoutSampler
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal

__all__ = ["estimate"]

FIRST_LEVELS = (2, 4)  # of an adaptive ladder


def estimate(
    model: Callable[..., Any],
    x: Any,
    *,
    method: str = "auto",
    ladder: Ladder | Sequence[int] | Literal["adaptive"] | None = None,
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
    executor: Any = None,
    progress: bool | Callable[[Event], Any] = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_interval: float = 30.0,
) -> Result:
    """Mean and variance of a dropout network's predictions, with standard errors of both.

    ``model`` is any ``nn.Module`` or callable of tensors that uses torch's dropout; it is left as
    found. ``x`` is a tensor or array with the inputs along its first axis, a tuple or dict of them,
    or an iterable of batches. Stop at ``budget`` passes per input, at a ``tolerance`` for the standard
    error of the mean (``tolerance_variance`` for that of the variance), or at whichever comes first.

    ``method="auto"`` picks, from a small pilot, the cheapest way to both moments and says which and why.
    ``method="pooled"`` is plain MC dropout; "stratified" and "control-variate" need far fewer passes for
    most networks, unbiased all the same. ``method="mlmc"`` is the paper's, on a ``ladder`` with
    explicit ``counts`` or the optimal ones for ``target``; ``levels`` are nested (Algorithm 1) or
    independent; ``ladder="adaptive"`` adds levels until the finest is negligible.

    A tolerance is met when the share ``quantile`` of all components (inputs × outputs) meets it. It is
    absolute, or, if ``relative``, in units of the largest absolute estimate of an output component.
    ``executor`` runs the tasks: a number of processes, anything with the interface of
    ``concurrent.futures.Executor``, or a Dask client; the result does not depend on it. Progress is
    saved in the file ``checkpoint`` at least every ``checkpoint_interval`` seconds (or after each
    task, if that takes longer); a call with the same arguments goes on from there, one with a tighter
    goal extends what is there. ``progress=True`` shows a bar on stderr; a function is called with an
    :class:`Event` now and then. Ctrl-C returns what there is. The other arguments are those of
    :class:`DropoutSampler`; ``chunk`` fixes the number of passes computed at once, which changes the
    speed and nothing else.

    >>> model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1),
    ...                             torch.nn.Linear(16, 1))
    >>> result = estimate(model, torch.zeros(5, 1), method="mlmc", ladder=(4, 8, 16), budget=1000)
    >>> result.mean.shape, result.cost, result.status.name
    ((5, 1), 1000, 'COMPLETED')
    """
    spec = _method(method, ladder, counts, levels, target)
    if counts is not None and budget is None and tolerance is None and tolerance_variance is None:
        budget = spec.min_cost()
    goal = Goal(budget, tolerance, tolerance_variance, relative, quantile)
    _check_affordable(spec, goal)
    sampler = DropoutSampler(
        model, masks, include=include, exclude=exclude, rates=rates, transform=transform, memory_limit=memory_limit
    )
    checkpoints = CheckpointStore(checkpoint, checkpoint_interval, goal)
    checkpoints.identify(sampler, spec, _seed(seed))
    runs = _runs(sampler, x, spec, goal, checkpoints, _seed(seed), _chunk(chunk))
    with task_pool_for(executor, sampler) as pool, reporter_for(progress) as report:
        collector = run_all(runs, pool, checkpoints, report)
    result = collector.result(Status.STOPPED, [checkpoints.problem or ""], asked=method)
    assert result is not None
    return result


def _runs(
    sampler: DropoutSampler,
    x: Any,
    spec: MethodSpec,
    goal: Goal,
    checkpoints: CheckpointStore,
    seed: int,
    chunk: int | None,
) -> Iterator[Run]:
    """A run for every batch of inputs, opened when it is its turn; the first batch decides on the method."""
    method: Method | None = None
    row = 0
    for index, batch in enumerate(sampler.batches(x)):
        batch.check_finite(row)
        source = Source(sampler, sampler.prepare(batch), batch, seed, row, chunk)
        saved = checkpoints.resume(index, source, goal)
        method = method or spec.choose(source, checkpoints.origin)
        yield Run(index, source, method, goal, saved)
        row += batch.rows


def _method(name: str, ladder: Any, counts: Any, levels: Any, target: Any) -> MethodSpec:
    """The method; an adaptive ladder begins with two levels."""
    if isinstance(ladder, str):
        if ladder != "adaptive" or counts is not None or name != "mlmc":
            raise InputError(
                f"a ladder is a sequence of fidelities, or 'adaptive' with method='mlmc' and without counts: "
                f"got {ladder!r} with method={name!r} and counts={counts}"
            )
        return make_method(name, ladder=FIRST_LEVELS, levels=levels, target=target, growth=Growth())
    return make_method(name, ladder=ladder, counts=counts, levels=levels, target=target)


def _check_affordable(spec: MethodSpec, goal: Goal) -> None:
    """Refuse a budget below the smallest run, and counts that contradict the stop rule."""
    min_cost = spec.min_cost()
    if goal.budget is not None and goal.budget < min_cost:
        raise AllocationError(
            f"a budget of {goal.budget:g} passes is too small for method={spec.name!r} with {spec.describe()}: "
            f"the cheapest feasible plan costs {min_cost} passes per input"
        )
    if spec.fixed_counts and goal.has_tolerance:
        raise InputError("counts= fixes the passes and tolerance= asks for as many as needed; give one of them")


def _chunk(chunk: Any) -> int | None:
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, (int, np.integer)) or chunk < 1):
        raise InputError(
            f"chunk is a whole number of passes, at least 1: got {chunk!r}; leave it out to have it chosen"
        )
    return None if chunk is None else int(chunk)


def _seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed is a non-negative integer: got {seed!r}")
    return int(seed)
