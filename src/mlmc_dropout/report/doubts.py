"""Reasons not to rely on the numbers of a page, and what to do about each."""

from __future__ import annotations

from collections.abc import Iterator

from mlmc_dropout.report.folder import Folder
from mlmc_dropout.report.formats import passes, percent, short
from mlmc_dropout.report.names import is_classes
from mlmc_dropout.report.numbers import Matrices, average, matrix
from mlmc_dropout.report.predictions import Predictions, predictions
from mlmc_dropout.result import Result, Status
from mlmc_dropout.result.text import unreliable

__all__ = ["notes_without", "warnings"]

SPREAD_THAT_MATTERS = 1e-3  # of a probability; nobody asks for the tenth digit of what is nearly 0
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
    if "decision" not in result.quantities:
        yield from _variances(result, m)
    yield from _rare_passes(result, predictions(result, folder.data.class_names))
    yield from _tails(result)
    broken = [level.label for level in result.levels if level.telescoping is not None and level.telescoping >= 1]
    if broken:
        yield f"The telescoping check fails at {', '.join(broken)}: coarse and fine estimates do not fit together."


def notes_without(result: Result, said: list[str]) -> list[str]:
    """The notes of a result that the page does not say elsewhere.

    Args:
        result: The estimate.
        said: The warnings of the page.

    Returns:
        The other notes.
    """
    in_other_words = {_unreliable(result)} if [*_rare_passes(result, predictions(result))] else set()
    return [note for note in result.notes if note not in {*said, *in_other_words}]


def _variances(result: Result, m: Matrices) -> Iterator[str]:
    negative = int((m.variance < 0).sum())
    if negative:
        yield f"{negative} variance estimates are negative: noise exceeds the variance there. Spend more passes."
    positive = m.std > (SPREAD_THAT_MATTERS if is_classes(result) else 0.0)
    rough = float((m.variance_stderr[positive] > 0.25 * m.variance[positive]).mean()) if positive.any() else 0.0
    if rough > 0.1:
        yield (
            f"For {percent(rough)} of the outputs the variance is known to no better than a quarter of "
            "itself. Spend more passes."
        )


def _unreliable(result: Result) -> str:
    return unreliable(matrix(result.mean_reliable), matrix(result.variance_reliable))


def _rare_passes(result: Result, found: Predictions | None) -> Iterator[str]:
    """Standard errors that a rare pass may overturn: of the predicted classes, or of values."""
    mean, variance = matrix(result.mean_reliable), matrix(result.variance_reliable)
    bad, count = int((~(mean & variance)).sum()), mean.size
    decided = "decision" in result.quantities
    advice = "Decisions allow for that." if decided else "Spend more passes, say four times as many."
    if found is None:
        if bad:
            yield (
                f"For {passes(bad)} of {passes(count)} outputs few passes carry most of the variance: their standard "
                f"errors may be too small. {advice}"
            )
        return
    doubtful = int((~found.p_reliable).sum())
    if doubtful:
        yield (
            f"For {passes(doubtful)} of {passes(len(found.label))} predicted classes few passes carry most of the "
            f"variance: the standard error of the probability may be too small. {advice} The same holds for "
            f"{passes(bad)} of the {passes(count)} probabilities of all classes."
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
