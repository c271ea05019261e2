"""8 · The result of a run: estimates, their standard errors, and diagnostics."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout import theory
from mlmc_dropout.errors import InputError, MissingExtraError, ResultFileError
from mlmc_dropout.files import read_archive, write_archive
from mlmc_dropout.quantities.base import QuantityEstimate
from mlmc_dropout.quantities.storage import FIELDS, columns, pack, unpack
from mlmc_dropout.sampling.outputs import Structure

__all__ = ["LevelStats", "Result", "Status", "load_result", "unreliable"]

FORMAT = 3
EQUAL = 2  # the format before, in which all inputs had the same passes
UNSIGNED = 1  # the one before that, without a digest of the contents
_OTHER_FILES = {
    ".nc": "result.to_xarray().to_netcdf(path)",
    ".csv": "result.to_dataframe().to_csv(path)",
    ".json": "result.to_dataframe().to_json(path)",
    ".parquet": "result.to_dataframe().to_parquet(path)",
}
MAX_COST = 1e18  # passes
SETTLED = 0.99  # confidence from which on a label is taken as settled


class Status(enum.Enum):
    """How a run ended; the value is a sentence."""

    COMPLETED = "All planned passes were spent."
    TOLERANCE_MET = "The tolerance was met."
    PRECISION_REACHED = "The tolerance lies below the rounding of the model's numbers; more passes would not help."
    DECIDED = "Every decision is settled."
    BUDGET_EXHAUSTED = "The budget was exhausted before the tolerance was met."
    UNSETTLED = "The budget was exhausted before every decision was settled."
    STOPPED = "The run was stopped by the user; the result covers the passes spent until then."
    FAILED = "The run ended with an error; the result covers the passes spent until then."


@dataclass(frozen=True, slots=True)
class LevelStats:
    """Statistics of one level, as Giles tabulates them: of the increments of Y (mean) and of V (variance, suffix _V).

    Arrays have the model's output structure, with the inputs as first axis.

    Attributes:
        label: Name of the level.
        fidelity: Passes per replicate, T_ℓ.
        count: Number of replicates, M_ℓ.
        cost: Passes that all of them were charged.
        mean: Mean of the increments of Y.
        variance: Their variance.
        kurtosis: Their kurtosis, 3 for a Gaussian.
        mean_V: Mean of the increments of V.
        variance_V: Their variance.
        kurtosis_V: Their kurtosis.
        telescoping: Giles' consistency check, sound below 1; ``None`` at level 0.
        correlation: Correlation of a pass with its surrogate; ``None`` for methods without one.
        gain: How many times as many passes plain Monte Carlo needs for the same accuracy of the mean; ``None`` where
            the method does not report it.
        gain_V: The same for the variance.
    """

    label: str
    fidelity: int
    count: int
    cost: float
    mean: Any
    variance: Any
    kurtosis: Any
    mean_V: Any
    variance_V: Any
    kurtosis_V: Any
    telescoping: float | None = None
    correlation: Any = None
    gain: Any = None
    gain_V: Any = None


LEVEL_ARRAYS = (
    "mean",
    "variance",
    "kurtosis",
    "mean_V",
    "variance_V",
    "kurtosis_V",
    "correlation",
    "gain",
    "gain_V",
)
_ARRAYS = (
    "mean",
    "variance",
    "mean_stderr",
    "variance_stderr",
    "S2_mean",
    "S2_variance",
    "mean_reliable",
    "variance_reliable",
)


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """Estimates of the mean μ and the variance μ2 of a pass, per input and output component.

    Arrays have the model's output structure, with the inputs as first axis.

    Attributes:
        mean: Estimate of μ.
        variance: Estimate of μ2.
        mean_stderr: Standard error of ``mean``.
        variance_stderr: Standard error of ``variance``.
        S2_mean: The paper's S²_Y (method "mlmc" only, else ``None``).
        S2_variance: The paper's S²_V (method "mlmc" only, else ``None``).
        cost: Passes spent per input, on average.
        levels: Statistics of each level.
        status: How the run ended.
        method: Name of the method.
        seed: Seed of the run.
        notes: Sentences that the user should read.
        metadata: Settings and versions, as plain data.
        structure: Structure of the model's output.
        mean_reliable: False where few passes carry most of the variance, or where no two passes differ: ``mean_stderr``
            cannot be trusted there yet. True everywhere by default.
        variance_reliable: The same for ``variance_stderr``.
        quantities: What was asked beside mean and variance, by name; ``result["entropy"]`` is one of them.
        passes: Passes spent on each input, (N,); the cost everywhere by default.
    """

    mean: Any
    variance: Any
    mean_stderr: Any
    variance_stderr: Any
    S2_mean: Any
    S2_variance: Any
    cost: float
    levels: tuple[LevelStats, ...]
    status: Status
    method: str
    seed: int
    notes: tuple[str, ...]
    metadata: Mapping[str, Any]
    structure: Structure = field(repr=False)
    mean_reliable: Any = None
    variance_reliable: Any = None
    quantities: Mapping[str, QuantityEstimate] = field(default_factory=dict)
    passes: Any = None

    def __post_init__(self) -> None:
        if self.passes is None:
            object.__setattr__(self, "passes", np.full(len(leaves(self.mean)[0]), float(self.cost)))
        for name in ("mean_reliable", "variance_reliable"):
            if getattr(self, name) is None:
                everywhere = map_leaves(lambda values: np.ones(np.shape(values), dtype=bool), self.mean)
                object.__setattr__(self, name, everywhere)

    @property
    def std(self) -> Any:
        """Square root of the variance estimate (of its positive part: the paper's estimator can be negative)."""
        return map_leaves(lambda v: np.sqrt(np.maximum(v, 0.0)), self.variance)

    def __getitem__(self, name: str) -> QuantityEstimate:
        """A quantity by its name: "mean", "variance", "std", or one that was asked for.

        Args:
            name: Its name.

        Returns:
            The estimate and its standard error.

        Raises:
            KeyError: If it was not asked for.
        """
        if name in self.quantities:
            return self.quantities[name]
        if name == "mean":
            return QuantityEstimate(self.mean, self.mean_stderr, self.mean_reliable)
        if name == "variance":
            return QuantityEstimate(self.variance, self.variance_stderr, self.variance_reliable)
        if name == "std":
            return self._std()
        known = ", ".join(("mean", "variance", "std", *self.quantities))
        raise KeyError(f"no quantity {name!r} in this result, which has {known}; ask for it with quantities=")

    def __getattr__(self, name: str) -> Any:
        """Called for what is no attribute: tells where quantities are."""
        if not name.startswith("_") and name != "quantities" and name in self.quantities:
            raise AttributeError(f"quantities are items: write result[{name!r}]")
        raise AttributeError(f"a Result has no attribute {name!r}")

    def _std(self) -> QuantityEstimate:
        """√V without its first bias −Var V/(8 V^1.5), and its standard error by the delta method.

        The bias is removed where V is known to better than half of itself: errors that allow for rare passes are too
        wide for it elsewhere.
        """
        values, errors = [], []
        for variance, stderr in zip(leaves(self.variance), leaves(self.variance_stderr), strict=True):
            root = np.sqrt(np.maximum(variance, 0.0))
            with np.errstate(divide="ignore", invalid="ignore"):
                values.append(root + np.where(variance > 2 * stderr, np.square(stderr) / (8 * root**3), 0.0))
                errors.append(np.where(variance > stderr, stderr / (2 * root), np.sqrt(stderr)))
        rows = len(values[0])
        value, stderr = (
            self.structure.unflatten(np.concatenate([part.reshape(rows, -1) for part in parts], axis=1))
            for parts in (values, errors)
        )
        return QuantityEstimate(value, stderr, self.variance_reliable)

    # --------------------------------------------------------------------------- files

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write to a ``.npz`` file (arrays and JSON, nothing executable), atomically.

        Args:
            path: The file; the suffix ``.npz`` is added where it is missing.

        Returns:
            The path of the file written.

        Raises:
            InputError: If there is no such folder, or the suffix is that of another kind of file.
        """
        path = _npz(path)
        check_place(path)
        arrays = {
            name: _matrix(self.structure, getattr(self, name)) for name in _ARRAYS if getattr(self, name) is not None
        }
        arrays["passes"] = self.passes
        for index, level in enumerate(self.levels):
            for name in LEVEL_ARRAYS:
                if getattr(level, name) is not None:
                    arrays[f"level{index}.{name}"] = _matrix(self.structure, getattr(level, name))
        header = {
            "format": FORMAT,
            "cost": self.cost,
            "status": self.status.name,
            "method": self.method,
            "seed": self.seed,
            "notes": list(self.notes),
            "metadata": dict(self.metadata),
            "structure": self.structure.to_json(),
            "levels": [
                {n: getattr(lv, n) for n in ("label", "fidelity", "count", "cost", "telescoping")} for lv in self.levels
            ],
        }
        header["quantities"], quantities = pack(self.quantities)
        write_archive(path, header, arrays | quantities)
        return path

    # ------------------------------------------------------------------------- exports

    def to_xarray(self) -> Any:
        """Convert to an ``xarray.Dataset``: one variable per estimate (and output leaf), the inputs along ``input``.

        Returns:
            The dataset.

        Raises:
            MissingExtraError: If xarray is not installed.
        """
        try:
            import xarray
        except ImportError:
            raise MissingExtraError("xarray", "report") from None
        variables = {}
        for estimate in _ARRAYS:
            if getattr(self, estimate) is None:
                continue
            for (leaf, shape), values in zip(self.structure.names(), leaves(getattr(self, estimate)), strict=True):
                prefix = f"{leaf}_" if leaf else ""
                dims = ("input", *(f"{prefix}out{axis}" for axis in range(len(shape))))
                variables[prefix + estimate] = (dims, values)
        for name, values in columns(self.quantities):
            axes = (f"{name}_axis{axis}" for axis in range(1, values.ndim))
            variables[name] = (("input", *_class_axes(self.structure, values, axes)), values)
        variables["passes"] = (("input",), self.passes)
        rows = len(leaves(self.mean)[0])
        attrs = {"method": self.method, "seed": self.seed, "cost": self.cost, "status": self.status.value}
        attrs["metadata"] = json.dumps(dict(self.metadata))
        return xarray.Dataset(variables, coords={"input": np.arange(rows)}, attrs=attrs)

    def to_dataframe(self) -> Any:
        """Convert to a ``pandas.DataFrame`` with one row per input and output component.

        Returns:
            The data frame, with the columns ``input`` and ``output`` and one per estimate.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("pandas", "report") from None
        table: dict[str, list[Any]] = {"input": [], "output": []}
        names = [name for name in _ARRAYS if getattr(self, name) is not None]
        rows = len(leaves(self.mean)[0])
        labels = [
            f"{leaf}{list(index) if index else ''}" or "0"
            for leaf, shape in self.structure.names()
            for index in np.ndindex(shape)
        ]
        table["input"] = np.repeat(np.arange(rows), len(labels)).tolist()
        table["output"] = labels * rows
        table["passes"] = np.repeat(self.passes, len(labels)).tolist()
        for name in names:
            table[name] = _matrix(self.structure, getattr(self, name)).ravel().tolist()
        for name, matrix in self._quantity_columns(len(labels)):
            table[name] = np.repeat(matrix, len(labels) // matrix.shape[1], axis=1).ravel().tolist()
        return pandas.DataFrame(table)

    def _quantity_columns(self, width: int) -> Iterator[tuple[str, NDArray[Any]]]:
        """Quantities as matrices with as many columns as outputs, pixels, or one; several columns for anything else."""
        pixels = self.structure.shape[:-1] if self.structure.kind == "tensor" else ()
        for name, one in self.quantities.items():
            for part in FIELDS:
                if (value := getattr(one, part)) is None:
                    continue
                label = name if part == "value" else f"{name}_{part}"
                matrix = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves(value)], axis=1)
                fits = np.shape(value)[1:] == pixels and len(pixels) > 0 if isinstance(value, np.ndarray) else False
                if matrix.shape[1] in (1, width) or fits:
                    yield label, matrix
                else:
                    yield from ((f"{label}[{index}]", column[:, None]) for index, column in enumerate(matrix.T))

    # ------------------------------------------------------------------------ printing

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    __repr__ = __str__


def load_result(path: str | os.PathLike[str]) -> Result:
    """Read a result written by :meth:`Result.save`; nothing in the file is executed.

    Args:
        path: The file, whose suffix ``.npz`` may be left out, or a folder that ``mlmc-dropout estimate`` has written.

    Returns:
        The result.

    Raises:
        ResultFileError: If the file is missing, damaged, of another kind or of a newer format.
    """
    path = Path(path) if Path(path).exists() else _npz(path)  # ``save`` adds the suffix
    if path.is_dir():  # a folder that the command ``estimate`` has written
        path = path / "result.npz"
    try:
        header, arrays = read_archive(path, {UNSIGNED: False, EQUAL: True, FORMAT: True})
        if header["format"] not in (UNSIGNED, EQUAL, FORMAT):
            raise ResultFileError(f"{path}: result format {header['format']} is not {FORMAT}; update mlmc-dropout")
        return _rebuild(header, arrays)
    except ResultFileError:
        raise
    except FileNotFoundError:
        raise ResultFileError(f"{path}: no such file") from None
    except Exception as error:  # whatever contents of the wrong kind lead to
        raise ResultFileError(f"{path} is not a result file of mlmc-dropout, or is damaged ({error})") from None


def _rebuild(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Result:
    structure = Structure.from_json(header["structure"])
    quantities = unpack(header.get("quantities", {}), arrays, len(arrays["mean"]))
    _check_contents(header, arrays, structure)
    unflatten = structure.unflatten
    estimates = {name: unflatten(arrays[name]) if name in arrays else None for name in _ARRAYS}
    levels = tuple(
        LevelStats(**plain, **{n: unflatten(arrays[k]) for n in LEVEL_ARRAYS if (k := f"level{i}.{n}") in arrays})
        for i, plain in enumerate(header["levels"])
    )
    return Result(
        **estimates,
        cost=header["cost"],
        levels=levels,
        status=Status[header["status"]],
        method=header["method"],
        seed=header["seed"],
        notes=tuple(header["notes"]),
        metadata=header["metadata"],
        structure=structure,
        quantities=quantities,
        passes=arrays.get("passes"),
    )


def _check_contents(header: dict[str, Any], arrays: dict[str, NDArray[Any]], structure: Structure) -> None:
    """Refuse values that no result has, with a ``ValueError``."""
    shape = arrays["mean"].shape
    if len(shape) != 2 or shape[1] != structure.width:
        raise ValueError(f"a mean of shape {shape} for outputs of width {structure.width}")
    expected = {*_ARRAYS, *(f"level{i}.{name}" for i in range(len(header["levels"])) for name in LEVEL_ARRAYS)}
    if header["format"] == FORMAT and "passes" not in arrays:
        raise ValueError("no passes of inputs")
    passes = arrays.get("passes", np.ones(shape[:1]))
    if passes.shape != shape[:1] or passes.dtype != np.float64 or not ((passes >= 1) & (passes < MAX_COST)).all():
        raise ValueError("passes that no input has had")
    for name, values in arrays.items():
        if name == "passes":
            continue
        kind = np.dtype(bool) if name.endswith("_reliable") else np.dtype(np.float64)
        if name not in expected or values.shape != shape or values.dtype != kind:
            raise ValueError(f"an array {name!r} of shape {values.shape} and dtype {values.dtype}")
    if not all(np.isfinite(arrays[name]).all() for name in ("mean", "variance")):
        raise ValueError("estimates that are not finite")
    if any((arrays[name] < 0).any() for name in ("mean_stderr", "variance_stderr")):
        raise ValueError("negative standard errors")
    kinds: dict[str, Any] = {"cost": (int, float), "seed": int, "method": str, "metadata": dict, "notes": list}
    for name, kind in kinds.items():
        if not isinstance(header[name], kind) or isinstance(header[name], bool):
            raise ValueError(f"{name} = {header[name]!r}")
    counts = [level[name] for level in header["levels"] for name in ("fidelity", "count")]
    costs = [level["cost"] for level in header["levels"]]
    if not 1 <= header["cost"] < MAX_COST or not all(0 <= value < MAX_COST for value in (*counts, *costs)):
        raise ValueError("costs or counts out of range")
    if not all(type(value) is int for value in counts) or any(isinstance(value, bool) for value in costs):
        raise ValueError("counts that are not whole numbers")
    if not all(isinstance(note, str) for note in header["notes"]):
        raise ValueError("notes that are no text")


# ------------------------------------------------------------------------------- structured arrays


def leaves(value: Any) -> list[NDArray[Any]]:
    """The arrays of a structured output, in order.

    Args:
        value: An array, or a tuple or mapping with arrays inside.

    Returns:
        The arrays.
    """
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, tuple) else [value]


def map_leaves(function: Callable[[NDArray[Any]], Any], value: Any) -> Any:
    """Apply a function to each array of a structured output.

    Args:
        function: From an array to what takes its place.
        value: An array, or a tuple or mapping with arrays inside.

    Returns:
        The same structure, with the function's results.
    """
    if isinstance(value, Mapping):
        return {key: map_leaves(function, part) for key, part in value.items()}
    return tuple(map_leaves(function, part) for part in value) if isinstance(value, tuple) else function(value)


def _matrix(structure: Structure, value: Any) -> NDArray[Any]:
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves(value)], axis=1)


def _class_axes(structure: Structure, values: NDArray[Any], names: Iterable[str]) -> tuple[str, ...]:
    """Names of the axes of a quantity after the first: those of the outputs where they agree."""
    shape = structure.shape if structure.kind == "tensor" else ()
    return tuple(
        f"out{axis}" if shape[: values.ndim - 1] == values.shape[1:] else name for axis, name in enumerate(names)
    )


def check_place(path: Path) -> None:
    """Refuse a file in a folder that is not there.

    Args:
        path: The file.

    Raises:
        InputError: If its folder does not exist.
    """
    if not path.absolute().parent.is_dir():
        raise InputError(f"{str(path)!r}: there is no folder {str(path.parent)!r}; make it first")


def _npz(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    other = _OTHER_FILES.get(path.suffix)
    if other is not None:
        raise InputError(f"{str(path)!r}: results are saved as .npz files; use {other}")
    return path if path.suffix == ".npz" else path.with_name(path.name + ".npz")


# ------------------------------------------------------------------------------------------ text


def unreliable(mean: NDArray[np.bool_], variance: NDArray[np.bool_]) -> str:
    """A sentence about components whose standard errors cannot be trusted.

    Args:
        mean: Whether the standard errors of the mean are reliable, one entry per component.
        variance: The same for the variance.

    Returns:
        The sentence; empty if all components are reliable.
    """
    bad = int(np.sum(~(mean & variance)))
    if not bad:
        return ""
    return (
        f"For {bad} of {mean.size} components few passes carry most of the variance; their standard errors are not to "
        "be believed yet."
    )


def plain_passes(result: Result) -> tuple[float, float]:
    """Passes per input with which plain Monte Carlo would reach the standard errors of a result.

    For the mean c = Σ μ2 / Σ stderr². For the variance c solves Σ Var V(c) = Σ stderr² with μ4 = 3 μ2² (the closure:
    passes are taken as Gaussian), hence c = 2 Σ μ2² / Σ stderr² + 1. Sums are over inputs and components.

    Args:
        result: The result; one of plain Monte Carlo needs what it spent.

    Returns:
        Both numbers, for the mean and for the variance; infinite where nothing is left to chance.
    """
    if result.method == "pooled":
        return result.cost, result.cost
    names = ("variance", "mean_stderr", "variance_stderr")
    variance, mean_stderr, variance_stderr = (_matrix(result.structure, getattr(result, name)) for name in names)
    mu2 = np.maximum(variance, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        for_mean = mu2.sum() / np.square(mean_stderr).sum()
        for_variance = (theory.closure(mu2) - np.square(mu2)).sum() / np.square(variance_stderr).sum() + 1
    return float(for_mean), float(for_variance)


def _finite_mean(value: Any) -> float:
    """Mean over all inputs and components, NaN where nothing is finite."""
    joined = np.concatenate([np.ravel(leaf) for leaf in leaves(value)])
    finite = joined[np.isfinite(joined)]
    return float(finite.mean()) if finite.size else float("nan")


def _lines(result: Result) -> list[str]:
    rows = len(leaves(result.mean)[0])
    least, most = result.passes.min(), result.passes.max()
    spent = f" ({least:g} to {most:g})" if least < most else ""
    lines = [
        f"{result.method}: {rows} inputs × {result.structure.width} outputs, {result.cost:g} passes per input{spent}, "
        f"seed {result.seed}",
        result.status.value,
        "",
        "averages over inputs and outputs",
        f"  mean      {_finite_mean(result.mean): .6g}  ± {_finite_mean(result.mean_stderr):.2g}",
        f"  variance  {_finite_mean(result.variance): .6g}  ± {_finite_mean(result.variance_stderr):.2g}",
    ]
    lines += _quantity_lines(result.quantities)
    if result.method != "pooled":
        worth = [passes_in_words(passes) for passes in plain_passes(result)]
        lines.append(f"  as good as {worth[0]} passes of plain Monte Carlo for the mean, {worth[1]} for the variance")
    if result.S2_mean is not None:
        lines.append(
            f"  paper's S²: mean {_finite_mean(result.S2_mean):.3g}, variance {_finite_mean(result.S2_variance):.3g}"
        )
    if result.method == "mlmc":
        lines += ["", *level_table(result.levels)]
    if len(result.levels) > 2:
        rate_Y, rate_V = variance_rates(result.levels)
        lines.append(f"correction variances fall like T^-{rate_Y:.2f} (mean) and T^-{rate_V:.2f} (variance)")
    return lines + ([""] if result.notes else []) + [f"note: {note}" for note in result.notes]


def _quantity_lines(quantities: Mapping[str, QuantityEstimate]) -> Iterator[str]:
    """Averages of what was asked of inputs as a whole, and how many labels more passes may change."""
    shown = {name: one for name, one in quantities.items() if one.stderr is not None}
    width = max((len(name) for name in shown), default=0)
    for name, one in shown.items():
        if name != "votes":  # their average is that of the mean, nearly
            yield f"  {name:<{width}}  {_finite_mean(one.value): .6g}  ± {_finite_mean(one.stderr):.2g}"
    if (decision := quantities.get("decision")) is not None:
        yield f"  {int(decision.settled.sum())} of {decision.settled.size} decisions are settled"
    elif (label := quantities.get("label")) is not None and label.confidence is not None:
        unsettled = int((label.confidence < SETTLED).sum())
        yield f"  {unsettled} of {label.confidence.size} labels are not settled: their confidence is below {SETTLED:g}"


def passes_in_words(passes: float) -> str:
    """A number of passes, to three digits.

    Args:
        passes: The number.

    Returns:
        The text.

    Examples:
        >>> passes_in_words(12.345), passes_in_words(141674.8), passes_in_words(float("inf"))
        ('12.3', '142000', 'more than ten million')
    """
    if passes >= 1e7:
        return "more than ten million"
    return f"{passes:.3g}" if passes < 1000 else f"{float(f'{passes:.3g}'):.0f}"


def level_table(levels: tuple[LevelStats, ...]) -> list[str]:
    """The table of level diagnostics, averaged over inputs and outputs.

    Args:
        levels: Statistics of the levels.

    Returns:
        The lines of the table.
    """
    names = ("T", "M", "cost", "mean ΔY", "var ΔY", "kurt", "mean ΔV", "var ΔV", "kurt", "check")
    widths = (6, 9, 10, 12, 11, 7, 12, 11, 8, 7)
    head = " " * 10 + "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    rows = [head, "-" * len(head)]
    for lv in levels:
        check = "" if lv.telescoping is None else f"{lv.telescoping:.2f}"
        rows.append(
            f"{lv.label:<10}{lv.fidelity:>6}{lv.count:>9g}{lv.cost:>10g}{_finite_mean(lv.mean):>12.3e}"
            f"{_finite_mean(lv.variance):>11.3e}{_finite_mean(lv.kurtosis):>7.2f}{_finite_mean(lv.mean_V):>12.3e}"
            f"{_finite_mean(lv.variance_V):>11.3e}{_finite_mean(lv.kurtosis_V):>8.2f}{check:>7}"
        )
    return rows


def variance_rates(levels: tuple[LevelStats, ...]) -> tuple[float, float]:
    """Fitted rates β in Var Δ_ℓ ∝ T_ℓ^(−β) over the corrections (levels 1, 2, …).

    Args:
        levels: Statistics of the levels.

    Returns:
        β of the mean and β of the variance; NaN where fewer than two levels can be used.
    """
    T = np.log([lv.fidelity for lv in levels[1:]])
    fits = []
    for name in ("variance", "variance_V"):
        values = np.array([_finite_mean(getattr(lv, name)) for lv in levels[1:]])
        usable = np.isfinite(values) & (values > 0)
        fits.append(-float(np.polyfit(T[usable], np.log(values[usable]), 1)[0]) if usable.sum() > 1 else float("nan"))
    return fits[0], fits[1]
