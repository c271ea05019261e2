"""What an evaluation gives back: values, standard errors, remaining bias, the level table."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlmc_dropout.errors import InputError, MissingExtraError, ResultFileError
from mlmc_dropout.evaluation.checking import check_plain
from mlmc_dropout.evaluation.estimates import Rate
from mlmc_dropout.files import replacing
from mlmc_dropout.result import Status

__all__ = ["Evaluation", "EvaluationLevel", "MetricEstimate", "load_evaluation"]

FORMAT = 2


@dataclass(frozen=True, slots=True)
class MetricEstimate:
    """The average of a metric over the data set.

    Attributes:
        value: The estimate.
        stderr: Its standard error.
        bias: Estimated size of the bias that is left.
        rates: Of the differences between levels: "alpha" (means), "beta" (variances), "beta_plain" (variances without
            antithetic halves), each with its standard error; NaN where it could not be measured.
    """

    value: float
    stderr: float
    bias: float
    rates: Mapping[str, Rate]

    @property
    def error(self) -> float:
        """Root mean square error: standard error and bias together."""
        return math.hypot(self.stderr, self.bias)

    @property
    def shown_bias(self) -> float:
        """The bias that is left, 0 where it is nothing but rounding."""
        return 0.0 if abs(self.bias) < 1e-12 * abs(self.value) else self.bias

    @property
    def interval(self) -> tuple[float, float]:
        """An interval of 95 %: 1.96 times the root mean square error to both sides.

        With bias b and standard error s, ± 1.96 √(s² + b²) holds the value in 95 % of all cases or more, whatever b/s.
        """
        half = 1.96 * self.error
        return self.value - half, self.value + half


@dataclass(frozen=True, slots=True)
class EvaluationLevel:
    """A level, as Giles tabulates it, with one entry per metric.

    Attributes:
        fidelity: Passes per input, T_ℓ.
        count: Inputs that were used, with repetitions.
        cost: Passes spent, n_ℓ T_ℓ.
        used: What the estimate takes from the level: "value", "difference", "value and difference", or "pilot".
        mean: Mean of f (level 0) or of Δ_ℓ, by metric.
        variance: Variance of the same over inputs and passes.
        kurtosis: Its kurtosis.
        variance_plain: Variance of f(all) − f(first half), without antithetic halves.
        stratum: Stratum of the inputs, 0 being the hardest; 0 if there are none.
    """

    fidelity: int
    count: int
    cost: int
    used: str
    mean: Mapping[str, float]
    variance: Mapping[str, float]
    kurtosis: Mapping[str, float]
    variance_plain: Mapping[str, float]
    stratum: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation:
    """Averages over a data set.

    Attributes:
        estimates: By metric.
        levels: Statistics of the levels.
        cost: Passes spent, per input of the data set.
        rows: Number of inputs.
        status: How the run ended.
        method: Name of the method.
        seed: Seed of the run.
        notes: Sentences that the user should read.
        metadata: Settings and versions, as plain data.
    """

    estimates: Mapping[str, MetricEstimate]
    levels: tuple[EvaluationLevel, ...]
    cost: float
    rows: int
    status: Status
    method: str
    seed: int
    notes: tuple[str, ...]
    metadata: Mapping[str, Any]

    def __getitem__(self, metric: str) -> MetricEstimate:
        if metric not in self.estimates:
            raise InputError(f"no metric {metric!r} in this evaluation; it has {', '.join(self.estimates)}")
        return self.estimates[metric]

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    def __contains__(self, metric: object) -> bool:
        return metric in self.estimates

    # ------------------------------------------------------------------------- files

    def to_json(self) -> dict[str, Any]:
        """Plain data, from which :func:`load_evaluation` rebuilds the evaluation."""
        plain: dict[str, Any] = {"format": FORMAT, "kind": "evaluation"}
        plain.update(asdict(self))
        plain["status"] = self.status.name
        plain["sentence"] = self.status.value
        return plain

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write to a JSON file, atomically.

        Args:
            path: The file; the suffix ``.json`` is added where it is missing.

        Returns:
            The path of the file written.
        """
        path = _with_suffix(path)
        plain = _nan_to_none(self.to_json())
        with replacing(path) as scratch:
            scratch.write_text(json.dumps({**plain, "digest": _digest(plain)}, indent=1) + "\n")
        return path

    # ----------------------------------------------------------------------- exports

    def to_xarray(self) -> Any:
        """Convert to an ``xarray.Dataset``: estimates along ``metric``, the level table along ``level`` and ``metric``.

        Returns:
            The dataset.

        Raises:
            MissingExtraError: If xarray is not installed.
        """
        try:
            import xarray
        except ImportError:
            raise MissingExtraError("xarray", "report") from None
        names = list(self.estimates)
        variables: dict[str, Any] = {
            field: ("metric", [getattr(self.estimates[name], field) for name in names])
            for field in ("value", "stderr", "bias")
        }
        for rate in ("alpha", "beta", "beta_plain"):
            variables[rate] = ("metric", [self.estimates[name].rates[rate].value for name in names])
        for field in ("mean", "variance", "kurtosis", "variance_plain"):
            table = [[getattr(level, field)[name] for name in names] for level in self.levels]
            variables[f"level_{field}"] = (("level", "metric"), np.array(table).reshape(-1, len(names)))
        for field in ("fidelity", "count", "cost", "stratum"):
            variables[field] = ("level", [getattr(level, field) for level in self.levels])
        attrs = {"method": self.method, "seed": self.seed, "cost_per_input": self.cost, "rows": self.rows}
        attrs.update(status=self.status.value, metadata=json.dumps(dict(self.metadata)))
        coords = {"metric": names, "level": np.arange(len(self.levels))}
        return xarray.Dataset(variables, coords=coords, attrs=attrs)

    def to_dataframe(self) -> Any:
        """Convert to a ``pandas.DataFrame`` with one row per metric.

        Returns:
            The data frame, with the columns ``metric``, ``value``, ``stderr``, ``bias`` and the rates.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("pandas", "report") from None
        rows = []
        for name, found in self.estimates.items():
            rates = {rate: fitted.value for rate, fitted in found.rates.items()}
            rows.append({"metric": name, "value": found.value, "stderr": found.stderr, "bias": found.bias, **rates})
        return pandas.DataFrame(rows)

    # ---------------------------------------------------------------------- printing

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    __repr__ = __str__


def load_evaluation(path: str | os.PathLike[str]) -> Evaluation:
    """Read an evaluation written by :meth:`Evaluation.save`.

    Args:
        path: The file; the suffix ``.json`` may be left out.

    Returns:
        The evaluation.

    Raises:
        ResultFileError: If the file is missing, damaged or of another kind.
    """
    path = Path(path) if Path(path).exists() else _with_suffix(path)
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain["kind"] != "evaluation" or plain["format"] != FORMAT:
            raise ResultFileError(
                f"{path} is not an evaluation of format {FORMAT}; evaluate again, or use the version that wrote it"
            )
        plain.pop("info", None)  # what was asked, added by the command line
        if plain.pop("digest") != _digest(plain):
            raise ValueError("its contents do not belong together; it was edited")
        check_plain(plain)
        return _rebuild(plain)
    except FileNotFoundError:
        raise ResultFileError(f"{path}: no such file") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ResultFileError(f"{path} is not an evaluation of mlmc-dropout, or is damaged ({error})") from None


def _rebuild(plain: Mapping[str, Any]) -> Evaluation:
    def number(value: Any) -> float:
        return math.nan if value is None else float(value)

    estimates = {}
    for name, found in plain["estimates"].items():
        rates = {rate: Rate(number(f["value"]), number(f["stderr"])) for rate, f in found["rates"].items()}
        estimates[name] = MetricEstimate(number(found["value"]), number(found["stderr"]), number(found["bias"]), rates)
    levels = []
    for level in plain["levels"]:
        tables = {
            field: {name: number(value) for name, value in level[field].items()}
            for field in ("mean", "variance", "kurtosis", "variance_plain")
        }
        levels.append(
            EvaluationLevel(
                level["fidelity"],
                level["count"],
                level["cost"],
                level["used"],
                **tables,
                stratum=level.get("stratum", 0),
            )
        )
    return Evaluation(
        estimates,
        tuple(levels),
        number(plain["cost"]),
        int(plain["rows"]),
        Status[plain["status"]],
        plain["method"],
        int(plain["seed"]),
        tuple(plain["notes"]),
        plain["metadata"],
    )


def _digest(plain: Mapping[str, Any]) -> str:
    """A hash of the contents of a file."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _nan_to_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _nan_to_none(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_nan_to_none(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _with_suffix(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    return path if path.suffix == ".json" else path.with_name(path.name + ".json")


def _lines(evaluation: Evaluation) -> list[str]:
    lines = [
        f"{evaluation.method}: {evaluation.rows} inputs, {evaluation.cost:.3g} passes per input, "
        f"seed {evaluation.seed}",
        evaluation.status.value,
        "",
        f"{'metric':<20}{'value':>12}{'± stderr':>11}{'bias left':>11}{'alpha':>8}{'beta':>7}{'plain':>7}",
    ]
    for name, found in evaluation.estimates.items():
        rates = "".join(f"{_rate(found.rates[key]):>{width}}" for key, width in _RATES)
        lines.append(f"{name:<20}{found.value:>12.6g}{found.stderr:>11.2g}{found.shown_bias:>11.2g}{rates}")
    name = next(iter(evaluation.estimates))
    lines += ["", f"levels of {name}", *level_lines(evaluation, name)]
    return lines + ([""] if evaluation.notes else []) + [f"note: {note}" for note in evaluation.notes]


_RATES = (("alpha", 8), ("beta", 7), ("beta_plain", 7))


def _rate(rate: Rate) -> str:
    return f"{rate.value:.2f}" if math.isfinite(rate.value) else "–"


def level_lines(evaluation: Evaluation, metric: str) -> list[str]:
    """The level table of a metric.

    Args:
        evaluation: The evaluation.
        metric: Name of the metric.

    Returns:
        The lines of the table.
    """
    head = f"{'T':>6}{'inputs':>9}{'passes':>10}{'mean':>12}{'variance':>11}{'kurtosis':>10}{'plain var':>11}  use"
    rows = [head, "-" * len(head)]
    several = len({level.stratum for level in evaluation.levels}) > 1
    rows += [
        f"{level.fidelity:>6}{level.count:>9}{level.cost:>10}{level.mean[metric]:>12.3e}"
        f"{level.variance[metric]:>11.3e}{level.kurtosis[metric]:>10.3g}{level.variance_plain[metric]:>11.3e}"
        f"  {level.used}{f', stratum {level.stratum}' if several else ''}"
        for level in evaluation.levels
    ]
    return rows
