"""Estimates, their standard errors and diagnostics as one value, and how a run ended."""

from __future__ import annotations

import enum
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlmc_dropout.brief import shown_briefly
from mlmc_dropout.quantities.base import QuantityEstimate
from mlmc_dropout.quantities.questions import kinds_of_outputs
from mlmc_dropout.result import export, text
from mlmc_dropout.result.arrays import leaves, map_leaves
from mlmc_dropout.result.saving import save_result
from mlmc_dropout.sampling.outputs import Structure

__all__ = ["LevelStats", "Result", "Status"]


class Status(enum.Enum):
    """How a run ended; the value is a sentence."""

    COMPLETED = "All planned passes were spent."
    TOLERANCE_MET = "The tolerance was met."
    PRECISION_REACHED = "The tolerance lies below the rounding of the model's numbers; more passes would not help."
    DECIDED = "Every decision is settled."
    BUDGET_EXHAUSTED = "The tolerance was not met within the budget."
    OUT_OF_REACH = "The tolerance was not met, and more passes would hardly help."
    UNSETTLED = "Not every decision was settled within the budget."
    STOPPED = "The run was stopped by the user; the result covers the passes spent until then."
    FAILED = "The run ended with an error; the result covers the passes spent until then."


@dataclass(frozen=True, slots=True, repr=False)
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

    __repr__ = shown_briefly


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
        plain_passes: Passes per input with which plain Monte Carlo would have the same average squared errors of the
            mean, and of the variance, as the passes of this run show both; NaN where they tell too little, infinite
            where nothing is left to chance. Allowances in standard errors for few passes and rare masks do not count.
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
    plain_passes: tuple[float, float] = (math.nan, math.nan)

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
        raise KeyError(f"no quantity {name!r} in this result, which has {known}; {self._how_to_ask(name)}")

    def _how_to_ask(self, name: str) -> str:
        """What to give to ``estimate`` for a quantity that is not here; some belong to other outputs."""
        kinds = kinds_of_outputs(name)
        if not kinds or self.metadata.get("outputs", "values") in kinds:
            return "ask for it with quantities="
        return f"ask for it with quantities= and outputs= {' or '.join(map(repr, kinds))}"

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
        return save_result(self, path)

    # ------------------------------------------------------------------------- exports

    def to_xarray(self) -> Any:
        """Convert to an ``xarray.Dataset``: one variable per estimate (and output leaf), the inputs along ``input``.

        Returns:
            The dataset.

        Raises:
            MissingExtraError: If xarray is not installed.
        """
        return export.to_xarray(self)

    def to_dataframe(self) -> Any:
        """Convert to a ``pandas.DataFrame`` with one row per input and output component.

        Returns:
            The data frame, with the columns ``input`` and ``output`` and one per estimate.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        return export.to_dataframe(self)

    # ------------------------------------------------------------------------ printing

    def __str__(self) -> str:
        return "\n".join(text.summary_lines(self))

    __repr__ = __str__
