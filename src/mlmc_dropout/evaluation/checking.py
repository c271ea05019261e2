"""What a saved evaluation can hold: everything else in a file was edited, and is refused with a ``ValueError``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlmc_dropout.evaluation.checkpoint import EvaluationProgress
from mlmc_dropout.evaluation.data import Slice, random_numbers
from mlmc_dropout.evaluation.goal import TOP
from mlmc_dropout.evaluation.levels import LevelState
from mlmc_dropout.evaluation.strata import Part
from mlmc_dropout.result import Status

__all__ = ["check_plain", "check_progress", "check_samples", "rows_taken"]

MOST = 1 << 53  # of anything that is counted
_USES = {"value", "difference", "value and difference", "pilot"}
_METHODS = {"mlmc", "jackknife", "plug-in", "unbiased"}


def check_progress(progress: EvaluationProgress, components: int, rows: int, seed: int) -> None:
    """Refuse progress that no evaluation has.

    Args:
        progress: What a file holds.
        components: Numbers that a level averages.
        rows: Inputs of the data set.
        seed: Seed of the run.

    Raises:
        ValueError: If something is of a wrong type, out of range, or does not belong together.
    """
    for name in ("merged", "rows", "blocks", "design", "pilot", "scoring"):
        _check_count(name, getattr(progress, name))
    if progress.rows != rows:
        raise ValueError(f"{progress.rows} inputs, and there are {rows}")
    if not 1 <= progress.design <= 1 << TOP or (progress.design > 1) != (progress.pilot > 0):
        raise ValueError(f"designs of {progress.design} passes after a pilot of {progress.pilot}")
    if progress.merged and not progress.slices:
        raise ValueError(f"{progress.merged} blocks of no round")
    _check_rows(progress, components)
    if any(one.stratum not in range(len(progress.parts)) for one in progress.slices):
        raise ValueError("a slice of no stratum")
    for number, part in enumerate(progress.parts):
        _check_part(progress, number, part, components, seed)


def _check_rows(progress: EvaluationProgress, components: int) -> None:
    """What is kept of every input: scores, strata and their sizes."""
    scores, strata, rows = progress.scores, progress.strata, progress.rows
    if (scores is None) != (not progress.scoring or (bool(progress.slices) and not progress.merged)):
        raise ValueError("scores without a round that found them")
    if scores is not None and (
        scores.dtype != np.float64 or scores.ndim != 2 or len(scores) > rows or not np.isfinite(scores).all()
    ):
        raise ValueError("scores of another shape or type")
    if progress.scoring > 1 << TOP or (progress.scoring and (strata is not None or len(progress.parts) != 1)):
        raise ValueError(f"a round of {progress.scoring} passes that sorts inputs")
    if strata is None:
        sizes = [rows]
    elif strata.dtype != np.uint8 or strata.shape != (rows,):
        raise ValueError("strata of another shape or type")
    else:
        sizes = np.bincount(strata).tolist()
    if [part.rows for part in progress.parts] != sizes:
        raise ValueError("strata of other sizes")


def _check_part(progress: EvaluationProgress, number: int, part: Part, components: int, seed: int) -> None:
    """The levels of one stratum."""
    if len(part.shares) > TOP + 1 or len(part.states) > TOP + 1:
        raise ValueError(f"{len(part.states)} levels")
    for share, slices in part.shares:
        _check_count("slices", slices)
        if not 0 <= share < MOST:
            raise ValueError(f"a share of {share}")
    after = _shares_after(part, [one for one in progress.slices if one.stratum == number])
    for level, state in enumerate(part.states):
        _check_state(state, components)
        least = rows_taken(progress, seed, number, level, _share(part, level))
        if not least <= state.count <= rows_taken(progress, seed, number, level, after.get(level, (0.0, 0))[0]):
            raise ValueError(f"{state.count} samples of level {level}")


def check_samples(progress: EvaluationProgress, seed: int) -> None:
    """Refuse, between two rounds, other numbers of samples than the shares of the inputs give.

    Args:
        progress: Progress without slices.
        seed: Seed of the run.

    Raises:
        ValueError: If blocks were merged twice, or never.
    """
    for number, part in enumerate(progress.parts):
        for level, state in enumerate(part.states):
            expected = rows_taken(progress, seed, number, level, _share(part, level))
            if state.count != expected:
                raise ValueError(f"{state.count} samples of level {level}, and {expected} inputs were taken")


def rows_taken(progress: EvaluationProgress, seed: int, stratum: int, level: int, share: float) -> int:
    """Rows that a level of a stratum has taken, with repetitions.

    Args:
        progress: The strata.
        seed: Seed of the run.
        stratum: Number of the stratum.
        level: The level.
        share: Share of the stratum that it has used.

    Returns:
        Their number.
    """
    rows, sweep = progress.parts[stratum].rows, int(share)
    if share == sweep:
        return sweep * rows
    taken = random_numbers(seed, level, sweep, 0, progress.rows) + sweep < share
    if progress.strata is not None:
        taken &= progress.strata == stratum
    return sweep * rows + int(taken.sum())


def _share(part: Part, level: int) -> float:
    return part.shares[level][0] if level < len(part.shares) else 0.0


def _check_count(name: str, value: Any) -> None:
    if type(value) is not int or not 0 <= value < MOST:
        raise ValueError(f"{name} = {value!r}")


def _shares_after(part: Part, slices: Sequence[Slice]) -> dict[int, tuple[float, int]]:
    """Shares at the end of the round; every slice begins where its level has ended."""
    used = dict(enumerate(part.shares))
    for one in slices:
        _check_count("level", one.level)
        _check_count("replicate", one.replicate)
        begins = type(one.high) is float and (one.low, one.replicate) == used.get(one.level, (0.0, 0))
        if one.level > TOP or not begins or not one.low < one.high <= int(one.low) + 1:
            raise ValueError(f"a slice from {one.low} to {one.high} of level {one.level}")
        used[one.level] = one.high, one.replicate + 1
    return used


def _check_state(state: LevelState, components: int) -> None:
    block, square = state.block, (2 * components, 2 * components)
    moments = [block.mean, block.s2, block.s3, block.s4]
    shapes: list[tuple[Any, tuple[int, ...]]] = [(values, (4 * components,)) for values in moments]
    shapes += [(state.cross, square), (state.within, square), (state.paired, (components,))]
    shapes += [(state.unsettled, (components,))]
    for values, shape in shapes:
        if not isinstance(values, np.ndarray) or values.shape != shape or values.dtype != np.float64:
            raise ValueError("moments of another shape or type")
        if not np.isfinite(values).all():
            raise ValueError("moments that are not finite")
    squares = (block.s2, np.asarray(block.s4), np.diag(state.cross), np.diag(state.within), state.unsettled)
    if any((values < 0).any() for values in squares):
        raise ValueError("sums of squares that are negative")


def check_plain(plain: Mapping[str, Any]) -> None:
    """Refuse what no evaluation is saved as.

    Args:
        plain: The contents of a file.

    Raises:
        ValueError: If something is of a wrong type, out of range, or does not belong together.
        KeyError: If something is missing.
    """
    names = list(plain["estimates"])
    if not names or plain["method"] not in _METHODS or plain["sentence"] != Status[plain["status"]].value:
        raise ValueError("it names no metric, or another method or status than there is")
    for name in ("rows", "seed"):
        _check_count(name, plain[name])
    _check_number("cost", plain["cost"], 0.0)
    if (
        type(plain["levels"]) is not list
        or type(plain["metadata"]) is not dict
        or not all(type(note) is str for note in plain["notes"])
    ):
        raise ValueError("metadata or notes of another kind")
    for found in plain["estimates"].values():
        _check_number("value", found["value"])
        for name in ("stderr", "bias"):
            _check_number(name, found[name], 0.0)
        if set(found["rates"]) != {"alpha", "beta", "beta_plain"}:
            raise ValueError(f"rates {list(found['rates'])}")
        for rate in found["rates"].values():
            _check_number("a rate", rate["value"])
            _check_number("its error", rate["stderr"], 0.0)
    for level in plain["levels"]:
        for name in ("fidelity", "count", "cost"):
            _check_count(name, level[name])
        if level["used"] not in _USES or level["cost"] != level["fidelity"] * level["count"]:
            raise ValueError("a level that does not belong together")
        for field in ("mean", "variance", "kurtosis", "variance_plain"):
            if list(level[field]) != names:
                raise ValueError(f"{field} of other metrics")
            for value in level[field].values():
                _check_number(field, value)
    passes = sum(level["cost"] for level in plain["levels"]) + plain["metadata"].get("pilot", 0)
    if abs(plain["cost"] * plain["rows"] - passes) > 0.5:
        raise ValueError(f"{passes} passes of levels that cost {plain['cost']} per input")


def _check_number(name: str, value: Any, least: float = -math.inf) -> None:
    """A finite number, or ``None`` for what is not known."""
    if value is None:
        return
    if type(value) not in (int, float) or not math.isfinite(value) or value < least:
        raise ValueError(f"{name} = {value!r}")
