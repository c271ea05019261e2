"""Units of work that are remembered: an interrupted experiment goes on where it stopped."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Bar", "Lines", "ProgressCallback", "Work"]

Item = TypeVar("Item")
ProgressCallback = Callable[[str, int, int], None]  # what, units done, units in all


class Lines:
    """A line on stderr at the start, at the end, and every few seconds.

    Args:
        every_seconds: Least time between two lines.
    """

    def __init__(self, every_seconds: float = 5.0) -> None:
        self._every, self._shown = every_seconds, 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Print a line, unless the last one is recent.

        Args:
            what: Name of the work.
            done: Units done.
            total: Units in all.
        """
        now = time.monotonic()
        if done in (0, total) or now - self._shown >= self._every:
            self._shown = now
            print(f"{what}  {done}/{total}", file=sys.stderr, flush=True)


class Bar:
    """The same in one place, for a terminal."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Redraw the bar.

        Args:
            what: Name of the work.
            done: Units done.
            total: Units in all.
        """
        filled = round(24 * done / max(total, 1))
        end = "\n" if done == total else ""
        bar = "━" * filled + "╌" * (24 - filled)
        print(f"\r\033[K{bar} {done}/{total}  {what}", end=end, file=sys.stderr, flush=True)


class Work:
    """Results of units of work by name, kept in a file of JSON lines that belongs to one fingerprint.

    Args:
        path: The file.
        fingerprint: Results of another one are forgotten.
        label: Name of the experiment, for progress.
        show: Told how far it is.
    """

    def __init__(self, path: Path, fingerprint: str, label: str, show: ProgressCallback | None) -> None:
        self._path, self._label, self._show = path, label, show
        self._results: dict[str, Any] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        if lines and lines[0] == json.dumps(fingerprint):
            self._results = dict(entry for line in lines[1:] if (entry := _entry(line)) is not None)
        self._write([json.dumps(fingerprint), *(json.dumps(entry) for entry in self._results.items())])

    def _write(self, lines: list[str]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def each(self, name: str, items: Iterable[Item], function: Callable[[Item], Any]) -> list[Any]:
        """Apply a function to every item; items done earlier are not computed again.

        Args:
            name: Name of this kind of work.
            items: Items with distinct texts.
            function: Makes plain data of an item.

        Returns:
            One result per item, in order.
        """
        units = list(items)
        results = []
        for done, item in enumerate(units):
            self._report(name, done, len(units))
            key = f"{name} {item}"
            if key not in self._results:
                self._results[key] = function(item)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, self._results[key]]) + "\n")
            results.append(self._results[key])
        self._report(name, len(units), len(units))
        return results

    def _report(self, name: str, done: int, total: int) -> None:
        if self._show is not None:
            self._show(f"{self._label} {name}", done, total)

    def forget(self) -> None:
        """Remove the file, once the results are kept elsewhere."""
        self._path.unlink(missing_ok=True)


def _entry(line: str) -> tuple[str, Any] | None:
    """A line's key and value; a line cut short by a kill is no entry."""
    try:
        key, value = json.loads(line)
    except ValueError:
        return None
    return key, value
