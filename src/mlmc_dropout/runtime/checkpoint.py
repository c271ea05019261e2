"""Progress on disk: written atomically, checked when read, refused when it is another run's.

One file per batch of inputs: ``path`` for the first, ``path.1``, ``path.2``, … for those that follow,
so that writing costs the same however many batches are finished. A file is a NumPy archive of
moment blocks with a JSON header; nothing in it is executed. The state before the last one is kept
beside it (``.previous``) in case the file is damaged afterwards.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.errors import CheckpointError, InputError
from mlmc_dropout.files import read_archive, write_archive
from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.methods.base import MethodSpec
from mlmc_dropout.methods.states import Block
from mlmc_dropout.moments import MomentBlock
from mlmc_dropout.runtime import fingerprint
from mlmc_dropout.runtime.cohorts import Progress, SavedCohort, SavedProgress
from mlmc_dropout.runtime.run import Run
from mlmc_dropout.sampling.sampler import DropoutSampler
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import MAX_BUDGET, MAX_ROUND, Decision, Goal

__all__ = ["CheckpointStore", "CheckpointWarning", "Saved", "read", "write"]

FORMAT = 5
_FIELDS = ("mean", "s2", "s3", "s4")
_GROUP_FIELDS = ("counts", "means")


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written, or the one before the last had to be used."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a checkpoint holds: the progress of one batch, what it was made for, and whose it is.

    ``origin`` is the goal of the very first call: a method that decides from a pilot must decide the
    same again when the run goes on with another goal.
    """

    progress: SavedProgress
    goal: Goal
    origin: Goal
    identity: dict[str, Any]


# ------------------------------------------------------------------------------------ one file


def write(path: Path, saved: Saved) -> None:
    """Replace the checkpoint: at every moment ``path`` is the old or the new one, complete.

    Args:
        path: The file.
        saved: What it is to hold.

    Raises:
        OSError: If it cannot be written; the old file is then still there.
    """
    progress = saved.progress
    cohorts = (progress.cohort, *progress.others)
    header = {
        "format": FORMAT,
        "identity": saved.identity,
        "goal": asdict(saved.goal),
        "origin": asdict(saved.origin),
        "spend": progress.spend,
        "merged": progress.merged,
        "cohorts": [
            {
                "done": dict(cohort.done),
                "stage": cohort.stage,
                "counts": {name: block.count for name, block in cohort.blocks.items()},
            }
            for cohort in cohorts
        ],
    }
    arrays = {f"{index}/rows": np.asarray(cohort.rows, dtype=np.int64) for index, cohort in enumerate(cohorts)}
    for index, cohort in enumerate(cohorts):
        for name, block in cohort.blocks.items():
            arrays |= {f"{index}/{name}/{field}": values for field, values in _arrays(block)}
    write_archive(path, header, arrays, compress=False, before=lambda: _keep_previous(path))


def _arrays(block: Block) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays of a block by the names of its fields."""
    for field in _GROUP_FIELDS if isinstance(block, GroupBlock) else _FIELDS:
        if (values := getattr(block, field)) is not None:
            yield field, values


def read(path: Path) -> Saved | None:
    """The checkpoint at ``path`` (``None``: there is none); the one before it if it is damaged.

    Args:
        path: The file.

    Returns:
        What it holds, or ``None``.

    Raises:
        CheckpointError: If both files are damaged or of another kind.
    """
    if not path.exists():
        return None
    try:
        return _read(path)
    except CheckpointError as damaged:
        previous = _beside(path, ".previous")
        try:
            saved = _read(previous)
        except (CheckpointError, FileNotFoundError):
            raise damaged from None
        warnings.warn(f"{damaged}; going on from the state before it", CheckpointWarning, stacklevel=2)
        return saved


def _read(path: Path) -> Saved:
    try:
        header, arrays = read_archive(path, {FORMAT: True})
        if header["format"] != FORMAT and "identity" in header:
            raise CheckpointError(
                f"{path}: checkpoint format {header['format']} is not {FORMAT}; use the version that wrote it"
            )
        if header["format"] != FORMAT:
            raise ValueError("it has no identity")
        return _checked(header, arrays)
    except (FileNotFoundError, CheckpointError):
        raise
    except Exception as error:  # whatever contents of the wrong kind lead to
        raise CheckpointError(
            f"{path} is not a checkpoint of mlmc-dropout, or is damaged ({error}); delete it to start again"
        ) from None


def _checked(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Saved:
    """What a file holds; values that no run leaves behind are refused with a ``ValueError``."""
    spend = header["spend"]
    if isinstance(spend, bool) or not 0 <= spend <= MAX_ROUND:
        raise ValueError(f"a round of {spend} passes")
    merged = _whole("merged tasks", header["merged"])
    expected = {f"{i}/rows" for i in range(len(header["cohorts"]))}
    fields = (*_FIELDS, *_GROUP_FIELDS)
    expected |= {f"{i}/{n}/{f}" for i, each in enumerate(header["cohorts"]) for n in each["counts"] for f in fields}
    if unknown := arrays.keys() - expected:
        raise ValueError(f"unknown arrays {sorted(unknown)}")
    cohort, *others = (
        _cohort(index, plain, arrays, 0 if index else merged) for index, plain in enumerate(header["cohorts"])
    )
    if not isinstance(header["identity"], dict):
        raise ValueError("an identity that is none")
    progress = SavedProgress(cohort, float(spend), merged, tuple(others))
    return Saved(progress, _goal(header["goal"]), _goal(header["origin"]), header["identity"])


def _goal(plain: dict[str, Any]) -> Goal:
    decision = plain.get("decision")
    return Goal(**{**plain, "decision": None if decision is None else Decision(**decision)})


def _cohort(index: int, plain: dict[str, Any], arrays: dict[str, NDArray[Any]], merged: int) -> SavedCohort:
    """Rows that have had the same passes, and what is known of them."""
    rows = arrays[f"{index}/rows"]
    if rows.dtype != np.int64 or rows.ndim != 1 or not len(rows) or (np.diff(rows) <= 0).any():
        raise ValueError(f"rows {rows}")
    blocks = {name: _block(f"{index}/{name}", count, arrays) for name, count in plain["counts"].items()}
    done = {str(name): _whole(f"{name} done", value) for name, value in plain["done"].items()}
    if bool(blocks) != bool(done or merged) or ("passes" in done) != bool(done):
        raise ValueError(f"{len(blocks)} blocks after {done} and {merged} tasks")
    stage = plain["stage"]
    return SavedCohort(rows, blocks, done, None if stage is None else tuple(stage))


def _block(name: str, count: Any, arrays: dict[str, NDArray[Any]]) -> Block:
    """A block whose numbers can be those of so many samples."""
    if f"{name}/counts" in arrays:
        return _groups(name, count, arrays)
    values = {field: arrays[f"{name}/{field}"] for field in _FIELDS if f"{name}/{field}" in arrays}
    if [*values] not in (["mean", "s2"], [*_FIELDS]):
        raise ValueError(f"{name!r} has {[*values]}")
    if len({array.shape for array in values.values()}) > 1 or any(a.dtype != np.float64 for a in values.values()):
        raise ValueError(f"{name!r} has arrays of different shapes or types")
    if not all(np.isfinite(array).all() for array in values.values()) or (values["s2"] < 0).any():
        raise ValueError(f"{name!r} has sums that are not finite, or negative sums of squares")
    n = _whole(f"samples of {name}", count)
    if not n or (n == 1 and values["s2"].any()):
        raise ValueError(f"{name!r} has {n} samples and a spread")
    with np.errstate(over="ignore"):
        if "s4" in values and (values["s2"] ** 2 > n * values["s4"] * (1 + 1e-6) + 1e-300).any():  # Cauchy-Schwarz
            raise ValueError(f"{name!r} has sums that {n} samples cannot have")
    return MomentBlock(n, **values)


def _groups(name: str, count: Any, arrays: dict[str, NDArray[Any]]) -> GroupBlock:
    counts, means = arrays[f"{name}/counts"], arrays[f"{name}/means"]
    if counts.dtype != np.int64 or means.dtype != np.float64 or counts.ndim != 1 or means.ndim != 3:
        raise ValueError(f"{name!r} has arrays of the wrong kind")
    if len(counts) != len(means) or (counts < 0).any() or counts.sum() != _whole(f"samples of {name}", count):
        raise ValueError(f"{name!r} has groups that do not add up to {count} samples")
    if not np.isfinite(means).all():
        raise ValueError(f"{name!r} has means that are not finite")
    return GroupBlock(counts, means)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_BUDGET:
        raise ValueError(f"{name}: {value!r}")
    return value


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _keep_previous(path: Path) -> None:
    """A second name for the present file, so that replacing it does not lose it."""
    if not path.exists():
        return
    scratch, previous = _beside(path, ".previous.part"), _beside(path, ".previous")
    scratch.unlink(missing_ok=True)
    try:
        try:
            os.link(path, scratch)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, scratch)
        os.replace(scratch, previous)
    finally:
        scratch.unlink(missing_ok=True)  # two names of one file: the replacement does nothing then


# ----------------------------------------------------------------------------------- one estimate


class CheckpointStore:
    """The checkpoints of one call of ``estimate``; does nothing without a path."""

    def __init__(self, path: str | os.PathLike[str] | None, interval: float, goal: Goal) -> None:
        self.path = None if path is None else Path(path)
        if not interval >= 0:
            raise InputError(f"checkpoint_interval is a number of seconds, at least 0: got {interval}")
        self.interval = interval
        self.problem: str | None = None
        saved = None
        if self.path is not None:
            _check_writable(self.path)
            saved = read(self.path)
        self.origin = goal if saved is None else saved.origin
        self._common: dict[str, Any] = {}
        self._identities: dict[int, dict[str, Any]] = {}
        self._written: dict[int, tuple[float, Progress | None]] = {}

    def identify(self, sampler: DropoutSampler, method: MethodSpec, seed: int) -> None:
        """Tell whose checkpoints these are.

        Args:
            sampler: The model and how it is sampled.
            method: The method that was asked for.
            seed: The seed.
        """
        if self.path is not None:
            self._common = fingerprint.of_run(sampler, method, seed)

    def resume(self, index: int, source: Source, goal: Goal) -> SavedProgress | None:
        """The saved progress of a batch, if there is any; a refusal if it is not this run's.

        Args:
            index: Number of the batch.
            source: Its passes.
            goal: When to stop now.

        Returns:
            The progress, or ``None``.

        Raises:
            CheckpointError: If the file belongs to another run.
        """
        if self.path is None:
            return None
        identity = {
            **self._common,
            "inputs": fingerprint.of_inputs(source.batch),
            "model's outputs": fingerprint.probe(source),
            "own quantities": fingerprint.probe_quantities(source),
        }
        self._identities[index] = identity
        self._written[index] = (time.monotonic(), None)
        path = self._file(index)
        saved = read(path)
        if saved is None:
            return None
        if reason := fingerprint.difference(identity, saved.identity):
            raise CheckpointError(
                f"{path} belongs to another run: {reason}; "
                "give another checkpoint path, or delete the file to start again"
            )
        return _continued(saved, goal, path)

    def note(self, run: Run) -> None:
        """Write the progress of a run if it is due: at its end, and when the interval has passed.

        Args:
            run: A run.
        """
        if self.path is None:
            return
        last, progress = self._written[run.index]
        if run.progress is not progress and (run.finished or time.monotonic() - last >= self.interval):
            self._write(run)

    def flush(self, runs: Iterable[Run]) -> None:
        """Write whatever is not on disk yet.

        Args:
            runs: The runs under way.
        """
        for run in runs if self.path is not None else ():
            if run.progress is not self._written[run.index][1] and run.progress.state is not None:
                self._write(run)

    def _write(self, run: Run) -> None:
        """A checkpoint that cannot be written must not end the run: warn, and try again at the next interval."""
        self._written[run.index] = (time.monotonic(), self._written[run.index][1])
        progress = run.progress
        try:
            write(self._file(run.index), Saved(progress.saved(), run.goal, self.origin, self._identities[run.index]))
        except OSError as error:
            self.problem = f"The checkpoint could not be written ({error}); the file holds an earlier state."
            warnings.warn(self.problem, CheckpointWarning, stacklevel=2)
            return
        self.problem = None
        self._written[run.index] = (time.monotonic(), progress)

    def _file(self, index: int) -> Path:
        assert self.path is not None
        return _beside(self.path, f".{index}") if index else self.path


def _check_writable(target: Path) -> None:
    """Refuse a path that cannot be written, before any work is done."""
    trial = _beside(target, ".part")
    try:
        if target.is_dir():
            raise IsADirectoryError("it is a folder")
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise CheckpointError(
            f"cannot write a checkpoint at {target} ({error}); give a path in a writable folder"
        ) from None


def _continued(saved: Saved, goal: Goal, path: Path) -> SavedProgress | None:
    """Progress to go on from. A changed goal takes effect when the round under way is complete."""
    progress = saved.progress
    if progress.others and not goal.adaptive:
        raise CheckpointError(
            f"in {path} inputs have had different numbers of passes; go on with effort='adaptive', or use another "
            "checkpoint path"
        )
    if goal == saved.goal or not progress.spend:
        return progress
    if not progress.merged and progress.cohort.stage is None:  # the round has not begun: look again
        return replace(progress, spend=0.0) if progress.blocks else None
    planned = progress.planned / sum(len(cohort.rows) for cohort in (progress.cohort, *progress.others))
    if goal.budget is not None and planned > goal.budget:
        raise CheckpointError(
            f"{path} is in the middle of a round that brings it to {planned:g} passes per input, above the budget of "
            f"{goal.budget:g}; raise the budget to {planned:g} or more, or use another checkpoint path"
        )
    return progress
