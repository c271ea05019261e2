"""Telling the user how an evaluation goes: one line that is rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mlmc_dropout.errors import InputError
from mlmc_dropout.result.text import passes_in_words

__all__ = ["EvaluationEvent", "Show", "reporting"]

_CLEAR = "\r\x1b[2K"


@dataclass(frozen=True, slots=True)
class EvaluationEvent:
    """How far an evaluation is.

    Attributes:
        passes: Passes spent, per input.
        planned: Passes at the end of this round, per input; later rounds may come.
        levels: Levels so far.
        rows: Number of inputs.
        seconds: Since the start.
    """

    passes: float
    planned: float
    levels: int
    rows: int
    seconds: float

    def __str__(self) -> str:
        planned = passes_in_words(max(self.planned, self.passes))
        return (
            f"{passes_in_words(self.passes)} of about {planned} passes per input in this round, {self.rows} inputs, "
            f"{self.levels} level{'' if self.levels == 1 else 's'}, {self.seconds:.0f} s"
        )


Show = Callable[[EvaluationEvent], Any]


@contextlib.contextmanager
def reporting(progress: bool | Show) -> Iterator[Show | None]:
    """Who is told how an evaluation goes, while it does.

    Args:
        progress: ``True``: a line on a terminal that is gone in the end, lines elsewhere, both on stderr; a function is
            called with every event.

    Yields:
        The function, or ``None``.

    Raises:
        InputError: If it is neither.
    """
    if callable(progress):
        yield progress
        return
    if not isinstance(progress, bool):
        raise InputError(f"progress is True, False or a function of an event: got {progress!r}")
    if not progress:
        yield None
    elif not sys.stderr.isatty():
        yield lambda event: print(event, file=sys.stderr, flush=True)
    else:
        try:
            yield _rewrite
        finally:
            print(_CLEAR, end="", file=sys.stderr, flush=True)


def _rewrite(event: EvaluationEvent) -> None:
    width = shutil.get_terminal_size().columns - 1
    print(f"{_CLEAR}{str(event)[:width]}", end="", file=sys.stderr, flush=True)
