"""The one exception tree: everything raised for bad input derives from :class:`MLMCDropoutError`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "AllocationError",
    "CheckpointError",
    "ConfigError",
    "ExecutionError",
    "InputError",
    "LadderError",
    "MLMCDropoutError",
    "MissingExtraError",
    "ModelError",
    "ModelWarning",
    "NonFiniteOutputError",
    "ResultFileError",
    "RunDirectoryError",
]


class MLMCDropoutError(Exception):
    """Base of all errors raised for bad input; the message gives the value and the remedy."""


def add_note_once(error: Exception, text: str) -> None:
    """Tell more about an error of the user's own model, which keeps its type and traceback.

    Args:
        error: The error; ours say all in their message.
        text: What to add; left out if it is there already.
    """
    if not isinstance(error, MLMCDropoutError) and text not in getattr(error, "__notes__", ()):
        error.add_note(text)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A hint at the known name that is most like another.

    Args:
        name: What was given.
        known: What there is.

    Returns:
        As in `` (did you mean 'pooled'?)``; empty if nothing is like it.

    Examples:
        >>> did_you_mean("polled", ["auto", "pooled"]), did_you_mean("x", ["auto"])
        (" (did you mean 'pooled'?)", '')
    """
    found = difflib.get_close_matches(str(name), list(known), 1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def level_of_caller() -> int:
    """The ``stacklevel`` of a warning that shall point to the first caller outside this package."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("mlmc_dropout"):
        level, frame = level + 1, frame.f_back
    return level


class InputError(MLMCDropoutError, ValueError):
    """An argument has an invalid value."""


class LadderError(InputError):
    """The fidelities do not form a ladder."""


class AllocationError(InputError):
    """Counts or budget admit no feasible plan."""


class ModelError(MLMCDropoutError):
    """The model has no dropout that can be controlled, or draws random numbers that cannot be."""


class ModelWarning(UserWarning):
    """Something about the model may not be what its user expects; the message names it and the remedy."""


class NonFiniteOutputError(MLMCDropoutError):
    """Passes gave NaN or infinite outputs.

    Attributes:
        rows: The input rows concerned.
        partial: The result of the passes before, or ``None`` if there were too few of them.
    """

    def __init__(self, message: str, rows: NDArray[Any], partial: Any = None) -> None:
        super().__init__(message)
        self.rows = rows
        self.partial = partial

    def __reduce__(self) -> tuple[Any, ...]:  # workers send it to the main process
        return type(self), (str(self), self.rows, self.partial)


class ExecutionError(MLMCDropoutError, RuntimeError):
    """Workers died, could not be reached, or could not be sent their tasks."""


class CheckpointError(MLMCDropoutError):
    """A checkpoint is unreadable, cannot be written, or belongs to another run."""


class ResultFileError(MLMCDropoutError):
    """A result file is missing, damaged, or of another kind."""


class ConfigError(MLMCDropoutError):
    """A configuration has unknown keys or values of the wrong type."""


class RunDirectoryError(MLMCDropoutError):
    """A run directory cannot be written, or was not made by this library."""


class MissingExtraError(MLMCDropoutError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: run  pip install 'mlmc-dropout[{extra}]'")
