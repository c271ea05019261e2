"""``md.evaluate``: averages over a data set, by nested multilevel Monte Carlo."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch  # noqa: F401  (for the doctest)

from mlmc_dropout.errors import InputError
from mlmc_dropout.evaluation.checkpoint import Checkpoint, EvaluationProgress
from mlmc_dropout.evaluation.data import DataSet
from mlmc_dropout.evaluation.estimates import Design, Reading
from mlmc_dropout.evaluation.features import FeatureMap
from mlmc_dropout.evaluation.goal import EvaluationGoal, Step
from mlmc_dropout.evaluation.levels import LevelState, passes_of
from mlmc_dropout.evaluation.metrics import Metric, select_metrics
from mlmc_dropout.evaluation.plan import Planner
from mlmc_dropout.evaluation.progress import EvaluationEvent, reporting
from mlmc_dropout.evaluation.result import Evaluation, EvaluationLevel, MetricEstimate
from mlmc_dropout.evaluation.run import EvaluationRun
from mlmc_dropout.evaluation.single_terms import single_term_readings
from mlmc_dropout.evaluation.statistics import Statistics
from mlmc_dropout.evaluation.sweeps import Sweeps
from mlmc_dropout.quantities.class_axis import check_class_axis
from mlmc_dropout.quantities.outputs import OutputKind, check_outputs
from mlmc_dropout.result import Status
from mlmc_dropout.result.text import passes_in_words
from mlmc_dropout.runtime import fingerprint
from mlmc_dropout.runtime.collector import versions
from mlmc_dropout.runtime.executors import task_pool_for
from mlmc_dropout.sampling.sampler import DEFAULT_MEMORY_LIMIT, DropoutSampler

__all__ = ["evaluate"]


def evaluate(
    model: Callable[..., Any],
    x: Any,
    y: Any = None,
    *,
    metrics: Sequence[str | Metric] | None = None,
    outputs: OutputKind = "logits",
    class_axis: int | None = None,
    tolerance: float | None = None,
    relative: bool = True,
    budget: float | None = None,
    method: Literal["mlmc", "jackknife", "plug-in", "unbiased"] = "mlmc",
    passes: int | None = None,
    transform: Callable[[Any], Any] | None = None,
    seed: int = 0,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    rates: float | Mapping[str, float] | None = None,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
    executor: Any = None,
    progress: bool | Callable[[EvaluationEvent], Any] = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_interval: float = 30.0,
) -> Evaluation:
    """Averages over a data set of what MC dropout predicts: entropy, log-likelihood, calibration error and others.

    Each is the average over inputs of something nonlinear in the mean over passes. Plugging in T passes is biased for
    all inputs at once; here most inputs get very few passes and some get many, and the bias is gone.

    Args:
        model: Any ``nn.Module`` or callable of tensors. It is left as it was.
        x: A tensor or array with the inputs along its first axis, a tuple or dict of them, or an iterable of batches
            such as a DataLoader without shuffling, which is read several times. An iterator is read once; that
            needs a budget. Batches may hold their labels in a last part.
        y: Labels, one per input: class numbers, or values for regression; one per pixel or word, (N, H, W) say, where
            an input has a class at each of them.
        metrics: Names, and :class:`Metric` of your own; by default all that outputs and labels allow. For classes
            "nll", "entropy", "expected_entropy", "mutual_information", "brier", "accuracy", "ece"; for means
            and variances "nll", "rmse", "aleatoric_variance", "epistemic_variance", "total_variance"; for values
            "rmse", "epistemic_variance".
        outputs: What the network returns: "logits", "binary-logits", "probabilities", "mean-variance",
            "mean-log-variance" (two outputs, or halves of the last axis), or "values".
        class_axis: The axis of "logits" or "probabilities" that holds the classes, inputs being axis 0: 1 for images
            (N, C, H, W). The last one by default. Metrics are averages over pixels and inputs, and those of your
            own get features with the classes last.
        tolerance: Root mean square error to reach, for every metric.
        relative: The tolerance is a share of the value.
        budget: Passes per input on average, at most.
        method: "mlmc": levels of 1, 2, 4, … passes with antithetic halves, and extrapolation; "jackknife" and
            "plug-in": T passes at every input that is used; "unbiased": each input gets one random level.
        passes: T of "jackknife" and "plug-in", a power of 2; chosen if it is not given.
        transform: Applied to the output of each pass first.
        seed: Names masks and choice of inputs: the same seed gives the same result.
        include: Glob patterns on names of dropout sites; all others are held at their mean.
        exclude: Glob patterns of sites that are held at their mean.
        rates: Another dropout rate for all sites, or by pattern.
        memory_limit: Bytes that a chunk of passes may need.
        executor: A number of processes, anything with the interface of ``concurrent.futures.Executor``, or a Dask
            client; the result does not depend on it.
        progress: ``True`` shows a line on a terminal, or prints lines elsewhere, on stderr; a function is called with
            an :class:`EvaluationEvent`.
        checkpoint: A file in which progress is saved, and from which a call with the same arguments goes on.
        checkpoint_interval: Seconds between two savings, at least.

    Returns:
        Values, standard errors, remaining bias, and the level table. After Ctrl-C, what there is.

    Raises:
        InputError: If an argument cannot work; the message says what to write instead.
        ModelError: If the model has no dropout, or random numbers that cannot be controlled.
        NonFiniteOutputError: If passes gave NaN or infinite outputs.
        CheckpointError: If the checkpoint cannot be written or belongs to another evaluation.
        ExecutionError: If workers are gone and cannot be replaced.
        KeyboardInterrupt: If the user stopped before anything was known.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Dropout(0.2),
        ...                             torch.nn.Linear(16, 3))
        >>> found = evaluate(model, torch.randn(500, 2), metrics=("entropy",), tolerance=0.01)
        >>> found.status.name, found["entropy"].error < 0.011 * found["entropy"].value
        ('TOLERANCE_MET', True)
    """
    check_outputs(outputs)
    axis = check_class_axis(class_axis, outputs)
    goal = EvaluationGoal(tolerance, relative, budget)
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed is a non-negative integer: got {seed!r}")
    sampler = DropoutSampler(
        model, include=include, exclude=exclude, rates=rates, transform=transform, memory_limit=memory_limit
    )
    data = DataSet(sampler, x, y)
    chosen = select_metrics(metrics, outputs, data.has_labels)
    planner = Planner(method, passes, goal, chosen)
    features = FeatureMap(outputs, chosen, axis)
    identity = {} if checkpoint is None else _identity(sampler, data, planner, features, int(seed))
    saving = Checkpoint.at(checkpoint, checkpoint_interval, identity)
    if data.once and (checkpoint is not None or budget is None):
        raise InputError(
            "x is an iterator, which can be read once: that needs budget= and cannot be resumed from a checkpoint; "
            "give a list of batches or a DataLoader to read it several times"
        )
    with reporting(progress) as show, task_pool_for(executor, sampler) as pool:
        run = EvaluationRun(sampler, data, planner, features, int(seed), pool, saving, show)
        step = run.finish()
    return _result(run, step)


class _Named:
    """What a fingerprint asks of a method."""

    def __init__(self, planner: Planner, features: FeatureMap) -> None:
        self.name = planner.method
        self._settings = {
            "passes": planner.passes,
            **_reading(features),
            "metrics": [metric.name for metric in planner.metrics],
        }

    def describe(self) -> dict[str, Any]:
        """The settings as plain data."""
        return self._settings


def _reading(features: FeatureMap) -> dict[str, Any]:
    """How outputs are read, as plain data."""
    axis = {} if features.class_axis is None else {"class_axis": features.class_axis}
    return {"outputs": features.outputs, **axis}


def _identity(
    sampler: DropoutSampler, data: DataSet, planner: Planner, features: FeatureMap, seed: int
) -> dict[str, Any]:
    facts: Any = _Named(planner, features)
    return {**fingerprint.of_run(sampler, facts, seed), **data.identity()}


# ------------------------------------------------------------------------------------------- result


def _result(run: EvaluationRun, step: Step) -> Evaluation:
    now, planner = run.progress, run.current_planner
    few = any(len(part.states) < 3 or min(state.count for state in part.states) < 2 for part in now.parts)
    if now.strata is not None:
        few = any(not part.states or part.states[-1].count < part.rows for part in now.parts)
    if step.status is Status.STOPPED and (not now.rows or few):
        raise KeyboardInterrupt
    looked = _look(run, planner)
    if planner.method == "unbiased":
        part = now.parts[0]
        readings = single_term_readings(part.states, planner.metrics, part.shares, now.rows)
    else:
        readings = _readings(run, looked)
    busiest = max(range(len(now.parts)), key=lambda number: now.parts[number].passes)
    rates = looked[busiest][0].rates
    estimates = {
        metric.name: MetricEstimate(found.value, found.stderr, found.bias, rates(index))
        for index, (metric, found) in enumerate(zip(planner.metrics, readings, strict=True))
    }
    levels = [
        _level(one, state, level, design, now.design, number)
        for number, (part, (one, design)) in enumerate(zip(now.parts, looked, strict=True))
        for level, state in enumerate(part.states)
        if state.count
    ]
    notes = (step.note, _dearest(run, planner, looked, readings), *_remarks(planner, now))
    notes = (*notes, _trust(looked, now.design))
    assert step.status is not None
    return Evaluation(
        estimates,
        tuple(levels),
        run.passes() / now.rows,
        now.rows,
        step.status,
        planner.method,
        run.seed,
        tuple(note for note in notes if note),
        _metadata(run.planner, run.features, now),
    )


_FAR = 4.0  # times as many passes because of one metric that are worth a remark
_MANY = 20.0  # passes per input that are

Looked = list[tuple[Statistics, Design | None]]


def _look(run: EvaluationRun, planner: Planner) -> Looked:
    """Statistics of the strata and the weights of their levels."""
    now = run.progress
    if now.strata is not None:
        sweeps = Sweeps.of(now.parts, planner.metrics)
        return list(zip(sweeps.statistics, sweeps.designs(), strict=True))
    states = now.parts[0].states
    if planner.method == "unbiased":
        return [(Statistics(states, planner.metrics, now.rows), None)]
    if run.data.once:
        statistics = Statistics(states, planner.metrics, now.rows)
    else:
        statistics = planner.statistics(states, now.rows)
    return [(statistics, planner.ladder_at_end(statistics, run.data.once))]


def _readings(run: EvaluationRun, looked: Looked) -> list[Reading]:
    if run.progress.strata is not None:
        return Sweeps.of(run.progress.parts, run.planner.metrics).readings()
    statistics, design = looked[0]
    assert design is not None
    return statistics.readings(design)


def _dearest(run: EvaluationRun, planner: Planner, looked: Looked, readings: Sequence[Reading]) -> str:
    """A remark on the metric to whose tolerance most of the passes went, if the others need far fewer."""
    if planner.goal.tolerance is None or len(planner.metrics) < 2:
        return ""
    spent = run.passes() / run.progress.rows
    if len(looked) == 1 and looked[0][1] is not None and run.progress.strata is None:
        most, rest = planner.dearest(looked[0][0])
    else:  # variances fall with the number of passes
        errors = [math.hypot(one.stderr, one.bias) for one in readings]
        needs = np.square(errors / planner.goal.targets(readings))
        most = int(np.argmax(needs))
        rest = spent * float(np.max(np.delete(needs, most)) / max(needs[most], 1e-300))
    if spent < max(_FAR * rest, _MANY):
        return ""
    name, others = planner.metrics[most].name, tuple(m.name for i, m in enumerate(planner.metrics) if i != most)
    return (
        f"{name} needed the most passes: {_roughly(spent)} per input were spent, and without it the tolerance takes "
        f"roughly {_roughly(rest)}; to leave it out, give metrics={others!r}."
    )


def _roughly(passes: float) -> str:
    return passes_in_words(float(f"{passes:.2g}"))


def _trust(looked: Looked, unit: int) -> str:
    """A remark on levels whose variance rests on few inputs and matters."""
    if len(looked) > 1 or looked[0][1] is None:
        return ""
    statistics, design = looked[0]
    assert design is not None
    used = [level for level in design.weights if statistics.heavy(level) and statistics.matters(level, design)]
    if not used:
        return ""
    fidelities = ", ".join(f"T = {unit * passes_of(level)}" for level in used)
    return (
        f"Few inputs carry most of the variance on the levels {fidelities}; standard errors are not to be believed to "
        "the letter."
    )


def _metadata(planner: Planner, features: FeatureMap, progress: EvaluationProgress) -> dict[str, Any]:
    goal = planner.goal
    asked = {"tolerance": goal.tolerance, "relative": goal.relative, "budget": goal.budget, "passes": planner.passes}
    found = {"design": progress.design, "pilot": progress.pilot}
    return {**asked, **_reading(features), **found, "versions": versions()}


def _remarks(planner: Planner, progress: EvaluationProgress) -> list[str]:
    remarks = []
    if planner.design > 1:
        remarks.append(
            f"Every input gets {planner.design} passes or more, so that passes come in stratified designs of "
            f"{planner.design}; the pilot with independent passes is in the cost, but not among the levels."
        )
    if len(progress.parts) > 1:
        remarks.append(
            f"Inputs were sorted into {len(progress.parts)} strata by a few passes each, and each stratum has levels "
            "of its own; these passes are in the cost, too. Rates are those of the stratum with most passes."
        )
    jumps = [metric.name for metric in planner.metrics if metric.kinks]
    if not jumps:
        return remarks
    return [
        *remarks,
        f"{' and '.join(jumps)} jump{'s' if len(jumps) == 1 else ''} where an input changes its class or bin, so that "
        "variances fall more slowly than for smooth metrics.",
    ]


def _level(
    statistics: Statistics, state: LevelState, level: int, design: Design | None, unit: int, stratum: int
) -> EvaluationLevel:
    K = state.components
    offset = 0 if level == 0 else K
    block = state.block
    tables: dict[str, dict[str, float]] = {"mean": {}, "variance": {}, "kurtosis": {}, "variance_plain": {}}
    for index, (metric, part) in enumerate(statistics.named_parts()):
        g = statistics.direction(index)
        C = state.covariance[offset : offset + K, offset : offset + K][part, part]
        kurtosis = block.kurtosis[offset : offset + K][part]
        tables["mean"][metric.name] = float(g @ block.mean[offset : offset + K][part])
        tables["variance"][metric.name] = float(g @ C @ g)
        tables["kurtosis"][metric.name] = float(np.nanmax(kurtosis)) if np.isfinite(kurtosis).any() else 3.0
        tables["variance_plain"][metric.name] = float(np.sum(g**2 * block.variance[2 * K :][part]))
    passes = unit * passes_of(level)
    return EvaluationLevel(passes, state.count, state.count * passes, _use(level, design), **tables, stratum=stratum)


def _use(level: int, design: Design | None) -> str:
    if design is None:
        return "value" if level == 0 else "difference"
    if level not in design.weights:
        return "pilot"
    value, difference = (bool(weight.any()) for weight in design.weights[level])
    return "value and difference" if value and difference else "value" if value else "difference"
