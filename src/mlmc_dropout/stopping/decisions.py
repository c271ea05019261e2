"""Decisions instead of numbers: passes go to inputs whose decision is still open.

An estimate θ with standard error s is compared with what it has to stay clear of, again and again as passes come in, so
an ordinary quantile would be crossed by chance sooner or later. The boundary used is that of Robbins' normal mixture,
in the form of an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, *Time-uniform central
limit theory and asymptotic confidence sequences*, Annals of Statistics 52, 2024): with n passes, at all times together,

    |θ − truth| ≤ s · sqrt((1 + 1/(nρ²)) · log((nρ² + 1)/α²))    with probability 1 − α.

Few samples carry the standard error at first: the normal quantile is replaced by Student's of the same probability. And
masks that did not come up in n passes may have a probability of up to q = log(2/α)/n, together; what they could change
at most is allowed for. Half of α goes to either. How far outputs without bounds may move is what any input has shown,
and nothing is settled before all inputs together have had the passes in which masks of probability 0.01 come up.

A label is decided when the leading class stays clear of every other one, each with α over the number of other classes.
The k inputs with the largest values are found by elimination, as in the identification of best arms (Bubeck, Wang and
Viswanathan, *Multiple identifications in multi-armed bandits*, ICML 2013): an input is in when at most k − 1 others can
be larger, and out when k others are larger for certain. There the confidence holds in the mean over the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, ndtr, stdtrit

from mlmc_dropout.errors import InputError
from mlmc_dropout.quantities.base import Quantity, QuantityEstimate
from mlmc_dropout.quantities.label import leading_difference
from mlmc_dropout.quantities.outputs import CLASS_OUTPUTS
from mlmc_dropout.quantities.quantile import Quantile
from mlmc_dropout.quantities.questions import Observation
from mlmc_dropout.quantities.shares import Above
from mlmc_dropout.quantities.student import student_factor
from mlmc_dropout.stopping.goal import Decision
from mlmc_dropout.stopping.rows import Part, reach_of

__all__ = ["TopK", "Verdict", "decision_for", "error_rate", "half_widths", "judge", "raw_ranges"]

Array = NDArray[np.float64]

RHO2 = 0.25  # ρ²: the boundary is tightest at some sixty passes
LEAST = 16  # passes before the first look
RARE = 0.01  # probability of masks that have to have come up, where outputs have no bounds
MOST_NEED = 1e12
_ENTROPIES = ("entropy", "mutual_information")  # of means of passes


@dataclass(frozen=True, slots=True)
class TopK:
    """The k inputs with the largest values of a quantity.

    Attributes:
        k: How many.
        by: The quantity: a name, or one of your own.
    """

    k: int
    by: Any = "mutual_information"

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, (int, np.integer)) or self.k < 1:
            raise InputError(f"TopK takes a whole number of inputs, at least 1: got TopK({self.k!r})")
        if not isinstance(self.by, (str, Quantity, Above, Quantile)):
            raise InputError(f"TopK is by a name, md.Above, md.Quantile or md.Quantity: got by={self.by!r}")


def decision_for(decision: Any, confidence: Any, familywise: Any) -> Decision:
    """The decision behind the arguments of ``estimate``.

    Args:
        decision: "label", :class:`Above` or :class:`TopK`.
        confidence: A probability between 0.5 and 1.
        familywise: Whether it is that of all decisions together.

    Returns:
        The decision.

    Raises:
        InputError: If it is none of these.
    """
    number = isinstance(confidence, (int, float, np.floating)) and not isinstance(confidence, bool)
    if not number or not 0.5 <= confidence < 1:
        raise InputError(f"confidence is a probability between 0.5 and 1, as 0.99: got {confidence!r}")
    if not isinstance(familywise, bool):
        raise InputError(f"familywise is True or False: got {familywise!r}")
    if decision == "label":
        return Decision("label", float(confidence), familywise)
    if isinstance(decision, Above):
        return Decision("above", float(confidence), familywise, threshold=float(decision.threshold))
    if isinstance(decision, TopK):
        by = decision.by if isinstance(decision.by, str) else decision.by.name
        return Decision("top", float(confidence), familywise, k=int(decision.k), by=by)
    raise InputError(f"a decision is 'label', md.Above(c) or md.TopK(k, by=...): got {decision!r}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How decisions stand, part by part of the inputs.

    Attributes:
        values: The decisions as they look now, (rows, …).
        settled: Whether they are certain enough, of the same shape.
        needs: How many times as many passes each input needs, (rows,); at most 1: it is settled.
    """

    values: list[NDArray[Any]]
    settled: list[NDArray[np.bool_]]
    needs: list[Array]

    def estimates(self) -> list[QuantityEstimate]:
        """Part by part, what results show."""
        pairs = zip(self.values, self.settled, strict=True)
        return [QuantityEstimate(value, settled=settled) for value, settled in pairs]


def judge(
    decision: Decision, parts: Sequence[Part], observation: Observation, share: float = 1.0, shared: bool = False
) -> Verdict:
    """Look at all inputs of a batch.

    Args:
        decision: What is to be decided.
        parts: Inputs that have had the same passes, part by part.
        observation: What was asked of the passes.
        share: Of the error rate that this batch may use, where all decisions together count.
        shared: Whether all inputs have the same masks.

    Returns:
        How they stand.

    Raises:
        InputError: If there are fewer inputs than are to be chosen, or they have more than one value each.
    """
    alpha = error_rate(decision, sum(map(len, parts)), share)
    if decision.kind == "top":
        return _top(decision, parts, observation, alpha)
    if decision.kind == "label":
        found = [_label(part, observation, alpha) for part in parts]
    else:
        found = _above(decision.threshold, parts, observation, alpha, shared)
    return Verdict([f[0] for f in found], [f[1] <= 1 for f in found], [_worst(f[1]) for f in found])


def error_rate(decision: Decision, rows: int, share: float = 1.0) -> float:
    """The error rate α of a single input.

    An interval that fails misplaces its own input among the largest, and at most one more, whose place it takes or
    leaves: m failures make at most 2m errors. With half of the error rate for every interval, the share of wrong
    decisions is at most 1 − confidence in the mean over the inputs.

    Args:
        decision: What is to be decided.
        rows: Number of inputs.
        share: Of the error rate that they may use, where all decisions together count.

    Returns:
        α.

    Examples:
        >>> round(error_rate(Decision("label", 0.9), 10), 3), round(error_rate(Decision("top", 0.9, k=2), 10), 3)
        (0.1, 0.05)
    """
    alpha = 1 - decision.confidence
    if decision.familywise:
        return alpha * share / rows
    return alpha / 2 if decision.kind == "top" else alpha


def _worst(needs: Array) -> Array:
    return np.asarray(np.minimum(needs.reshape(len(needs), -1).max(axis=1), MOST_NEED))


def boundary(passes: float, samples: float, alpha: float) -> float:
    """Standard errors that an estimate stays within of the truth, at all times, but for a probability of α.

    Args:
        passes: Passes n.
        samples: Samples behind the standard error.
        alpha: α.

    Returns:
        The factor.

    Examples:
        >>> round(boundary(64, 1e9, 0.01), 2), round(boundary(64, 16, 0.01), 2)
        (3.58, 4.6)
    """
    time = passes * RHO2
    normal = math.sqrt((1 + 1 / time) * math.log((time + 1) / alpha**2))
    freedom = max(samples - 1.0, 1.0)
    student = float(stdtrit(freedom, ndtr(normal))) if normal < 8 else normal * 8  # beyond, probabilities round to 1
    return max(student, normal)


def _unseen(passes: float, alpha: float) -> float:
    """The most probability that masks may have which did not come up."""
    return min(math.log(2 / alpha) / passes, 1.0)


def _few(alpha: float, parts: Sequence[Part], shared: bool) -> float:
    """How many times as many passes all inputs together need for masks of probability ``RARE`` to have come up.

    Outputs that have no bounds are allowed to move as far as any input has shown; before that, nothing is known.
    """
    had = max(part.passes for part in parts) if shared else sum(len(part) * part.passes for part in parts)
    return math.log(4 / alpha) / RARE / had


def _needs(gap: Array, error: Array, hidden: Array) -> Array:
    """F for which f times as many passes settle: gap − hidden/f − error/√f = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        root = (error + np.sqrt(np.square(error) + 4 * gap * hidden)) / (2 * gap)
    return np.where(gap > 0, np.minimum(np.square(root), MOST_NEED), MOST_NEED)


def _label(part: Part, observation: Observation, alpha: float) -> tuple[NDArray[Any], Array]:
    assert part.estimates.groups is not None
    means = observation.group_means(part.estimates.groups)
    two, gap, stderr = leading_difference(means)
    alpha = alpha / 2 / (means.means["probabilities"].shape[-1] - 1)
    q = _unseen(part.passes, alpha)
    error = boundary(part.passes, len(means.counts), alpha) * np.nan_to_num(stderr, nan=np.inf)
    return two[..., 0], _needs(gap, error, q * (1 + gap))


def _above(
    threshold: float, parts: Sequence[Part], observation: Observation, alpha: float, shared: bool
) -> list[tuple[NDArray[Any], Array]]:
    """Decisions and needs, part by part."""
    if observation.outputs in CLASS_OUTPUTS:
        return [_one_above(threshold, part, observation, alpha, None) for part in parts]
    reach, few = reach_of([part.estimates for part in parts]).mean, _few(alpha, parts, shared)
    found = [_one_above(threshold, part, observation, alpha, reach) for part in parts]
    return [(value, np.maximum(needs, few)) for value, needs in found]


def _one_above(
    threshold: float, part: Part, observation: Observation, alpha: float, reach: Array | None
) -> tuple[NDArray[Any], Array]:
    """The same of one part; probabilities, which have bounds, reach as far as these."""
    mean = part.estimates.mean
    gap, above = np.abs(mean - threshold), mean > threshold
    reach = np.where(above, mean, 1 - mean) if reach is None else np.broadcast_to(reach, mean.shape)
    error = boundary(part.passes, part.samples, alpha / 2) * np.nan_to_num(part.estimates.mean_stderr, nan=np.inf)
    needs = _needs(gap, error, _unseen(part.passes, alpha / 2) * reach)
    shaped = observation.main.unflatten
    if not isinstance(shaped(mean), np.ndarray):
        raise InputError("decision=md.Above(c) needs a single output; select one with transform=")
    value, needs = (shaped(array) for array in (above, needs))
    single = mean.shape[1] == 1
    return (value.reshape(len(mean)), needs.reshape(len(mean))) if single else (value, needs)


def _top(decision: Decision, parts: Sequence[Part], observation: Observation, alpha: float) -> Verdict:
    raw = raw_ranges(decision, parts, observation, alpha)
    value = np.concatenate([each for each, _ in raw])
    most = float(np.abs(value).max())
    errors = zip(parts, (error for _, error in raw), strict=True)
    widths = [half_widths(error, part.passes, alpha, most, decision.by) for part, error in errors]
    below, above = (np.concatenate([width[side] for width in widths]) for side in (0, 1))
    rows = len(value)
    if decision.k >= rows:
        raise InputError(f"TopK({decision.k}) of {rows} inputs leaves nothing to decide; choose fewer")
    low, high, width = value - below, value + above, (below + above) / 2
    may_be_larger = rows - np.searchsorted(np.sort(high), low, side="right")  # itself included
    surely_larger = rows - np.searchsorted(np.sort(low), high, side="right")
    inside, outside = may_be_larger <= decision.k, surely_larger >= decision.k
    largest = np.sort(value)[::-1]
    edge = (largest[decision.k - 1] + largest[decision.k]) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        open_need = np.clip(np.nan_to_num(np.square(width / np.abs(value - edge)), posinf=MOST_NEED), 1.05, MOST_NEED)
    needs = np.where(inside | outside, 0.5, open_need)
    chosen = np.zeros(rows, dtype=bool)
    chosen[np.argsort(-value, kind="stable")[: decision.k]] = True
    edges = np.cumsum([len(part) for part in parts])[:-1]
    settled = inside | outside
    return Verdict(np.split(chosen, edges), np.split(settled, edges), np.split(needs, edges))


def half_widths(error: Array, passes: float, alpha: float, largest: float, by: str = "") -> tuple[Array, Array]:
    """Widths of confidence intervals below and above a value, with an allowance for masks that did not come up.

    Such masks, of probability q together, change a mean by at most q times a range. An entropy, and mutual information,
    they raise by up to h(q) = −q log q − (1 − q) log(1 − q) more: that of a mixture is at most the mean of its parts
    and h(q), and an input that looks certain may not be.

    Args:
        error: What chance makes of the values.
        passes: Passes behind them.
        alpha: The error rate.
        largest: What such masks could add: the largest value that is seen.
        by: The quantity.

    Returns:
        The widths below and above.
    """
    q = _unseen(passes, alpha / 2)
    mixing = float(entr(q) + entr(1 - q)) if by in _ENTROPIES else 0.0
    return error + q * largest, error + q * largest + mixing


def raw_ranges(
    decision: Decision, parts: Sequence[Part], observation: Observation, alpha: float
) -> list[tuple[Array, Array]]:
    """Values of the quantity that is compared, and what chance makes of them at most.

    Args:
        decision: What is to be decided.
        parts: Inputs that have had the same passes, part by part.
        observation: What was asked of the passes.
        alpha: The error rate.

    Returns:
        Values and half widths, part by part.

    Raises:
        InputError: If inputs have more than one value each.
    """
    found = []
    for part in parts:
        estimate = _quantity(decision, part, observation)
        if estimate.stderr is None:
            raise InputError(f"TopK needs a quantity with a standard error, which {decision.by!r} does not have")
        value, error = (np.asarray(v, dtype=np.float64) for v in (estimate.value, estimate.stderr))
        if value.shape == (len(part), 1):
            value, error = value[:, 0], error[:, 0]
        if value.shape != (len(part),):
            raise InputError(
                f"TopK needs one value per input, but {decision.by!r} has the shape {value.shape[1:]} for each"
            )
        groups = part.estimates.groups
        K = part.samples if groups is None else len(groups.filled.counts)
        stderr = np.nan_to_num(error, nan=np.inf) / float(student_factor(max(K, 2)))
        found.append((value, boundary(part.passes, K, alpha / 2) * stderr))
    return found


def _quantity(decision: Decision, part: Part, observation: Observation) -> QuantityEstimate:
    found = part.estimates
    if decision.by in ("mean", "variance"):
        values = (getattr(found, name).reshape(len(part), -1) for name in (decision.by, f"{decision.by}_stderr"))
        value, stderr = (v[:, 0] if v.shape[1] == 1 else v for v in values)
        return QuantityEstimate(value, stderr)
    assert found.groups is not None
    trusted = np.ones(found.mean.shape, dtype=bool)
    return observation.answers(found.groups, found.mean, trusted)[decision.by]
