"""Error against cost: every method on every network, over repetitions, against a long reference.

An error is the root mean square over repetitions and components, in units of a pass's standard deviation for the mean
and of its variance for the variance. The square of the reference's own standard error, a few per cent, is taken off
(never more than half). Repetitions are calls of their own with seeds of their own, so that whatever a method decides is
decided anew in each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

import mlmc_dropout as md
from mlmc_dropout.reproduction.statistics import CONFIDENCE
from mlmc_dropout.reproduction.surrogates import Network, OrdinaryNetwork
from mlmc_dropout.reproduction.work import Work

__all__ = ["KEYS", "LABELS", "Ratio", "compute", "measured", "ratio", "spent"]

Array = NDArray[np.float64]
Data = Mapping[str, Any]

LADDER = (4, 8, 16)
KEYS = ("mean", "variance")
LABELS = {
    "plain": "plain Monte Carlo",
    "single": "single fidelity T = 16",
    "nested": "Algorithm 1",
    "independent": "independent levels",
    "stratified": "stratified",
    "control-variate": "control variate",
    "auto": "auto",
}


@dataclass(frozen=True, slots=True)
class Unit:
    """One point of a curve.

    Attributes:
        network: Name of the network.
        method: One of :data:`LABELS`.
        cost: Passes per input that may be spent.
        ladder: Fidelities of the multilevel methods.
    """

    network: str
    method: str
    cost: int
    ladder: tuple[int, ...] = LADDER

    def arguments(self) -> dict[str, Any] | None:
        """Arguments of ``estimate``; None where the cost does not hold two replicates a level."""
        if self.method == "plain":
            return {"method": "pooled", "budget": self.cost}
        if self.method == "single":
            T = self.ladder[-1]
            return {"method": "mlmc", "ladder": (T,), "counts": (self.cost // T,)} if self.cost >= 2 * T else None
        if self.method in ("nested", "independent"):
            steps = md.theory.cost_spent(self.ladder, (2,) * len(self.ladder), self.method)
            arguments = {"method": "mlmc", "ladder": self.ladder, "levels": self.method, "budget": self.cost}
            return arguments if self.cost >= steps else None
        return {"method": self.method, "budget": self.cost}

    def __str__(self) -> str:
        """The name under which its result is kept."""
        return f"{self.network} {self.method} {self.ladder} {self.cost}"


def compute(*arguments: Any) -> dict[str, Any]:
    """References of all networks, then every method at every cost.

    Args:
        *arguments: The networks, then settings (``points``, ``costs``, ``long``, ``repetitions``, ``reference``,
            ``check``, ``seed``), then the work that remembers what is done.

    Returns:
        Plain data: per network the errors of its curves, the reference's agreement with plain passes, and ``long``, the
        errors of a longer ladder.
    """
    *networks, settings, work = arguments
    return _compute({network.name: network for network in networks}, settings, work)


def _compute(networks: Mapping[str, Network], settings: Data, work: Work) -> dict[str, Any]:
    seed = settings["seed"]
    units = [Unit(name, method, cost) for name in networks for method in LABELS for cost in settings["costs"]]
    T, budget = tuple(settings["long"]["ladder"]), settings["long"]["budget"]
    units += [Unit(name, method, budget, T) for name in networks for method in ("plain", "nested", "independent")]
    units = [unit for unit in units if unit.arguments() is not None]
    subjects = {name: _Subject(network, settings["points"]) for name, network in networks.items()}
    references = {
        name: subjects[name].reference(settings["reference"], settings["check"], seed + index)
        for index, name in enumerate(networks)
    }

    def one(index: int) -> dict[str, Any]:
        unit = units[index]
        first = seed + 100 + 1000 * index
        return subjects[unit.network].errors(unit, references[unit.network], settings["repetitions"], first)

    results = work.each("curves", range(len(units)), one)
    data: dict[str, Any] = {
        name: {"agreement": references[name].agreement, "curves": {}, "long": {}} for name in networks
    }
    for unit, result in zip(units, results, strict=True):
        part = data[unit.network]["curves" if unit.ladder == LADDER else "long"]
        part.setdefault(unit.method, []).append({"budget": unit.cost, **result})
    return {"networks": data, "long_ladder": list(T)}


@dataclass(frozen=True, slots=True)
class _Reference:
    """Long estimates, their squared standard errors, and units; every array (inputs, components)."""

    values: dict[str, Array]
    noise: dict[str, Array]
    unit: dict[str, Array]
    agreement: dict[str, dict[str, float]]


class _Subject:
    """A network with the inputs at which its curves are measured."""

    def __init__(self, network: Network, points: int) -> None:
        self.model = network.model
        self.transform = network.transform if isinstance(network, OrdinaryNetwork) and network.classes else None
        rows = np.arange(len(network.x))
        self.x = network.x[rows[len(rows) // points // 2 :: max(1, len(rows) // points)][:points]]

    def estimate(self, arguments: Mapping[str, Any], seed: int) -> md.Result:
        return md.estimate(self.model, self.x, transform=self.transform, seed=seed, **arguments)

    def reference(self, passes: int, check: int, seed: int) -> _Reference:
        """A long run with control variates, and a plain one to see that they agree."""
        long = self.estimate({"method": "control-variate", "budget": passes}, seed)
        plain = self.estimate({"method": "pooled", "budget": check}, seed + 50)
        values = {"mean": _flat(long.mean), "variance": _flat(long.variance)}
        noise = {"mean": _flat(long.mean_stderr) ** 2, "variance": _flat(long.variance_stderr) ** 2}
        own = {"mean": _flat(plain.mean_stderr) ** 2, "variance": _flat(plain.variance_stderr) ** 2}
        unit = self._units(long.variance)
        agreement = {
            key: self._agreement(getattr(plain, key), own[key], values[key], noise[key], unit[key]) for key in KEYS
        }
        return _Reference(values, noise, unit, agreement)

    @staticmethod
    def _agreement(plain: Any, own: Array, reference: Array, noise: Array, unit: Array) -> dict[str, float]:
        """Mean squared difference over its expectation, with a limit.

        The limit is the 99 % quantile of a weighted sum of one chi-square per input: components of an input, such as
        the probabilities of its classes, move together.
        """
        difference, expected = (_flat(plain) - reference) ** 2 / unit**2, (own + noise) / unit**2
        per_input = expected.sum(axis=1)
        dof = float(per_input.sum() ** 2 / np.square(per_input).sum())
        limit = float(stats.chi2.ppf(CONFIDENCE, dof)) / dof
        return {"ratio": float(difference.mean() / expected.mean()), "limit": limit}

    @staticmethod
    def _units(variance: Any) -> dict[str, Array]:
        """Per output, its variance averaged over inputs and components; its root for the mean."""
        outputs = variance if isinstance(variance, dict) else {"": variance}
        average = _flat({name: np.full_like(v, np.mean(v)) for name, v in outputs.items()})
        return {"mean": np.sqrt(average), "variance": average}

    def errors(self, unit: Unit, reference: _Reference, repetitions: int, seed: int) -> dict[str, Any]:
        """Cost, and per repetition the mean squared error over the components, in units of the reference."""
        squares: dict[str, list[float]] = {key: [] for key in KEYS}
        costs = []
        arguments = unit.arguments()
        assert arguments is not None
        for repetition in range(repetitions):
            result = self.estimate(arguments, seed + repetition)
            costs.append(result.cost)
            for key in KEYS:
                error = (_flat(getattr(result, key)) - reference.values[key]) / reference.unit[key]
                squares[key].append(float(np.mean(error**2)))
        noise = {key: float(np.mean(reference.noise[key] / reference.unit[key] ** 2)) for key in KEYS}
        return {"cost": float(np.mean(costs)), "squares": squares, "reference_noise": noise}


def _flat(values: Any) -> Array:
    """All outputs side by side, (inputs, components)."""
    outputs = values.values() if isinstance(values, dict) else [values]
    return np.concatenate([np.asarray(v, dtype=float).reshape(len(v), -1) for v in outputs], axis=1)


# ---------------------------------------------------------------------------------- from the data


def measured(point: Data, key: str) -> tuple[float, float]:
    """Mean squared error of a point of a curve, and its relative standard error.

    Args:
        point: An entry of a curve.
        key: ``"mean"`` or ``"variance"``.

    Returns:
        The two numbers.
    """
    squares = np.asarray(point["squares"][key])
    value = float(max(squares.mean() - point["reference_noise"][key], squares.mean() / 2))
    return value, float(squares.std(ddof=1) / np.sqrt(len(squares))) / value


def spent(curve: Sequence[Data]) -> list[float]:
    """What the points of a curve really cost.

    Args:
        curve: Its points.

    Returns:
        Passes per input.
    """
    return [point["cost"] for point in curve]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Variance at equal passes beside plain Monte Carlo's: below 1 is a gain.

    Attributes:
        value: The ratio, a geometric mean over the costs.
        low: Lower end of its 99 % interval.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """The value with its interval."""
        return f"{self.value:.3g} ({self.low:.3g}, {self.high:.3g})"


def ratio(curves: Data, method: str, key: str) -> Ratio:
    """(Mean squared error × passes) of a method over that of plain Monte Carlo, averaged over the common budgets.

    The interval is that of the mean logarithm; its variance is added up from those of the points.

    Args:
        curves: Curves by method.
        method: One of :data:`LABELS`.
        key: ``"mean"`` or ``"variance"``.

    Returns:
        The ratio with its interval.
    """
    plain = {point["budget"]: point for point in curves["plain"]}
    logs, variances, repetitions = [], [], 2
    for point in curves[method]:
        other = plain[point["budget"]]
        (a, da), (b, db) = measured(point, key), measured(other, key)
        logs.append(np.log(a * point["cost"]) - np.log(b * other["cost"]))
        variances.append(da**2 + db**2)
        repetitions = len(point["squares"][key])
    centre = float(np.mean(logs))
    student = float(stats.t.ppf(0.5 + CONFIDENCE / 2, 2 * (repetitions - 1)))
    half = min(student * float(np.sqrt(np.sum(variances))) / len(logs), 50.0)  # no overflow where nothing is known
    return Ratio(float(np.exp(centre)), float(np.exp(centre - half)), float(np.exp(centre + half)))
