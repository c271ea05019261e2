"""What can be averaged over a data set: functions of expectations over passes, and how the average is read.

A metric takes the expectations of some features of a pass at one input (the class probabilities, say), makes one or
several numbers of them, and reads its value off the averages of those numbers over all inputs:

    value = reduce( (1/N) Σ_i f(E φ_i, y_i) )
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.errors import InputError
from mlmc_dropout.quantities.outputs import CLASS_OUTPUTS, PAIR_OUTPUTS
from mlmc_dropout.quantities.uncertainty import entropy, mutual_information

__all__ = ["Metric", "default_metrics", "select_metrics"]

Array = NDArray[np.float64]
Expectations = Mapping[str, Array]

ECE_BINS = 15

BASIC = {
    **dict.fromkeys(CLASS_OUTPUTS, ("probabilities", "entropy")),
    **dict.fromkeys(PAIR_OUTPUTS, ("mean", "variance", "square")),
    "values": ("mean", "square"),
}


@dataclass(frozen=True, slots=True)
class Metric:
    """Something to average over a data set.

    Attributes:
        name: Its name in the evaluation.
        value: From expectations of features and labels to numbers per input. Expectations come by name, arrays
            (…, N, *shape) whose leading axes are to be kept; the result is (…, N), averaged over further axes
            such as pixels, or (…, N, ``components``).
        reduce: From the averages over all inputs, (…, components), to the value, (…); ``None``: the average itself.
        components: How many numbers ``value`` gives per input.
        uses: Features whose expectations ``value`` takes. For class outputs "probabilities", "entropy" (of a pass)
            and "log_likelihood" (of the label); for means and variances "mean", "variance", "square" (of the mean)
            and "log_likelihood"; for values "mean" and "square". ``None``: all of them but the likelihood.
        features: Features of its own: from outputs of passes (…, N, *out) to arrays by name.
        needs_labels: Whether ``value`` takes labels.
        kinks: Whether ``value`` jumps or bends, so that rates are lower than usual.

    Examples:
        >>> confidence = Metric("confidence", lambda expected, y: expected["probabilities"].max(axis=-1))
        >>> confidence.value({"probabilities": np.array([[0.9, 0.1], [0.5, 0.5]])}, None)
        array([0.9, 0.5])
    """

    name: str
    value: Callable[[Expectations, Any], Array]
    reduce: Callable[[Array], Array] | None = None
    components: int = 1
    uses: tuple[str, ...] | None = None
    features: Callable[[Array], Mapping[str, Array]] | None = None
    needs_labels: bool = False
    kinks: bool = False

    def reduced(self, averages: Array) -> Array:
        """The value that averages over the data set give.

        Args:
            averages: Averages, components along the last axis.

        Returns:
            The value, without the last axis.
        """
        if self.reduce is None:
            return averages[..., 0]
        with np.errstate(invalid="ignore", divide="ignore"):  # noise may lead out of the domain of a function
            return np.asarray(self.reduce(averages))


def select_metrics(metrics: Sequence[str | Metric] | None, outputs: str, has_labels: bool) -> tuple[Metric, ...]:
    """The metrics that were asked for.

    Args:
        metrics: Names and metrics of the user's own; ``None``: all that outputs and labels allow.
        outputs: What the network returns.
        has_labels: Whether there are labels.

    Returns:
        The metrics.

    Raises:
        InputError: If a name is unknown, does not fit the outputs, comes twice, or labels are missing.
    """
    known = _known(outputs)
    if metrics is None:
        return tuple(known[name] for name in default_metrics(outputs, has_labels))
    if isinstance(metrics, (str, Metric)):
        metrics = (metrics,)
    chosen = tuple(m if isinstance(m, Metric) else _named(m, outputs) for m in metrics)
    names = [metric.name for metric in chosen]
    if not names or len(set(names)) < len(names):
        raise InputError(f"metrics are names that come once each, at least one: got {tuple(names)}")
    without = [metric.name for metric in chosen if _needs_labels(metric)]
    if without and not has_labels:
        raise InputError(f"labels are needed for {', '.join(without)}: give y")
    return chosen


def default_metrics(outputs: str, has_labels: bool) -> tuple[str, ...]:
    """The names of all metrics of a kind of outputs.

    Args:
        outputs: What the network returns.
        has_labels: Whether there are labels.

    Returns:
        The names.

    Raises:
        InputError: If there is none without labels.
    """
    return tuple(name for name, m in _known(outputs).items() if has_labels or not _needs_labels(m))


def _needs_labels(metric: Metric) -> bool:
    return metric.needs_labels or "log_likelihood" in (metric.uses or ())


def _known(outputs: str) -> dict[str, Metric]:
    return _CLASSES if outputs in CLASS_OUTPUTS else _PAIRS if outputs in PAIR_OUTPUTS else _VALUES


def _named(name: Any, outputs: str) -> Metric:
    known = _known(outputs)
    if name in known:
        return known[name]
    fits = [kind for kind in BASIC if name in _known(kind)]
    remedy = f"it needs outputs={' or '.join(map(repr, fits))}" if fits else f"use one of {', '.join(known)}"
    raise InputError(f"no metric {name!r} for outputs={outputs!r}; {remedy}, or give an md.Metric")


# ---------------------------------------------------------------------------------------- class outputs


def _nll(expected: Expectations, y: Any) -> Array:
    return -expected["log_likelihood"]


def _one_hot(labels: Any, classes: int) -> Array:
    return np.asarray(np.arange(classes) == np.asarray(labels)[..., None], dtype=np.float64)


def _brier(expected: Expectations, y: Any) -> Array:
    p = expected["probabilities"]
    return np.asarray(((p - _one_hot(y, p.shape[-1])) ** 2).sum(axis=-1))


def _correct(p: Array, y: Any) -> Array:
    return np.asarray(p.argmax(axis=-1) == y, dtype=np.float64)


def _gaps_by_bin(expected: Expectations, y: Any) -> Array:
    """Accuracy minus confidence of each input, in the bin of its confidence and 0 in the others."""
    p = expected["probabilities"]
    confidence = p.max(axis=-1)
    bins = np.minimum((confidence * ECE_BINS).astype(np.int64), ECE_BINS - 1)
    gaps = _one_hot(bins, ECE_BINS) * (_correct(p, y) - confidence)[..., None]
    positions = tuple(range(np.ndim(gaps) - 1 - (np.ndim(y) - 1), np.ndim(gaps) - 1))
    return np.asarray(gaps.mean(axis=positions)) if positions else gaps


def _sum_of_absolutes(averages: Array) -> Array:
    return np.asarray(np.abs(averages).sum(axis=-1))


def _mutual_information(expected: Expectations, y: Any) -> Array:
    return mutual_information(expected["probabilities"], expected["entropy"])


def _entropy_of_mean(expected: Expectations, y: Any) -> Array:
    return entropy(expected["probabilities"])


def _expected_entropy(expected: Expectations, y: Any) -> Array:
    return expected["entropy"]


def _accuracy(expected: Expectations, y: Any) -> Array:
    return _correct(expected["probabilities"], y)


# ----------------------------------------------------------------------------------- means and variances


def _square_error(expected: Expectations, y: Any) -> Array:
    return np.asarray((expected["mean"] - y) ** 2)


def _root(averages: Array) -> Array:
    return np.sqrt(np.maximum(averages[..., 0], 0.0))


def _aleatoric(expected: Expectations, y: Any) -> Array:
    return expected["variance"]


def _epistemic(expected: Expectations, y: Any) -> Array:
    return np.asarray(expected["square"] - expected["mean"] ** 2)


def _total(expected: Expectations, y: Any) -> Array:
    return _aleatoric(expected, y) + _epistemic(expected, y)


def _table(*metrics: Metric) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


_P, _LIKELIHOOD = ("probabilities",), ("log_likelihood",)
_CLASSES = _table(
    Metric("nll", _nll, uses=_LIKELIHOOD, needs_labels=True),
    Metric("entropy", _entropy_of_mean, uses=_P),
    Metric("expected_entropy", _expected_entropy, uses=("entropy",)),
    Metric("mutual_information", _mutual_information, uses=("probabilities", "entropy")),
    Metric("brier", _brier, uses=_P, needs_labels=True),
    Metric("accuracy", _accuracy, uses=_P, needs_labels=True, kinks=True),
    Metric("ece", _gaps_by_bin, _sum_of_absolutes, components=ECE_BINS, uses=_P, needs_labels=True, kinks=True),
)
_RMSE = Metric("rmse", _square_error, _root, uses=("mean",), needs_labels=True)
_EPISTEMIC = Metric("epistemic_variance", _epistemic, uses=("mean", "square"))
_PAIRS = _table(
    Metric("nll", _nll, uses=_LIKELIHOOD, needs_labels=True),
    _RMSE,
    Metric("aleatoric_variance", _aleatoric, uses=("variance",)),
    _EPISTEMIC,
    Metric("total_variance", _total, uses=("mean", "square", "variance")),
)
_VALUES = _table(_RMSE, _EPISTEMIC)
