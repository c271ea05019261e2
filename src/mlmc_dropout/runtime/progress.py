"""Telling the user how an estimate goes: a bar on a terminal, plain lines elsewhere, or a function of theirs."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from mlmc_dropout.errors import InputError
from mlmc_dropout.runtime.run import Run

__all__ = ["Event", "LongRunWarning", "Reporter", "reporter_for"]

FORECAST_AFTER = 5.0  # seconds from which the speed is known
LONG = 3600.0  # seconds that are worth a word


class LongRunWarning(UserWarning):
    """A run will take very long."""


@dataclass(frozen=True, slots=True)
class Event:
    """How far a run is, for the batch of inputs that was worked on last.

    ``passes`` of about ``planned`` passes per input are merged; ``mean_stderr`` and
    ``variance_stderr`` are the largest standard errors so far (NaN before there are any); ``rows``
    is the number of inputs in finished batches; ``eta`` the seconds this batch is expected to take. ``settled`` of the
    ``inputs`` of this batch get no more passes.
    """

    passes: float
    planned: float
    mean_stderr: float
    variance_stderr: float
    rows: int
    seconds: float
    eta: float
    settled: int = 0
    inputs: int = 0

    def __str__(self) -> str:
        settled = f"{self.settled} of {self.inputs} inputs done, " if self.settled else ""
        return (
            f"{self.passes:.0f} of about {self.planned:.0f} passes, {settled}largest standard error "
            f"{self.mean_stderr:.2e} (mean) {self.variance_stderr:.2e} (variance), {_clock(self.eta)} left"
        )


Show = Callable[[Event], Any]


class Reporter:
    """Makes events of what runs have merged, at most one every ``every`` seconds, and hands them on."""

    def __init__(self, show: Show | None = None, every: float = 0.5, close: Callable[[], None] | None = None) -> None:
        self._show, self._every, self._close = show, every, close
        self._start = self._last = time.monotonic()
        self._opened: dict[int, tuple[float, float]] = {}  # of a batch: when it was first seen, and its passes then
        self._rows = 0
        self._forecast = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._close is not None:
            self._close()

    def __call__(self, run: Run) -> None:
        """Something of ``run`` was merged."""
        now = time.monotonic()
        since, _ = self._opened.setdefault(run.index, (now, run.passes()))
        if self._show is None:
            if not self._forecast and now - since > FORECAST_AFTER:
                self._forecast = True
                _warn_if_long(self._left(run, now))
            return
        if run.finished:
            self._rows += run.source.batch.rows
        elif now - self._last < self._every:
            return
        self._last = now
        self._show(self._event(run, now))

    def _event(self, run: Run, now: float) -> Event:
        found = run.interim()
        apart = run.source.observation.cost  # of passes beside those of the method, as for quantiles
        passes, planned, eta = run.passes() + apart, run.planned() + apart, self._left(run, now)
        largest = [float("nan")] * 2 if found is None else [np.max(found.mean_stderr), np.max(found.variance_stderr)]
        return Event(
            passes,
            planned,
            float(largest[0]),
            float(largest[1]),
            self._rows,
            now - self._start,
            eta,
            run.settled if run.goal.adaptive else 0,
            run.source.batch.rows,
        )

    def _left(self, run: Run, now: float) -> float:
        """Seconds the batch still takes, at the speed so far."""
        since, first = self._opened[run.index]
        rate = (run.passes() - first) / max(now - since, 1e-9)
        return (run.planned() - run.passes()) / rate if rate > 0 else float("nan")


def _warn_if_long(seconds: float) -> None:
    """Somebody who has asked for no progress, and for very much, is told once."""
    if seconds > LONG:
        days = f" ({seconds / 86400:.3g} days)" if seconds > 2 * 86400 else ""
        warnings.warn(
            f"at the present speed this takes another {_clock(seconds)}{days} for this batch of inputs; Ctrl-C returns "
            "what there is, checkpoint= keeps it, and progress=True shows how it goes",
            LongRunWarning,
            stacklevel=2,
        )


def reporter_for(progress: bool | Show) -> Reporter:
    """Who is told how an estimate goes.

    Args:
        progress: ``True``: a bar on a terminal, lines elsewhere, both on stderr; a function is called with every event.

    Returns:
        The reporter.

    Raises:
        InputError: If it is neither.
    """
    if callable(progress):
        return Reporter(progress)
    if not isinstance(progress, bool):
        raise InputError(f"progress is True, False or a function of an event: got {progress!r}")
    if not progress:
        return Reporter()
    return _bar() if sys.stderr.isatty() else Reporter(_line, every=10.0)


def _line(event: Event) -> None:
    print(event, file=sys.stderr, flush=True)


def _bar() -> Reporter:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(bar_width=16), TextColumn("{task.description}"))
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("starting", total=None)
    bar.start()
    return Reporter(
        lambda event: bar.update(task, completed=event.passes, total=event.planned, description=_short(event)),
        close=bar.stop,
    )


def _short(event: Event) -> str:
    """For a bar beside which 63 characters are left: 80 columns hold it."""
    speed = (event.planned - event.passes) / event.eta if event.eta > 0 else float("nan")
    rate = f", {speed:.{0 if speed >= 10 else 1}f}/s" if np.isfinite(speed) else ""
    left = f", {_clock(event.eta)} left" if np.isfinite(event.eta) else ""
    done = f", {event.settled}/{event.inputs} inputs done" if event.settled else ""
    error = f", ± {event.mean_stderr:.1e}" if np.isfinite(event.mean_stderr) else ""
    return f"{event.passes:.0f}/{event.planned:.0f} passes{rate}{left}{done}{error}"


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> _clock(3725.0), _clock(float("nan"))
    ('1:02:05', 'unknown time')
    """
    if not np.isfinite(seconds):
        return "unknown time"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
