"""The progress of an evaluation, as one value and as a file."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.errors import CheckpointError, InputError
from mlmc_dropout.evaluation.data import Slice
from mlmc_dropout.evaluation.levels import LevelState
from mlmc_dropout.evaluation.strata import Part
from mlmc_dropout.files import read_archive, write_archive
from mlmc_dropout.runtime.fingerprint import difference

__all__ = ["Checkpoint", "EvaluationProgress"]

FORMAT = 3
_PER_LEVEL = ("count", "moments", "cross", "within", "paired", "unsettled")
_PER_ROW = ("scores", "strata")  # arrays with an entry per input


@dataclass(frozen=True, slots=True)
class EvaluationProgress:
    """All that an evaluation has to remember; replaced as a whole.

    Attributes:
        parts: The strata; one, if there are none.
        slices: What this round runs.
        merged: Blocks of the round that are in ``parts``.
        rows: Number of inputs; 0 while it is not known.
        blocks: Blocks of all earlier rounds.
        design: Passes per stratified design; 1 for independent passes.
        pilot: Passes of a pilot that told to go over to designs.
        scoring: Passes per input of a round that sorts inputs into strata; 0 in all other rounds.
        scores: What such a round has found so far, rows by components.
        strata: Stratum of every input, if there are several.
    """

    parts: tuple[Part, ...] = (Part(),)
    slices: tuple[Slice, ...] = ()
    merged: int = 0
    rows: int = 0
    blocks: int = 0
    design: int = 1
    pilot: int = 0
    scoring: int = 0
    scores: NDArray[np.float64] | None = None
    strata: NDArray[np.uint8] | None = None


@dataclass(slots=True)
class Checkpoint:
    """A file that progress is saved in; without a path, nothing is.

    Attributes:
        path: The file, or ``None``.
        interval: Seconds between two savings, at least.
        identity: What tells this evaluation from others.
    """

    path: Path | None
    interval: float
    identity: Mapping[str, Any]
    _last: float = field(default_factory=time.monotonic)

    @classmethod
    def at(cls, path: str | os.PathLike[str] | None, interval: float, identity: Mapping[str, Any]) -> Checkpoint:
        """A checkpoint at a place that can be written.

        Args:
            path: The file, or ``None``.
            interval: Seconds between two savings, at least.
            identity: What tells this evaluation from others.

        Returns:
            The checkpoint.

        Raises:
            InputError: If there is no such folder, or the interval makes no sense.
        """
        if not interval >= 0:
            raise InputError(f"checkpoint_interval is a number of seconds: got {interval!r}")
        place = None if path is None else Path(path)
        if place is not None and not place.absolute().parent.is_dir():
            raise InputError(f"checkpoint {str(path)!r}: there is no folder {str(place.parent)!r}; make it first")
        return cls(place, interval, identity)

    def read(self) -> EvaluationProgress | None:
        """What the file holds, or ``None`` if there is none.

        Raises:
            CheckpointError: If it is damaged or belongs to another evaluation.
        """
        if self.path is None or not self.path.exists():
            return None
        try:
            header, arrays = read_archive(self.path)
            if header["format"] != FORMAT or header["kind"] != "evaluation":
                raise ValueError(f"format {header['format']}")
            progress = _rebuild(header["progress"], arrays)
            reason = difference(dict(self.identity), dict(header["identity"]))
        except (OSError, ValueError, LookupError, TypeError, EOFError, ArithmeticError, AttributeError) as error:
            raise CheckpointError(
                f"{self.path} is not a checkpoint of an evaluation, or is damaged ({error}); delete it to start again"
            ) from None
        if reason is not None:
            raise CheckpointError(
                f"{self.path} belongs to another evaluation: {reason}; give another file, or delete it to start again"
            )
        return progress

    def note(self, progress: EvaluationProgress, force: bool = False) -> None:
        """Save, if the last time is long enough ago.

        Args:
            progress: The progress.
            force: Save in any case.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        if self.path is None or (not force and time.monotonic() - self._last < self.interval):
            return
        plain = {
            "parts": [
                {"shares": [list(share) for share in part.shares], "levels": len(part.states), "rows": part.rows}
                for part in progress.parts
            ],
            "slices": [asdict(part) for part in progress.slices],
            "merged": progress.merged,
            "rows": progress.rows,
            "blocks": progress.blocks,
            "design": progress.design,
            "pilot": progress.pilot,
            "scoring": progress.scoring,
        }
        header = {"format": FORMAT, "kind": "evaluation", "identity": dict(self.identity), "progress": plain}
        arrays = {
            f"{number}/{level}/{name}": values
            for number, part in enumerate(progress.parts)
            for level, state in enumerate(part.states)
            for name, values in state.arrays().items()
        }
        arrays.update({name: getattr(progress, name) for name in _PER_ROW if getattr(progress, name) is not None})
        try:
            write_archive(self.path, header, arrays, compress=False)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be written ({error}); give another place") from None
        self._last = time.monotonic()


def _rebuild(plain: Mapping[str, Any], arrays: Mapping[str, Any]) -> EvaluationProgress:
    parts = tuple(_part(number, part, arrays) for number, part in enumerate(plain["parts"]))
    slices = tuple(Slice(**part) for part in plain["slices"])
    expected = {
        f"{number}/{level}/{name}"
        for number, part in enumerate(parts)
        for level in range(len(part.states))
        for name in _PER_LEVEL
    }
    if {*arrays} - {*_PER_ROW} != expected:
        raise ValueError("arrays of no level")
    numbers = (plain[name] for name in ("merged", "rows", "blocks", "design", "pilot", "scoring"))
    return EvaluationProgress(parts, slices, *numbers, *(arrays.get(name) for name in _PER_ROW))


def _part(number: int, plain: Mapping[str, Any], arrays: Mapping[str, Any]) -> Part:
    states = tuple(
        LevelState.from_arrays({name: arrays[f"{number}/{level}/{name}"] for name in _PER_LEVEL})
        for level in range(plain["levels"])
    )
    return Part(states, tuple((float(share), slices) for share, slices in plain["shares"]), plain["rows"])
