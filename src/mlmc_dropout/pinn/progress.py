"""Telling the user how a training run goes: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol, Self

__all__ = ["Bar", "Lines", "Silent", "TrainingProgress", "automatic"]


class TrainingProgress(Protocol):
    """Shown while it is entered; ``update`` is called after every window."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def begin(self, done: int, epochs: int) -> None:
        """Show that training begins or goes on.

        Args:
            done: Epochs done before.
            epochs: Epochs in all.
        """

    def update(self, done: int, losses: Mapping[str, float]) -> None:
        """Show how far it is.

        Args:
            done: Epochs done.
            losses: Average loss of the last window: the total and its terms by name.
        """

    def say(self, line: str) -> None:
        """Show a line of text.

        Args:
            line: The text.
        """


def automatic() -> TrainingProgress:
    """A bar if stderr is a terminal and rich is installed, lines otherwise."""
    if sys.stderr.isatty():
        try:
            return Bar()
        except ImportError:
            pass
    return Lines()


class Silent:
    """Nothing is shown."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def begin(self, done: int, epochs: int) -> None:
        """Show nothing.

        Args:
            done: Epochs done before.
            epochs: Epochs in all.
        """

    def update(self, done: int, losses: Mapping[str, float]) -> None:
        """Show nothing.

        Args:
            done: Epochs done.
            losses: Average losses by name.
        """

    def say(self, line: str) -> None:
        """Show nothing.

        Args:
            line: The text.
        """


class Lines(Silent):
    """A line on stderr now and then, for logs.

    Args:
        every_seconds: Least time between two lines about epochs.
    """

    def __init__(self, every_seconds: float = 10.0) -> None:
        self._every = every_seconds
        self._first = self._epochs = 0
        self._started = self._shown = time.monotonic()

    def begin(self, done: int, epochs: int) -> None:
        """Start the clock by which the time left is estimated.

        Args:
            done: Epochs done before.
            epochs: Epochs in all.
        """
        self._first, self._epochs = done, epochs
        self._started = time.monotonic()
        self._shown = self._started - self._every

    def update(self, done: int, losses: Mapping[str, float]) -> None:
        """Print a line, unless the last one is recent.

        Args:
            done: Epochs done.
            losses: Average losses by name.
        """
        now = time.monotonic()
        if now - self._shown < self._every and done < self._epochs:
            return
        self._shown = now
        left = (now - self._started) / max(done - self._first, 1) * (self._epochs - done)
        self.say(f"epoch {done}/{self._epochs}  {_terms(losses)}  {_clock(left)} left")

    def say(self, line: str) -> None:
        """Print a line.

        Args:
            line: The text.
        """
        print(line, file=sys.stderr, flush=True)


class Bar(Silent):
    """A progress bar on stderr, with the total loss and the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[losses]}"), TimeRemainingColumn())
        self._bar = RichProgress(*columns, console=Console(stderr=True))
        self._task: Any = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def begin(self, done: int, epochs: int) -> None:
        """Show the bar.

        Args:
            done: Epochs done before.
            epochs: Epochs in all.
        """
        self._task = self._bar.add_task("", total=epochs, completed=done, losses="")

    def update(self, done: int, losses: Mapping[str, float]) -> None:
        """Move the bar.

        Args:
            done: Epochs done.
            losses: Average losses by name.
        """
        shown = _terms({"total": losses["total"]})  # all of them are wider than a terminal; the history has the others
        self._bar.update(self._task, completed=done, losses=shown)

    def say(self, line: str) -> None:
        """Print a line above the bar.

        Args:
            line: The text.
        """
        self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)  # commands stay in one piece


def _terms(losses: Mapping[str, float]) -> str:
    return " ".join(f"{name} {loss:.2e}" for name, loss in losses.items())


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> _clock(3725.0)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
