"""A result in words: lines for terminals, the table of levels, and the numbers that are told in both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.quantities.base import QuantityEstimate
from mlmc_dropout.quantities.outputs import CLASS_OUTPUTS
from mlmc_dropout.result.arrays import as_matrix, leaves

if TYPE_CHECKING:
    from mlmc_dropout.result.value import LevelStats, Result

__all__ = [
    "SETTLED",
    "TO_TOLERANCE",
    "level_table",
    "passes_in_words",
    "rare_passes",
    "summary_lines",
    "variance_rates",
    "worth_sentence",
]

SETTLED = 0.99  # confidence from which on a predicted class is taken as settled
TO_TOLERANCE = "Meeting the tolerance would take about"  # how notes begin that say what it takes


def rare_passes(result: Result) -> str:
    """A sentence about standard errors that a rare pass may overturn: of the predicted classes, or of all outputs.

    Most classes of an input have probabilities near 0, which nobody looks at: only the predicted ones are counted.

    Args:
        result: The result.

    Returns:
        The sentence; empty if all standard errors can be believed.
    """
    mean, variance = as_matrix(result.mean_reliable), as_matrix(result.variance_reliable)
    good, what = mean & variance, "outputs"
    if result.metadata.get("outputs") in CLASS_OUTPUTS:
        good, what = _of_predicted(result, good), "predicted classes"
    bad = int((~good).sum())
    if not bad:
        return ""
    decided = "decision" in result.quantities
    advice = "Decisions allow for that." if decided else "Spend more passes, say four times as many."
    return (
        f"For {bad} of {good.size} {what} few passes carry most of the variance: their standard errors may be too "
        f"small. {advice}"
    )


def _of_predicted(result: Result, values: Any) -> Any:
    """What belongs to the predicted classes, of something that all components have, (inputs, components)."""
    if result.metadata["outputs"] == "binary-logits":
        return values
    classes = result.structure.names()[0][1][-1]
    asked = result.quantities.get("label")
    label = as_matrix(result.mean).reshape(-1, classes).argmax(axis=1) if asked is None else asked.value.reshape(-1)
    return np.take_along_axis(values.reshape(-1, classes), label[:, None], axis=1)


def worth_sentence(result: Result) -> str:
    """How many passes of plain averaging a result is as good as, as far as its passes tell.

    Args:
        result: The result.

    Returns:
        The end of a sentence; empty for plain averaging itself.
    """
    if result.method == "pooled":
        return ""
    mean, variance = result.plain_passes
    if math.isnan(mean) and math.isnan(variance):
        return (
            "how many passes of plain Monte Carlo this is as good as cannot be told: too few passes, or too rare events"
        )
    if math.isnan(mean) or math.isnan(variance):
        known, other = ("variance", "mean") if math.isnan(mean) else ("mean", "variance")
        passes = passes_in_words(variance if math.isnan(mean) else mean)
        return (
            f"as good as {passes} passes of plain Monte Carlo for the {known}; for the {other} that cannot be told yet"
        )
    return (
        f"as good as {passes_in_words(mean)} passes of plain Monte Carlo for the mean, {passes_in_words(variance)} for "
        "the variance"
    )


def _finite_mean(value: Any) -> float:
    """Mean over all inputs and components, NaN where nothing is finite."""
    joined = np.concatenate([np.ravel(leaf) for leaf in leaves(value)])
    finite = joined[np.isfinite(joined)]
    return float(finite.mean()) if finite.size else float("nan")


def summary_lines(result: Result) -> list[str]:
    """What a result prints.

    Args:
        result: The result.

    Returns:
        The lines.
    """
    rows = len(leaves(result.mean)[0])
    least, most = result.passes.min(), result.passes.max()
    spent = f" ({least:.0f} to {most:.0f})" if least < most else ""
    lines = [
        f"{result.method}: {rows} inputs × {result.structure.width} outputs, {result.cost:.0f} passes per input"
        f"{spent}, seed {result.seed}",
        result.status.value,
        "",
        "averages over inputs and outputs",
        f"  mean      {_finite_mean(result.mean): .6g}  ± {_finite_mean(result.mean_stderr):.2g}",
        f"  variance  {_finite_mean(result.variance): .6g}  ± {_finite_mean(result.variance_stderr):.2g}",
    ]
    lines += _quantity_lines(result.quantities)
    if worth := worth_sentence(result):
        lines.append(f"  {worth}")
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
    """Averages of what was asked of inputs as a whole, and how many decisions or predicted classes are settled."""
    shown = {name: one for name, one in quantities.items() if one.stderr is not None}
    width = max((len(name) for name in shown), default=0)
    for name, one in shown.items():
        if name != "votes":  # their average is that of the mean, nearly
            yield f"  {name:<{width}}  {_finite_mean(one.value): .6g}  ± {_finite_mean(one.stderr):.2g}"
    if (decision := quantities.get("decision")) is not None:
        yield f"  {_settled(decision.settled, 'decisions')}"
    elif (label := quantities.get("label")) is not None and label.confidence is not None:
        yield f"  {_settled(label.confidence >= SETTLED, 'predicted classes')} at {100 * SETTLED:g} % confidence"


def _settled(settled: NDArray[np.bool_], what: str) -> str:
    """How many of several are settled."""
    count, total = int(settled.sum()), settled.size
    return f"{'all' if count == total else f'{count} of'} {total} {what} are settled"


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
