"""The one call that users make: everything else is behind it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from mlmc_dropout.errors import AllocationError, InputError
from mlmc_dropout.methods.base import Method, MethodSpec
from mlmc_dropout.methods.mlmc.adaptive import Adaptive
from mlmc_dropout.methods.mlmc.ladder import Ladder
from mlmc_dropout.methods.registry import make_method
from mlmc_dropout.moments import Moments
from mlmc_dropout.quantities.class_axis import check_class_axis, warn_of_class_axis
from mlmc_dropout.quantities.outputs import CLASS_OUTPUTS, OutputKind
from mlmc_dropout.quantities.quantile import LOCATION_PASSES
from mlmc_dropout.quantities.questions import Asked, Questions, questions_for
from mlmc_dropout.quantities.shares import Above
from mlmc_dropout.result import Result, Status
from mlmc_dropout.runtime.checkpoint import CheckpointStore
from mlmc_dropout.runtime.executors import TaskPool, task_pool_for
from mlmc_dropout.runtime.progress import Event, Reporter, reporter_for
from mlmc_dropout.runtime.run import Run
from mlmc_dropout.runtime.scheduler import run_all
from mlmc_dropout.runtime.screening import SCREENING, Screen, both, with_candidates
from mlmc_dropout.runtime.signals import ending_by_exception
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.outputs import Structure, Transform
from mlmc_dropout.sampling.sampler import DEFAULT_MEMORY_LIMIT, DropoutSampler
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.decisions import TopK, decision_for
from mlmc_dropout.stopping.goal import Decision, Goal

__all__ = ["estimate"]

CONFIDENCE = 0.99
DECISION_BUDGET = 10_000  # passes that an input gets at most for a decision, unless a budget is given

_ENOUGH_TO_SHARE = 2000  # passes per input from which whole designs can be shared out
_BY_THE_PASS = ("pooled", "mlmc")  # methods that can spend any number of passes on an input
_EQUAL = "All inputs got the same passes: {}."


def estimate(
    model: Callable[..., Any],
    x: Any,
    *,
    method: str = "auto",
    ladder: Ladder | Sequence[int] | Literal["adaptive"] | Adaptive | None = None,
    counts: Sequence[int] | None = None,
    levels: Literal["nested", "independent", "uncoupled"] = "nested",
    target: Literal["mean", "variance"] = "mean",
    moments: Moments | Literal["pilot"] | None = None,
    outputs: OutputKind = "values",
    class_axis: int | None = None,
    quantities: Sequence[Asked] | Asked | None = None,
    budget: float | None = None,
    tolerance: float | None = None,
    tolerance_variance: float | None = None,
    relative: bool = False,
    quantile: float = 1.0,
    effort: Literal["adaptive", "equal"] | None = None,
    decision: Literal["label"] | Above | TopK | None = None,
    confidence: float = CONFIDENCE,
    familywise: bool = False,
    transform: Transform | None = None,
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
    """Mean and variance of a dropout network's predictions, and more on request, with standard errors.

    It stops at ``budget`` passes per input, at a ``tolerance``, at whichever comes first, or when a ``decision`` is
    settled; one has to be given.
    The arguments come in four groups: what is asked (``model`` to ``target``), when to stop (``budget`` to
    ``familywise``), how to sample (``transform`` to ``chunk``), and where to run (``executor`` to the end).

    Args:
        model: Any ``nn.Module`` or callable of tensors. It is left as it was. Passes are those of training mode with
            normalisation layers in evaluation mode.
        x: A tensor, array, data frame or list of lists with the inputs along its first axis, a tuple or dict of them, a
            dataset, or an iterable of batches. Numbers take the type that the model needs; labels are left out.
        method: "auto" picks the cheapest way from a small pilot and says which and
            why; "pooled" is plain MC dropout; "stratified" and "control-variate" need fewer passes for most networks,
            unbiased all the same; "mlmc" is the paper's.
        ladder: Of "mlmc": fidelities T_0 < … < T_L, (4, 8, 16) unless given; "adaptive", or an :class:`Adaptive` with
            settings of its own, adds levels until the finest is negligible.
        counts: Of "mlmc": replicates per level; ``None``: the optimal ones for the budget.
        levels: Of "mlmc": "nested" (Algorithm 1), "independent", or "uncoupled", where coarse and fine share no pass.
        target: Of "mlmc": the moment the counts are optimal for.
        moments: Of "mlmc": moments of a pass for the counts, "pilot" to measure them in a first round, or ``None`` for
            the closure μ4 = 3 μ2².
        outputs: What the network returns: "values", or "logits" (softmax over the last axis), "binary-logits",
            "probabilities", "mean-variance", "mean-log-variance". Mean and variance are then those of the
            probabilities, or of the means.
        class_axis: The axis of "logits" or "probabilities" that holds the classes, inputs being axis 0: 1 for images
            of shape (N, C, H, W). Results have the classes last. ``None``: the last axis, with a warning for images.
        quantities: What is wanted beside mean and variance, as ``result["entropy"]``: names ("std", "entropy",
            "expected_entropy", "mutual_information", "votes", "label", "aleatoric_variance", "epistemic_variance",
            "total_variance"), ``md.Above(c)``, ``md.Quantile(q)``, or ``md.Quantity``; ``None``: all that such outputs
            have. With ``("mean",)`` a ladder of "mlmc" may start at T_0 = 1, have gaps of 1, and single replicates
            above its first level.
        budget: Passes per input, at most; their average, where inputs stop one by one.
        tolerance: A standard error of the mean that is small enough.
        tolerance_variance: The same for the variance.
        relative: Tolerances are in units of the largest absolute estimate of an output component.
        quantile: The share of all components (inputs × outputs) that must meet a tolerance.
        effort: "adaptive": every input stops when it may, and with a budget only, passes go where they lower the
            errors most; "equal": all inputs get the same passes. By default adaptive where there is a tolerance for
            all components, equal otherwise and where inputs cannot be run apart.
        decision: What to settle instead of numbers: "label" (which class), ``md.Above(c)`` (whether the mean exceeds
            c), or ``md.TopK(k, by="mutual_information")``; ``result["decision"]`` has ``value`` and ``settled``. Passes
            go to inputs whose decision is open, at most ``budget`` to each, 10 000 unless given.
        confidence: The probability with which each decision has to be right.
        familywise: Whether it is that of all decisions together.
        transform: Applied to the output of each pass before it is read: a function, "softmax" or "sigmoid".
        masks: "independent": every input has its own masks; "shared": one mask per pass for all inputs. The moments at
            each input are the same.
        seed: Names the masks: the same seed gives the same result.
        include: Glob patterns on names of dropout sites; all others are held at their mean.
        exclude: Glob patterns of sites that are held at their mean.
        rates: Another dropout rate for all sites, or by pattern.
        memory_limit: Bytes that a chunk of passes may need.
        chunk: Passes computed at once; changes the speed and nothing else.
        executor: A number of processes, anything with the interface of
            ``concurrent.futures.Executor``, or a Dask client; the result does not depend on it.
        progress: ``True`` shows a bar on stderr; a function is called with an :class:`Event` now and then.
        checkpoint: A file in which progress is saved. A call with the same arguments goes on from there, one with a
            tighter goal extends what is there.
        checkpoint_interval: Seconds between two savings, at least.

    Returns:
        Estimates, standard errors and how they came about. After Ctrl-C, what there is.

    Raises:
        InputError: If an argument cannot work; the message says what to write instead.
        ModelError: If the model has no dropout, or random numbers that cannot be controlled.
        NonFiniteOutputError: If passes gave NaN or infinite outputs; ``partial`` is the result so far.
        CheckpointError: If the checkpoint cannot be written or belongs to another run.
        ExecutionError: If workers are gone and cannot be replaced.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1),
        ...                             torch.nn.Linear(16, 1))
        >>> result = estimate(model, torch.zeros(5, 1), method="mlmc", ladder=(4, 8, 16), budget=1000)
        >>> result.mean.shape, result.cost, result.status.name
        ((5, 1), 1000, 'COMPLETED')
    """
    questions = replace(questions_for(outputs, quantities), class_axis=check_class_axis(class_axis, outputs))
    decided = _decision(decision, confidence, familywise)
    questions = questions if decided is None else _asking_for(decision, questions)
    spec = _method(method, ladder, counts, levels, target, moments, _mean_only(quantities, tolerance_variance))
    if counts is not None and budget is None and tolerance is None and tolerance_variance is None:
        budget = spec.min_cost() + (LOCATION_PASSES if questions.need_locations else 0)
    goal = Goal(
        DECISION_BUDGET if budget is None and decided is not None else budget,
        tolerance,
        tolerance_variance,
        relative,
        quantile,
        decision=decided,
    )
    goal = _less_locating(goal, questions)
    _check_affordable(spec, goal)
    goal, equal_because = _with_effort(goal, effort, spec)
    sampler = DropoutSampler(
        model,
        masks,
        include=include,
        exclude=exclude,
        rates=rates,
        transform=_transform(transform, outputs),
        memory_limit=memory_limit,
        questions=questions,
    )
    checkpoints = CheckpointStore(checkpoint, checkpoint_interval, goal)
    checkpoints.identify(sampler, spec, _seed(seed))
    remarks = [equal_because]
    opening = _Opening(sampler, spec, checkpoints, _seed(seed), _chunk(chunk), remarks if effort else [])
    with ending_by_exception(), task_pool_for(executor, sampler) as pool, reporter_for(progress) as report:
        batches = sampler.batches(x)
        if decided is not None and decided.kind == "top":
            first = list(itertools.islice(batches, 2))
            batches = itertools.chain(first, batches)
            if len(first) > 1:
                facts = {"asked": method, **_reading(outputs, decision)}
                return _chosen_from_pool(opening, batches, goal, pool, report, facts)
        collector = run_all(opening.runs(batches, goal), pool, checkpoints, report)
    sampler.release()
    notes = [checkpoints.problem or "", *remarks]
    result = collector.result(Status.STOPPED, notes, asked=method, **_reading(outputs, decision))
    assert result is not None
    return replace(result, quantities={**result.quantities, "std": result["std"]}) if questions.std else result


@dataclass
class _Opening:
    """Opens the runs of batches of inputs; the first batch decides on the method."""

    sampler: DropoutSampler
    spec: MethodSpec
    checkpoints: CheckpointStore
    seed: int
    chunk: int | None
    remarks: list[str]
    method: Method | None = None
    opened: int = 0

    def runs(self, batches: Iterable[Batch], goal: Goal) -> Iterator[Run]:
        """A run for every batch, opened when it is its turn."""
        row = 0
        for batch in batches:
            batch.check_finite(row)
            yield self.run(batch, goal, row)
            row += batch.rows

    def run(self, batch: Batch, goal: Goal, first_row: int, numbers: torch.Tensor | None = None) -> Run:
        """The run of one batch, with the numbers of its rows where these are not consecutive."""
        program = self.sampler.prepare(batch)
        self._look_at_axes(program.structure)
        source = Source(self.sampler, program, batch, self.seed, first_row, self.chunk, numbers=numbers)
        apart = program.rows_split and batch.rows > 1
        own = goal if apart or goal.decision is not None else replace(goal, adaptive=False)
        if goal.adaptive and not program.rows_split:
            self.remarks.append(_EQUAL.format("they depend on each other, or on masks of the whole batch"))
        self.method = self.method or self.spec.choose(source, self.checkpoints.origin)
        if _too_small_to_share(own, self.method):
            own = replace(own, adaptive=False)
            self.remarks.append(_EQUAL.format("designs come whole, and would leave passes of a small budget unspent"))
        saved = self.checkpoints.resume(self.opened, source, own)
        run = Run(self.opened, source, self.method, own, saved)
        self.opened += 1
        return run

    def _look_at_axes(self, structure: Structure) -> None:
        """Say once which axis was taken for the classes, if it is likely to be another."""
        questions, leaves = self.sampler.questions, structure.names()
        if not self.opened and len(leaves) == 1:
            warn_of_class_axis(leaves[0][1], questions.outputs, questions.class_axis)


def _too_small_to_share(goal: Goal, method: Method) -> bool:
    """Whether a budget that is to be spent where it helps most is too small for a method of whole designs."""
    by_budget = goal.adaptive and not goal.has_tolerance and goal.decision is None and goal.budget is not None
    return bool(by_budget and method.name not in _BY_THE_PASS and (goal.budget or 0) < _ENOUGH_TO_SHARE)


def _chosen_from_pool(
    opening: _Opening, batches: Iterable[Batch], goal: Goal, pool: TaskPool, report: Reporter, facts: dict[str, Any]
) -> Result:
    """The k largest of several batches: all are screened with few passes, the candidates decided among themselves."""
    assert goal.decision is not None
    screen, k = Screen(goal.decision), goal.decision.k
    assert goal.budget is not None
    few = Goal(budget=min(SCREENING, goal.budget // 2))
    screened = run_all(opening.runs(batches, few), pool, opening.checkpoints, both(report, screen.watch))
    before = screened.result(Status.STOPPED, **facts)
    assert before is not None
    if screened.stopped:
        return with_candidates(before, None, np.arange(0), Status.STOPPED)
    assert screen.seen == len(before.passes)
    if screen.seen <= k:
        raise InputError(f"TopK({k}) of {screen.seen} inputs leaves nothing to decide; choose fewer")
    batch, numbers = screen.candidates()
    if len(numbers) == k:
        return with_candidates(before, None, numbers, Status.DECIDED)
    rest = replace(goal, budget=goal.budget - before.cost)
    candidates = opening.run(batch, rest, int(numbers[0]), torch.from_numpy(numbers))
    collector = run_all(iter([candidates]), pool, opening.checkpoints, report)
    opening.sampler.release()
    after = collector.result(Status.STOPPED, [opening.checkpoints.problem or "", *opening.remarks], **facts)
    assert after is not None
    return with_candidates(before, after, numbers)


def _with_effort(goal: Goal, effort: Any, spec: MethodSpec) -> tuple[Goal, str]:
    """The goal with inputs that stop one by one, if they may; and why they do not, if that was asked for."""
    if effort not in (None, "adaptive", "equal"):
        raise InputError(f"effort is 'adaptive', 'equal' or None: got {effort!r}")
    if goal.decision is not None:
        _check_decidable(goal, effort, spec)
        return replace(goal, adaptive=True), ""
    if effort == "equal" or (effort is None and not goal.has_tolerance):
        return goal, ""
    cause = ""
    if spec.fixed_counts:
        cause = "counts= fixes the passes"
    elif goal.quantile < 1 and goal.has_tolerance:
        cause = "quantile= is about all of them together"
    if cause:
        return goal, _EQUAL.format(cause) if effort else ""
    return replace(goal, adaptive=True), ""


def _check_decidable(goal: Goal, effort: Any, spec: MethodSpec) -> None:
    """Refuse what contradicts a decision."""
    if goal.has_tolerance:
        raise InputError("decision= stops when decisions are settled, tolerance= when numbers are; give one of them")
    if effort == "equal":
        raise InputError("decision= sends passes to inputs whose decision is open; leave out effort='equal'")
    if spec.fixed_counts:
        raise InputError("counts= fixes the passes and decision= asks for as many as needed; give one of them")


def _decision(decision: Any, confidence: Any, familywise: Any) -> Decision | None:
    """The decision, if there is one to be made."""
    if decision is None and (confidence != CONFIDENCE or familywise):
        raise InputError("confidence= and familywise= belong to decision=; give one, or leave them out")
    return None if decision is None else decision_for(decision, confidence, familywise)


def _asking_for(decision: Any, questions: Questions) -> Questions:
    """The questions with those that a decision rests on."""
    if decision == "label":
        wanted: Any = "label"
        if questions.outputs not in CLASS_OUTPUTS:
            kinds = ", ".join(map(repr, CLASS_OUTPUTS))
            raise InputError(
                f"decision='label' needs a classifier: say what it returns by outputs= ({kinds}); got outputs="
                f"{questions.outputs!r}"
            )
    elif isinstance(decision, TopK) and decision.by not in ("mean", "variance"):
        wanted = decision.by
    else:
        return questions
    asked = questions_for(questions.outputs, (wanted,)).asked
    if not asked:
        raise InputError(f"TopK by {wanted!r} is not possible; use by='variance', or another quantity")
    (more,) = asked
    name = more if isinstance(more, str) else more.name
    same = [one for one in questions.asked if (one if isinstance(one, str) else one.name) == name]
    if same and same[0] != more:
        raise InputError(f"TopK is by a quantity {name!r} of your own, and quantities= has another one of that name")
    return questions if same else replace(questions, asked=(*questions.asked, more))


def _mean_only(quantities: Any, tolerance_variance: Any) -> bool:
    """Whether nothing but the mean is wanted."""
    only = quantities == "mean" or (isinstance(quantities, Sequence) and tuple(quantities) == ("mean",))
    if only and tolerance_variance is not None:
        raise InputError("tolerance_variance= needs the variance, which is not among quantities=; add it")
    return only


def _transform(transform: Any, outputs: str) -> Any:
    """The transform, unless it says again what ``outputs=`` says."""
    if transform in ("softmax", "sigmoid") and outputs != "values":
        raise InputError(
            f"transform={transform!r} and outputs={outputs!r} both say how to read the outputs; leave out transform="
        )
    return transform


def _reading(outputs: str, decision: Any) -> dict[str, str]:
    """How outputs were read and what was decided, for the metadata of a result; decisions as in the shell."""
    facts = {} if outputs == "values" else {"outputs": outputs}
    if isinstance(decision, TopK):
        by = decision.by if isinstance(decision.by, str) else decision.by.name
        return {**facts, "decision": f"top:{decision.k}:{by}"}
    if isinstance(decision, Above):
        return {**facts, "decision": f"above:{float(decision.threshold)!r}"}
    return facts if decision is None else {**facts, "decision": str(decision)}


def _less_locating(goal: Goal, questions: Questions) -> Goal:
    """The goal less the passes that find where quantiles lie."""
    if goal.budget is None or not questions.need_locations:
        return goal
    if goal.budget <= LOCATION_PASSES:
        raise AllocationError(
            f"a budget of {goal.budget:g} passes is too small for quantiles: {LOCATION_PASSES} passes find where they "
            "lie; give more"
        )
    return replace(goal, budget=goal.budget - LOCATION_PASSES)


def _method(name: str, ladder: Any, counts: Any, levels: Any, target: Any, moments: Any, mean_only: bool) -> MethodSpec:
    """The method; an adaptive ladder begins with two levels."""
    settings = {"levels": levels, "target": target, "moments": moments}
    if isinstance(ladder, (str, Adaptive)):
        known = isinstance(ladder, Adaptive) or ladder == "adaptive"
        if not known or counts is not None or name != "mlmc":
            raise InputError(
                f"a ladder is a sequence of fidelities, or 'adaptive' with method='mlmc' and without counts: "
                f"got {ladder!r} with method={name!r} and counts={counts}"
            )
        growth = ladder if isinstance(ladder, Adaptive) else Adaptive()
        return make_method(name, ladder=growth.first_levels, growth=growth, **settings)
    return make_method(name, ladder=ladder, counts=counts, mean_only=mean_only, **settings)


def _check_affordable(spec: MethodSpec, goal: Goal) -> None:
    """Refuse a budget below the smallest run, and counts that contradict the stop rule."""
    min_cost = spec.min_cost()
    if goal.budget is not None and goal.budget < min_cost:
        raise AllocationError(
            f"a budget of {goal.budget:g} passes is too small for method={spec.name!r}{_settings_of(spec)}: the"
            f" cheapest feasible plan costs {min_cost} passes per input; give budget={min_cost} or more"
        )
    if spec.fixed_counts and goal.has_tolerance:
        raise InputError("counts= fixes the passes and tolerance= asks for as many as needed; give one of them")


def _settings_of(spec: MethodSpec) -> str:
    """As in `` with ladder=(4, 8, 16)``; nothing for a method without settings."""
    settings = ", ".join(f"{name}={value!r}" for name, value in spec.describe().items())
    return f" with {settings}" if settings else ""


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
