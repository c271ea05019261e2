"""Reasons not to rely on the numbers of a page, and what to do about each."""

from __future__ import annotations

from collections.abc import Iterator

from mlmc_dropout.report.folder import Folder
from mlmc_dropout.report.formats import percent, short
from mlmc_dropout.report.names import is_classes
from mlmc_dropout.report.numbers import Matrices, average
from mlmc_dropout.result import Result, Status
from mlmc_dropout.result.text import rare_passes

__all__ = ["warnings"]

HEAVY = 10.0  # kurtosis from which on tails are heavy
_FINISHED = (Status.COMPLETED, Status.TOLERANCE_MET, Status.DECIDED)


def warnings(folder: Folder, m: Matrices) -> Iterator[str]:
    """What somebody should know before using the numbers.

    Args:
        folder: The estimate with its settings.
        m: Its estimates.

    Yields:
        Sentences.
    """
    result = folder.result
    if result.status not in _FINISHED:
        yield result.status.value
    yield from map(str, folder.info.get("warnings", ()))
    if "decision" not in result.quantities and not is_classes(result):  # a page shows no variance of a probability
        yield from _variances(m)
    if rare := rare_passes(result):
        yield rare
    yield from _tails(result)
    broken = [level.label for level in result.levels if level.telescoping is not None and level.telescoping >= 1]
    if broken:
        yield f"The telescoping check fails at {', '.join(broken)}: coarse and fine estimates do not fit together."


def _variances(m: Matrices) -> Iterator[str]:
    negative = int((m.variance < 0).sum())
    if negative:
        yield f"{negative} variance estimates are negative: noise exceeds the variance there. Spend more passes."
    positive = m.std > 0
    rough = float((m.variance_stderr[positive] > 0.25 * m.variance[positive]).mean()) if positive.any() else 0.0
    if rough > 0.1:
        yield (
            f"For {percent(rough)} of the outputs the variance is known to no better than a quarter of "
            "itself. Spend more passes."
        )


def _tails(result: Result) -> Iterator[str]:
    """Heavy tails of what was sampled: single passes, or means of a few of them."""
    if not result.levels or is_classes(result):  # probabilities near 0 and 1 always have them
        return
    if result.method == "mlmc":
        level, kurtosis = result.levels[0], average(result.levels[0].kurtosis)
        what = "Passes have" if level.fidelity == 1 else f"Means of {level.fidelity} passes have"
    else:  # the first kurtosis of a level is that of what a surrogate leaves of a pass, the second that of passes
        what, kurtosis = "Passes have", average(result.levels[-1].kurtosis_V)
    if kurtosis > HEAVY:
        yield f"{what} heavy tails (kurtosis {short(kurtosis)}; 3 is Gaussian): standard errors are rough."
